"""Names of files that say which table they are of: only such are removed without being asked for.

Several tables may have their files in one folder, and what no snapshot of one table names may be
another one's. So the names of data files, manifests and metadata files that are written here have
a part of the table's UUID; it stays the same whatever the table is called.
"""

from __future__ import annotations

import re
import uuid

__all__ = ["id_in_name", "id_of", "marked_stem", "marked_uuid"]

# So many random digits stand before the one that says a UUID's version (RFC 9562).
_DIGITS = 12
_DATA = re.compile(rf"-t([0-9a-f]{{{_DIGITS}}})(?:-\d+\.parquet|\.changes)$")
_METADATA = re.compile(
    r"(?:^|-)([0-9a-f]{8})-([0-9a-f]{4})(?:-[0-9a-f]{4}){2}-[0-9a-f]{12}"
    r"(?:(?:-m\d+)?\.avro|(?:\.gz)?\.metadata\.json)$"
)


def id_of(table: uuid.UUID) -> str:
    """What the names of a table's files have of its UUID: hexadecimal digits."""
    return table.hex[:_DIGITS]


def marked_stem(stem: str, table: uuid.UUID) -> str:
    """The beginning of a data file's name, which a number and its kind may follow."""
    return f"{stem}-t{id_of(table)}"


def marked_uuid(table: uuid.UUID) -> uuid.UUID:
    """A random UUID for the names of metadata, which begins as that of the table.

    PyIceberg names manifests by the UUID of their commit, and has no other way to name them.
    """
    return uuid.UUID(f"{id_of(table)}{uuid.uuid4().hex[_DIGITS:]}")


def id_in_name(path: str) -> str | None:
    """The table's id in the name of a file; None for a file that some other program named.

    Manifests of other programs begin with random digits, which look like an id.
    """
    name = path.rpartition("/")[2]
    data, metadata = _DATA.search(name), _METADATA.search(name)
    if data is not None:
        return data[1]
    return None if metadata is None else metadata[1] + metadata[2]
