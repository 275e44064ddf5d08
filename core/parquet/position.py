"""Where a reader of Parquet files stands."""

from __future__ import annotations

from pydantic import Field

from krishiv_spark.offsets import Offset
from krishiv_spark.parquet.listing import FoundFile

__all__ = ["ParquetOffset"]


class ParquetOffset(Offset):
    """Which files were read.

    Attributes:
        files: The files of the batch that ended here: all that is needed to read it again.
        seen: See `Seen.packed`: ids of the files that were read and are not below the floor.
        floor: Files modified before this, in nanoseconds since 1970 UTC, count as read.
        epochs: For each query of this project's sink that is being followed, by its tag, the
            newest epoch that was read; its files are not in `seen`.
    """

    kind = "parquet"

    files: tuple[FoundFile, ...] = ()
    seen: dict[str, str] = Field(default_factory=dict)
    floor: int | None = None
    epochs: dict[str, int] = Field(default_factory=dict)
