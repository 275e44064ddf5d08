"""What makes a folder this table and no other, and where the logs of its queries are."""

from __future__ import annotations

import uuid
from pathlib import Path

from krishiv_spark.durable import make_folder
from krishiv_spark.errors import NotExclusiveError
from krishiv_spark.parquet.layout import META
from krishiv_spark.storage.disk import DiskFolder

__all__ = ["read_pointer", "table_id", "write_pointer"]

_TABLE, _POINTER = "table-id", "epoch-log"


def table_id(table: Path) -> str | None:
    """The id of the table in a folder; made when first asked for. Driver.

    Returns:
        None on a file system that cannot create exclusively: two queries could give it two ids.
    """
    folder = DiskFolder(table / META)
    found = folder.read(_TABLE)
    if found is None:
        try:
            folder.create(_TABLE, uuid.uuid4().hex.encode())
        except NotExclusiveError:
            return None
        found = folder.read(_TABLE)
    return None if found is None else found.decode()


def read_pointer(table: Path, query: str) -> str | None:
    """Where the epoch log of a query is that does not keep it in the table's folder."""
    found = DiskFolder(table / META / query).read(_POINTER)
    return None if found is None else found.decode()


def write_pointer(table: Path, query: str, location: str) -> None:
    """Say where the epoch log of a query is, for readers, for other writers and for vacuum."""
    if read_pointer(table, query) != location:
        folder = table / META / query
        make_folder(folder)
        DiskFolder(folder).replace(_POINTER, location.encode())
