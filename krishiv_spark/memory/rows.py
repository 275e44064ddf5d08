"""Rows as bytes: Arrow IPC streams, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

__all__ = ["EncodedRows", "decode", "encode", "schema_of", "schemas"]

# Spark's own Python environment may hold a pyarrow that was built without lz4.
_CODEC = "lz4" if pa.Codec.is_available("lz4") else None

# Handing the few buffers of a small batch to other threads costs more than compressing them.
_WRITE_OPTIONS = pa.ipc.IpcWriteOptions(compression=_CODEC, use_threads=False)


@dataclass(frozen=True)
class EncodedRows:
    """Rows on their way to the driver.

    Attributes:
        count: How many there are.
        body: One Arrow IPC stream, which holds the schema even when there are no rows.
    """

    count: int
    body: bytes


def encode(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    admit: Callable[[int, int], None] = lambda rows, size: None,  # noqa: ARG005  a default that admits
) -> EncodedRows:
    """Write batches as one compressed IPC stream.

    Args:
        batches: The rows; pulled one at a time.
        schema: Of every batch; it is written even when there are none.
        admit: Called after each batch with the rows and bytes so far; raises when it is enough.
    """
    sink, count = pa.BufferOutputStream(), 0
    with pa.ipc.new_stream(sink, schema, options=_WRITE_OPTIONS) as stream:
        for batch in batches:
            stream.write_batch(batch)
            count += batch.num_rows
            admit(count, sink.tell())
    return EncodedRows(count, sink.getvalue().to_pybytes())


def decode(body: bytes) -> Iterator[pa.RecordBatch]:
    """The batches that hold rows, of all streams in a body, in order."""
    for stream in _streams(body):
        for batch in stream:
            if batch.num_rows:
                yield batch


def schema_of(body: bytes) -> pa.Schema | None:
    """The schema of the first stream in a body; None when it holds none."""
    return next((stream.schema for stream in _streams(body)), None)


def schemas(bodies: Sequence[bytes]) -> list[pa.Schema]:
    """The different schemas of some bodies, in order."""
    found: list[pa.Schema] = []
    for body in bodies:
        schema = schema_of(body)
        if schema is not None and schema not in found:
            found.append(schema)
    return found


def _streams(body: bytes) -> Iterator[pa.ipc.RecordBatchStreamReader]:
    source, options = pa.BufferReader(body), pa.ipc.IpcReadOptions(use_threads=False)
    while source.tell() < len(body):
        stream = pa.ipc.open_stream(source, options=options)
        yield stream
        for _ in stream:  # the next stream begins where this one ends
            pass
