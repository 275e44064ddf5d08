"""Thrift's compact protocol, as far as the footers of Parquet files use it.

A struct is a dictionary of its fields by their ids, so that fields of later versions of a format
survive a change of others (Apache Thrift, "Thrift Compact protocol encoding").
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

__all__ = ["BINARY", "I32", "LIST", "STRUCT", "Field", "Items", "Struct", "decode", "encode"]

_TRUE, _FALSE, _BYTE, _I16, I32, _I64, _DOUBLE, BINARY, LIST, _SET, _MAP, STRUCT = range(1, 13)
_INTEGERS = {_I16, I32, _I64}
_DEEPEST = 64
"""Maximum nesting of structs. Parquet's footers have less than ten levels."""


class Field(NamedTuple):
    """A value with its type, which is one of this module's constants."""

    kind: int
    value: Any


class Items(NamedTuple):
    """The elements of a list, all of one type."""

    kind: int
    values: list[Any]


Struct: TypeAlias = dict[int, Field]


def decode(data: bytes, *, last: int | None = None) -> tuple[Struct, int]:
    """Read a struct.

    Args:
        data: Bytes that start with the struct.
        last: The field after which reading ends; None for the whole struct.

    Returns:
        The struct, and the index of the first byte that was not read.

    Raises:
        ValueError: If the bytes are not such a struct.
    """
    decoder = _Decoder(data)
    try:
        found = decoder.struct(0, last)
    except (IndexError, UnicodeDecodeError) as error:
        raise ValueError("the bytes end within a struct") from error
    return found, decoder.at


def encode(struct: Struct) -> bytes:
    """Write a struct: the inverse of `decode`."""
    out = bytearray()
    _write_struct(out, struct)
    return bytes(out)


class _Decoder:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def struct(self, depth: int, last: int | None = None) -> Struct:
        if depth > _DEEPEST:
            raise ValueError("structs are nested too deep")
        fields: Struct = {}
        number = 0
        while (header := self._byte()) != 0:
            kind, delta = header & 0x0F, header >> 4
            number = number + delta if delta else self._zigzag()
            fields[number] = Field(kind, self._value(kind, depth))
            if number == last:
                break
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind in _INTEGERS:
            return self._zigzag()
        if kind == BINARY:
            return self._bytes(self._varint())
        if kind == STRUCT:
            return self.struct(depth + 1)
        if kind in {LIST, _SET}:
            return self._items(depth)
        if kind in {_TRUE, _FALSE}:
            return None
        if kind in {_BYTE, _DOUBLE}:
            return self._bytes(8 if kind == _DOUBLE else 1)
        raise ValueError(f"no footer has a field of the type {kind}")

    def _items(self, depth: int) -> Items:
        header = self._byte()
        kind, count = header & 0x0F, header >> 4
        count = self._varint() if count == 15 else count  # noqa: PLR2004  of the protocol
        if kind in {_TRUE, _FALSE}:  # which take a byte each here
            return Items(kind, list(self._bytes(count)))
        return Items(kind, [self._value(kind, depth) for _ in range(count)])

    def _byte(self) -> int:
        found = self.data[self.at]
        self.at += 1
        return found

    def _bytes(self, count: int) -> bytes:
        found = self.data[self.at : self.at + count]
        if len(found) != count:
            raise IndexError
        self.at += count
        return found

    def _varint(self) -> int:
        found = shift = 0
        while True:
            byte = self._byte()
            found |= (byte & 0x7F) << shift
            if byte < 0x80:  # noqa: PLR2004  of the protocol
                return found
            shift += 7

    def _zigzag(self) -> int:
        found = self._varint()
        return (found >> 1) ^ -(found & 1)


def _write_struct(out: bytearray, struct: Struct) -> None:
    before = 0
    for number, (kind, value) in sorted(struct.items()):
        delta = number - before
        if 0 < delta <= 15:  # noqa: PLR2004  of the protocol
            out.append(delta << 4 | kind)
        else:
            out.append(kind)
            _write_zigzag(out, number)
        _write_value(out, kind, value)
        before = number
    out.append(0)


def _write_value(out: bytearray, kind: int, value: Any) -> None:
    if kind in _INTEGERS:
        _write_zigzag(out, value)
    elif kind == BINARY:
        _write_varint(out, len(value))
        out += value
    elif kind == STRUCT:
        _write_struct(out, value)
    elif kind in {LIST, _SET}:
        _write_items(out, value)
    elif kind in {_BYTE, _DOUBLE}:
        out += value


def _write_items(out: bytearray, items: Items) -> None:
    count = len(items.values)
    out.append(min(count, 15) << 4 | items.kind)
    if count >= 15:  # noqa: PLR2004  of the protocol
        _write_varint(out, count)
    if items.kind in {_TRUE, _FALSE}:
        out += bytes(items.values)
        return
    for value in items.values:
        _write_value(out, items.kind, value)


def _write_zigzag(out: bytearray, value: int) -> None:
    _write_varint(out, value << 1 if value >= 0 else (-value << 1) - 1)


def _write_varint(out: bytearray, value: int) -> None:
    while value > 0x7F:  # noqa: PLR2004  of the protocol
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
