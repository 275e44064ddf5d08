"""Names of PostgreSQL, as SQL reads and writes them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from typing_extensions import Self

__all__ = ["CHANGES", "MARKS", "MOST_BYTES", "TableName", "check_length", "quote", "quote_text"]

MARKS = "krishiv_epochs"
"""Name of the table of committed epochs, in the schema of each table that is written."""

CHANGES = "krishiv_changes"
"""Name of the table of positions of change data, beside the former."""

MOST_BYTES = 63
"""Length of a name; PostgreSQL cuts off the rest (``NAMEDATALEN``)."""

_PART = re.compile(r'\s*(?:"((?:[^"\0]|"")+)"|([^\s".\0]+))\s*')


def quote(name: str) -> str:
    """Return a name in quotes, so that SQL takes each of its characters literally."""
    return '"' + name.replace('"', '""') + '"'


def quote_text(text: str) -> str:
    """Return a text as a literal, where ``standard_conforming_strings`` is on.

    Raises:
        ValueError: If it contains U+0000, which PostgreSQL's texts cannot contain.
    """
    if "\0" in text:
        raise ValueError("PostgreSQL's texts cannot contain U+0000")
    return "'" + text.replace("'", "''") + "'"


@dataclass(frozen=True)
class TableName:
    """The name of a table.

    Attributes:
        schema: Its schema; None for the first one of the search path.
        name: Its name in the schema.
    """

    schema: str | None
    name: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``orders``, ``shop.orders`` or ``"Shop"."Orders"``, as SQL does.

        Letters without quotes become lower case.

        Raises:
            ValueError: If it is no name, or a part is longer than PostgreSQL's limit.
        """
        parts: list[str] = []
        at = 0
        while True:
            match = _PART.match(text, at)
            if match is None:
                raise ValueError(_describe_form(text))
            quoted, plain = match.groups()
            parts.append(plain.lower() if quoted is None else quoted.replace('""', '"'))
            at = match.end()
            if at == len(text):
                break
            if text[at] != ".":
                raise ValueError(_describe_form(text))
            at += 1
        if len(parts) > 2:  # noqa: PLR2004  a schema and a name
            raise ValueError(
                f"{text!r} has {len(parts)} parts: write 'schema.table'; the database is a part "
                "of the connection"
            )
        for part in parts:
            check_length(part)
        return cls(parts[0] if len(parts) > 1 else None, parts[-1])

    @property
    def sql(self) -> str:
        """The name for a statement."""
        return quote(self.name) if self.schema is None else f"{quote(self.schema)}.{self.short}"

    @property
    def short(self) -> str:
        """The name without its schema, for a statement."""
        return quote(self.name)

    def __str__(self) -> str:
        return ".".join(part for part in (self.schema, self.name) if part is not None)


def check_length(name: str) -> None:
    """Refuse a name that PostgreSQL would cut off.

    Raises:
        ValueError: If it is too long.
    """
    size = len(name.encode())
    if size > MOST_BYTES:
        raise ValueError(
            f"{name!r} has {size} bytes, and PostgreSQL cuts names off after {MOST_BYTES}: "
            "shorten it"
        )


def _describe_form(text: str) -> str:
    return (
        f"{text!r} is not the name of a table: write 'schema.table', with a part that has capital "
        "letters, dots or blanks in double quotes, as in '\"Shop\".orders'"
    )
