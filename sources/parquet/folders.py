"""Partition columns as a source sees them: names and texts in the folders of a path."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from urllib.parse import unquote

import pyarrow as pa

from krishiv_spark.parquet.texts import NULL_VALUE

__all__ = ["folder_fields", "folder_values"]

# So many digits fit into 64 bits, whatever they are.
_INTEGER = re.compile(r"[+-]?\d{1,18}")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")


def folder_values(path: str) -> dict[str, str | None]:
    """The partition columns in a relative path, outermost first; None for Hive's null."""
    pairs = (part.partition("=") for part in path.split("/")[:-1])
    return {
        unquote(name): None if value == NULL_VALUE else unquote(value)
        for name, equals, value in pairs
        if equals and name
    }


def folder_fields(paths: Iterable[str]) -> list[pa.Field]:
    """The partition columns of many files and their types.

    A column whose values are all whole numbers is an int64, one whose values are all dates
    (``2013-01-01``) a date, and any other a string. Nulls do not count.
    """
    texts: dict[str, set[str | None]] = {}
    for folder in {os.path.dirname(path) for path in paths}:
        for name, text in folder_values(f"{folder}/").items():
            texts.setdefault(name, set()).add(text)
    return [pa.field(name, _type_of(seen - {None})) for name, seen in sorted(texts.items())]


def _type_of(texts: set[str | None]) -> pa.DataType:
    for pattern, kind in ((_INTEGER, pa.int64()), (_DATE, pa.date32())):
        if texts and all(pattern.fullmatch(text or "") for text in texts):
            return kind
    return pa.string()
