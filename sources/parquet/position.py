"""Where a reader of Parquet files stands."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from krishiv_spark.offsets import Offset
from krishiv_spark.sources.parquet.places import FoundFile
from krishiv_spark.sources.parquet.seen import Block
from krishiv_spark.storage.paths import FileName

__all__ = ["ParquetOffset"]


class ParquetOffset(Offset):
    """Which files were read. At most 64 KiB of text: what is larger is in files; see `Books`.

    Attributes:
        files: The files of the batch that ended here: all that is needed to read it again.
        files_in: The file of `State` that they are in, where they are too many.
        seen: See `Seen`: ids of files that were read.
        seen_in: Files of `State` with further ids.
        newest: The newest time of a file that was read, nanoseconds since 1970 UTC, but none that
            was still to come when it was read; None before the first batch and in version 1.
        epochs: For each query of this project's sink that is being followed, by `Table.key`, the
            newest epoch that was read; its files are not in `seen`.
        epochs_in: The file of `State` that `epochs` is in, where there are too many.
        stream: The folder of `State`, a random id; None as long as nothing was put there.
        floor: Of version 1: files modified before this count as read, nanoseconds since 1970 UTC.
            They are looked up, and are in `seen` from the next batch on.
        root: Where the files were found, `Place.root`; None before the first batch, and of releases
            that did not say so.
    """

    kind = "parquet"
    version = 2

    files: tuple[FoundFile, ...] = ()
    files_in: FileName | None = None
    seen: dict[str, str] = Field(default_factory=dict)
    seen_in: tuple[Block, ...] = ()
    newest: int | None = None
    epochs: dict[str, int] = Field(default_factory=dict)
    epochs_in: FileName | None = None
    stream: FileName | None = None
    floor: int | None = None
    root: str | None = None

    @classmethod
    def upgrade(cls, version: int, fields: dict[str, Any]) -> dict[str, Any]:
        """Version 1 has a subset of the fields; its `seen` may be of any size."""
        del version
        return fields

    @property
    def state_names(self) -> set[str]:
        """The files of `State` that this position needs."""
        names = {self.files_in, self.epochs_in, *(block.name for block in self.seen_in)}
        return {name for name in names if name is not None}
