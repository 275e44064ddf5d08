"""Memory limits of a Python process of Spark, and the settings that raise them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["describe_memory_limits", "is_memory_error"]

_GROUPS = Path("/sys/fs/cgroup")
_NO_ADDRESSES = "failed to map segment"
"""The dynamic loader's text if a library does not fit into the address space."""

_MEBIBYTE = 2**20


def is_memory_error(error: BaseException) -> bool:
    """Return True if the process had too little memory, also for the import of a library."""
    if isinstance(error, ImportError):
        return _NO_ADDRESSES in str(error)
    return isinstance(error, MemoryError)  # Arrow's error is one too


def describe_memory_limits() -> str:
    """Return the limits of this process in one sentence, and the setting that raises the lowest.

    Spark limits the address space of tasks (``spark.executor.pyspark.memory``), which contains the
    libraries too. Planners, committers and streaming sources have the limit of their container
    only, that of the driver.
    """
    if (limit := _find_address_limit()) is not None:
        return (
            f"It may have {limit // _MEBIBYTE} MiB of addresses, libraries included: raise "
            "spark.executor.pyspark.memory, which Spark divides by the cores of an executor"
        )
    container = min(_find_group_limits(), default=None)
    begin = "R" if container is None else f"Its container may have {container // _MEBIBYTE} MiB: r"
    return (
        f"{begin}aise spark.executor.memoryOverhead (spark.driver.memoryOverhead if this is a "
        "planner, a committer or a streaming source), or lower spark.executor.cores"
    )


def _find_address_limit() -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def _find_group_limits() -> Iterator[int]:
    """Yield the limits of the control groups of this process, version 2 and 1, in bytes."""
    for path in _list_group_files():
        with contextlib.suppress(OSError, ValueError):  # "max" if there is none
            limit = int(path.read_text())
            if limit < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
                yield limit


def _list_group_files() -> Iterator[Path]:
    yield _GROUPS / "memory.max"
    yield _GROUPS / "memory" / "memory.limit_in_bytes"
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                yield _GROUPS / path.lstrip("/") / "memory.max"
            elif "memory" in controllers.split(","):
                yield _GROUPS / "memory" / path.lstrip("/") / "memory.limit_in_bytes"
