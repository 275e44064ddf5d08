"""The machine, the system and the packages that the benchmarks run on."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib.metadata import version
from pathlib import Path

import psutil

from benchmarks.report.results import Machine

__all__ = ["commit", "filesystem", "machine", "versions"]

_ROOT = Path(__file__).parents[2]
_PACKAGES = ("pyspark", "pyarrow", "pyiceberg", "kafka-python", "krishiv-spark")


def machine(folder: Path) -> Machine:
    """Return the description of this machine, and of the file system of a folder."""
    return Machine(
        system=platform.platform(),
        processor=_processor(),
        cores=_cores(),
        memory=psutil.virtual_memory().total,
        filesystem=filesystem(folder),
    )


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _processor() -> str:
    """Linux tells the model in a file only."""
    try:
        found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()


def filesystem(folder: Path) -> str:
    """Return the type of the file system of a folder, such as ext4; empty if it is unknown."""
    place = folder.resolve()
    mounts = {Path(part.mountpoint): part.fstype for part in psutil.disk_partitions(all=True)}
    return next((mounts[each] for each in (place, *place.parents) if each in mounts), "")


def versions() -> dict[str, str]:
    """Of Python, Java, Kafka's broker, and the packages that are measured."""
    from krishiv_spark.kafka.dev.brokers import KAFKA_VERSION

    found = {name: version(name) for name in _PACKAGES}
    return {
        "Python": platform.python_version(),
        **found,
        "Java": _java(),
        "Kafka broker": KAFKA_VERSION,
    }


def _java() -> str:
    from krishiv_spark.errors import KrishivError
    from krishiv_spark.kafka.dev.maven import java

    try:
        told = _output(java(), "-version")
    except (KrishivError, OSError):
        return "missing"
    found = re.search(r'version "([^"]+)"', told)
    return found[1] if found else "unknown"


def commit() -> tuple[str, bool]:
    """Return the repository's commit, and whether files differ from it; ("", False) if none."""
    try:
        name = _output("git", "rev-parse", "HEAD", check=True).strip()
        return name, bool(_output("git", "status", "--porcelain", "-uno", check=True).strip())
    except (OSError, subprocess.CalledProcessError):
        return "", False


def _output(*command: str, check: bool = False) -> str:
    done = subprocess.run(
        command,
        cwd=_ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=check,
    )
    return done.stdout
