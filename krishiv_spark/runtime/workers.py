"""Spark's Python workers: their tuning, and the file that a crashed one has read.

Spark reuses them from task to task. Each setting was measured (docs/performance.md).
``KRISHIV_SPARK_TUNE_WORKERS=off`` in the environment of the workers leaves all of them unchanged.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import gc
import os
import re
import socket
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import TypeVar, cast

from krishiv_spark.runtime.archives import is_in_archive, is_tuned, module_of_process

__all__ = [
    "application",
    "file_of_crash",
    "is_of_spark",
    "local_folder",
    "name_call",
    "name_rows",
    "tune_worker",
    "with_quick_acks",
]

T = TypeVar("T")

_INTERNET, _LOOPBACK = (socket.AF_INET, socket.AF_INET6), ("127.", "::1")

_LOCAL_DIRS, _OF_ONE_APPLICATION = "SPARK_LOCAL_DIRS", "blockmgr-"
"""Spark passes its scratch folders to its Python workers. Each contains a folder that is new for
each JVM (``DiskBlockManager``), by which workers of one driver recognize each other. A value that a
user has set under the same name does not contain it."""


def application() -> str | None:
    """Return the name that only the Python workers of one driver share; None if there is none."""
    folder = _own_folder()
    return None if folder is None else folder.name


def local_folder() -> Path:
    """Return a folder on this machine that workers of one driver share, as long as it lives."""
    return _own_folder() or Path(tempfile.gettempdir())


def _own_folder() -> Path | None:
    folders = os.environ.get(_LOCAL_DIRS, "").split(",")
    ours = (each for each in folders if _OF_ONE_APPLICATION in each)
    return next((p for p in map(Path, ours) if p.name.startswith(_OF_ONE_APPLICATION)), None)


def tune_worker() -> None:
    """Skip work that PySpark repeats around every task on objects that tasks never change.

    Call it in each task. It does nothing outside Spark's workers, and nothing in a worker whose
    environment has ``KRISHIV_SPARK_TUNE_WORKERS=off``.
    """
    if is_tuned():
        _freeze(len(sys.modules))
        _leave_archives()
        _acknowledge_at_once()
        _keep_memory()
        _collect_rarely()


def with_quick_acks(batches: Iterable[T]) -> Iterator[T]:
    """Yield the batches that the JVM sends to a task, and acknowledge each of them at once.

    Args:
        batches: As PySpark passes them to the function of a task.
    """
    # Repeated after each batch: the kernel keeps the setting for a few messages only.
    for batch in batches:
        yield batch
        if is_tuned():
            _acknowledge_at_once()


def is_of_spark() -> bool:
    """Return True if this process is one of Spark's Python workers, of any kind."""
    return module_of_process().startswith("pyspark.")


@functools.lru_cache(maxsize=1)
def _freeze(_modules: int) -> None:
    """Exclude imported modules from the garbage collection after each task.

    ``pyspark.daemon`` calls ``gc.collect()`` after each task, while the JVM already continues. For
    the modules of pyarrow, pydantic and pyspark that takes 20 ms of a core, more than a small
    epoch. The collector skips frozen objects (``gc.freeze``); reference counting frees them still.
    Repeated only when the number of modules has changed, for example after the first task.
    """
    gc.collect()
    gc.freeze()


_COLLECTED_AFTER = 50_000
"""Number of new container objects between two collections. Python's 700 or 2 000 correspond to a
few dozen files."""


def _collect_rarely() -> None:
    """Raise the number of new objects after which Python looks for cycles.

    A planner creates some objects for each file, partition or manifest that it lists, and none of
    them in cycles: the collector took half of the time for 100 000 files of an Iceberg table.
    A higher threshold, or a collector that is switched off, is left unchanged.
    """
    first, *others = gc.get_threshold()
    if 0 < first < _COLLECTED_AFTER:
        gc.set_threshold(_COLLECTED_AFTER, *others)


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's ``mallopt(3)``."""

_DECIDED = "MALLOC_TRIM_THRESHOLD_"
"""The environment variable from which glibc reads the first of these."""

_KEPT_BYTES = 128 * 2**20
"""Twice the rows that a task gathers before it writes them (`arrow.partition_files`)."""

_MAPPED_BYTES = 32 * 2**20
"""The maximum that glibc accepts for this parameter."""


@functools.lru_cache(maxsize=1)
def _keep_memory() -> bool:
    """Keep freed memory in this worker, for the rows of its next task.

    PySpark reads each batch into a new ``bytes`` of a megabyte. A task gathers some dozens of them
    and frees all, after which glibc returns the memory to the kernel and gets it back page by page,
    each cleared: 24 000 faults for a million rows of 90 bytes, half of the system time of writing
    them. The main thread of an idle worker keeps up to `_KEPT_BYTES`; each other thread that had
    rows at the same time keeps 64 MiB, the size of its heap. If ``MALLOC_TRIM_THRESHOLD_`` is in
    the worker's environment, nothing is changed.

    Returns:
        True if it was set. Only glibc has this setting.
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

    ``setup_spark_files`` of PySpark 4.0 and 4.1 calls it at the start of each task. Up to Python
    3.12, each finder of an archive then reads its directory again: 150 ms of a core for Spark's
    archives, with one finder for each package, though they never change. Finders that are not in
    the cache are skipped; the next import creates new ones from the directories that `zipimport`
    has cached.
    """
    cache = sys.path_importer_cache
    for path in [path for path, finder in cache.items() if is_in_archive(finder)]:
        del cache[path]


def _acknowledge_at_once() -> None:
    """Make the kernel acknowledge data from the JVM at once.

    The JVM writes rows to a task in small pieces: the stream's schema, then a batch. Its kernel
    delays a small piece until the previous one is acknowledged (Nagle's algorithm, which Spark
    leaves on), and the kernel of the task delays that by 40 ms. Every task of a small epoch waited,
    in every Python sink. Linux drops the setting after it has answered, so it is repeated. Other
    systems have no such setting, and a Unix socket does not need it
    (``spark.python.unix.domain.socket.enabled``, Spark 4.1).
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
    """Return the descriptors of this process's TCP connections to the same machine.

    When a worker's first task starts, the connection to the JVM exists. It lasts as long as the
    worker; PySpark does not store it anywhere.
    """
    return tuple(filter(_is_local_connection, map(int, os.listdir("/proc/self/fd"))))


def _is_local_connection(descriptor: int) -> bool:
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return False
        borrowed = socket.socket(fileno=descriptor)
    except OSError:  # the descriptor of the listing itself, which is closed by now
        return False
    try:
        is_tcp = borrowed.family in _INTERNET and borrowed.type == socket.SOCK_STREAM
        return is_tcp and borrowed.getpeername()[0].startswith(_LOOPBACK)
    except OSError:  # it listens, or is closed at the other end
        return False
    finally:
        borrowed.detach()


# --- the file that a crashed worker read

# PyArrow ends the process when some metadata of a damaged file are read: the C++ functions behind
# ``RowGroupMetaData.column`` and ``ColumnChunkMetaData.statistics`` throw, and are declared without
# ``except +``. Types and signatures are checked first; a damaged histogram of levels cannot be.
# ``faulthandler`` then writes the functions that ran, each with the name of its source file, and
# with ``spark.python.worker.faulthandler.enabled`` Spark puts that into the driver's error. So the
# reader is called by a function whose source file has the name of the file that is read. That costs
# some microseconds for each file.

_NAME = "<krishiv-spark reads {}>"
"""In angle brackets, so that no traceback looks for lines of source in it."""

_NAMED = re.compile(r'File "<krishiv-spark reads (.*?)(?:>"|\.\.\.|$)', re.MULTILINE)


def name_call(path: str, call: Callable[[], T]) -> T:
    """Call a function from one that has the name of a file, and return its result."""
    return cast("T", _name_code(path, _call.__code__)(call))


def name_rows(path: str, rows: Iterator[T]) -> Iterator[T]:
    """Yield from an iterator, from a function that has the name of a file."""
    return cast("Iterator[T]", _name_code(path, _yield.__code__)(rows))


def file_of_crash(text: str) -> str | None:
    """Return the file that a process read when it died, from the text of ``faulthandler``.

    The text has at most 500 characters of the name, with others than ASCII escaped.
    """
    found = _NAMED.search(text)
    return None if found is None else found[1]


def _name_code(path: str, code: CodeType) -> FunctionType:
    # With its setting, Spark enables it for a task, and disables it afterwards.
    if is_of_spark() and not faulthandler.is_enabled():
        with contextlib.suppress(Exception):  # without a standard error there is nothing to write
            faulthandler.enable()
    return FunctionType(code.replace(co_filename=_NAME.format(path)), {})


def _call(call: Callable[[], T]) -> T:
    return call()


def _yield(rows: Iterator[T]) -> Iterator[T]:
    yield from rows
