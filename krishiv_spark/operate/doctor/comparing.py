"""What the reports of several machines say together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from krishiv_spark.operate.doctor.findings import SYNCHRONISE, Finding, Findings
from krishiv_spark.operate.doctor.reports import Report

__all__ = ["compare"]

_SAME = "install the same on each machine, or send one environment with the job (docs/deploy.md)"
_TOLERATED_S = 1.0
_FAULTY_PYSPARK = "4.0.0"


def compare(client: Report, others: Sequence[Report]) -> list[Finding]:
    """All that is to be said.

    Args:
        client: Of the process that asks; it ended when all others had.
        others: One of the driver, and of each task.
    """
    said = Findings()
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


def _tell(said: Findings, driver: Report, tasks: Sequence[Report]) -> None:
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
    """One report for each executor."""
    return list({(each.role, each.host, each.executor): each for each in reports}.values())


def _compare_versions(said: Findings, driver: Report, other: Report) -> None:
    if other.python != driver.python:
        text = f"{other}: Python {other.python}, the driver has {driver.python}"
        is_near = other.python.split(".")[:2] == driver.python.split(".")[:2]
        (said.note if is_near else said.wrong)(text, _SAME)
    for name in sorted({*driver.versions, *other.versions}):
        ours, theirs = (each.versions.get(name, "is missing") for each in (driver, other))
        if ours != theirs:
            said.wrong(f"{other}: {name} {theirs}; on the driver: {ours}", _SAME)


def _check_space(said: Findings, each: Report) -> None:
    for folder in each.full:
        said.wrong(
            f"{each}: less than 1 GiB is free in {folder}",
            "make room, or give Spark another folder ('spark.local.dir')",
        )


def _check_clock(said: Findings, client: Report, each: Report) -> None:
    """It began after the client had, and ended before it: by a clock that says otherwise, wrong."""
    off_s = max(client.begun_s - each.begun_s, each.ended_s - client.ended_s)
    if off_s > _TOLERATED_S:
        said.wrong(
            f"{each}: its clock is {off_s:.0f} s or more off that of the machine that asks",
            SYNCHRONISE,
        )


def _told_once(tasks: Sequence[Report]) -> list[Finding]:
    """What tasks have found: what is well of all, what is not of each executor."""
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
