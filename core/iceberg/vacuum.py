"""Removing what failed attempts left in a table's folders: ``krishiv-spark iceberg vacuum``."""

from __future__ import annotations

import contextlib
import gzip
import re
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyarrow import fs

from krishiv_spark.errors import OptionError
from krishiv_spark.iceberg.catalogs import catalog_errors, open_table
from krishiv_spark.iceberg.options import FORMAT, IcebergOptions
from krishiv_spark.iceberg.writing.unused import manifests_of, named_files

if TYPE_CHECKING:
    from pyiceberg.table import Table

__all__ = ["Orphan", "orphans", "remover"]


@dataclass(frozen=True)
class Orphan:
    """A file that no snapshot names.

    Attributes:
        path: Where it is, with its scheme if the table's location has one.
        size: Bytes.
    """

    path: str
    size: int

    def __str__(self) -> str:
        return self.path


def orphans(options: IcebergOptions, older_than_s: float) -> Iterator[Orphan]:
    """What can go from a table's folders ``data`` and ``metadata``. Anywhere; reads all manifests.

    Files come before the table: what is committed meanwhile is named by the time it is looked up.

    Args:
        options: Which table.
        older_than_s: Guard age in seconds, by the file's modification time: younger files may
            belong to an epoch that is being written.

    Raises:
        OptionError: If there is no such table, its files cannot be listed, or another table has
            its metadata in the same folders.
        CatalogFailedError: If the catalog or a manifest cannot be read: nothing is judged then.
    """
    before = time.time() - older_than_s
    listed = list(_listed(open_table(options)))
    table = open_table(options)
    with catalog_errors(options, f"read the manifests of table {options.table_name}"):
        named = {_inner(path) for path in _named(table)}
        unnamed = [file for file in listed if file.path not in named]
        _check_alone(table, [file.path for file in unnamed])
    prefix = table.location().removesuffix(_inner(table.location()))
    for file in unnamed:
        if file.mtime.timestamp() < before:
            yield Orphan(f"{prefix}{file.path}", file.size)


def remover(options: IcebergOptions) -> Callable[[Orphan], None]:
    """What removes orphans of a table.

    Raises:
        OptionError, CatalogFailedError: As `open_table`; when an orphan cannot be removed, too.
    """
    io = open_table(options).io

    def remove(orphan: Orphan) -> None:
        with catalog_errors(options, f"remove {orphan.path}"):
            io.delete(orphan.path)

    return remove


def _check_alone(table: Table, paths: Iterable[str]) -> None:
    """Refuse folders that another table uses: its files would all be orphans.

    A table that is renamed keeps its location, and a new one of its old name gets the same. So do
    tables of one name in two catalogs over one warehouse.
    """
    for path in paths:
        owner = _uuid_in(table, path) if path.endswith(_METADATA) else None
        if owner not in {None, str(table.metadata.table_uuid)}:
            raise OptionError(
                f"{FORMAT}: {path} belongs to another table (UUID {owner}), whose files cannot be "
                "told from orphans. Was it renamed, or is it in another catalog? Then nothing can "
                "be removed here. Was it dropped? Then remove its metadata files first"
            )


_METADATA = ".metadata.json"
_HEAD_BYTES = 4096
_UUID = re.compile(rb'"table-uuid"\s*:\s*"([^"]+)"')


def _uuid_in(table: Table, path: str) -> str | None:
    """UUID of the table that a metadata file is of; None if it is no whole one."""
    with contextlib.suppress(FileNotFoundError), table.io.new_input(path).open() as stream:
        head = stream.read(_HEAD_BYTES)
        text = head + (b"" if _UUID.search(head) else stream.read())
        found = _UUID.search(_plain(text))
        return None if found is None else found[1].decode()
    return None


def _plain(text: bytes) -> bytes:
    with contextlib.suppress(EOFError, OSError, zlib.error):  # it is not compressed, or damaged
        return gzip.decompress(text)
    return text


def _named(table: Table) -> Iterator[str]:
    """Every file that the table, or one of its snapshots, names."""
    metadata = table.metadata
    yield table.metadata_location
    yield from (entry.metadata_file for entry in metadata.metadata_log)
    yield from (snapshot.manifest_list for snapshot in metadata.snapshots if snapshot.manifest_list)
    yield from (manifest.manifest_path for manifest in manifests_of(table))
    yield from named_files(table)
    for statistics in (*metadata.statistics, *metadata.partition_statistics):
        yield statistics.statistics_path


def _listed(table: Table) -> Iterator[fs.FileInfo]:
    from pyiceberg.io.pyarrow import PyArrowFileIO

    if not isinstance(table.io, PyArrowFileIO):
        raise OptionError(
            f"{FORMAT}: files of {table.location()} cannot be listed with {type(table.io).__name__}"
            ": set 'catalog.py-io-impl' to pyiceberg.io.pyarrow.PyArrowFileIO"
        )
    places = table.location_provider()
    for folder in (places.data_path, places.metadata_path):
        scheme, host, path = PyArrowFileIO.parse_location(folder)
        selector = fs.FileSelector(path, allow_not_found=True, recursive=True)
        files: Any = table.io.fs_by_scheme(scheme, host).get_file_info(selector)
        yield from (file for file in files if file.type is fs.FileType.File)


def _inner(location: str) -> str:
    """A place as its file system knows it."""
    from pyiceberg.io.pyarrow import PyArrowFileIO

    return PyArrowFileIO.parse_location(location)[2]
