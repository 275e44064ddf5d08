"""The reason why a JSON value is bad, in words that contain no data of it. Executor."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

__all__ = ["mismatch"]

_KINDS = {dict: "an object", list: "an array", str: "a string", bool: "true or false"}
_NUMBERS = {int: "a whole number", float: "a number with a fraction or an exponent"}
_SHOWN = 5
"""Names of fields in a message at most."""

Reads: TypeAlias = "Callable[[bytes, Sequence[pa.Field], str], bool]"
"""Return True if some fields of an object can be read; with the path of the object."""


class _BadValueError(Exception):
    """A value that is no JSON object; the message says why."""


def mismatch(
    value: bytes | None, fields: Sequence[pa.Field], known: Sequence[str], reads: Reads
) -> str:
    """Return what is wrong with a value, to follow "it": the field, what it has, what is wanted.

    Args:
        value: One that is bad.
        fields: The fields that are wanted.
        known: The names of all fields of the schema, of which others may not be wanted.
        reads: Tries some fields.
    """
    try:
        found = _load_object(value)
    except _BadValueError as error:
        return str(error)
    for field in _suspects(found, fields, reads):
        if (text := _of_field(found.get(field.name), field, "", field.name, reads)) is not None:
            return text
    if not found.keys() & {*known}:
        return _none_of(found, known)
    return "is interpreted differently by Arrow"


def _suspects(
    found: Mapping[str, Any], fields: Sequence[pa.Field], reads: Reads
) -> Iterator[pa.Field]:
    """Yield the first field that cannot be read, and each one in front of it without a value.

    Halves of the fields are tried, since each attempt takes as long as many fields do.
    """
    missing = [field for field in fields if not field.nullable and found.get(field.name) is None]
    others = [field for field in fields if field not in missing]
    while len(others) > 1:
        half = others[: len(others) // 2]
        text = json.dumps({field.name: found.get(field.name) for field in half}).encode()
        others = others[len(half) :] if reads(text, half, "") else half
    yield from (field for field in fields if field in missing or field in others)


def _load_object(value: bytes | None) -> dict[str, Any]:
    if value is None:
        raise _BadValueError("is missing (a tombstone)")
    try:
        found = json.loads(value.decode(), object_pairs_hook=_once, parse_float=_finite)
    except UnicodeDecodeError as error:
        raise _BadValueError(f"is not valid UTF-8 from byte {error.start} on") from None
    except json.JSONDecodeError as error:
        raise _BadValueError(f"is not valid JSON: {error.msg}, at character {error.pos}") from None
    except RecursionError:
        raise _BadValueError("is nested too deeply") from None
    except ValueError:  # Python's limit for the digits of whole numbers
        raise _BadValueError("has a number with too many digits") from None
    if not isinstance(found, dict):
        raise _BadValueError(f"is {_kind(found)} instead of an object")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _BadValueError("has a field twice in an object")
    return found


def _finite(text: str) -> float:
    if math.isinf(number := float(text)):
        raise _BadValueError("has a number that is too large for a DOUBLE")
    return number


def _none_of(found: dict[str, Any], known: Sequence[str]) -> str:
    folded = {name.lower() for name in found}
    near = next((name for name in known if name.lower() in folded), None)
    if near is not None:
        return f"has none of the schema's fields, but {near!r} in another case"
    if found.keys() == {"schema", "payload"}:
        return (
            "has none of the schema's fields, but 'schema' and 'payload', as Kafka Connect "
            "writes with 'schemas.enable': turn that off, or declare payload as a STRUCT of "
            "the fields"
        )
    more = ", ..." if len(known) > _SHOWN else ""
    return f"has none of the schema's fields ({', '.join(known[:_SHOWN])}{more})"


def _of_field(value: Any, field: pa.Field, above: str, path: str, reads: Reads) -> str | None:
    """Return what is wrong with a field or a part of it; None if it can be read.

    Args:
        value: The value of the field.
        field: Its name and type.
        above: The path of the object that it is in, without numbers of elements.
        path: Its own path, for people.
        reads: Tries some fields.
    """
    if value is None and not field.nullable:
        return f"has no value in field {path!r}, which is NOT NULL"
    if reads(json.dumps({field.name: value}).encode(), [field], above):
        return None
    inside = f"{above}.{field.name}" if above else field.name
    parts: list[tuple[Any, pa.Field, str, str]] = []
    if pa.types.is_struct(field.type) and isinstance(value, dict):
        parts = [(value.get(one.name), one, inside, f"{path}.{one.name}") for one in field.type]
    elif pa.types.is_list(field.type) and isinstance(value, list):
        item = field.type.value_field.with_name(field.name)
        parts = [(one, item, above, f"{path}[{number}]") for number, one in enumerate(value)]
    elif pa.types.is_map(field.type) and isinstance(value, dict):
        item = field.type.item_field.with_name(field.name)
        parts = [(one, item, above, f"{path}[...]") for one in value.values()]
    for part in parts:
        if (text := _of_field(*part, reads)) is not None:
            return text
    text = f"has {_kind(value)} in field {path!r}, which cannot be read as {_wanted(field.type)}"
    return f"{text}{_hint(value, field.type)}"


def _hint(value: Any, kind: pa.DataType) -> str:
    if pa.types.is_timestamp(kind) and type(value) in _NUMBERS:
        return " (the option 'epochUnit' declares the unit of such numbers)"
    if pa.types.is_timestamp(kind) and kind.tz is not None and isinstance(value, str):
        return " (the option 'timeZone' is the zone of texts without one)"
    return ""


def _kind(value: Any) -> str:
    return "null" if value is None else {**_KINDS, **_NUMBERS}[type(value)]


def _wanted(kind: pa.DataType) -> str:
    from pyspark.sql.pandas.types import from_arrow_type

    return from_arrow_type(kind, prefer_timestamp_ntz=True).simpleString().upper()
