"""The entries of a log in the memory store, and their limits."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from krishiv_spark.errors import CommitRejected

__all__ = [
    "UNBOUNDED",
    "Bound",
    "EncodedRows",
    "Header",
    "StoreEntry",
    "decode",
    "encode",
    "schema_of",
    "schemas",
]


# Spark's own Python environment may contain a pyarrow that was built without lz4.
_CODEC = "lz4" if pa.Codec.is_available("lz4") else None

# Passing the few buffers of a small batch to other threads costs more than compressing them.
_WRITE_OPTIONS = pa.ipc.IpcWriteOptions(compression=_CODEC, use_threads=False)


@dataclass(frozen=True)
class EncodedRows:
    """Encoded rows that are sent to the driver.

    Attributes:
        count: Number of rows.
        body: One Arrow IPC stream, which contains the schema even if there are no rows.
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
        schema: Schema of every batch; it is written even if there are none.
        admit: Called after each batch with the rows and bytes so far; raises if they exceed the
            limit.
    """
    sink, count = pa.BufferOutputStream(), 0
    with pa.ipc.new_stream(sink, schema, options=_WRITE_OPTIONS) as stream:
        for batch in batches:
            stream.write_batch(batch)
            count += batch.num_rows
            admit(count, sink.tell())
    return EncodedRows(count, sink.getvalue().to_pybytes())


def decode(body: bytes) -> Iterator[pa.RecordBatch]:
    """Yield the batches with rows, of all streams in a body, in order."""
    for stream in _streams(body):
        for batch in stream:
            if batch.num_rows:
                yield batch


def schema_of(body: bytes) -> pa.Schema | None:
    """Return the schema of the first stream in a body; None if it has none."""
    return next((stream.schema for stream in _streams(body)), None)


def schemas(bodies: Sequence[bytes]) -> list[pa.Schema]:
    """Return the different schemas of some bodies, in order."""
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


@dataclass(frozen=True)
class Header:
    """The properties of an entry that are known without reading its body.

    Attributes:
        first: Lowest number that is visible once this entry is the newest.
        rows: Rows of this entry.
        size: Bytes of its body.
        total_rows: Rows of all entries from `first` to this one.
        total_size: Bytes of their bodies.
        query: The query that wrote the rows, in a log with entries of several queries.
        stream: True if the rows are not in the body, but in the log of the streaming query.
        digest: The digest that distinguishes an epoch from another one with its number.
        keys: Key columns of the newest upsert, sorted; empty without one.
    """

    first: int
    rows: int = 0
    size: int = 0
    total_rows: int = 0
    total_size: int = 0
    query: str = ""
    stream: bool = False
    digest: str | None = None
    keys: Sequence[str] = ()

    def line(self) -> bytes:
        """Return the header as the first line of its file."""
        found = {name: value for name, value in vars(self).items() if name != "keys" or value}
        return json.dumps(found, separators=(",", ":")).encode() + b"\n"

    def without(self, number: int, old: Header) -> Header:
        """Return the header after the oldest visible entry was dropped."""
        return replace(
            self,
            first=number + 1,
            total_rows=self.total_rows - old.rows,
            total_size=self.total_size - old.size,
        )


@dataclass(frozen=True)
class Bound:
    """The limits of a log; None means no limit.

    Attributes:
        rows: Maximum number of rows.
        size: Maximum size of the bodies, in bytes.
        drop_oldest: True if a full log drops its oldest entries instead of refusing the new one.
            The newest entry is always kept.
    """

    rows: int | None = None
    size: int | None = None
    drop_oldest: bool = False

    def admits(self, rows: int, size: int) -> bool:
        """Return True if an amount is within the limits."""
        return (self.rows is None or rows <= self.rows) and (self.size is None or size <= self.size)

    def refuse(self, rows: int, size: int) -> None:
        """Raise if an amount exceeds the limits and no entry may be dropped.

        Raises:
            CommitRejected: With advice.
        """
        if not self.drop_oldest and not self.admits(rows, size):
            raise self.full(rows, size)

    def full(self, rows: int, size: int) -> CommitRejected:
        """Return the error for a log that is full."""
        return CommitRejected(
            f"the memory result would have {rows} rows in {size} bytes, but maxRows is "
            f"{self.rows} and maxBytes {self.size}: raise them, set onFull to 'dropOldest', "
            "write less, or remove it with memory_clear()"
        )


UNBOUNDED = Bound()


@dataclass(frozen=True)
class StoreEntry:
    """An entry to append.

    Attributes:
        bodies: The body, in pieces.
        rows: Number of rows in it.
        replaces: True if it replaces all earlier entries.
        bound: The limits of the log, including this entry.
        query: See `Header`.
        stream: See `Header`.
        digest: See `Header`.
        keys: Key columns by which the rows were upserted; empty if they were appended.
    """

    bodies: Sequence[bytes] = ()
    rows: int = 0
    replaces: bool = False
    bound: Bound = field(default=UNBOUNDED)
    query: str = ""
    stream: bool = False
    digest: str | None = None
    keys: Sequence[str] = ()

    def after(self, number: int, newest: Header | None) -> Header:
        """Return the header for an entry that follows the newest one, ignoring the limits."""
        before = newest if newest is not None and not self.replaces else Header(first=number)
        size = sum(map(len, self.bodies))
        return Header(
            before.first,
            self.rows,
            size,
            before.total_rows + self.rows,
            before.total_size + size,
            self.query,
            self.stream,
            self.digest,
            self.keys or before.keys,
        )
