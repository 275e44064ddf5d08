"""Jobs that are written down: what is read, made and written, in one file. Driver.

    from krishiv_spark import jobs

    loaded = jobs.load("orders.yaml", variables={"DAY": "2013-01-01"})
    jobs.JobRunner(spark, print).run(loaded)

``krishiv-spark run orders.yaml`` does the same; docs/jobs.md says what stands in the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from krishiv_spark.runtime.lazy import find

if TYPE_CHECKING:
    from krishiv_spark.jobs.loading import load
    from krishiv_spark.jobs.ready import LoadedJobs
    from krishiv_spark.jobs.running import JobRunner
    from krishiv_spark.jobs.schema import job_schema

__all__ = ["JobRunner", "LoadedJobs", "job_schema", "load"]

_HOMES = {
    "JobRunner": "krishiv_spark.jobs.running",
    "LoadedJobs": "krishiv_spark.jobs.ready",
    "job_schema": "krishiv_spark.jobs.schema",
    "load": "krishiv_spark.jobs.loading",
}


def __getattr__(name: str) -> object:
    return find(__name__, _HOMES, name)
