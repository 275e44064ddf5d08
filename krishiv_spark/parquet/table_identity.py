"""The identity of a table, and the pointers to epoch logs that are not in its folder."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from krishiv_spark.errors import LogError, NotExclusiveError, OptionError, StorageError
from krishiv_spark.offsets.planned import whole_query
from krishiv_spark.storage import Folder, StoreUrl

__all__ = [
    "Pointer",
    "ensure_table_id",
    "has_pointer",
    "read_pointer",
    "read_table_id",
    "read_text",
    "write_pointer",
]

_TABLE, _POINTER = "table-id", "epoch-log"

_MOST_BYTES = 64 * 2**10
"""Maximum size of a small file in ``_krishiv``: a path has 4096 bytes at most."""


def ensure_table_id(meta: Folder) -> str | None:
    """Return the id of a table; create it if it has none. Driver.

    Args:
        meta: ``_krishiv`` in the table's folder.

    Returns:
        None on a file system that cannot create exclusively: two queries could give it two ids.
    """
    found = read_text(meta, _TABLE)
    if found is None:
        try:
            meta.create(_TABLE, uuid.uuid4().hex.encode())
        except NotExclusiveError:
            return None
        # Another process may have created the file first: then its id is the table's.
        found = read_text(meta, _TABLE)
    return found


def read_table_id(meta: Folder) -> str | None:
    """Return the id of a table; None if it has none yet. Changes nothing.

    Raises:
        LogError, StorageError: As `read_text`.
    """
    return read_text(meta, _TABLE)


def read_text(folder: Folder, name: str) -> str | None:
    """Return the text of a small file in ``_krishiv``; None if it does not exist.

    Raises:
        LogError: If it is not text.
        StorageError: If it cannot be read, or is large.
    """
    found = folder.read(name, _MOST_BYTES)
    if found is None:
        return None
    text = found.decode(errors="surrogateescape")  # surrogates are not printable
    if not text.replace("\n", "").isprintable():
        raise LogError(
            f"{folder}/{name} is damaged, or was not written by krishiv-spark: it is not text. "
            "Nothing was changed; check who may write to the folder, and restore the file"
        )
    return text


class Pointer(NamedTuple):
    """A pointer to an epoch log that is not in the table's folder.

    Any user who may write ``_krishiv`` may write a pointer. So it is followed within the table's
    store, where it leads to nothing that such a user could not write anyway; and to another store
    only if an option of this process names the same log.

    Attributes:
        location: Path or URL of the log.
        route: The part of its epochs that goes into the table; None if all of them do.
    """

    location: str
    route: str | None = None

    def is_followed(self, table: StoreUrl, query: str, epoch_logs: Iterable[str] = ()) -> bool:
        """Return True if the log may be read on behalf of a table.

        Args:
            table: Folder of the table.
            query: Name of the folder in ``_krishiv`` that contains the pointer.
            epoch_logs: Values of the options ``epochLog`` of this process.
        """
        log = self.parse()
        if log is None:
            return False
        return log.store == table.store or self.is_named(query, epoch_logs)

    def is_named(self, query: str, epoch_logs: Iterable[str]) -> bool:
        """Return True if an option ``epochLog`` of this process names the log."""
        whole, log = whole_query(query, self.route), self.parse()
        bases = map(StoreUrl.parse, epoch_logs)
        return any(_location(log) in {_location(base), _location(base / whole)} for base in bases)

    def parse(self) -> StoreUrl | None:
        """Return the location of the log; None if its store is not known."""
        try:
            return StoreUrl.parse(self.location)
        except OptionError:
            return None


def _location(url: StoreUrl | None) -> tuple[tuple[str, str], str] | None:
    return None if url is None else (url.store, url.path)


def has_pointer(own: Folder) -> bool:
    """Return True if the epoch log of a query seems to be outside of the table's folder."""
    try:
        return read_text(own, _POINTER) is not None
    except (LogError, StorageError):
        return True  # a damaged pointer, which is an error when it is followed


def read_pointer(own: Folder) -> Pointer | None:
    """Return the pointer of a query; None if its epoch log is in the table's folder.

    Args:
        own: Folder of the query in ``_krishiv``.
    """
    found = read_text(own, _POINTER)
    if found is None:
        return None
    location, _, route = found.partition("\n")
    return Pointer(location, route or None)


def write_pointer(own: Folder, pointer: Pointer | None) -> None:
    """Write the location of a query's epoch log, for readers, for other writers and for vacuum.

    Args:
        own: Folder of the query in ``_krishiv``.
        pointer: None if the log is in the table's folder.
    """
    with suppress(LogError, StorageError):  # a damaged pointer is replaced
        if read_pointer(own) == pointer:
            return
    if pointer is None:  # the log was in another location before the query published anything
        own.remove([_POINTER])
    else:
        own.replace(_POINTER, "\n".join(filter(None, pointer)).encode())
