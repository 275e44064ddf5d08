"""The loading of kernels, while a task waits for a broker; a machine compiles them once."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from krishiv_spark.kafka.records.decode import decode
from krishiv_spark.kafka.records.encode import (
    Accumulator,
    EncodedBatch,
    RecordColumns,
    partition_rows,
)
from krishiv_spark.kafka.records.scanner import RecordRange
from krishiv_spark.runtime.caches import find_stranger, user_cache

__all__ = ["await_warm", "warm_ahead", "warm_up"]

# A record with key, value and a header as bytes: converting Python objects would import pandas.
_RECORD = b"\x18\0\0\0\x02k\x02v\x02\x02h\x02v"


def warm_up() -> None:
    """Import numba and load every kernel, by passing a record through all of them."""
    data = EncodedBatch(0, 1, 0, 0, 0, memoryview(_RECORD)).to_bytes()
    for batch in decode(data, RecordRange("", 0, 0, 1)).batches:
        keys, values, headers = (batch.column(name) for name in ("key", "value", "headers"))
        columns = RecordColumns(values, keys, headers, 0)
        list(Accumulator().add(columns, partition_rows(keys, None, 1, 0)))


def warm_ahead() -> None:
    """Start to load the kernels in a thread. Executor, at the start of each task."""
    _start_thread(os.getpid())  # a thread does not survive a fork


def await_warm() -> None:
    """Wait until the kernels are loaded."""
    _start_thread(os.getpid()).join()


@functools.cache
def _start_thread(pid: int) -> threading.Thread:
    thread = threading.Thread(target=_load_kernels, name=f"kernels-{pid}", daemon=True)
    thread.start()
    return thread


def _load_kernels() -> None:
    """Load the kernels under a lock: the tasks of a first query must not all compile them.

    That takes seconds of a core.
    """
    from krishiv_spark.kafka.records.jit import COMPILED

    folder = _find_lock_folder()
    if not COMPILED or folder is None or (done := folder / _hash_version()).exists():
        warm_up()
        return
    with _hold_lock(done.with_suffix(".lock")):
        warm_up()
        # Without this file, other processes wait for the lock too, which is only slower.
        with contextlib.suppress(OSError):
            done.touch()


def _find_lock_folder() -> Path | None:
    """Return a folder for the lock; None if there is none, or if another user could lock it."""
    folder = user_cache() / "kernels"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return folder if find_stranger(folder) is None else None
    except OSError:
        return None


def _hash_version() -> str:
    """Return a hash of this code, the version of numba and the location of its cache."""
    import numba

    here = Path(__file__).parent
    parts = [numba.__version__, str(here), os.environ.get("NUMBA_CACHE_DIR", "")]
    parts += [str(file.stat().st_mtime_ns) for file in sorted(here.glob("*.py"))]
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:16]


@contextlib.contextmanager
def _hold_lock(lock: Path) -> Iterator[None]:
    """Hold a lock between processes; hold none if its file cannot be created."""
    import fcntl

    try:
        file = lock.open("w")
    except OSError:
        yield
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
