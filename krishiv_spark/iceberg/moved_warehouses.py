"""Folders of tables in a warehouse that was moved or copied, while its catalog names the old place.

A catalog names the places of its tables in full. Below a warehouse that is elsewhere now, a table
has the same path.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from krishiv_spark.iceberg.locations import Location

if TYPE_CHECKING:
    from krishiv_spark.iceberg.options import IcebergOptions

__all__ = ["RELOCATED", "describe_missing", "folders_in", "read_destination"]

RELOCATED = "catalog.db.relocated"
"""Of a warehouse that `krishiv-spark iceberg relocate` has moved: a file that names the new one."""

_MOST_BYTES = 4096


def folders_in(warehouse: str, location: str, usual: str) -> Iterator[str]:
    """Return the folders that a table may have in a warehouse, the likeliest first.

    Args:
        warehouse: A folder of a disk.
        location: The table's path, as its metadata has it.
        usual: The path of a new table of its name, below the warehouse.
    """
    parts = [part for part in location.split("/") if part]
    paths = [usual, *("/".join(parts[first:]) for first in range(len(parts)))]
    found = dict.fromkeys(f"{warehouse.rstrip('/')}/{path}" for path in paths)
    yield from (folder for folder in found if os.path.isdir(folder))


def describe_missing(missing: str, options: IcebergOptions) -> str:
    """Return the reason why a file that a catalog names is not there, and what to do.

    Args:
        missing: The file, as an error of the file system names it.
        options: Name the catalog.
    """
    text = ": the catalog names it, but it does not exist"
    place = Location.parse(missing)
    warehouse = options.catalog_properties().get("warehouse", "")
    if place.store != "disk" or not warehouse.startswith("/"):
        return f"{text}. Was it removed, or is that another store?"
    parts = [part for part in place.path.split("/") if part]
    for first in range(1, len(parts)):
        rest = "/".join(parts[first:])
        if os.path.isfile(f"{warehouse}/{rest}"):
            old = f"/{'/'.join(parts[:first])}"
            return (
                f"{text}. The warehouse {old} was moved to {warehouse}: move it back, or change "
                f"its catalog and tables with 'krishiv-spark iceberg relocate {old} {warehouse}'"
            )
    return (
        f"{text}. If the warehouse was moved, move it back, or change its catalog and tables with "
        "'krishiv-spark iceberg relocate OLD NEW'. If files of it were removed, restore them "
        "together with the catalog"
    )


def read_destination(folder: str | os.PathLike[str]) -> str | None:
    """Return the warehouse to which this one was relocated; None if it was not."""
    try:
        with open(os.path.join(folder, RELOCATED), encoding="utf-8", errors="replace") as file:
            return file.read(_MOST_BYTES).strip() or None
    except OSError:
        return None
