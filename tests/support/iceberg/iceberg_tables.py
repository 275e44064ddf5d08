"""Tables of a real embedded catalog, written by PyIceberg alone, as another program does."""

from __future__ import annotations

import json
import struct
import uuid
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _FastAppendFiles, _OverwriteFiles
from pyiceberg.typedef import Record
from pyroaring import BitMap

NAME = "db.t"

_ID = "PARQUET:field_id"
_POSITION_DELETES = pa.schema(  # Iceberg spec, "Reserved Field IDs"; Java finds columns by them
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={_ID: "2147483546"}),
        pa.field("pos", pa.int64(), nullable=False, metadata={_ID: "2147483545"}),
    ]
)


def catalog(folder: Path) -> SqlCatalog:
    """The catalog that ``warehouse`` means without further options."""
    return SqlCatalog("krishiv", uri=f"sqlite:///{folder}/catalog.db", warehouse=str(folder))


def make_table(folder: Path, schema: Any, **more: Any) -> Table:
    """A new table ``db.t``."""
    made = catalog(folder)
    made.create_namespace_if_not_exists("db")
    return made.create_table(NAME, schema, **more)


def table_in(folder: Path) -> Table:
    """The table as it is now."""
    return catalog(folder).load_table(NAME)


def append(folder: Path, rows: pa.Table, **more: Any) -> int:
    """One snapshot more; its id."""
    table = table_in(folder)
    table.append(rows, **more)
    return newest(folder, more.get("branch", "main"))


def append_files(folder: Path, *parts: pa.Table, kind: type[_FastAppendFiles] | None = None) -> int:
    """One snapshot with a file for each part."""
    table = table_in(folder)
    with table.transaction() as transaction:
        made = (kind or _FastAppendFiles)(Operation.APPEND, transaction, table.io)
        with made as update:
            for part in parts:
                update.append_data_file(_written(table, part))
    return newest(folder)


class MergesOne(_FastAppendFiles):
    """Two manifests of its own: the first file and those of the last snapshot, and its others.

    As Iceberg merges manifests, where there are many or those of more than one partition spec.
    """

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        added, last, *others = manifests
        first, *more = self.fetch_manifest_entry(added)
        before = self.fetch_manifest_entry(last)
        spec = self.spec(added.partition_spec_id)
        with self.new_manifest_writer(spec) as merged:
            merged.add(first)
            for entry in before:
                merged.existing(entry)
        with self.new_manifest_writer(spec) as own:
            for entry in more:
                own.add(entry)
        return [merged.to_manifest_file(), own.to_manifest_file(), *others]


def _written(table: Table, rows: pa.Table, **options: Any) -> DataFile:
    path = f"{table.location()}/data/{uuid.uuid4()}.parquet"
    schema = table.schema().as_arrow()
    names = [name for name in schema.names if name in rows.column_names]
    fields = pa.schema([schema.field(name) for name in names])
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows.select(names).cast(fields), path, **options)
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=pq.read_metadata(path),
        stats_columns=compute_statistics_plan(table.schema(), table.properties),
        parquet_column_mapping=parquet_path_to_id_mapping(table.schema()),
    )
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        file_size_in_bytes=Path(path).stat().st_size,
        **statistics.to_serialized_dict(),
    )
    file.spec_id = table.spec().spec_id
    return file


def append_grouped(folder: Path, rows: pa.Table, rows_per_group: int) -> int:
    """One snapshot of one file with several row groups."""
    table = table_in(folder)
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as update:
        update.append_data_file(_written(table, rows, row_group_size=rows_per_group))
    return newest(folder)


def newest(folder: Path, branch: str = "main") -> int:
    """Id of the newest snapshot."""
    snapshot = table_in(folder).metadata.snapshot_by_name(branch)
    assert snapshot is not None
    return snapshot.snapshot_id


def compact(folder: Path) -> int:
    """All rows in one file: a snapshot of kind "replace"."""
    return _replace(folder, paths(folder), table_in(folder).scan().to_arrow(), _Rewrite)


def rewrite(
    folder: Path, gone: Iterable[str], rows: pa.Table, *, drops_deletes: bool = False
) -> int:
    """Rows in the place of those of some files: a snapshot of kind "overwrite".

    PyIceberg leaves delete files behind; Iceberg itself drops those that have become useless.
    """
    return _replace(folder, gone, rows, _Dropping if drops_deletes else _OverwriteFiles)


def drop_deletes(folder: Path) -> int:
    """A snapshot in which the deleted rows are there again."""
    table = table_in(folder)
    transaction = table.transaction()
    with transaction, _Dropping(Operation.OVERWRITE, transaction, table.io):
        pass
    return newest(folder)


def _replace(folder: Path, gone: Iterable[str], rows: pa.Table, kind: type[_OverwriteFiles]) -> int:
    table = table_in(folder)
    files = [task.file for task in table.scan().plan_files() if task.file.file_path in gone]
    transaction = table.transaction()
    with transaction, kind(Operation.OVERWRITE, transaction, table.io) as update:
        for file in files:
            update.delete_data_file(file)
        update.append_data_file(_written(table, rows))
    return newest(folder)


def expire(folder: Path, *ids: int) -> None:
    """Expire snapshots as PyIceberg does: their children have no parent any more."""
    table_in(folder).maintenance.expire_snapshots().by_ids(list(ids)).commit()


def expire_as_java(folder: Path, *ids: int) -> None:
    """Expire snapshots as Iceberg itself does: their children still name them."""
    location = Path(table_in(folder).metadata_location)
    metadata = json.loads(location.read_text())
    for key in ("snapshots", "snapshot-log"):
        metadata[key] = [item for item in metadata[key] if item["snapshot-id"] not in ids]
    location.write_text(json.dumps(metadata))


def paths(folder: Path) -> list[str]:
    """The data files of the table, in the order of its manifests."""
    return [task.file.file_path for task in table_in(folder).scan().plan_files()]


def delete_rows(folder: Path, positions: Mapping[str, Iterable[int]]) -> int:
    """A snapshot with one file of position deletes, for rows of several files."""
    named = sorted((path, at) for path, found in positions.items() for at in found)
    given = [[path for path, _ in named], [at for _, at in named]]
    rows = pa.table(given, schema=_POSITION_DELETES)
    return _delete(folder, rows, DataFileContent.POSITION_DELETES, None)


def delete_by_vector(folder: Path, path: str, positions: Iterable[int]) -> int:
    """A snapshot with a deletion vector for one file (Iceberg spec, "Deletion Vectors")."""
    bits = BitMap(positions).serialize()
    vector = struct.pack("<qi", 1, 0) + bits
    blob = b"\xd1\xd3\x39\x64" + vector
    blob = struct.pack(">i", len(blob)) + blob + struct.pack(">I", zlib.crc32(blob))
    known = {
        "type": "deletion-vector-v1",
        "fields": [2147483645],
        "snapshot-id": -1,
        "sequence-number": -1,
        "offset": 4,
        "length": len(blob),
        "properties": {"referenced-data-file": path, "cardinality": str(len(list(positions)))},
    }
    footer = json.dumps({"blobs": [known], "properties": {}}).encode()
    table = table_in(folder)
    place = Path(f"{table.location()}/data/{uuid.uuid4()}.puffin")
    magic = b"PFA1"
    place.write_bytes(
        magic + blob + magic + footer + struct.pack("<i", len(footer)) + bytes(4) + magic
    )
    return _commit_delete(folder, place, FileFormat.PUFFIN, DataFileContent.POSITION_DELETES)


def delete_equal(folder: Path, rows: pa.Table, field_ids: list[int]) -> int:
    """A snapshot with a file of equality deletes."""
    return _delete(folder, rows, DataFileContent.EQUALITY_DELETES, field_ids)


def _delete(
    folder: Path, rows: pa.Table, content: DataFileContent, field_ids: list[int] | None
) -> int:
    path = Path(f"{table_in(folder).location()}/data/{uuid.uuid4()}-deletes.parquet")
    pq.write_table(rows, path)
    return _commit_delete(folder, path, FileFormat.PARQUET, content, field_ids)


def _commit_delete(
    folder: Path,
    path: Path,
    kind: FileFormat,
    content: DataFileContent,
    field_ids: list[int] | None = None,
) -> int:
    table = table_in(folder)
    file = DataFile.from_args(
        content=content,
        file_path=str(path),
        file_format=kind,
        partition=Record(),
        record_count=1,
        file_size_in_bytes=path.stat().st_size,
        equality_ids=field_ids,
    )
    file.spec_id = 0
    transaction = table.transaction()
    with transaction, _Deletes(Operation.OVERWRITE, transaction, table.io) as update:
        update.deletes = [file]
    return newest(folder)


class _Rewrite(_OverwriteFiles):
    """A compaction, which PyIceberg itself has not."""

    def _summary(self, snapshot_properties: Mapping[str, str] = {}) -> Summary:
        summary = super()._summary(dict(snapshot_properties))
        return Summary(Operation.REPLACE, **summary.additional_properties)


class _Dropping(_OverwriteFiles):
    """An overwrite that drops all delete files."""

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        return [one for one in manifests if one.content == ManifestContent.DATA]


class _DeleteManifest(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class _Deletes(_FastAppendFiles):
    """A commit of delete files, which PyIceberg itself cannot write."""

    deletes: list[DataFile]

    def _summary(self, snapshot_properties: Mapping[str, str] = {}) -> Summary:
        added = self._added_data_files
        self._added_data_files = [*added, *self.deletes]  # counted, and in no manifest of data
        try:
            return super()._summary(dict(snapshot_properties))
        finally:
            self._added_data_files = added

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        metadata = self._transaction.table_metadata
        with _DeleteManifest(
            metadata.spec(),
            metadata.schema(),
            self.new_manifest_output(),
            self._snapshot_id,
            self._compression,
        ) as writer:
            for file in self.deletes:
                writer.add(
                    ManifestEntry.from_args(
                        status=ManifestEntryStatus.ADDED,
                        snapshot_id=self._snapshot_id,
                        data_file=file,
                    )
                )
        return [*super()._process_manifests(manifests), writer.to_manifest_file()]


def make_with_deletes(warehouse, *batches):
    """Make a table of two data files, with rows of both deleted by position."""
    warehouse.mkdir()
    make_table(warehouse, batches[0].schema)
    append_files(warehouse, *batches)
    first, second = paths(warehouse)
    delete_rows(warehouse, {first: [0, 3], second: [9]})
