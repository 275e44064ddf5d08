"""The metadata of a table, rewritten for another folder. Operator.

Rewrites the metadata file, lists of manifests, manifests, and delete files that contain paths. Data
files, equality deletes and statistics are transferred unchanged.

PyIceberg writes manifests in its own form: fields that it does not know are lost, such as the row
ids of format version 3. Here an Avro file keeps its schema, its header and every field that is not
changed.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from krishiv_spark.errors import OptionError
from krishiv_spark.iceberg.avro_files import create_decompressor
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.iceberg.own_files import create_metadata_uuid
from krishiv_spark.iceberg.relocation.warehouse_files import PathMap, WarehouseFiles, local_path

__all__ = [
    "DELETED",
    "RelocatedTable",
    "TableRewriter",
    "read_avro",
    "read_metadata",
]

_NEWEST_VERSION = 3
_PROPERTIES = (
    "write.data.path",
    "write.metadata.path",
    "write.object-storage.path",
    "write.folder-storage.path",
)
_STATISTICS = ("statistics", "partition-statistics")
DELETED, _POSITION_DELETES = 2, 1
_PATH_FIELD = 2147483546
"""Id of the column ``file_path`` of position deletes (Iceberg spec, "Reserved Field IDs")."""

_VERSION = re.compile(r"^v?(\d+)\b")
_SUFFIX = ".metadata.json"

_PATH, _POSITION = "file_path", "pos"
_MAGIC, _FOOTER_END = b"PFA1", 12
_REFERENCED = "referenced-data-file"


class RelocatedTable(NamedTuple):
    """A table in its new folder.

    Attributes:
        metadata: Location of its new metadata file.
        rows: Number of rows in its data files, by snapshot.
    """

    metadata: str
    rows: dict[int, int]


class TableRewriter:
    """A rewriter of one table's files.

    Args:
        files: The old and the new files.
        name: Name of the table, for messages.
        uuid: UUID of the new table; None to keep the old one.
    """

    def __init__(self, files: WarehouseFiles, name: str, uuid: str | None) -> None:
        self._files, self._name, self._uuid = files, name, uuid
        self._manifests: dict[str, tuple[int, int]] = {}
        self._deletes: dict[str, int] = {}

    def rewrite(self, location: str) -> RelocatedTable:
        """Rewrite a table, starting at its metadata file.

        The new metadata file is a separate version, whose name no process knows.

        Raises:
            OptionError: If a file is missing or damaged, or cannot be rewritten.
        """
        files = self._files
        metadata = read_metadata(files, location)
        self._check(metadata)
        rows = {
            snapshot["snapshot-id"]: self._rewrite_snapshot(snapshot)
            for snapshot in metadata.get("snapshots") or []
        }
        for kind in _STATISTICS:
            for one in metadata.get(kind) or []:
                files.transfer(one["statistics-path"])
        for old in [location, *_list_history(metadata)]:
            if files.relative(old) is not None and files.exists(old):
                found = read_metadata(files, old)
                files.write(old, _pack(old, self._translate(found)))
        new = files.paths.translate(location)
        translated = self._translate(metadata)
        entry = {"metadata-file": new, "timestamp-ms": metadata["last-updated-ms"]}
        translated["metadata-log"] = [*(translated.get("metadata-log") or []), entry]
        name = _create_next_name(new, translated["table-uuid"])
        files.write(name, json.dumps(translated).encode())
        return RelocatedTable(name, rows)

    def rewrite_others(self, location: str) -> None:
        """Rewrite metadata files of the table in its folder that are in no version's history."""
        own = read_metadata(self._files, location)["table-uuid"]
        folder = Path(local_path(self._files.paths.translate(location)) or "").parent
        for path in sorted(folder.glob(f"*{_SUFFIX}")):
            try:
                found = json.loads(_unpack(path.name, path.read_bytes()))
                if found["table-uuid"] == own:
                    self._files.write(str(path), _pack(path.name, self._translate(found)))
            except (ValueError, LookupError, TypeError, EOFError, OSError):
                continue  # a damaged or partial file

    def _check(self, metadata: dict[str, Any]) -> None:
        if metadata.get("encryption-keys"):
            raise self._create_error("it is encrypted")
        if metadata["format-version"] > _NEWEST_VERSION:
            raise self._create_error(f"it has format version {metadata['format-version']}")

    def _create_error(self, reason: str) -> OptionError:
        return OptionError(
            f"{FORMAT}: table {self._name} cannot be relocated: {reason}. Nothing was switched: "
            "the old warehouse is unchanged"
        )

    def _translate(self, metadata: dict[str, Any]) -> dict[str, Any]:
        """Return metadata with new locations, and with a new UUID where one is given."""
        translate = self._files.paths.translate
        found = {**metadata, "location": translate(metadata["location"])}
        if self._uuid is not None:
            found["table-uuid"] = self._uuid
        properties = dict(metadata.get("properties") or {})
        found["properties"] = properties | {
            key: translate(properties[key]) for key in _PROPERTIES if key in properties
        }
        named = {"snapshots": "manifest-list", "metadata-log": "metadata-file"}
        for key, field in {**named, **dict.fromkeys(_STATISTICS, "statistics-path")}.items():
            if key in found:
                found[key] = [
                    {**one, field: translate(one[field])} if field in one else dict(one)
                    for one in found[key] or []
                ]
        for snapshot in found.get("snapshots") or []:
            if "manifests" in snapshot:  # as version 1 may have it
                snapshot["manifests"] = [translate(path) for path in snapshot["manifests"]]
        return found

    def _rewrite_snapshot(self, snapshot: dict[str, Any]) -> int:
        """Rewrite a snapshot's list and manifests; return the rows of its data files."""
        if "manifest-list" not in snapshot:
            return sum(self._rewrite_manifest(path)[1] for path in snapshot.get("manifests", ()))
        location, rows = snapshot["manifest-list"], 0
        content = self._read(location)
        for record in content.records:
            if record.get("key_metadata") is not None:
                raise self._create_error("it is encrypted")
            size, found = self._rewrite_manifest(record["manifest_path"])
            record["manifest_path"] = self._files.paths.translate(record["manifest_path"])
            record["manifest_length"] = size
            rows += 0 if record.get("content") else found
        self._files.write(location, write_avro(content))
        return rows

    def _rewrite_manifest(self, location: str) -> tuple[int, int]:
        """Return the size of the new manifest, and the rows of its files that are not deleted."""
        if location not in self._manifests:
            content = self._read(location)
            rows = 0
            for entry in content.records:
                self._rewrite_entry(entry)
                if entry["status"] != DELETED:
                    rows += entry["data_file"]["record_count"]
            self._manifests[location] = self._files.write(location, write_avro(content)), rows
        return self._manifests[location]

    def _read(self, location: str) -> AvroRecords:
        try:
            return read_avro(self._files.read(location))
        except (ValueError, LookupError, TypeError) as error:
            if isinstance(error, OptionError):
                raise
            raise self._create_error(f"{location} is damaged: {error}") from error

    def _rewrite_entry(self, entry: dict[str, Any]) -> None:
        """Transfer the file of an entry, and change the entry to the new location."""
        file, translate = entry["data_file"], self._files.paths.translate
        location = file["file_path"]
        if file.get("key_metadata") is not None:
            raise self._create_error(f"{location} is encrypted")
        is_needed = entry["status"] != DELETED or self._files.exists(location)
        if file.get("content", 0) == _POSITION_DELETES:
            if is_needed:
                file["file_size_in_bytes"] = self._rewrite_deletes(location, file["file_format"])
            for bounds in ("lower_bounds", "upper_bounds"):
                if file.get(bounds):
                    file[bounds] = list(self._translate_bounds(file[bounds]))
        elif is_needed:
            self._files.transfer(location)
        file["file_path"] = translate(location)
        if file.get("referenced_data_file") is not None:
            file["referenced_data_file"] = translate(file["referenced_data_file"])

    def _translate_bounds(self, bounds: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Translate the bounds of the paths in a delete file; omit a truncated bound."""
        paths = self._files.paths
        for bound in bounds:
            if bound["key"] != _PATH_FIELD:
                yield bound
                continue
            text = bound["value"].decode(errors="replace")
            if paths.is_below(text):
                yield {**bound, "value": paths.translate(text).encode()}
            elif not str(paths.old).startswith(local_path(text) or "/"):
                yield bound

    def _rewrite_deletes(self, location: str, kind: str) -> int:
        """Rewrite a file of position deletes; return its new size."""
        if location not in self._deletes:
            rewrite = {
                "PARQUET": _rewrite_position_deletes,
                "PUFFIN": _rewrite_deletion_vectors,
            }.get(kind.upper())
            if rewrite is None:
                raise self._create_error(f"{location} has position deletes in the format {kind}")
            try:
                data = rewrite(self._files.read(location), self._files.paths)
            except (ValueError, LookupError, TypeError) as error:
                if isinstance(error, OptionError):
                    raise
                raise self._create_error(f"{location} is damaged: {error}") from error
            self._deletes[location] = self._files.write(location, data)
        return self._deletes[location]


def read_metadata(files: WarehouseFiles, location: str) -> dict[str, Any]:
    """Read a metadata file.

    Raises:
        OptionError: If it is missing or damaged.
    """
    data = files.read(location)
    try:
        found: dict[str, Any] = json.loads(_unpack(location, data))
        _ = found["table-uuid"], found["location"], found["format-version"]
    except (ValueError, LookupError, TypeError, EOFError, OSError) as error:
        raise OptionError(f"{FORMAT}: {location} is damaged: {error}") from error
    return found


def _is_compressed(name: str) -> bool:
    return name.endswith((".gz.metadata.json", ".metadata.json.gz"))


def _unpack(name: str, data: bytes) -> bytes:
    return gzip.decompress(data) if _is_compressed(name) else data


def _pack(name: str, metadata: dict[str, Any]) -> bytes:
    text = json.dumps(metadata).encode()
    return gzip.compress(text) if _is_compressed(name) else text


def _list_history(metadata: dict[str, Any]) -> list[str]:
    return [entry["metadata-file"] for entry in metadata.get("metadata-log") or []]


def _create_next_name(location: str, uuid: str) -> str:
    """Return a location for the version after that of a metadata file."""
    folder, _, name = location.rpartition("/")
    found = _VERSION.match(name)
    number = int(found[1]) + 1 if found else 0
    return f"{folder}/{number:05d}-{create_metadata_uuid(UUID(uuid))}{_SUFFIX}"


def _rewrite_position_deletes(data: bytes, paths: PathMap) -> bytes:
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


def _rewrite_deletion_vectors(data: bytes, paths: PathMap) -> bytes:
    """Return a Puffin file whose vectors refer to the translated data files.

    The vectors keep their offsets in the file, since manifests contain these.

    Raises:
        ValueError: If it is damaged, or its footer is compressed.
    """
    size = int.from_bytes(data[-12:-8], "little", signed=True)
    start = len(data) - _FOOTER_END - size
    if data[-4:] != _MAGIC or start < 2 * len(_MAGIC) or data[start - 4 : start] != _MAGIC:
        raise ValueError("it is not a Puffin file")
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


# --- Avro files

_AVRO_MAGIC, _SYNC_BYTES = b"Obj\x01", 16
_CODEC, _SCHEMA = "avro.codec", "avro.schema"
_MAX_BLOCK_BYTES = 1024 * 2**20
_MAX_EMPTY_ITEMS = 100_000
_META = {"type": "map", "values": "bytes"}
_FIXED = {"float": 4, "double": 8, "boolean": 1}


class _Cursor:
    def __init__(self, data: bytes) -> None:
        self.data, self.position = data, 0

    def take(self, size: int) -> bytes:
        end = self.position + size
        if size < 0 or end > len(self.data):
            raise ValueError("it ends in the middle of a value")
        found = self.data[self.position : end]
        self.position = end
        return found

    def read_number(self) -> int:
        shift = found = 0
        while shift < 64:  # noqa: PLR2004  bits of Avro's long
            byte = self.take(1)[0]
            found |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:  # noqa: PLR2004
                return (found >> 1) ^ -(found & 1)
        raise ValueError("a number has too many bytes")


def _encode_number(value: int) -> bytes:
    rest = (value << 1) ^ (value >> 63)
    found = bytearray()
    while rest > 0x7F:  # noqa: PLR2004
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    found.append(rest)
    return bytes(found)


class _AvroType(NamedTuple):
    """The functions that read and write the values of a schema."""

    read: Callable[[_Cursor], Any]
    write: Callable[[Any], bytes]


class AvroRecords(NamedTuple):
    """The content of an Avro file.

    Attributes:
        meta: The header: the schema and other entries of the writer.
        records: Values by field; bytes, floats and booleans in their encoded form.
    """

    meta: Mapping[str, bytes]
    records: list[dict[str, Any]]


def read_avro(data: bytes) -> AvroRecords:
    """Read an Avro file.

    Raises:
        ValueError: If the file is damaged, or its schema is not one of manifests.
    """
    cursor = _Cursor(data)
    if cursor.take(len(_AVRO_MAGIC)) != _AVRO_MAGIC:
        raise ValueError("it is not an Avro file")
    meta = dict(_to_type(_META, {}).read(cursor))
    sync = cursor.take(_SYNC_BYTES)
    kind = _to_type(json.loads(meta[_SCHEMA]), {})
    decompress = create_decompressor(meta.get(_CODEC, b"null").decode())
    records: list[dict[str, Any]] = []
    while cursor.position < len(data):
        count, packed = cursor.read_number(), cursor.take(cursor.read_number())
        if cursor.take(_SYNC_BYTES) != sync:
            raise ValueError("a block does not end with the file's marker")
        block = _Cursor(decompress(packed, _MAX_BLOCK_BYTES))
        records.extend(kind.read(block) for _ in range(count))
    return AvroRecords(meta, records)


def write_avro(content: AvroRecords) -> bytes:
    """Return an Avro file of records."""
    is_packed = content.meta.get(_CODEC, b"null") != b"null"
    meta = {**content.meta, _CODEC: b"deflate" if is_packed else b"null"}
    kind = _to_type(json.loads(meta[_SCHEMA]), {})
    sync = zlib.crc32(meta[_SCHEMA]).to_bytes(4, "big") * 4
    found = [_AVRO_MAGIC, _to_type(_META, {}).write(list(meta.items())), sync]
    if content.records:
        block = b"".join(map(kind.write, content.records))
        packed = _deflate(block) if is_packed else block
        found += [_encode_number(len(content.records)), _encode_number(len(packed)), packed, sync]
    return b"".join(found)


def _deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


def _to_type(schema: Any, named: dict[str, _AvroType]) -> _AvroType:
    """Return the functions that read and write values of a schema.

    Args:
        schema: The schema as JSON.
        named: Records, enums and fixed types by their names, which later types may refer to.

    Raises:
        ValueError: If a type is unknown.
    """
    if isinstance(schema, list):
        return _to_union_type([_to_type(one, named) for one in schema], schema)
    given = cast("Mapping[str, Any]", {"type": schema} if isinstance(schema, str) else schema)
    kind = given["type"]
    if isinstance(kind, dict | list):
        return _to_type(kind, named)
    if kind in named:
        return named[kind]
    if kind == "array":
        found = _to_array_type(_to_type(given["items"], named))
    elif kind == "map":
        found = _to_map_type(_to_type(given["values"], named))
    elif kind == "record":
        found = _to_record_type(given, named)
    else:
        found = _to_fixed_type(int(given["size"])) if kind == "fixed" else _to_primitive_type(kind)
    if "name" in given:
        named[given["name"]] = found
    return found


def _to_primitive_type(kind: str) -> _AvroType:
    if kind == "null":
        return _AvroType(lambda _: None, lambda _: b"")
    if kind in {"int", "long", "enum"}:
        return _AvroType(_Cursor.read_number, _encode_number)
    if kind in _FIXED:
        return _to_fixed_type(_FIXED[kind])
    if kind == "bytes":
        return _AvroType(
            lambda cursor: cursor.take(cursor.read_number()),
            lambda value: _encode_number(len(value)) + value,
        )
    if kind == "string":
        return _AvroType(lambda cursor: cursor.take(cursor.read_number()).decode(), _encode_text)
    raise ValueError(f"its schema has the type {kind!r}")


def _encode_text(value: str) -> bytes:
    data = value.encode()
    return _encode_number(len(data)) + data


def _to_fixed_type(size: int) -> _AvroType:
    return _AvroType(lambda cursor: cursor.take(size), lambda value: value)


def _to_record_type(schema: Mapping[str, Any], named: dict[str, _AvroType]) -> _AvroType:
    fields = [(field["name"], _to_type(field["type"], named)) for field in schema["fields"]]
    return _AvroType(
        lambda cursor: {name: kind.read(cursor) for name, kind in fields},
        lambda value: b"".join([kind.write(value[name]) for name, kind in fields]),
    )


def _to_union_type(types: list[_AvroType], schemas: list[Any]) -> _AvroType:
    if len(types) != 2 or "null" not in schemas:  # noqa: PLR2004
        raise ValueError("its schema has a union that is not an optional value")
    null = schemas.index("null")
    full = 1 - null

    def read(cursor: _Cursor) -> Any:
        branch = cursor.read_number()
        if branch not in {0, 1}:
            raise ValueError("a value is of no branch of its union")
        return types[branch].read(cursor)

    def write(value: Any) -> bytes:
        return (
            _encode_number(null)
            if value is None
            else _encode_number(full) + types[full].write(value)
        )

    return _AvroType(read, write)


def _to_array_type(items: _AvroType) -> _AvroType:
    return _AvroType(
        lambda cursor: list(_read_items(cursor, items.read)),
        lambda value: _write_items(value, items.write),
    )


def _to_map_type(values: _AvroType) -> _AvroType:
    """Return the type of a map as pairs, which keep their order."""
    key = _to_primitive_type("string")
    return _AvroType(
        lambda cursor: list(_read_items(cursor, lambda one: (key.read(one), values.read(one)))),
        lambda value: _write_items(value, lambda pair: key.write(pair[0]) + values.write(pair[1])),
    )


def _read_items(cursor: _Cursor, read: Callable[[_Cursor], Any]) -> Iterator[Any]:
    empty = 0
    while count := cursor.read_number():
        if count < 0:  # followed by the size of the block
            count = -count
            cursor.read_number()
        for _ in range(count):
            before = cursor.position
            yield read(cursor)
            empty += cursor.position == before
            if empty > _MAX_EMPTY_ITEMS:
                raise ValueError("it has too many items without a byte")


def _write_items(values: list[Any], write: Callable[[Any], bytes]) -> bytes:
    if not values:
        return _encode_number(0)
    return b"".join([_encode_number(len(values)), *map(write, values), _encode_number(0)])
