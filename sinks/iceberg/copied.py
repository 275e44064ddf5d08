"""Tables whose warehouse was copied with its catalog in SQLite. Driver.

A catalog names the places of its tables, and so does their metadata. After ``cp -r``, the catalog
of the copy still names the folders of the original: a query on the copy would write there, and a
vacuum or an expiry would delete what the original needs.

A location outside of the warehouse proves nothing: it may be given on purpose, and a warehouse may
be reached by a link or another mount. But a copy has the table's folder twice. So a table is
refused if its catalog's folder, or the option `warehouse`, has another folder for it whose
metadata files say that they are elsewhere.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from krishiv_spark.errors import OptionError
from krishiv_spark.iceberg.catalogs import open_table
from krishiv_spark.iceberg.embedded import CatalogFile, find_table_folders, get_catalog_file
from krishiv_spark.iceberg.file_access import Location
from krishiv_spark.iceberg.file_io import get_access, get_guarded_io
from krishiv_spark.iceberg.metadata_files import METADATA_SUFFIX, read_pieces
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.runtime.lru import LruCache

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions

__all__ = ["check_own_warehouse", "open_own_table"]

_METADATA_PATH = "write.metadata.path"
_MOST_READ = 3
"""Metadata files of a folder that are read: the newest by their names."""

_PASSED: LruCache[tuple[object, ...], CatalogFile] = LruCache(64)
"""Tables that this process has found in their own warehouse, with their catalogs."""


def open_own_table(options: IcebergSinkOptions) -> Table:
    """Load a table whose files are to be written or deleted. Driver, operator.

    Raises:
        OptionError: As `open_table` and `check_own_warehouse`.
        CatalogFailedError: As `open_table`.
    """
    table = open_table(options)
    check_own_warehouse(table, options)
    return table


def check_own_warehouse(table: Table, options: IcebergSinkOptions) -> None:
    """Refuse a table whose catalog names the folders of another warehouse. Driver, operator.

    The folders are looked at once in a process for each table and catalog.

    Raises:
        OptionError: If the warehouse was copied or moved, and no option allows that.
    """
    catalog = get_catalog_file(table)
    if catalog is None or options.copied_warehouse == "allow":
        return
    location = Location.parse(table.location())
    if location.store != "disk":
        return
    folder = table.metadata_location.rpartition("/")[0]
    key = (catalog, table.metadata.table_uuid, location, folder)
    if _PASSED.get(key) is not None:
        return
    found = _find_copy(table, location.path, Path(catalog.path).absolute().parent)
    if found is not None:
        raise _refusal(table, catalog.path, location.path, *found)
    _PASSED.put(key, catalog)


def _refusal(table: Table, catalog: str, location: str, copy: str, warehouse: str) -> OptionError:
    rest = os.path.relpath(copy, warehouse)
    original = location.removesuffix(f"/{rest}")
    command = f"krishiv-spark iceberg relocate {original} {warehouse} --copy"
    return OptionError(
        f"{FORMAT}: table {'.'.join(table.name())} is in a copy of a warehouse: its catalog "
        f"{catalog} still names the folder {location}, and the table's folder was copied to "
        f"{copy}. Writes would go into the folder of the original, and deleted files would be "
        "missing there. Nothing was written or deleted. To make the tables of the copy "
        f"independent: '{command}'. To continue in the folder of the original, set the option "
        "'copiedWarehouse' = 'allow'"
    )


def _find_copy(table: Table, location: str, of_catalog: Path) -> tuple[str, str] | None:
    """Return a copy of the table's folder, and the warehouse that has it; None if there is none."""
    warehouse = get_access(table).access.warehouse
    given = None if warehouse is None else Location.parse(warehouse)
    warehouses = {str(of_catalog)}
    if given is not None and given.store == "disk":
        warehouses.add(given.path)
    *namespace, name = table.name()
    usual = f"{'.'.join(namespace)}/{name}"
    for around in sorted(warehouses):
        for folder in find_table_folders(around, location, usual):
            with contextlib.suppress(OSError):
                if os.path.samefile(folder, location):
                    break
            if _is_copy(table, folder, location):
                return folder, around
    return None


def _is_copy(table: Table, folder: str, location: str) -> bool:
    """Return True if a folder has metadata files of the table that say they are elsewhere."""
    metadata_path = table.properties.get(_METADATA_PATH)
    if metadata_path is not None and _is_same(metadata_path, f"{folder}/metadata"):
        return False
    names = sorted(_names(f"{folder}/metadata"), reverse=True)
    for name in names[:_MOST_READ]:
        found = _read(table, f"{folder}/metadata/{name}")
        if found is not None and found[0] == str(table.metadata.table_uuid):
            return Location.parse(found[1]).path == location
    return False


def _names(folder: str) -> Iterator[str]:
    with contextlib.suppress(OSError):
        yield from (name for name in os.listdir(folder) if name.endswith(METADATA_SUFFIX))


def _is_same(one: str, other: str) -> bool:
    place = Location.parse(one)
    with contextlib.suppress(OSError):
        return place.store == "disk" and os.path.samefile(place.path, other)
    return False


def _read(table: Table, path: str) -> tuple[str, str] | None:
    """Return the UUID and the location in a metadata file; None if it is no whole one."""
    io = get_guarded_io(table)
    limit = io.access.access.max_metadata_bytes
    with contextlib.suppress(OSError, EOFError, ValueError, LookupError, TypeError):
        # It is not the table that names this file.
        found = json.loads(b"".join(read_pieces(io.inner.new_input(path), limit)))
        return str(found["table-uuid"]), str(found["location"])
    return None
