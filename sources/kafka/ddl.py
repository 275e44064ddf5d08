"""Columns as users of Spark write them: ``id BIGINT NOT NULL, tags ARRAY<STRING>``.

PySpark parses that in the JVM only, which no Python worker can ask.
"""

from __future__ import annotations

import re
from typing import NoReturn

import pyarrow as pa

__all__ = ["parse_fields"]

_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)+`|'(?:[^'\\]|\\.)*'|\w+)|([<>(),:]))")
_SIMPLE = {
    name: kind
    for names, kind in (
        ("boolean", pa.bool_()),
        ("byte tinyint", pa.int8()),
        ("short smallint", pa.int16()),
        ("int integer", pa.int32()),
        ("long bigint", pa.int64()),
        ("float real", pa.float32()),
        ("double", pa.float64()),
        ("string", pa.string()),
        ("binary", pa.binary()),
        ("date", pa.date32()),
        ("timestamp timestamp_ltz", pa.timestamp("us", tz="UTC")),
        ("timestamp_ntz", pa.timestamp("us")),
    )
    for name in names.split()
}
# What Spark means by DECIMAL alone.
_DECIMAL = (10, 0)


def parse_fields(text: str) -> tuple[pa.Field, ...]:
    """Parse a list of columns.

    Raises:
        ValueError: If it cannot be read, with what was expected.
    """
    parser = _Parser(text)
    fields = parser.fields(end="")
    if len({field.name for field in fields}) < len(fields):
        raise ValueError(f"{text!r} has a column twice")
    return tuple(fields)


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def fields(self, *, end: str) -> list[pa.Field]:
        """Columns up to a sign that ends them, which is taken too."""
        found = [self._field()]
        while (sign := self._take()) == ",":
            found.append(self._field())
        if sign != end:
            self._fail(f"',' or {end or 'the end'}")
        return found

    def _field(self) -> pa.Field:
        name = self._take()
        if not name or name in "<>(),:":
            self._fail("the name of a column")
        # Between a field of a STRUCT and its type, where Spark lets it be left out.
        if self._peek() == ":":
            self._take()
        kind = self._type()
        nullable = not self._has("not", "null")
        if self._has("comment"):
            self._take()
        return pa.field(name.strip("`").replace("``", "`"), kind, nullable=nullable)

    def _type(self) -> pa.DataType:
        name = self._take().lower()
        if name in _SIMPLE:
            return _SIMPLE[name]
        if name in {"decimal", "dec", "numeric"}:
            return pa.decimal128(*self._sizes())
        if name in {"array", "map", "struct"}:
            self._expect("<")
            return self._nested(name)
        return self._fail(f"a type (of {', '.join(sorted(_SIMPLE))}, decimal, array, map, struct)")

    def _nested(self, name: str) -> pa.DataType:
        if name == "struct":
            return pa.struct(self.fields(end=">"))
        first = self._type()
        if name == "array":
            kind: pa.DataType = pa.list_(first)
        else:
            self._expect(",")
            kind = pa.map_(first, self._type())
        self._expect(">")
        return kind

    def _sizes(self) -> tuple[int, int]:
        if self._peek() != "(":
            return _DECIMAL
        self._take()
        precision, scale = self._whole(), 0
        if self._peek() == ",":
            self._take()
            scale = self._whole()
        self._expect(")")
        return precision, scale

    def _whole(self) -> int:
        text = self._take()
        return int(text) if text.isdecimal() else self._fail("a whole number")

    def _has(self, *words: str) -> bool:
        before = self._at
        if all(self._take().lower() == word for word in words):
            return True
        self._at = before
        return False

    def _expect(self, sign: str) -> None:
        if self._take() != sign:
            self._fail(repr(sign))

    def _peek(self) -> str:
        before = self._at
        found = self._take()
        self._at = before
        return found

    def _take(self) -> str:
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            if self._text[self._at :].strip():
                self._fail("a name or type")
            return ""
        self._at = match.end()
        return match[1] or match[2]

    def _fail(self, wanted: str) -> NoReturn:
        shown = f"{self._text[: self._at]}▸{self._text[self._at :]}"
        raise ValueError(f"cannot be read at ▸ in {shown!r}: {wanted} is expected")
