"""Living in Spark's Python workers, which are reused from task to task."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import os
import socket
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath
from typing import TypeVar
from zipimport import zipimporter

__all__ = ["application", "is_of_spark", "local_folder", "promptly", "tune_worker"]

T = TypeVar("T")

_ARCHIVES = ("pyspark.zip", "py4j-", "spark-core_")
"""How those begin that Spark puts on the path of its workers (``PythonUtils.sparkPythonPath``)."""


_INTERNET, _LOOPBACK = (socket.AF_INET, socket.AF_INET6), ("127.", "::1")

_LOCAL_DIRS, _OF_ONE_APPLICATION = "SPARK_LOCAL_DIRS", "blockmgr-"
"""Spark names its scratch folders to its Python workers, each with a folder that is new for each
JVM (``DiskBlockManager``), so that workers of one driver know each other. What a user may have set
under the same name does not begin so."""


def application() -> str | None:
    """A name that all Python workers of one driver share, and no other; None if there is none."""
    folder = _own_folder()
    return None if folder is None else folder.name


def local_folder() -> Path:
    """A folder on this machine that workers of one driver share, for as long as it lives."""
    return _own_folder() or Path(tempfile.gettempdir())


def _own_folder() -> Path | None:
    folders = os.environ.get(_LOCAL_DIRS, "").split(",")
    ours = (each for each in folders if _OF_ONE_APPLICATION in each)
    return next((p for p in map(Path, ours) if p.name.startswith(_OF_ONE_APPLICATION)), None)


def tune_worker() -> None:
    """Spare this worker what PySpark does around every task, over what tasks never change.

    To be called in each task. It does nothing but in Spark's workers.
    """
    if _started_as() == "pyspark.daemon":
        _freeze(len(sys.modules))
        _leave_archives()
        _acknowledge_at_once()
        _keep_memory()
        _collect_rarely()


def promptly(batches: Iterable[T]) -> Iterator[T]:
    """What the JVM sends to a task, of which no part waits for an acknowledgement.

    Args:
        batches: As PySpark hands them to the function of a task.
    """
    # Once more after each: the kernel answers at once for a few messages only.
    for batch in batches:
        yield batch
        if _started_as() == "pyspark.daemon":
            _acknowledge_at_once()


def is_of_spark() -> bool:
    """Whether this process is one of Spark's Python workers, of any kind."""
    return _started_as().startswith("pyspark.")


def _started_as() -> str:
    """The module that this process runs, by ``python -m``; empty for none."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return "" if spec is None else str(spec.name)


@functools.lru_cache(maxsize=1)
def _freeze(_modules: int) -> None:
    """Keep what is imported out of the collection after each task.

    ``pyspark.daemon`` calls ``gc.collect()`` there, while the JVM already goes on. Over the modules
    of pyarrow, pydantic and pyspark that is 20 ms of a core each time, more than a small epoch
    costs. Frozen objects are passed over (``gc.freeze``); reference counting frees them as before.
    Done again only when there are modules that were not there the last time, as those that the
    first task has imported.
    """
    gc.collect()
    gc.freeze()


_COLLECTED_AFTER = 50_000
"""Objects that can hold others; Python's own 700 or 2 000 are those of some dozen files."""


def _collect_rarely() -> None:
    """Look for cycles when there are many more new objects than Python waits for by itself.

    A planner makes some objects for each file, partition or manifest that it lists, and none of
    them in cycles: half of the time that 100 000 files of an Iceberg table took was spent on
    looking through them, again and again. Who has set more, or turned the collector off, has
    decided otherwise.
    """
    first, *others = gc.get_threshold()
    if 0 < first < _COLLECTED_AFTER:
        gc.set_threshold(_COLLECTED_AFTER, *others)


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's ``mallopt(3)``."""

_DECIDED = "MALLOC_TRIM_THRESHOLD_"
"""What glibc reads the first of these from."""

_KEPT_BYTES = 128 * 2**20
"""Twice the rows that a task gathers before it writes them (`arrow.partition_files`)."""

_MAPPED_BYTES = 32 * 2**20
"""The most that glibc takes for this parameter."""


@functools.lru_cache(maxsize=1)
def _keep_memory() -> bool:
    """Let this worker use the memory again that its rows have left, instead of giving it back.

    PySpark reads each batch into a new ``bytes`` of a megabyte. A task gathers some dozens of them
    and lets go of all, upon which glibc gives the memory to the kernel, and gets it back page by
    page, each cleared: 24 000 faults for a million rows of 90 bytes, half of the system time of
    writing them. So much is kept by the main thread of a worker that has nothing to do; by each
    other thread that has had rows at the same time 64 MiB, the size of its heaps. Who has set
    ``MALLOC_TRIM_THRESHOLD_`` in a worker's environment has decided otherwise.

    Returns:
        Whether it was set: elsewhere than in glibc there is no such setting.
    """
    if _DECIDED in os.environ:
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    kept = mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
    return bool(kept and mallopt(_MMAP_THRESHOLD, _MAPPED_BYTES))


def _leave_archives() -> None:
    """Keep Spark's own archives out of ``importlib.invalidate_caches()``.

    ``setup_spark_files`` of PySpark 4.0 and 4.1 calls it at the begin of each task, and up to
    Python 3.12 each finder in an archive then reads its directory again: 150 ms of a core for
    Spark's, one finder for each package in it, though they never change. Without a place in the
    cache of finders they are passed over; the next import that searches makes new ones from the
    directories that `zipimport` has kept.
    """
    cache = sys.path_importer_cache
    for path in [path for path, finder in cache.items() if _of_spark(finder)]:
        del cache[path]


def _acknowledge_at_once() -> None:
    """Let the kernel acknowledge what the JVM sends, instead of waiting for an answer to go along.

    The JVM writes rows to a task in small pieces: the stream's schema, then a batch. Its kernel
    keeps a small piece back until the one before is acknowledged (Nagle's algorithm, which Spark
    leaves on), and ours waits 40 ms with that. So every task of an epoch with few rows waited, of
    each sink in Python. Linux forgets the setting when it has answered, hence in each task;
    elsewhere there is none, and on a Unix socket (``spark.python.unix.domain.socket.enabled``,
    Spark 4.1) no need.
    """
    quickly = getattr(socket, "TCP_QUICKACK", None)
    if quickly is None:
        return
    for descriptor in _local_connections():
        with contextlib.suppress(OSError):  # it has been closed since
            _set_option(descriptor, quickly)


def _set_option(descriptor: int, option: int) -> None:
    borrowed = socket.socket(fileno=descriptor)
    try:
        borrowed.setsockopt(socket.IPPROTO_TCP, option, 1)
    finally:
        borrowed.detach()


@functools.lru_cache(maxsize=1)
def _local_connections() -> tuple[int, ...]:
    """The descriptors of this process's TCP connections within the machine.

    When a worker's first task begins, the one to the JVM is there. It lasts as long as the worker;
    PySpark keeps it in no place of its own.
    """
    return tuple(filter(_is_local_connection, map(int, os.listdir("/proc/self/fd"))))


def _is_local_connection(descriptor: int) -> bool:
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return False
        borrowed = socket.socket(fileno=descriptor)
    except OSError:  # that of the listing itself, which is gone
        return False
    try:
        is_tcp = borrowed.family in _INTERNET and borrowed.type == socket.SOCK_STREAM
        return is_tcp and borrowed.getpeername()[0].startswith(_LOOPBACK)
    except OSError:  # it listens, or is closed at the other end
        return False
    finally:
        borrowed.detach()


def _of_spark(finder: object) -> bool:
    name = PurePath(finder.archive).name if isinstance(finder, zipimporter) else ""
    return name.startswith(_ARCHIVES)
