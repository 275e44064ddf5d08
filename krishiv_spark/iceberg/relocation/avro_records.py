"""Avro files whose records are changed, while all else in them stays as it is. Operator.

PyIceberg writes manifests of its own form: what it does not know is lost, as the row ids of format
version 3. Here a file keeps its schema, its header and every field that is not changed.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, cast

from krishiv_spark.iceberg.avro_blocks import block_decompressor

__all__ = ["AvroRecords", "read_avro", "write_avro"]

_MAGIC, _SYNC_BYTES = b"Obj\x01", 16
_CODEC, _SCHEMA = "avro.codec", "avro.schema"
_MOST_BYTES = 1024 * 2**20
_MOST_EMPTY = 100_000
_META = {"type": "map", "values": "bytes"}
_FIXED = {"float": 4, "double": 8, "boolean": 1}


class _Cursor:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, size: int) -> bytes:
        end = self.at + size
        if size < 0 or end > len(self.data):
            raise ValueError("it ends in the middle of a value")
        found = self.data[self.at : end]
        self.at = end
        return found

    def number(self) -> int:
        shift = found = 0
        while shift < 64:  # noqa: PLR2004  bits of Avro's long
            byte = self.take(1)[0]
            found |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:  # noqa: PLR2004
                return (found >> 1) ^ -(found & 1)
        raise ValueError("a number has too many bytes")


def _number(value: int) -> bytes:
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
        meta: The header: the schema and what else the writer has put there.
        records: By field; bytes, floats and booleans as the file has them.
    """

    meta: Mapping[str, bytes]
    records: list[dict[str, Any]]


def read_avro(data: bytes) -> AvroRecords:
    """Read an Avro file.

    Raises:
        ValueError: If it is damaged, or has a schema that no manifest has.
    """
    cursor = _Cursor(data)
    if cursor.take(len(_MAGIC)) != _MAGIC:
        raise ValueError("it is not an Avro file")
    meta = dict(_form(_META, {}).read(cursor))
    sync = cursor.take(_SYNC_BYTES)
    form = _form(json.loads(meta[_SCHEMA]), {})
    decompress = block_decompressor(meta.get(_CODEC, b"null").decode())
    records: list[dict[str, Any]] = []
    while cursor.at < len(data):
        count, packed = cursor.number(), cursor.take(cursor.number())
        if cursor.take(_SYNC_BYTES) != sync:
            raise ValueError("a block does not end with the file's marker")
        block = _Cursor(decompress(packed, _MOST_BYTES))
        records.extend(form.read(block) for _ in range(count))
    return AvroRecords(meta, records)


def write_avro(content: AvroRecords) -> bytes:
    """Return an Avro file of records."""
    is_packed = content.meta.get(_CODEC, b"null") != b"null"
    meta = {**content.meta, _CODEC: b"deflate" if is_packed else b"null"}
    form = _form(json.loads(meta[_SCHEMA]), {})
    sync = zlib.crc32(meta[_SCHEMA]).to_bytes(4, "big") * 4
    found = [_MAGIC, _form(_META, {}).write(list(meta.items())), sync]
    if content.records:
        block = b"".join(map(form.write, content.records))
        packed = _deflated(block) if is_packed else block
        found += [_number(len(content.records)), _number(len(packed)), packed, sync]
    return b"".join(found)


def _deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


def _form(schema: Any, named: dict[str, _AvroType]) -> _AvroType:
    """Return how values of a schema are read and written.

    Args:
        schema: As JSON has it.
        named: Records, enums and fixed types by their names, which may be referred to.

    Raises:
        ValueError: If it is not known.
    """
    if isinstance(schema, list):
        return _union([_form(one, named) for one in schema], schema)
    given = cast("Mapping[str, Any]", {"type": schema} if isinstance(schema, str) else schema)
    kind = given["type"]
    if isinstance(kind, dict | list):
        return _form(kind, named)
    if kind in named:
        return named[kind]
    if kind == "array":
        found = _array(_form(given["items"], named))
    elif kind == "map":
        found = _pairs(_form(given["values"], named))
    elif kind == "record":
        found = _record(given, named)
    else:
        found = _bytes_of(int(given["size"])) if kind == "fixed" else _primitive(kind)
    if "name" in given:
        named[given["name"]] = found
    return found


def _primitive(kind: str) -> _AvroType:
    if kind == "null":
        return _AvroType(lambda _: None, lambda _: b"")
    if kind in {"int", "long", "enum"}:
        return _AvroType(_Cursor.number, _number)
    if kind in _FIXED:
        return _bytes_of(_FIXED[kind])
    if kind == "bytes":
        return _AvroType(
            lambda cursor: cursor.take(cursor.number()), lambda value: _number(len(value)) + value
        )
    if kind == "string":
        return _AvroType(lambda cursor: cursor.take(cursor.number()).decode(), _text)
    raise ValueError(f"its schema has the type {kind!r}")


def _text(value: str) -> bytes:
    data = value.encode()
    return _number(len(data)) + data


def _bytes_of(size: int) -> _AvroType:
    return _AvroType(lambda cursor: cursor.take(size), lambda value: value)


def _record(schema: Mapping[str, Any], named: dict[str, _AvroType]) -> _AvroType:
    fields = [(field["name"], _form(field["type"], named)) for field in schema["fields"]]
    return _AvroType(
        lambda cursor: {name: form.read(cursor) for name, form in fields},
        lambda value: b"".join([form.write(value[name]) for name, form in fields]),
    )


def _union(forms: list[_AvroType], schemas: list[Any]) -> _AvroType:
    if len(forms) != 2 or "null" not in schemas:  # noqa: PLR2004
        raise ValueError("its schema has a union that is not an optional value")
    null = schemas.index("null")
    full = 1 - null

    def read(cursor: _Cursor) -> Any:
        branch = cursor.number()
        if branch not in {0, 1}:
            raise ValueError("a value is of no branch of its union")
        return forms[branch].read(cursor)

    def write(value: Any) -> bytes:
        return _number(null) if value is None else _number(full) + forms[full].write(value)

    return _AvroType(read, write)


def _array(items: _AvroType) -> _AvroType:
    return _AvroType(
        lambda cursor: list(_items(cursor, items.read)),
        lambda value: _blocks(value, items.write),
    )


def _pairs(values: _AvroType) -> _AvroType:
    """A map, as pairs: so the order stays."""
    key = _primitive("string")
    return _AvroType(
        lambda cursor: list(_items(cursor, lambda one: (key.read(one), values.read(one)))),
        lambda value: _blocks(value, lambda pair: key.write(pair[0]) + values.write(pair[1])),
    )


def _items(cursor: _Cursor, read: Callable[[_Cursor], Any]) -> Iterator[Any]:
    empty = 0
    while count := cursor.number():
        if count < 0:  # followed by the size of the block
            count = -count
            cursor.number()
        for _ in range(count):
            before = cursor.at
            yield read(cursor)
            empty += cursor.at == before
            if empty > _MOST_EMPTY:
                raise ValueError("it has too many items without a byte")


def _blocks(values: list[Any], write: Callable[[Any], bytes]) -> bytes:
    if not values:
        return _number(0)
    return b"".join([_number(len(values)), *map(write, values), _number(0)])
