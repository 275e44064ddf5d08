"""Values that connectors get wrong, of each type, and how two values are compared.

Nulls, empty texts, letters beyond ASCII, fractions of a second, times before 1970 and in the hour
that a clock is set back over, and numbers with more digits than a float has.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa

from krishiv_spark.messages.suggestions import did_you_mean

__all__ = [
    "TYPES",
    "ZONES",
    "Canonical",
    "canonical",
    "odd_row",
    "rounds",
    "typed_schema",
    "types_but",
]

ZONES = ("KIT-05:45", "EST5EDT,M3.2.0,M11.1.0")
"""Zones of ``TZ``, as POSIX writes them, in which a connector must see the same times."""

TYPES: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "decimal": pa.decimal128(20, 4),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "array": pa.list_(pa.string()),
    "struct": pa.struct([("number", pa.int64()), ("text", pa.string())]),
    "map": pa.map_(pa.string(), pa.int64()),
}
"""Spark's types that a sink is tried with, by their names."""

_TEXTS = ("plain", "", " blanks ", "é ß 漢 🜁", "'q\"uo`te\\ %s, ;", "line\nline\r\n\ttab", "NULL")
_TIMES = tuple(
    map(
        dt.datetime.fromisoformat,
        (
            "2013-01-01 10:30:00",
            "1969-12-31 23:59:59.999999",
            "2024-11-03 05:30:00.000001",
            "2024-11-03 06:30:00.000001",
            # Beyond 2262, where nanoseconds in 64 bits end.
            "2300-01-01 00:00:00.123456",
        ),
    )
)
_FRACTIONS = {"s": 1_000_000, "ms": 1_000}
_INFINITE = (math.nan, math.inf, -math.inf, -0.0)


def typed_schema(types: Collection[str]) -> pa.Schema:
    """A number, `id`, and a column for each of some of `TYPES`, named ``as_<type>``."""
    return pa.schema([("id", pa.int64()), *((f"as_{name}", TYPES[name]) for name in types)])


def types_but(cannot_hold: Collection[str]) -> tuple[str, ...]:
    """The names of all `TYPES` but some.

    Raises:
        ValueError: If one of those is no type; the nearest is named.
    """
    for name in cannot_hold:
        if name not in TYPES:
            known = did_you_mean(name, TYPES, f"there are {', '.join(TYPES)}")
            raise ValueError(f"cannot_hold names {name!r}, which is no type: {known}")
    return tuple(name for name in TYPES if name not in cannot_hold)


def odd_row(
    number: int, row: Sequence[Any], schema: pa.Schema, odd: Collection[str], *, infinite: bool
) -> tuple[Any, ...]:
    """A row some of whose columns have a value of their type that connectors get wrong.

    Args:
        number: Of the row; after `rounds` rows, each column had each value.
        row: The values of all columns.
        schema: Of the row.
        odd: The columns that change.
        infinite: Whether a double may be NaN, infinite, or a zero below zero.
    """
    columns = ((field, field.name in odd) for field in schema)
    return tuple(
        _odd(field, number + place, infinite=infinite) if is_odd else value
        for place, ((field, is_odd), value) in enumerate(zip(columns, row, strict=True))
    )


def rounds(schema: pa.Schema) -> int:
    """How many rows it takes until each column had each value that the kit has for it."""
    return max(len(_choices(field, infinite=True)) for field in schema)


def _odd(field: pa.Field, number: int, *, infinite: bool) -> Any:
    choices = _choices(field, infinite=infinite)
    return choices[number % len(choices)]


def _choices(field: pa.Field, *, infinite: bool) -> Sequence[Any]:
    found = _values(field.type, infinite=infinite)
    return [None, *found] if field.nullable else found


def _values(kind: pa.DataType, *, infinite: bool = False) -> Sequence[Any]:
    if pa.types.is_floating(kind):
        return [0.5, -1.5, 1e30, 0.0, *(_INFINITE if infinite else ())]
    known = next((values for test, values in _VALUES if test(kind)), None)
    if known is None:
        raise ValueError(f"the kit has no values of the type {kind}: leave the column out")
    return known(kind)


def _integers(kind: pa.DataType) -> Sequence[Any]:
    largest = 2 ** (kind.bit_width - 1) - 1
    return [0, largest, -largest - 1, largest // 1024 + 2]  # of 64 bits: more than 53


def _decimals(kind: pa.DataType) -> Sequence[Any]:
    digits = tuple(place % 10 for place in range(1, kind.precision + 1))
    shown = ((0, (0,)), (0, digits), (1, digits), (0, (1,)))
    return [Decimal((sign, of, -kind.scale)) for sign, of in shown]


def _times(kind: pa.DataType) -> Sequence[Any]:
    zone = dt.timezone.utc if kind.tz else None
    whole = _FRACTIONS.get(kind.unit, 1)
    cut = (t.replace(microsecond=t.microsecond // whole * whole) for t in _TIMES)
    return [t.replace(tzinfo=zone) for t in cut]


def _lists(kind: pa.DataType) -> Sequence[Any]:
    some = _values(kind.value_type)
    return [[], [some[0], None, some[1]], [None]]


def _structs(kind: pa.DataType) -> Sequence[Any]:
    fields = [kind.field(i) for i in range(kind.num_fields)]
    few = [{f.name: _values(f.type)[n % 2] for f in fields} for n in range(2)]
    return [*few, {f.name: None for f in fields}]


def _maps(kind: pa.DataType) -> Sequence[Any]:
    (key, *_), (value, *_) = _values(kind.key_type), _values(kind.item_type)
    return [[], [(key, value)], [(key, None)]]


_VALUES: tuple[
    tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], Sequence[Any]]], ...
] = (
    (pa.types.is_boolean, lambda _: [True, False]),
    (pa.types.is_integer, _integers),
    (pa.types.is_decimal, _decimals),
    (pa.types.is_timestamp, _times),
    (pa.types.is_date, lambda _: [*(t.date() for t in _TIMES), dt.date(2024, 2, 29)]),
    (pa.types.is_string, lambda _: _TEXTS),
    (pa.types.is_large_string, lambda _: _TEXTS),
    (pa.types.is_binary, lambda _: [b"", b"\x00\xff\n", b"plain"]),
    (pa.types.is_list, _lists),
    (pa.types.is_struct, _structs),
    (pa.types.is_map, _maps),
)

# --- comparing

Canonical: TypeAlias = Callable[[Sequence[Any]], tuple[Any, ...]]
"""From a row to one that is equal to it and can be compared and hashed."""


def canonical(schema: pa.Schema) -> Canonical:
    """How rows of a schema are made comparable: cheap, where all values are plain."""
    makers = [_maker(kind) for kind in schema.types]
    odd = [place for place, maker in enumerate(makers) if maker is not None]
    if not odd:
        return tuple
    return lambda row: tuple(
        value if maker is None or value is None else maker(value)
        for maker, value in zip(makers, row, strict=True)
    )


def _maker(kind: pa.DataType) -> Callable[[Any], Any] | None:
    return next((maker for test, maker in _MAKERS if test(kind)), None)


def _of_float(value: Any) -> Any:
    # As text: NaN is equal to nothing, and 0.0 to -0.0.
    is_odd = isinstance(value, float) and (math.isnan(value) or (value == 0 and _is_minus(value)))
    return str(value) if is_odd else value


def _is_minus(value: float) -> bool:
    return math.copysign(1, value) < 0


def _of_any(value: Any) -> Any:
    """A nested value: what is unordered in order, what cannot be hashed as a tuple."""
    if isinstance(value, Mapping):
        return tuple(sorted((key, _of_any(item)) for key, item in value.items()))
    if isinstance(value, list | tuple):
        return tuple(_of_any(item) for item in value)
    return _of_float(bytes(value) if isinstance(value, bytearray | memoryview) else value)


def _of_map(value: Any) -> Any:
    return _of_any(dict(value))


def _of_time(value: Any) -> Any:
    # In the hour that a clock is set back over, times of two zones are never equal (PEP 495).
    return value.astimezone(dt.timezone.utc) if getattr(value, "tzinfo", None) else value


_MAKERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any], Any]], ...] = (
    (pa.types.is_floating, _of_float),
    (pa.types.is_timestamp, _of_time),
    (pa.types.is_map, _of_map),
    (pa.types.is_nested, _of_any),
    (pa.types.is_binary, _of_any),
)
