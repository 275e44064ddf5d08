"""Rows with keys for sinks under the kit: a key comes again, and some rows delete theirs."""

from typing import Any

import pyarrow as pa

SCHEMA = pa.schema([("id", pa.int64()), ("number", pa.int64()), ("op", pa.string())])


def make_row(number: int) -> tuple[int, int, str]:
    return key_of(number), number, "d" if deletes(number) else "u"


def key_of(number: int) -> int:
    """Return a key that comes again: within an epoch, in the next one, and in later ones."""
    return number * (number + 1) // 2 % 11


def deletes(number: int) -> bool:
    return number % 5 == 4


KEYED_ROWS: dict[str, Any] = {
    "schema": SCHEMA,
    "row": make_row,
    "key": key_of,
    "deletes": deletes,
    "complete": False,
    "overwrite": False,
}
"""Arguments of `SinkUnderTest`."""
