"""Numbers of which Arrow reads other decimals, or ends the process. Executor.

For an exponent far below zero, Arrow looks up a power of ten behind the end of its table. What is
there is used as the power, or the process ends.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa

from krishiv_spark.arrow.compute import pc
from krishiv_spark.arrow.nested import children

__all__ = ["has_tiny_decimal", "is_tiny"]

# Arrow's table ends with 10^76, and the 38 digits of a decimal may all be a fraction.
_EXPONENT = r"-0*(?:39|[4-9][0-9]|[1-9][0-9][0-9])[0-9]*"
_NUMBER = re.compile(rf"[eE]{_EXPONENT}")
_VALUE = rf'{_EXPONENT}\s*[",}}\]]'
_SEARCHES = [re.compile(f"{sign}{_VALUE}".encode()) for sign in "eE"]  # ten times faster than [eE]


def is_tiny(text: str) -> bool:
    """Return True if a text is a number with an exponent below -38."""
    return _NUMBER.search(text) is not None


def has_tiny_decimal(lines: pa.Buffer, texts: pa.Array, kind: pa.DataType) -> bool:
    """Return True if a decimal has an exponent below -38. Other numbers may have one.

    Args:
        lines: The text of all objects.
        texts: The objects.
        kind: The type that is read from each of them. A list of pairs is read from an object.
    """
    if all(each.search(lines) is None for each in _SEARCHES):  # without a copy
        return False
    suspects = texts.filter(pc.match_substring_regex(texts, f"[eE]{_VALUE}"))
    return any(_reads_tiny(value, kind) for value in suspects.to_pylist())


def _reads_tiny(value: bytes, kind: pa.DataType) -> bool:
    try:
        found = json.loads(value, parse_float=str, strict=False)
    except (ValueError, RecursionError):
        return True  # nothing is known of it
    return _is_tiny_in(found, kind)


def _is_tiny_in(found: Any, kind: Any) -> bool:
    if pa.types.is_decimal(kind):
        return isinstance(found, str) and is_tiny(found)
    if isinstance(found, dict) and pa.types.is_struct(kind):
        return any(_is_tiny_in(found.get(each.name), each.type) for each in children(kind))
    if isinstance(found, dict) and pa.types.is_list(kind):
        item = kind.value_type.field("value").type
        return any(_is_tiny_in(each, item) for each in found.values())
    if isinstance(found, list) and pa.types.is_list(kind):
        return any(_is_tiny_in(each, kind.value_type) for each in found)
    return False
