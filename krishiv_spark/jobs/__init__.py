"""Job files, which declare the inputs, steps and outputs of jobs. Driver.

::

    from krishiv_spark import jobs

    loaded = jobs.load("orders.yaml", variables={"DAY": "2013-01-01"})
    jobs.JobRunner(spark, print).run(loaded)

``krishiv-spark run orders.yaml`` does the same; docs/jobs.md describes the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from krishiv_spark.runtime.lazy import find

if TYPE_CHECKING:
    from krishiv_spark.jobs.file import load
    from krishiv_spark.jobs.models import job_schema
    from krishiv_spark.jobs.plan import LoadedJobs
    from krishiv_spark.jobs.runner import JobRunner

__all__ = ["JobRunner", "LoadedJobs", "job_schema", "load"]

_HOMES = {
    "JobRunner": "krishiv_spark.jobs.runner",
    "LoadedJobs": "krishiv_spark.jobs.plan",
    "job_schema": "krishiv_spark.jobs.models",
    "load": "krishiv_spark.jobs.file",
}


def __getattr__(name: str) -> object:
    return find(__name__, _HOMES, name)
