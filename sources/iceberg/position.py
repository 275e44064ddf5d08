"""Where a reader of an Iceberg table stands."""

from __future__ import annotations

from typing import Literal

from krishiv_spark.offsets import Offset, Value

__all__ = ["IcebergOffset", "StartName", "StreamingOffset"]

StartName = Literal["earliest", "current", "latest", "timestamp", "snapshot"]


class StreamingOffset(Value):
    """A place in the history of a table.

    Attributes:
        snapshot: The snapshot that was read last, wholly or in part; None for a table that had
            none yet.
        sequence: Its sequence number (Iceberg spec, "Sequence Numbers"): shows that nothing lies
            between it and a snapshot whose parent has expired. 0 in tables of version 1.
        file: How many of its files have been read, in the order of `SnapshotFiles`; None for all.
        scan: Whether the files of the snapshot are all that are in the table then (a first
            load), instead of those that the snapshot added. Only with `file`.
    """

    snapshot: int | None = None
    sequence: int = 0
    file: int | None = None
    scan: bool = False


class IcebergOffset(Offset):
    """How far a table was read.

    Attributes:
        at: The start that was asked for; only in the first offset of a query, which never changes
            and has no `spot`.
        table: UUID of the table.
        spot: The place of the next file.
        began: Where the first batch of a query began; only in the offset that ends it.
    """

    kind = "iceberg"

    at: StartName | None = None
    table: str | None = None
    spot: StreamingOffset | None = None
    began: StreamingOffset | None = None
