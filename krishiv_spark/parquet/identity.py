"""What makes a folder this table and no other, and where the logs of its queries are."""

from __future__ import annotations

import uuid
from pathlib import Path

from krishiv_spark.durable import make_folder
from krishiv_spark.errors import LogError
from krishiv_spark.offsets.journal import DiskJournal
from krishiv_spark.parquet.layout import META

__all__ = ["read_pointer", "table_id", "write_pointer"]

_TABLE, _POINTER = "table-id", "epoch-log"


def table_id(table: Path) -> str | None:
    """The id of the table in a folder; made when first asked for. Driver.

    Returns:
        None on a file system that cannot create exclusively: two queries could give it two ids.
    """
    journal = DiskJournal(table / META)
    found = journal.read(_TABLE)
    if found is None:
        try:
            journal.create(_TABLE, uuid.uuid4().hex.encode())
        except LogError:
            return None
        # Another process's id may have taken the name first: then that is the table's.
        found = journal.read(_TABLE)
    return None if found is None else found.decode()


def read_pointer(table: Path, query: str) -> str | None:
    """Where the epoch log of a query is that does not keep it in the table's folder."""
    found = DiskJournal(table / META / query).read(_POINTER)
    return None if found is None else found.decode()


def write_pointer(table: Path, query: str, location: str) -> None:
    """Say where the epoch log of a query is, for readers, for other writers and for vacuum."""
    if read_pointer(table, query) != location:
        folder = table / META / query
        make_folder(folder)
        DiskJournal(folder).replace(_POINTER, location.encode())
