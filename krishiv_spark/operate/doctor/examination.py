"""The examination of a cluster: it runs the checks, and compares the reports. Client."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from krishiv_spark.operate.doctor.probe import DoctorSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

from krishiv_spark.operate.doctor.findings import (
    SYNCHRONISE,
    Finding,
    FindingList,
    Questions,
    Report,
    report,
)

__all__ = ["compare", "examine"]

_SAME = "install the same on each machine, or send one environment with the job (docs/deploy.md)"
_TOLERATED_S = 1.0
_FAULTY_PYSPARK = "4.0.0"


def compare(client: Report, others: Sequence[Report]) -> list[Finding]:
    """Return all findings about the cluster.

    Args:
        client: The report of the client, which ended after all others.
        others: The reports of the driver and of each task.
    """
    said = FindingList()
    driver = next(each for each in others if each.role == "driver")
    tasks = [each for each in others if each.role == "task"]
    _tell(said, driver, tasks)
    for each in _one_of_each(tasks):
        _compare_versions(said, driver, each)
    for each in _one_of_each((driver, *tasks)):
        _check_space(said, each)
        _check_clock(said, client, each)
    said.found += driver.found
    said.found += _told_once(tasks)
    return said.found


def _tell(said: FindingList, driver: Report, tasks: Sequence[Report]) -> None:
    listed = ", ".join(f"{name} {version}" for name, version in driver.versions.items())
    said.ok(f"{driver}: Python {driver.python} in {driver.prefix}, {listed}")
    for each in _one_of_each(tasks):
        said.ok(f"{each}: Python {each.python} in {each.prefix}")
    if driver.versions.get("pyspark") == _FAULTY_PYSPARK:
        said.note(
            f"{driver}: Spark {_FAULTY_PYSPARK}, whose history server runs code that an event log "
            "names (CVE-2025-54920)",
            "install Spark 4.0.1 or newer",
        )


def _one_of_each(reports: Iterable[Report]) -> list[Report]:
    """Return one report for each executor."""
    return list({(each.role, each.host, each.executor): each for each in reports}.values())


def _compare_versions(said: FindingList, driver: Report, other: Report) -> None:
    if other.python != driver.python:
        text = f"{other}: Python {other.python}, the driver has {driver.python}"
        is_near = other.python.split(".")[:2] == driver.python.split(".")[:2]
        (said.note if is_near else said.wrong)(text, _SAME)
    for name in sorted({*driver.versions, *other.versions}):
        ours, theirs = (each.versions.get(name, "is missing") for each in (driver, other))
        if ours != theirs:
            said.wrong(f"{other}: {name} {theirs}; on the driver: {ours}", _SAME)


def _check_space(said: FindingList, each: Report) -> None:
    for folder in each.full:
        said.wrong(
            f"{each}: less than 1 GiB is free in {folder}",
            "make room, or give Spark another folder ('spark.local.dir')",
        )


def _check_clock(said: FindingList, client: Report, each: Report) -> None:
    """Report a clock that is outside of the client's time."""
    off_s = max(client.begun_s - each.begun_s, each.ended_s - client.ended_s)
    if off_s > _TOLERATED_S:
        said.wrong(
            f"{each}: its clock is {off_s:.0f} s or more off that of the machine that asks",
            SYNCHRONISE,
        )


def _told_once(tasks: Sequence[Report]) -> list[Finding]:
    """Return the findings of tasks: positive ones once, others for each executor."""
    well = {one.text: one for each in tasks for one in each.found if one.level == "ok"}
    wrong = [
        one.model_copy(update={"text": f"{each}: {one.text}"})
        for each in _one_of_each(tasks)
        for one in each.found
        if one.level != "ok"
    ]
    if wrong:
        return wrong
    return [one.model_copy(update={"text": f"each task: {one.text}"}) for one in well.values()]


_MISSING = re.compile(r"No module named '([\w.]+)'")
_OTHER_PYTHON = "PYTHON_VERSION_MISMATCH"


def examine(spark: SparkSession, asked: Questions) -> list[Finding]:
    """Run the checks on the driver and its executors, and remove the files that they created."""
    begun_s = time.time()
    try:
        spark.dataSource.register(DoctorSource)
        rows = _load(spark, asked, cleans=False)
    except Exception as error:  # noqa: BLE001  Spark's clients raise errors of any class
        return [_explain_failure(str(error))]
    finally:
        _clean(spark, asked)
    reports = [Report.model_validate_json(text) for text in rows]
    return compare(report("client", begun_s, []), reports)


def _load(spark: SparkSession, asked: Questions, *, cleans: bool) -> list[str]:
    reader = spark.read.format(DoctorSource.name())
    rows = reader.options(**asked.as_options(cleans=cleans)).load().collect()
    return [row.report for row in rows]


def _clean(spark: SparkSession, asked: Questions) -> None:
    with suppress(Exception):  # the same error is reported already
        _load(spark, asked, cleans=True)


def _explain_failure(text: str) -> Finding:
    """Return a finding with the line of Spark's error that contains the reason."""
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
        advice="check the logs of driver and executors",
    )
