"""What tasks have staged, as messages and intents carry it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from pydantic import BaseModel

from krishiv_spark.parquet.names import counted_name
from krishiv_spark.storage.paths import FileName, FolderWithin, NameWithin
from krishiv_spark.storage.uploads import Upload

__all__ = ["StagedFile", "StagedFiles", "StagedUpload", "StagedUploads", "counted"]


class StagedFile(BaseModel, frozen=True):
    """A staged file and where it will be visible.

    Attributes:
        name: Its final name; on disks, without the number of files in the epoch until that is
            published.
        folder: Its partition folder, relative to the table; empty without partitions.
        rows: Number of rows.
        size: Bytes.
    """

    name: FileName
    folder: FolderWithin
    rows: int
    size: int


class StagedFiles(BaseModel, frozen=True):
    """What one task staged; or, once per epoch in mode REPLACE, what the epoch removes.

    Attributes:
        folder: Where the files are staged, relative to the table.
        files: Files that become visible.
        removes: Visible files that go, relative to the table.
    """

    folder: FolderWithin = ""
    files: tuple[StagedFile, ...] = ()
    removes: tuple[NameWithin, ...] = ()


class StagedUpload(StagedFile, frozen=True):
    """A file that a store holds, and shows to nobody before its upload is completed.

    Attributes:
        upload: What completes it.
    """

    upload: Upload


class StagedUploads(StagedFiles, frozen=True):
    """`StagedFiles`, in a store.

    Attributes:
        files: Files that become visible.
    """

    files: tuple[StagedUpload, ...] = ()


def counted(staged: Sequence[StagedFiles]) -> list[StagedFiles]:
    """The same files, each with a final name that says which of how many it is.

    So a listing tells whether an epoch is whole, long after its intent was folded away.
    """
    total = sum(len(item.files) for item in staged)
    numbers = itertools.count(1)
    return [
        item.model_copy(
            update={"files": tuple(_counted(file, next(numbers), total) for file in item.files)}
        )
        for item in staged
    ]


def _counted(file: StagedFile, number: int, total: int) -> StagedFile:
    return file.model_copy(update={"name": counted_name(file.name, number, total)})
