"""Writers of manifests, the manifests of one commit, and those that no snapshot lists. Driver.

For each manifest, PyIceberg derives the schema, the encoder of entries and the text of the header
again, which takes longer than to write a small manifest. They are the same for all manifests of one
schema and one partition spec of a table, and are cached here.

All attempts of a commit have one snapshot id, which the entries of their manifests contain, and
entries of new files inherit their sequence number. So an attempt after a lost race lists the
manifests of an earlier one, and writes only the list, and those that the other commit has changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple

from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.avro.file import SYNC_SIZE, AvroOutputFile
from pyiceberg.manifest import (
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriter,
    ManifestWriterV1,
    ManifestWriterV2,
    write_manifest,
)
from pyiceberg.table import TableProperties

from krishiv_spark.iceberg._pyiceberg import copy_manifest, write_header
from krishiv_spark.iceberg.own_files import create_metadata_uuid
from krishiv_spark.runtime.caches import LruCache
from krishiv_spark.sinks.iceberg.table_schema import get_manifest_schema

if TYPE_CHECKING:
    from pyiceberg.io import FileIO, OutputFile
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

__all__ = [
    "NO_SNAPSHOT",
    "WrittenManifests",
    "create_manifest_writer",
    "read_unlisted_manifest",
    "write_unlisted_manifest",
]

NO_SNAPSHOT = -1
"""The snapshot id of manifests that no snapshot lists."""

_FORMS: LruCache[tuple[object, ...], _ManifestForm] = LruCache(16)


class _ManifestForm(NamedTuple):
    """The common parts of the manifests of one schema.

    Attributes:
        table: Schema and partition spec of the table. Another table may claim the same UUID.
        first: The source of the schema and of the encoder; it is never opened.
        header: The first bytes of each manifest, up to the sync marker of the file.
    """

    table: tuple[Schema, PartitionSpec]
    first: AvroOutputFile[ManifestEntry]
    header: bytes

    @classmethod
    def of(
        cls, table: tuple[Schema, PartitionSpec], first: AvroOutputFile[ManifestEntry]
    ) -> _ManifestForm:
        header = BytesIO()
        first.encoder = BinaryEncoder(header)  # pyright: ignore[reportArgumentType]  # as PyIceberg
        write_header(first)
        return cls(table, first, header.getvalue()[:-SYNC_SIZE])


class _ManifestFile(AvroOutputFile[ManifestEntry]):
    """A manifest of a cached form."""

    def __init__(self, form: _ManifestForm, output: OutputFile) -> None:
        # Instead of the constructor, which derives the schema again.
        self.__dict__.update(vars(form.first))
        self.output_file = output
        self.sync_bytes = os.urandom(SYNC_SIZE)
        self._header = form.header

    def _write_header(self) -> None:
        self.encoder.write(self._header + self.sync_bytes)


class _CachedForm(ManifestWriter):
    """The common part of both format versions."""

    key: tuple[object, ...]

    def new_writer(self) -> AvroOutputFile[ManifestEntry]:
        form, table = _FORMS.get(self.key), (self._schema, self._spec)
        if form is None or form.table != table:
            form = _ManifestForm.of(table, super().new_writer())
            _FORMS.put(self.key, form)
        return _ManifestFile(form, self._output_file)


class _ManifestV1(_CachedForm, ManifestWriterV1):
    pass


class _ManifestV2(_CachedForm, ManifestWriterV2):
    pass


class _DeleteManifest(_CachedForm, ManifestWriterV2):
    """A manifest of delete files, which PyIceberg writes none of."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def create_manifest_writer(
    metadata: TableMetadata,
    spec: PartitionSpec,
    output: OutputFile,
    snapshot_id: int,
    content: ManifestContent = ManifestContent.DATA,
) -> ManifestWriter:
    """Return a writer as PyIceberg's ``write_manifest`` does, for the table's newest schema.

    Args:
        metadata: The metadata of the table. Its UUID and schema id identify the schema.
        spec: Partition spec of the files.
        output: The new file.
        snapshot_id: Id of the snapshot that the manifest belongs to.
        content: The kind of the files. Delete files require format version 2.
    """
    version = metadata.format_version
    compression: Any = metadata.properties.get(
        TableProperties.WRITE_AVRO_COMPRESSION, TableProperties.WRITE_AVRO_COMPRESSION_DEFAULT
    )
    kind: type[_CachedForm] = _ManifestV1 if version == 1 else _ManifestV2
    if content is ManifestContent.DELETES:
        kind = _DeleteManifest
    schema = get_manifest_schema(metadata, spec)
    writer = kind(spec, schema, output, snapshot_id, compression)
    ids = (metadata.table_uuid, metadata.current_schema_id, spec.spec_id)
    writer.key = (*ids, version, compression, content)
    return writer


class WrittenManifests:
    """The manifests of one commit, by what they contain.

    Attributes:
        snapshot_id: Id of the commit's snapshot, from the first attempt on.
    """

    def __init__(self) -> None:
        self.snapshot_id: int | None = None
        self._manifests: dict[Hashable, ManifestFile] = {}

    def get(self, content: Hashable, write: Callable[[], ManifestFile]) -> ManifestFile:
        """Return the manifest of a content, which is written for the first attempt that needs it.

        Each call returns another copy: PyIceberg writes the sequence number of an attempt into the
        manifests that it lists, and the next attempt has another number.

        Args:
            content: Identifies the entries, their order, and the schema of the table.
            write: Writes the manifest.
        """
        found = self._manifests.get(content)
        if found is None:
            found = self._manifests[content] = write()
        return copy_manifest(found)


def write_unlisted_manifest(table: Table, files: Sequence[DataFile]) -> str:
    """Write a manifest of data files that no snapshot lists, and return its path."""
    metadata = table.metadata
    name = f"{create_metadata_uuid(metadata.table_uuid)}-m0.avro"
    path = table.location_provider().new_metadata_location(name)
    output, spec = table.io.new_output(path), metadata.spec()
    schema = get_manifest_schema(metadata, spec)
    with write_manifest(
        metadata.format_version, spec, schema, output, NO_SNAPSHOT, "null"
    ) as writer:
        for file in files:
            entry = ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED, snapshot_id=NO_SNAPSHOT, data_file=file
            )
            writer.add_entry(entry)
    return path


def read_unlisted_manifest(io: FileIO, path: str, spec_id: int) -> list[DataFile]:
    """Read the data files of a manifest of `write_unlisted_manifest`."""
    manifest = ManifestFile.from_args(
        manifest_path=path,
        manifest_length=0,
        partition_spec_id=spec_id,
        content=ManifestContent.DATA,
        sequence_number=0,
        min_sequence_number=0,
        added_snapshot_id=NO_SNAPSHOT,
    )
    return [entry.data_file for entry in manifest.fetch_manifest_entry(io)]
