"""Asks a cluster, from wherever a session can be had. Client."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from krishiv_spark.operate.doctor.comparing import compare
from krishiv_spark.operate.doctor.findings import Finding
from krishiv_spark.operate.doctor.questions import Questions
from krishiv_spark.operate.doctor.reports import Report, report
from krishiv_spark.operate.doctor.source import DoctorSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["examine"]

_MISSING = re.compile(r"No module named '([\w.]+)'")
_OTHER_PYTHON = "PYTHON_VERSION_MISMATCH"


def examine(spark: SparkSession, asked: Questions) -> list[Finding]:
    """Ask the driver and its executors; what was made for it goes again."""
    begun_s = time.time()
    try:
        spark.dataSource.register(DoctorSource)
        rows = _load(spark, asked, cleans=False)
    except Exception as error:  # noqa: BLE001  Spark's clients raise what they like
        return [_failed(str(error))]
    finally:
        _clean(spark, asked)
    reports = [Report.model_validate_json(text) for text in rows]
    return compare(report("client", begun_s, []), reports)


def _load(spark: SparkSession, asked: Questions, *, cleans: bool) -> list[str]:
    reader = spark.read.format(DoctorSource.name())
    rows = reader.options(**asked.as_options(cleans=cleans)).load().collect()
    return [row.report for row in rows]


def _clean(spark: SparkSession, asked: Questions) -> None:
    with suppress(Exception):  # it has failed in the same way before
        _load(spark, asked, cleans=True)


def _failed(text: str) -> Finding:
    """Why Spark could not ask: of its hundred lines the one that says something."""
    if missing := _MISSING.search(text):
        return Finding(
            level="WRONG",
            text=f"the Python that Spark runs has no module {missing[1]!r}",
            advice="set PYSPARK_PYTHON to one that has krishiv-spark, on the driver's machine and "
            "on each worker, or send an environment with the job (docs/deploy.md)",
        )
    if _OTHER_PYTHON in text:
        return Finding(
            level="WRONG",
            text="driver and executors have different versions of Python",
            advice="set PYSPARK_PYTHON to the same one on each machine (docs/deploy.md)",
        )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [line for line in lines if "Error" in line or "Exception" in line]
    return Finding(
        level="WRONG",
        text=f"Spark runs no Python data source: {(said or lines or ['no reason given'])[-1]}",
        advice="look into the logs of driver and executors",
    )
