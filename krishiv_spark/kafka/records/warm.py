"""Kernels are compiled once for a machine, and loaded while something else is waited for."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from krishiv_spark.kafka.records.decode import decode
from krishiv_spark.kafka.records.encode import Accumulator, EncodedBatch
from krishiv_spark.kafka.records.partitioning import partition_rows
from krishiv_spark.kafka.records.rows import RecordColumns
from krishiv_spark.kafka.records.wanted import RecordRange
from krishiv_spark.runtime.caches import find_stranger, user_cache

__all__ = ["await_warm", "warm_ahead", "warm_up"]

# A record with key, value and a header; making it of Python objects would import pandas.
_RECORD = b"\x18\0\0\0\x02k\x02v\x02\x02h\x02v"


def warm_up() -> None:
    """Import numba and load every kernel, by sending a record through all of them."""
    data = EncodedBatch(0, 1, 0, 0, 0, memoryview(_RECORD)).to_bytes()
    for batch in decode(data, RecordRange("", 0, 0, 1)).batches:
        keys, values, headers = (batch.column(name) for name in ("key", "value", "headers"))
        columns = RecordColumns(values, keys, headers, 0)
        list(Accumulator().add(columns, partition_rows(keys, None, 1, 0)))


def warm_ahead() -> None:
    """Begin to load the kernels, beside what the caller does. Executor, at once in each task."""
    _thread(os.getpid())  # a thread does not survive a fork


def await_warm() -> None:
    """Wait until the kernels are there."""
    _thread(os.getpid()).join()


@functools.cache
def _thread(pid: int) -> threading.Thread:
    thread = threading.Thread(target=_warm, name=f"kernels-{pid}", daemon=True)
    thread.start()
    return thread


def _warm() -> None:
    """Compiling takes seconds of a core: the tasks of a first query must not all do it at once."""
    from krishiv_spark.kafka.records.jit import COMPILED

    folder = _private_cache()
    if not COMPILED or folder is None or (done := folder / _version()).exists():
        warm_up()
        return
    with _alone(done.with_suffix(".lock")):
        warm_up()
        # Without this file, others wait for the lock as well: slower, and no less right.
        with contextlib.suppress(OSError):
            done.touch()


def _private_cache() -> Path | None:
    """Return a folder for the lock; None without one, or if others could hold the lock."""
    folder = user_cache() / "kernels"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return folder if find_stranger(folder) is None else None
    except OSError:
        return None


def _version() -> str:
    """Return a name for this code, compiled by this numba, with its cache where it is."""
    import numba

    here = Path(__file__).parent
    parts = [numba.__version__, str(here), os.environ.get("NUMBA_CACHE_DIR", "")]
    parts += [str(file.stat().st_mtime_ns) for file in sorted(here.glob("*.py"))]
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:16]


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Hold a lock among processes; do without if its file cannot be made."""
    import fcntl

    try:
        file = lock.open("w")
    except OSError:
        yield
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
