"""Delete files that contain the paths of data files: position deletes and deletion vectors."""

from __future__ import annotations

import io
import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from krishiv_spark.iceberg.relocation.paths import PathMap

__all__ = ["rewrite_deletion_vectors", "rewrite_position_deletes"]

_PATH, _POSITION = "file_path", "pos"
_MAGIC, _FOOTER_END = b"PFA1", 12
_REFERENCED = "referenced-data-file"


def rewrite_position_deletes(data: bytes, paths: PathMap) -> bytes:
    """Return a Parquet file of position deletes with translated paths; it stays sorted by them."""
    table = pq.read_table(io.BytesIO(data))
    encoded = table[_PATH].combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    before = encoded.dictionary.to_pylist()
    after = [paths.translate(path) for path in before]
    if before == after:
        return data
    field = table.schema.field(_PATH)
    column = pc.take(pa.array(after, field.type), encoded.indices)
    table = table.set_column(table.schema.get_field_index(_PATH), field, column)
    table = table.sort_by([(_PATH, "ascending"), (_POSITION, "ascending")])
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", store_schema=False)
    return sink.getvalue()


def rewrite_deletion_vectors(data: bytes, paths: PathMap) -> bytes:
    """Return a Puffin file whose vectors are of the translated data files.

    The vectors stay where they are in the file, since manifests have their offsets.

    Raises:
        ValueError: If it is damaged, or its footer is compressed.
    """
    size = int.from_bytes(data[-12:-8], "little", signed=True)
    start = len(data) - _FOOTER_END - size
    if data[-4:] != _MAGIC or start < 2 * len(_MAGIC) or data[start - 4 : start] != _MAGIC:
        raise ValueError("it is no Puffin file")
    if data[-8:-4] != bytes(4):
        raise ValueError("its footer is compressed")
    footer: dict[str, Any] = json.loads(data[start:-_FOOTER_END])
    for blob in footer["blobs"]:
        properties = blob.get("properties") or {}
        if _REFERENCED in properties:
            properties[_REFERENCED] = paths.translate(properties[_REFERENCED])
    text = json.dumps(footer, separators=(",", ":")).encode()
    end = len(text).to_bytes(4, "little") + bytes(4) + _MAGIC
    return data[:start] + text + end
