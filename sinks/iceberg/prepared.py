"""The data files of an epoch, written down where its intent can name them. Driver.

An intent must be short, whatever the number of files. So they are in a manifest, which no snapshot
names: the one that brings them into the table has manifests of its own. What they do to the rows
that are there is in the intent too: whoever finishes it may know another mode, or none.

`iceberg vacuum` keeps these files until their epoch is finished (`find_unfinished`). The table does
not contain where the epoch log with the intent is. But a property has the number of the newest
epoch of each query that came in, and the name of a staged file has the end of its query's id and
the number of its epoch. A file of a later epoch may be one that an intent names.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyiceberg.manifest import (
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest,
)

from krishiv_spark.errors import LogError
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.iceberg.own_files import OwnFiles, create_metadata_uuid
from krishiv_spark.iceberg.property_keys import EPOCH_PREFIX, parse_count
from krishiv_spark.sinks.iceberg.changesets import UpsertSpec
from krishiv_spark.sinks.iceberg.committer import Effect
from krishiv_spark.sinks.iceberg.staged import StagedForTable
from krishiv_spark.sinks.iceberg.target import StagedDataFiles, query_in_stem

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

__all__ = ["delete_prepared", "effect_of", "find_unfinished", "read_prepared", "write_prepared"]

_NO_SNAPSHOT = -1
# A query of a stream without an option 'queryId', and the route that its rows take.
_ROUTE = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}-.+", re.DOTALL)
_STAGED = re.compile(
    r"\d{5}-\d+-(?P<query>[\w-]+)-(?P<epoch>\d+)-[0-9a-f]{12}-t[0-9a-f]{12}(?:-\d+\.parquet|\.changes)"
)
_NO_EPOCH = -1


def write_prepared(
    table: Table, staged: Sequence[StagedDataFiles], effect: Effect
) -> StagedForTable:
    """All that tasks have staged for an epoch, as its intent names it; durable when this returns.

    Args:
        table: As it is now; what is staged fits it.
        staged: By task; none of an epoch that only takes rows away.
        effect: Of the epoch.
    """
    spec = effect.upsert_spec
    metadata = table.metadata
    files = [file for item in staged for file in item.files]
    return StagedForTable(
        table=str(metadata.table_uuid),
        spec_id=metadata.default_spec_id,
        after=min((item.after for item in staged), default=0),
        changes=tuple(path for item in staged for path in item.changes),
        schema_id=next((item.schema_id for item in staged if item.changes), None),
        manifest=_write(table, files) if files else None,
        replaces=effect.replaces,
        keys=() if spec is None else spec.keys,
        order=None if spec is None else spec.order,
    )


def effect_of(item: StagedForTable) -> Effect | None:
    """What an epoch does to the table by its intent; None if that is older, and does not say."""
    if item.replaces is None:
        return None
    # Which column told of deletes is of no interest: the changes say it themselves.
    spec = UpsertSpec(item.keys, None, item.order) if item.keys else None
    return Effect(spec, replaces=item.replaces)


def read_prepared(table: Table, item: StagedForTable) -> StagedDataFiles:
    """Return what an intent names, as the tasks reported it.

    Raises:
        LogError: If it names files that this sink does not stage for the table.
        OSError: If a file is missing, or cannot be read.
    """
    own = OwnFiles.staged_for(table)
    for path in _named_files(item):
        if path not in own:
            raise LogError(
                f"{FORMAT}: an intent names {path!r}, which is not a file staged for the table "
                f"at {table.location()!r}: the epoch log was changed. Nothing was read or "
                "deleted"
            )
    files = () if item.manifest is None else tuple(_read(table.io, item.manifest, item.spec_id))
    return StagedDataFiles(
        item.table, item.spec_id, item.after, files, item.changes, item.schema_id
    )


def delete_prepared(table: Table, staged: Sequence[StagedForTable]) -> None:
    """Delete the manifests that intents name; what remains is left to vacuum."""
    with contextlib.suppress(Exception):
        OwnFiles.staged_for(table).delete(item.manifest for item in staged if item.manifest)


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


def _named_files(item: StagedForTable) -> Iterator[str]:
    if item.manifest is not None:
        yield item.manifest
    yield from item.changes


def _write(table: Table, files: Sequence[DataFile]) -> str:
    metadata = table.metadata
    name = f"{create_metadata_uuid(metadata.table_uuid)}-m0.avro"
    path = table.location_provider().new_metadata_location(name)
    output = table.io.new_output(path)
    with write_manifest(
        metadata.format_version, metadata.spec(), metadata.schema(), output, _NO_SNAPSHOT, "null"
    ) as writer:
        for file in files:
            entry = ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED, snapshot_id=_NO_SNAPSHOT, data_file=file
            )
            writer.add_entry(entry)
    return path


def _read(io: FileIO, path: str, spec_id: int) -> list[DataFile]:
    manifest = ManifestFile.from_args(
        manifest_path=path,
        manifest_length=0,
        partition_spec_id=spec_id,
        content=ManifestContent.DATA,
        sequence_number=0,
        min_sequence_number=0,
        added_snapshot_id=_NO_SNAPSHOT,
    )
    return [entry.data_file for entry in manifest.fetch_manifest_entry(io)]


def _name_of(path: str) -> str:
    return path.rpartition("/")[2]


def _newest_epochs(properties: Mapping[str, str]) -> dict[str, int]:
    """Return the newest epoch in the table of each route, by what file names have of its query."""
    found: dict[str, int] = {}
    for key, text in properties.items():
        query = key.removeprefix(EPOCH_PREFIX)
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
    try:
        return {_name_of(file.file_path) for file in _read(io, path, spec_id=0)}
    except (ValueError, LookupError, TypeError):  # a list of manifests, or a damaged file
        return set()
