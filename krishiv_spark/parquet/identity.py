"""What makes a folder this table and no other, and where the logs of its queries are."""

from __future__ import annotations

import uuid
from typing import NamedTuple

from krishiv_spark.errors import NotExclusiveError
from krishiv_spark.storage import Folder

__all__ = ["Pointer", "read_pointer", "table_id", "write_pointer"]

_TABLE, _POINTER = "table-id", "epoch-log"


def table_id(meta: Folder) -> str | None:
    """The id of a table; made when first asked for. Driver.

    Args:
        meta: ``_krishiv`` in the table's folder.

    Returns:
        None on a file system that cannot create exclusively: two queries could give it two ids.
    """
    found = meta.read(_TABLE)
    if found is None:
        try:
            meta.create(_TABLE, uuid.uuid4().hex.encode())
        except NotExclusiveError:
            return None
        # Another process's id may have taken the name first: then that is the table's.
        found = meta.read(_TABLE)
    return None if found is None else found.decode()


class Pointer(NamedTuple):
    """To an epoch log that is not in the table's folder.

    Attributes:
        location: Path or URL of the log.
        route: The part of its epochs that goes into the table; None if all of them do.
    """

    location: str
    route: str | None = None


def read_pointer(own: Folder) -> Pointer | None:
    """Where the epoch log of a query is that does not keep it in the table's folder.

    Args:
        own: Of the query, in ``_krishiv``.
    """
    found = own.read(_POINTER)
    if found is None:
        return None
    location, _, route = found.decode().partition("\n")
    return Pointer(location, route or None)


def write_pointer(own: Folder, pointer: Pointer | None) -> None:
    """Say where the epoch log of a query is, for readers, for other writers and for vacuum.

    Args:
        own: Of the query, in ``_krishiv``.
        pointer: None if the log is in the table's folder.
    """
    if read_pointer(own) == pointer:
        return
    if pointer is None:  # it was elsewhere, before the query had published anything
        own.remove([_POINTER])
    else:
        own.replace(_POINTER, "\n".join(filter(None, pointer)).encode())
