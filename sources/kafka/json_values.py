"""JSON values of records: the parser of their form, and reasons why a value is bad. Executor.

A reason contains no data of the value.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from krishiv_spark.arrow.json_parsing import JsonParser, find_unknown, have_field
from krishiv_spark.arrow.json_types import JsonRules
from krishiv_spark.arrow.parsed_values import ParsedValues, UnknownFields

__all__ = ["JsonValues", "explain_mismatch"]


class JsonValues:
    """The parser of JSON values.

    Args:
        fields: The fields to read.
        known: All declared fields, including fields that are not read.
        rules: Time zone and units.
        looks_for_more: Detect fields that are not read; otherwise they are ignored.

    Raises:
        SchemaError: If a field has a type that cannot be read from JSON.
    """

    form = "JSON"

    def __init__(
        self,
        fields: Sequence[pa.Field],
        known: Sequence[pa.Field],
        rules: JsonRules,
        *,
        looks_for_more: bool,
    ) -> None:
        self._fields, self._rules = tuple(fields), rules
        self._known = pa.struct(list(known))
        self._names = [each.name for each in known]
        self._parser = JsonParser(pa.struct(list(fields)), rules, looks_for_more=looks_for_more)

    def frame(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the values of rows unchanged; see `ValueParser`."""
        return batch.column("value")

    def parse(self, values: pa.Array) -> ParsedValues:
        """Parse values; see `ValueParser`."""
        return self._parser.parse(values)

    def find_empty(self, values: pa.Array) -> NDArray[np.bool_]:
        """Return True for each object that has none of the declared fields."""
        return ~have_field(values, self._names)

    def explain(self, value: bytes | None) -> str:
        """Return the fault of a bad value; see `explain_mismatch`."""
        return explain_mismatch(value, self._fields, self._names, self._can_read)

    def find_unknown(self, values: pa.Array) -> UnknownFields:
        """Return the fields that are not declared."""
        return find_unknown(values, self._known)

    def _can_read(self, value: bytes, fields: Sequence[pa.Field], above: str) -> bool:
        """Return True if fields of an object can be read. `above` is the path of the object."""
        parser = JsonParser(pa.struct(list(fields)), self._rules, above)
        return not len(parser.parse(pa.array([value], pa.binary())).bad)


_KINDS = {dict: "an object", list: "an array", str: "a string", bool: "true or false"}
_NUMBERS = {int: "a whole number", float: "a number with a fraction or an exponent"}
_MOST_NAMES = 5
"""Maximum number of field names in a message."""

Reads: TypeAlias = "Callable[[bytes, Sequence[pa.Field], str], bool]"
"""A function that returns True if fields of an object with some path can be read."""


class _BadValueError(Exception):
    """A value is not a JSON object; the message is the reason."""


def explain_mismatch(
    value: bytes | None, fields: Sequence[pa.Field], known: Sequence[str], reads: Reads
) -> str:
    """Return the fault of a bad value: the field, its value's kind and the expected type.

    The text is a predicate whose subject is the value, such as "is missing".

    Args:
        value: A bad value.
        fields: The fields that are read.
        known: The names of all fields of the schema, including fields that are not read.
        reads: A function that tries to read fields.
    """
    try:
        found = _load_object(value)
    except _BadValueError as error:
        return str(error)
    for field in _find_suspects(found, fields, reads):
        if (
            text := _explain_field(found.get(field.name), field, "", field.name, reads)
        ) is not None:
            return text
    if not found.keys() & {*known}:
        return _explain_no_field(found, known)
    return "is interpreted differently by Arrow"


def _find_suspects(
    found: Mapping[str, Any], fields: Sequence[pa.Field], reads: Reads
) -> Iterator[pa.Field]:
    """Yield the first field that cannot be read, and the fields before it without a value.

    A binary search finds it, since one attempt takes as long as reading many fields.
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
        found = json.loads(
            value.decode(), object_pairs_hook=_refuse_duplicates, parse_float=_parse_finite
        )
    except UnicodeDecodeError as error:
        raise _BadValueError(f"is not valid UTF-8 from byte {error.start} on") from None
    except json.JSONDecodeError as error:
        raise _BadValueError(f"is not valid JSON: {error.msg}, at character {error.pos}") from None
    except RecursionError:
        raise _BadValueError("is nested too deeply") from None
    except ValueError:  # Python limits the number of digits of an integer
        raise _BadValueError("has a number with too many digits") from None
    if not isinstance(found, dict):
        raise _BadValueError(f"is {_describe_kind(found)} instead of an object")
    return found


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _BadValueError("has a field twice in an object")
    return found


def _parse_finite(text: str) -> float:
    if math.isinf(number := float(text)):
        raise _BadValueError("has a number that is too large for a DOUBLE")
    return number


def _explain_no_field(found: dict[str, Any], known: Sequence[str]) -> str:
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
    more = ", ..." if len(known) > _MOST_NAMES else ""
    return f"has none of the schema's fields ({', '.join(known[:_MOST_NAMES])}{more})"


def _explain_field(value: Any, field: pa.Field, above: str, path: str, reads: Reads) -> str | None:
    """Return the fault of a field or of a part of it; None if it can be read.

    Args:
        value: The value of the field.
        field: Its name and type.
        above: The path of the object that contains it, without numbers of elements.
        path: The path of the field, for the message.
        reads: A function that tries to read fields.
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
        if (text := _explain_field(*part, reads)) is not None:
            return text
    text = (
        f"has {_describe_kind(value)} in field {path!r}, which cannot be read as "
        f"{_describe_type(field.type)}"
    )
    return f"{text}{_add_hint(value, field.type)}"


def _add_hint(value: Any, kind: pa.DataType) -> str:
    if pa.types.is_timestamp(kind) and type(value) in _NUMBERS:
        return " (the option 'epochUnit' declares the unit of such numbers)"
    if pa.types.is_timestamp(kind) and kind.tz is not None and isinstance(value, str):
        return " (the option 'timeZone' is the zone of texts without one)"
    return ""


def _describe_kind(value: Any) -> str:
    return "null" if value is None else {**_KINDS, **_NUMBERS}[type(value)]


def _describe_type(kind: pa.DataType) -> str:
    from pyspark.sql.pandas.types import from_arrow_type

    return from_arrow_type(kind, prefer_timestamp_ntz=True).simpleString().upper()
