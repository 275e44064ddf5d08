"""Files of an unfinished epoch of krishiv-fanout, which `iceberg vacuum` keeps.

The intent of such an epoch is in the query's epoch log, whose location the table does not contain.
But the table has the number of the newest epoch of each query that came in, in a property, and the
name of a staged file has the end of its query's id and the number of its epoch. A file of a later
epoch may be one that an intent names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pyiceberg.manifest import ManifestContent, ManifestFile

from krishiv_spark.iceberg.query_marks import EPOCH_OF
from krishiv_spark.iceberg.untrusted import parse_count
from krishiv_spark.sinks.iceberg.target import query_in_stem

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

__all__ = ["find_unfinished"]

# A query of a stream without an option 'queryId', and the route that its rows take.
_ROUTE = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}-.+", re.DOTALL)
_STAGED = re.compile(
    r"\d{5}-\d+-(?P<query>[\w-]+)-(?P<epoch>\d+)-[0-9a-f]{12}-t[0-9a-f]{12}(?:-\d+\.parquet|\.changes)"
)
_NO_EPOCH = -1


def find_unfinished(io: FileIO, properties: Mapping[str, str], paths: Iterable[str]) -> set[str]:
    """Return the files that an unfinished epoch of a fan-out may need. Anywhere.

    Args:
        io: Reads manifests.
        properties: Of the table.
        paths: Files that no snapshot names.

    Raises:
        OSError: If a manifest cannot be read.
    """
    wanted = set(paths)
    newest = _newest_epochs(properties)
    kept = {path for path in wanted if _is_later(_name_of(path), newest)}
    if kept:
        names = set(map(_name_of, kept))  # a location may have several spellings
        kept |= {path for path in wanted if path.endswith(".avro") and _names(io, path) & names}
    return kept


def _name_of(path: str) -> str:
    return path.rpartition("/")[2]


def _newest_epochs(properties: Mapping[str, str]) -> dict[str, int]:
    """Return the newest epoch in the table of each route, by what file names have of its query."""
    found: dict[str, int] = {}
    for key, text in properties.items():
        query = key.removeprefix(EPOCH_OF)
        if query != key and _ROUTE.fullmatch(query):
            name, number = query_in_stem(query), parse_count(text)
            epoch = _NO_EPOCH if number is None else number
            found[name] = min(epoch, found.get(name, epoch))  # a long route may end several ids
    return found


def _is_later(name: str, newest: Mapping[str, int]) -> bool:
    staged = _STAGED.fullmatch(name)
    return staged is not None and int(staged["epoch"]) > newest.get(
        staged["query"], int(staged["epoch"])
    )


def _names(io: FileIO, path: str) -> set[str]:
    """Return the names of the data files in a manifest; none if the file is no manifest."""
    manifest = ManifestFile.from_args(
        manifest_path=path,
        manifest_length=0,
        partition_spec_id=0,
        content=ManifestContent.DATA,
        sequence_number=0,
        min_sequence_number=0,
        added_snapshot_id=-1,
    )
    try:
        entries = manifest.fetch_manifest_entry(io)
        return {_name_of(entry.data_file.file_path) for entry in entries}
    except (ValueError, LookupError, TypeError):  # a list of manifests, or a damaged file
        return set()
