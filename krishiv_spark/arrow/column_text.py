"""Columns in Spark's notation, as ``id BIGINT NOT NULL, tags ARRAY<STRING>``.

PySpark parses such a text only in the JVM, which a Python worker cannot call.
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
_DECIMAL = (10, 0)
"""Precision and scale of DECIMAL without numbers, in Spark."""


def parse_fields(text: str) -> tuple[pa.Field, ...]:
    """Parse a list of columns, as ``id BIGINT NOT NULL, tags ARRAY<STRING>``.

    Raises:
        ValueError: If it cannot be parsed; the text contains the expected token.
    """
    parser = _Parser(text)
    fields = parser.parse_columns(end="")
    if len({field.name for field in fields}) < len(fields):
        raise ValueError(f"{text!r} has a column twice")
    return tuple(fields)


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def parse_columns(self, *, end: str) -> list[pa.Field]:
        """Parse columns up to and including the sign that ends them."""
        found = [self._parse_field()]
        while (sign := self._take()) == ",":
            found.append(self._parse_field())
        if sign != end:
            self._fail(f"',' or {end or 'the end'}")
        return found

    def _parse_field(self) -> pa.Field:
        name = self._take()
        if not name or name in "<>(),:":
            self._fail("the name of a column")
        # Spark accepts a colon between a field of a STRUCT and its type.
        if self._peek() == ":":
            self._take()
        kind = self._parse_type()
        nullable = not self._skip_words("not", "null")
        if self._skip_words("comment"):
            self._take()
        return pa.field(name.strip("`").replace("``", "`"), kind, nullable=nullable)

    def _parse_type(self) -> pa.DataType:
        name = self._take().lower()
        if name in _SIMPLE:
            return _SIMPLE[name]
        if name in {"decimal", "dec", "numeric"}:
            return pa.decimal128(*self._parse_sizes())
        if name in {"array", "map", "struct"}:
            self._expect("<")
            return self._parse_nested(name)
        return self._fail(f"a type (of {', '.join(sorted(_SIMPLE))}, decimal, array, map, struct)")

    def _parse_nested(self, name: str) -> pa.DataType:
        if name == "struct":
            return pa.struct(self.parse_columns(end=">"))
        first = self._parse_type()
        if name == "array":
            kind: pa.DataType = pa.list_(first)
        else:
            self._expect(",")
            kind = pa.map_(first, self._parse_type())
        self._expect(">")
        return kind

    def _parse_sizes(self) -> tuple[int, int]:
        if self._peek() != "(":
            return _DECIMAL
        self._take()
        precision, scale = self._parse_whole(), 0
        if self._peek() == ",":
            self._take()
            scale = self._parse_whole()
        self._expect(")")
        return precision, scale

    def _parse_whole(self) -> int:
        text = self._take()
        return int(text) if text.isdecimal() else self._fail("a whole number")

    def _skip_words(self, *words: str) -> bool:
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
