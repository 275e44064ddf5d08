"""Writing manifests whose schema has been worked out before.

PyIceberg makes the schema of a manifest, what writes its entries and the text in its header anew
for each file, which takes longer than to write a small one. They are the same for all manifests of
one schema and one partition spec of a table.
"""

from __future__ import annotations

import os
from io import BytesIO
from typing import TYPE_CHECKING, NamedTuple

from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.avro.file import SYNC_SIZE, AvroOutputFile
from pyiceberg.manifest import ManifestEntry, ManifestWriter, ManifestWriterV1, ManifestWriterV2

from krishiv_spark.iceberg._pyiceberg import write_header
from krishiv_spark.runtime.lru import LruCache

if TYPE_CHECKING:
    from pyiceberg.avro.codecs import AvroCompressionCodec
    from pyiceberg.io import OutputFile
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata

__all__ = ["manifest_writer"]


class _Form(NamedTuple):
    """What the manifests of one schema have in common.

    Attributes:
        table: Schema and partition spec of the table. Another table may claim the same UUID.
        first: Has the schema and what writes entries; itself it is never opened.
        header: What each of them begins with, up to the file's own marker.
    """

    table: tuple[Schema, PartitionSpec]
    first: AvroOutputFile[ManifestEntry]
    header: bytes

    @classmethod
    def of(cls, table: tuple[Schema, PartitionSpec], first: AvroOutputFile[ManifestEntry]) -> _Form:
        header = BytesIO()
        first.encoder = BinaryEncoder(header)  # pyright: ignore[reportArgumentType]  # as PyIceberg
        write_header(first)
        return cls(table, first, header.getvalue()[:-SYNC_SIZE])


class _Manifest(AvroOutputFile[ManifestEntry]):
    """A manifest of a form that is known."""

    def __init__(self, form: _Form, output: OutputFile) -> None:
        # Instead of its constructor, which works out the schema once more.
        self.__dict__.update(vars(form.first))
        self.output_file = output
        self.sync_bytes = os.urandom(SYNC_SIZE)
        self._header = form.header

    def _write_header(self) -> None:
        self.encoder.write(self._header + self.sync_bytes)


_FORMS: LruCache[tuple[object, ...], _Form] = LruCache(16)


class _Remembering(ManifestWriter):
    """The part that both versions have in common."""

    key: tuple[object, ...]

    def new_writer(self) -> AvroOutputFile[ManifestEntry]:
        form, table = _FORMS.get(self.key), (self._schema, self._spec)
        if form is None or form.table != table:
            form = _Form.of(table, super().new_writer())
            _FORMS.put(self.key, form)
        return _Manifest(form, self._output_file)


class _Version1(_Remembering, ManifestWriterV1):
    pass


class _Version2(_Remembering, ManifestWriterV2):
    pass


def manifest_writer(
    metadata: TableMetadata,
    spec: PartitionSpec,
    output: OutputFile,
    snapshot_id: int,
    compression: AvroCompressionCodec,
) -> ManifestWriter:
    """What PyIceberg's ``write_manifest`` returns, for the table's current schema.

    Args:
        metadata: The table; its UUID and the id of its schema say what the schema is.
        spec: Partitions of the files.
        output: Where to write.
        snapshot_id: The snapshot that the manifest is made for.
        compression: Iceberg's name of a codec.
    """
    version = metadata.format_version
    kind = _Version1 if version == 1 else _Version2
    writer = kind(spec, metadata.schema(), output, snapshot_id, compression)
    ids = (metadata.table_uuid, metadata.current_schema_id, spec.spec_id)
    writer.key = (*ids, version, compression)
    return writer
