"""What a process tells of the machine that it runs on. Client, planner, tasks."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
import time
from importlib import metadata
from typing import Literal

import pyspark
from pydantic import BaseModel

from krishiv_spark.operate.doctor.findings import Finding

__all__ = ["OPTIONAL", "Report", "Role", "report"]

Role = Literal["client", "driver", "task"]

_NEEDED = (
    *("krishiv-spark", "pyarrow", "pandas", "pydantic", "obstore"),
    *("kafka-python", "pyiceberg"),
)
OPTIONAL = ("numba", "crc32c", "boto3")
"""Packages that a cluster may do without, but then everywhere."""

_LEAST_FREE = 2**30
"""Bytes."""


class Report(BaseModel, frozen=True):
    """Of one process.

    Attributes:
        role: What it is to Spark.
        host: The machine's name.
        executor: Number of the process that Spark's workers descend from: with the host, an
            executor's name.
        begun_s: When it began, by its machine's clock, seconds since 1970.
        ended_s: When it wrote this.
        python: Its version.
        prefix: Where its environment is.
        versions: Of packages, by name; those that are missing are left out.
        full: Folders for temporary files with less than 1 GiB left.
        found: What it has found out.
    """

    role: Role
    host: str
    executor: int
    begun_s: float
    ended_s: float
    python: str
    prefix: str
    versions: dict[str, str]
    full: list[str]
    found: list[Finding] = []

    def __str__(self) -> str:
        return f"{'executor' if self.role == 'task' else self.role} on {self.host}"


def report(role: Role, begun_s: float, found: list[Finding]) -> Report:
    """Of this process."""
    return Report(
        role=role,
        host=platform.node(),
        executor=os.getppid(),
        begun_s=begun_s,
        ended_s=time.time(),
        python=platform.python_version(),
        prefix=sys.prefix,
        versions=_versions(),
        full=[folder for folder in _local_folders() if _free(folder) < _LEAST_FREE],
        found=found,
    )


def _versions() -> dict[str, str]:
    found = {"pyspark": pyspark.__version__}  # Spark's own, whatever is installed beside it
    for name in (*_NEEDED, *OPTIONAL):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _local_folders() -> list[str]:
    """Those of Spark, which it names to its workers, or else that for temporary files."""
    named = os.environ.get("SPARK_LOCAL_DIRS", "")
    return [each for each in named.split(",") if each] or [tempfile.gettempdir()]


def _free(folder: str) -> int:
    """Bytes; Spark may have removed the folder of a session that is over."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return _LEAST_FREE
