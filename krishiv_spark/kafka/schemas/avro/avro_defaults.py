"""The defaults of fields, which a schema has as JSON, as encoded Avro.

A default that is no value of its type is an error here. Encoded anyway, one of another size would
shift all that follows it, and no reader could read the record.
"""

from __future__ import annotations

import math
import struct
from typing import Any

from krishiv_spark.errors import SchemaError
from krishiv_spark.kafka.schemas.avro.avro_types import MISSING, AvroField, AvroType

__all__ = ["encode_default"]

_MORE = 0x80  # of a byte of a number: more follow
_BITS = {"int": 32, "long": 64}
_LIMITS = {"float": 2**128 - 2**103, "double": 2**1024 - 2**970}
"""Halfway from the greatest number to the next power of two: lower numbers are rounded to it."""

_CLASSES: dict[str, Any] = {
    "null": type(None), "boolean": bool, "int": int, "long": int, "float": (int, float),
    "double": (int, float), "array": list, "map": dict, "record": dict,
}  # fmt: skip
"""The classes of JSON values by type; those of other types are texts."""

_BYTES, _TEXT = "latin-1", "utf-8"


def encode_default(of: AvroField, path: str) -> bytes:
    """Encode the default of a field; of a union, as its first branch that takes the value.

    Args:
        of: A field that has a default.
        path: The field with those around it, for messages.

    Raises:
        SchemaError: If the default is no value of the field's type. It names the field.
    """
    return _encode(of.default, of.type, path)


def _encode(value: Any, of: AvroType, path: str) -> bytes:
    kind = of.kind
    if kind == "union":
        number = next((n for n, each in enumerate(of.items) if _takes(value, each)), None)
        if number is None:
            raise _unfit(value, of, path)
        return _zigzag(number) + _encode(value, of.items[number], path)
    if not _takes(value, of):
        raise _unfit(value, of, path)
    if kind == "record":
        fields = [(value.get(f.name, f.default), f.type, f"{path}.{f.name}") for f in of.fields]
        return b"".join(_encode(*each) for each in fields)
    if kind in {"array", "map"}:
        return _encode_items(value, of, path)
    return _encode_scalar(value, of)


def _encode_items(value: Any, of: AvroType, path: str) -> bytes:
    if not value:
        return b"\0"
    if of.kind == "array":
        items = b"".join(_encode(each, of.items[0], path) for each in value)
    else:
        if not all(_is_encodable(key, _TEXT) for key in value):
            raise _unfit(value, of, path)
        items = b"".join(
            _sized(key.encode()) + _encode(each, of.items[0], path) for key, each in value.items()
        )
    return _zigzag(len(value)) + items + b"\0"


def _encode_scalar(value: Any, of: AvroType) -> bytes:  # noqa: PLR0911  one per type
    if of.kind in _BITS:
        return _zigzag(value)
    if of.kind in _LIMITS:
        return struct.pack("<f" if of.kind == "float" else "<d", value)
    if of.kind == "boolean":
        return bytes([value])
    if of.kind == "enum":
        return _zigzag(of.symbols.index(value))
    if of.kind == "string":
        return _sized(value.encode())
    if of.kind == "bytes":
        return _sized(value.encode(_BYTES))
    return value.encode(_BYTES) if of.kind == "fixed" else b""


def _takes(value: Any, of: AvroType) -> bool:  # noqa: PLR0911  one per type
    """Return True if a JSON value is one of a type, without what is inside of lists and records."""
    if isinstance(value, bool) or not isinstance(value, _CLASSES.get(of.kind, str)):
        return isinstance(value, bool) and of.kind == "boolean"
    if of.kind in _BITS:
        most = 1 << (_BITS[of.kind] - 1)
        return bool(-most <= value < most)
    if of.kind in _LIMITS:
        return not _LIMITS[of.kind] <= abs(value) < math.inf
    if of.kind == "enum":
        return value in of.symbols
    if of.kind == "string":
        return _is_encodable(value, _TEXT)
    if of.kind in {"bytes", "fixed"}:
        return _is_encodable(value, _BYTES) and (of.kind == "bytes" or len(value) == of.size)
    if of.kind == "record":
        return all(f.name in value or f.default is not MISSING for f in of.fields)
    return True


def _is_encodable(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def _unfit(value: Any, of: AvroType, path: str) -> SchemaError:
    kind = f"{of.kind} {of.name}".rstrip()
    size = f" of {of.size} bytes" if of.kind == "fixed" else ""
    return SchemaError(
        f"the field {path} of the Avro schema has the default {repr(value)[:100]}, which is no "
        f"value of its type {kind}{size}: correct the default in the schema"
    )


def _zigzag(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value >= _MORE:
        out.append(value & (_MORE - 1) | _MORE)
        value >>= 7
    out.append(value)
    return bytes(out)


def _sized(value: bytes) -> bytes:
    return _zigzag(len(value)) + value
