"""Numbered rows with values that connectors get wrong, and the comparison of rows."""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa

from krishiv_spark.messages.suggestions import did_you_mean
from krishiv_spark.testing.rules import Rule, Violation

__all__ = [
    "TYPES",
    "ZONES",
    "Canonical",
    "Row",
    "Rows",
    "canonical",
    "columns",
    "count_rows",
    "long_row",
    "numbers_of",
    "odd_row",
    "ranges",
    "refuse_strange",
    "rounds",
    "typed_schema",
    "types_but",
]

ZONES = ("KIT-05:45", "EST5EDT,M3.2.0,M11.1.0")
"""Zones of ``TZ``, as POSIX writes them, in which a connector must read the same times."""

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
"""The types of Spark that are tried on a sink, by name."""

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
    """Return a schema of a number, `id`, and a column ``as_<type>`` for each of some `TYPES`."""
    return pa.schema([("id", pa.int64()), *((f"as_{name}", TYPES[name]) for name in types)])


def types_but(cannot_hold: Collection[str]) -> tuple[str, ...]:
    """Return the names of all `TYPES` except some.

    Raises:
        ValueError: If one of those is no type; the message names the nearest.
    """
    for name in cannot_hold:
        if name not in TYPES:
            known = did_you_mean(name, TYPES, f"there are {', '.join(TYPES)}")
            raise ValueError(f"cannot_hold names {name!r}, which is no type: {known}")
    return tuple(name for name in TYPES if name not in cannot_hold)


def odd_row(
    number: int, row: Sequence[Any], schema: pa.Schema, odd: Collection[str], *, infinite: bool
) -> tuple[Any, ...]:
    """Return a row in which some columns have a value that connectors get wrong.

    Args:
        number: The number of the row; after `rounds` rows, each column had each value.
        row: The values of all columns.
        schema: The schema of the row.
        odd: The columns that change.
        infinite: True if a double may be NaN, infinite, or a zero below zero.
    """
    columns = ((field, field.name in odd) for field in schema)
    return tuple(
        _odd(field, number + place, infinite=infinite) if is_odd else value
        for place, ((field, is_odd), value) in enumerate(zip(columns, row, strict=True))
    )


def rounds(schema: pa.Schema) -> int:
    """Return the number of rows until each column had each value that the kit has for it."""
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

# --- comparison

Canonical: TypeAlias = Callable[[Sequence[Any]], tuple[Any, ...]]
"""A function from a row to a value that is equal to it, comparable and hashable."""


def canonical(schema: pa.Schema) -> Canonical:
    """Return the function that makes rows of a schema comparable; it is cheap for plain values."""
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
    """Return a nested value with unordered parts in order, and unhashable parts as tuples."""
    if isinstance(value, Mapping):
        return tuple(sorted((key, _of_any(item)) for key, item in value.items()))
    if isinstance(value, list | tuple):
        return tuple(_of_any(item) for item in value)
    return _of_float(bytes(value) if isinstance(value, bytearray | memoryview) else value)


def _of_map(value: Any) -> Any:
    return _of_any(dict(value))


def _of_time(value: Any) -> Any:
    # In the hour that a clock repeats when it is set back, times of two zones are never equal (PEP
    # 495).
    return value.astimezone(dt.timezone.utc) if getattr(value, "tzinfo", None) else value


_MAKERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any], Any]], ...] = (
    (pa.types.is_floating, _of_float),
    (pa.types.is_timestamp, _of_time),
    (pa.types.is_map, _of_map),
    (pa.types.is_nested, _of_any),
    (pa.types.is_binary, _of_any),
)


Row: TypeAlias = tuple[Any, ...]
_LONG_TEXT = "." * 2000

Rows: TypeAlias = Iterable[Row] | Iterable[Mapping[str, Any]] | pa.Table


def columns(schema: pa.Schema, rows: Sequence[Row]) -> list[pa.Array]:
    """Return rows as the arrays of their columns."""
    by_column = zip(*rows, strict=True)
    return [pa.array(column, kind) for column, kind in zip(by_column, schema.types, strict=True)]


def long_row(row: Row, places: Collection[int]) -> Row:
    """Return a row whose first text or binary among these columns is long."""
    place = next(p for p in places if isinstance(row[p], str | bytes))
    value = row[place]
    longer = value + _LONG_TEXT if isinstance(value, str) else value + _LONG_TEXT.encode()
    return (*row[:place], longer, *row[place + 1 :])


def numbers_of(
    rows: Rows,
    schema: pa.Schema,
    row: Callable[[int], Row],
    written: int,
) -> Counter[int | Row]:
    """Count rows by their number; a row that belongs to no number below `written` counts as itself.

    If numbers share a row, the lowest of them are counted.
    """
    comparable = canonical(schema)
    known: dict[Row, list[int]] = {}
    for number in range(written):
        known.setdefault(comparable(row(number)), []).append(number)
    found: Counter[int | Row] = Counter()
    for values, times in Counter(map(comparable, _read_rows(rows, schema))).items():
        numbers: list[Any] = known.get(values, [values])
        more = max(times - len(numbers), 0)
        found.update([*numbers[:times], *numbers[-1:] * more])
    return found


def count_rows(rows: Rows) -> Counter[int | Row]:
    """Count rows by their values; the order of named columns does not matter."""
    given: Any = rows
    found = given.to_pylist() if isinstance(given, pa.Table) else given
    return Counter(_of_any(row) for row in found)


def _read_rows(rows: Rows, schema: pa.Schema) -> Iterator[Row]:
    given: Any = rows
    for item in given.to_pylist() if isinstance(given, pa.Table) else given:
        yield tuple(item[n] for n in schema.names) if isinstance(item, Mapping) else tuple(item)


def refuse_strange(
    found: Collection[int | Row],
    schema: pa.Schema,
    row: Callable[[int], Row],
    written: int,
    where: str = "",
) -> None:
    """Report rows that belong to no number, with the rows that they may have been.

    Args:
        found: Numbers, and rows without one, as `numbers_of` returns them.
        schema: The schema of the rows.
        row: The function from a number to its row.
        written: Rows with numbers below this were written.
        where: The beginning of the message.

    Raises:
        Violation: If there is one.
    """
    strange = [key for key in found if not isinstance(key, int)]
    if not strange:
        return
    missing = [number for number in range(written) if number not in found]
    known = {number: canonical(schema)(row(number)) for number in missing}
    changes = [text for other in strange if (text := _describe_changes(other, known, schema.names))]
    if changes:
        raise Violation(Rule.VALUES_KEPT, where + "\n".join(changes))
    raise Violation(Rule.NOTHING_INVENTED, f"{where}rows that are there: {ranges(strange)}")


def _describe_changes(strange: Row, known: Mapping[int, Row], names: Sequence[str]) -> str | None:
    """Return the differences between a row and the most similar one; None if none is similar."""

    def likeness(number: int) -> int:
        pairs = zip(strange, known[number], strict=True)
        return sum(value is not None and value == other for value, other in pairs)

    if not known or len(strange) != len(names):
        return None
    number = max(known, key=likeness)
    if not likeness(number):
        return None
    pairs = zip(names, known[number], strange, strict=True)
    parts = (f"{name} was {old!r}, is {new!r}" for name, old, new in pairs if old != new)
    return f"row {number}: {'; '.join(parts)}"


def ranges(rows: Iterable[int | Row]) -> str:
    """Return numbers as ``0-3, 7``; rows without one unchanged."""
    numbers = sorted(row for row in rows if isinstance(row, int))
    texts: list[str] = [repr(row) for row in rows if not isinstance(row, int)]
    for number in reversed(numbers):
        if texts and texts[0].split("-")[0] == str(number + 1):
            texts[0] = f"{number}-{texts[0].split('-')[-1]}"
        else:
            texts.insert(0, str(number))
    return ", ".join(texts)
