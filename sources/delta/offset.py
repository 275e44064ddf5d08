"""Offsets of a Delta table: a version, and the number of a file in it."""

from __future__ import annotations

from krishiv_spark.offsets import Offset, Value

__all__ = ["DeltaOffset", "DeltaPosition"]


class DeltaPosition(Value):
    """A position in the history of a table.

    Attributes:
        version: The version that was read last, wholly or in part; -1 before the first one.
        file: Number of its files that have been read; None for all.
        scan: True if the files are all of the table at that version; False if they are those that
            the version added. Only with `file`.
    """

    version: int
    file: int | None = None
    scan: bool = False


class DeltaOffset(Offset):
    """The exclusive end of what was read of a table. Names of attributes are those of its JSON.

    Attributes:
        at: Name of the start that the options specify; only in the first offset of a query, which
            never changes and has no `spot`.
        table: Id of the table.
        spot: Position of the next file.
        began: Position at which the first batch of a query started; only in the offset that ends
            that batch.
    """

    kind = "delta"

    at: str | None = None
    table: str | None = None
    spot: DeltaPosition | None = None
    began: DeltaPosition | None = None
