"""The loading of kernels, while a task waits for a broker; a machine compiles them once.

The kernels of records are loaded in each task, and those of a form of values if a task asks for
them by its name.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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


def warm_up(*forms: str) -> None:
    """Import numba and load every kernel, by passing a record through all of them.

    Args:
        forms: Forms of values whose kernels are loaded too: "avro", "protobuf". They need the
            packages of the extras `registry` and `protobuf`.

    Raises:
        ValueError: If there is no such form with kernels.
    """
    known = sorted({name.split()[0] for name in _LOADERS} - {_RECORDS})
    for form in forms:
        if form not in known:
            raise ValueError(f"{form!r} has no kernels: there are {', '.join(known)}")
        for part in ("reader", "writer"):
            _LOADERS[f"{form} {part}"]()
    _warm_up_records()


def _warm_up_records() -> None:
    data = EncodedBatch(0, 1, 0, 0, 0, memoryview(_RECORD)).to_bytes()
    for batch in decode(data, RecordRange("", 0, 0, 1)).batches:
        keys, values, headers = (batch.column(name) for name in ("key", "value", "headers"))
        columns = RecordColumns(values, keys, headers, 0)
        list(Accumulator().add(columns, partition_rows(keys, None, 1, 0)))


def _warm_up_avro_reader() -> None:
    from krishiv_spark.kafka.schemas.avro.avro_decode import AvroDecoder
    from krishiv_spark.kafka.schemas.avro.avro_types import AvroType

    AvroDecoder(AvroType("long"), AvroType("long")).decode(*_one_record(b"\0"))


def _warm_up_avro_writer() -> None:
    import pyarrow as pa

    from krishiv_spark.kafka.schemas.avro.avro_encode import AvroEncoder
    from krishiv_spark.kafka.schemas.avro.avro_types import AvroType

    AvroEncoder(AvroType("long"), pa.int64()).encode(pa.array([1], pa.int64()))


def _warm_up_protobuf_reader() -> None:
    from krishiv_spark.kafka.schemas.protobuf.protobuf_decode import decode_values
    from krishiv_spark.kafka.schemas.protobuf.protobuf_decode_program import compile_reader
    from krishiv_spark.kafka.schemas.protobuf.protobuf_types import ProtoField, ProtoMessage

    message = ProtoMessage("", (ProtoField("text", 1, "string"),))
    program = compile_reader(message)
    values, _ = decode_values(program, *_one_record(b"\x0a\x01a"))
    values.build(program.root)


def _warm_up_protobuf_writer() -> None:
    import pyarrow as pa

    from krishiv_spark.kafka.schemas.protobuf.protobuf_encode import ProtobufEncoder
    from krishiv_spark.kafka.schemas.protobuf.protobuf_types import ProtoField, ProtoMessage

    message = ProtoMessage("", (ProtoField("number", 1, "int64"),))
    rows = pa.StructArray.from_arrays([pa.array([1], pa.int64())], ["number"])
    ProtobufEncoder(message, rows.type).encode(rows)


def _one_record(data: bytes) -> Any:
    import numpy as np

    ends = np.array([len(data)], np.int64)
    return np.frombuffer(data, np.uint8), np.zeros(1, np.int64), ends


_RECORDS = "records"
_LOADERS: dict[str, Callable[[], None]] = {
    _RECORDS: _warm_up_records,
    "avro reader": _warm_up_avro_reader,
    "avro writer": _warm_up_avro_writer,
    "protobuf reader": _warm_up_protobuf_reader,
    "protobuf writer": _warm_up_protobuf_writer,
}


def warm_ahead(*names: str) -> None:
    """Start to load kernels in threads. Executor, at the start of each task.

    Args:
        names: Kernels besides those of records: "avro reader", "avro writer", "protobuf reader",
            "protobuf writer".
    """
    for name in (_RECORDS, *names):
        _start_thread(os.getpid(), name)  # a thread does not survive a fork


def await_warm(*names: str) -> None:
    """Wait until kernels are loaded: those of the names, as in `warm_ahead`, or of records."""
    for name in names or (_RECORDS,):
        _start_thread(os.getpid(), name).join()


@functools.cache
def _start_thread(pid: int, name: str) -> threading.Thread:
    thread = threading.Thread(
        target=_load_kernels, args=(name,), name=f"{name} kernels {pid}", daemon=True
    )
    thread.start()
    return thread


def _load_kernels(name: str) -> None:
    """Load kernels under a lock: the tasks of a first query must not all compile them.

    That takes seconds of a core.
    """
    from krishiv_spark.kafka.records.jit import COMPILED

    load, folder = _LOADERS[name], _find_lock_folder()
    if not COMPILED or folder is None or (done := folder / _hash_version(name)).exists():
        load()
        return
    with _hold_lock(done.with_suffix(".lock")):
        load()
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


def _hash_version(name: str) -> str:
    """Return a hash of the kernels, their code, numba's version and the location of its cache."""
    import numba

    here = Path(__file__).parent
    parts = [name, numba.__version__, str(here), os.environ.get("NUMBA_CACHE_DIR", "")]
    folders = [here] if name == _RECORDS else [here, here.parent / "schemas"]
    files = [file for folder in folders for file in sorted(folder.glob("*.py"))]
    parts += [str(file.stat().st_mtime_ns) for file in files]
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
