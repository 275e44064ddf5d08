"""Statistics of a file for the log: readers skip files by them. Executor.

They are those of the protocol ("Per-file Statistics"): the number of rows, and for each of the
first columns the smallest and the largest value and the number of nulls. A bound that is missing is
always valid by the protocol. But the library's dataset reader (1.6) skips a file without one if the
file has other values in the column, so each type that has bounds there gets them here.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa

from krishiv_spark.arrow.compute import children, pc

__all__ = ["FileStatistics", "choose_indexed"]

_DEFAULT_COLUMNS = 32
_COUNT, _NAMES = "delta.dataSkippingNumIndexedCols", "delta.dataSkippingStatsColumns"

_MOST_CHARACTERS = 32
"""Length of a text's bound, as delta-spark cuts it."""

_LAST_CHARACTER = "\U0010ffff"
"""Follows a cut upper bound: no text with that beginning is greater."""

_MILLISECOND = 1_000
_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001  the times of a column have one zone
_FIRST, _END = -62_135_596_800_000_000, 253_402_300_799_999_999
"""Times whose bounds have a text: of years 1 to 9999, in microseconds since 1970."""


def choose_indexed(columns: pa.Schema, settings: Mapping[str, str]) -> list[tuple[int, ...]]:
    """Return the columns with statistics, as paths of indices, by the settings of the table.

    Args:
        columns: Columns of the files.
        settings: Properties of the table.
    """
    found = list(_iter_leaves(columns))
    names = settings.get(_NAMES)
    if names is not None:
        wanted = {name.strip().replace("`", "") for name in names.split(",")}
        return [path for path, name in found if _is_within(name, wanted)]
    count = int(settings.get(_COUNT, _DEFAULT_COLUMNS))
    return [path for path, _ in (found if count < 0 else found[:count])]


def _is_within(name: str, wanted: set[str]) -> bool:
    parts = name.split(".")
    return any(".".join(parts[:end]) in wanted for end in range(1, len(parts) + 1))


def _iter_leaves(
    fields: Sequence[pa.Field] | pa.Schema, above: tuple[int, ...] = (), prefix: str = ""
) -> Iterator[tuple[tuple[int, ...], str]]:
    for index, each in enumerate(fields):
        path, name = (*above, index), f"{prefix}{each.name}"
        if pa.types.is_struct(each.type):
            yield from _iter_leaves(children(each.type), path, f"{name}.")
        else:
            yield path, name


@dataclass
class _Bounds:
    """Nulls and bounds of one column so far; `is_unknown` once a value has no usable bound."""

    nulls: int = 0
    low: Any = None
    high: Any = None
    is_unknown: bool = False

    def add(self, values: pa.ChunkedArray) -> None:
        self.nulls += values.null_count
        if self.is_unknown or not _has_bounds(values.type):
            self.is_unknown = True
            return
        if pa.types.is_floating(values.type) and pc.all(pc.is_finite(values)).as_py() is False:
            # JSON has no such numbers, and readers disagree about the order of NaN.
            self.is_unknown = True
            return
        found = pc.min_max(_to_comparable(values))
        low, high = found["min"].as_py(), found["max"].as_py()
        if low is not None:
            self.low = low if self.low is None else min(self.low, low)
            self.high = high if self.high is None else max(self.high, high)


def _has_bounds(kind: pa.DataType) -> bool:
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_string)
    others = (pa.types.is_date, pa.types.is_timestamp, pa.types.is_boolean)
    return any(test(kind) for test in (*tests, *others))


def _to_comparable(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return times as numbers: Python has no dates of some years."""
    if pa.types.is_timestamp(values.type):
        return values.cast(pa.int64())
    return values.cast(pa.int32()) if pa.types.is_date(values.type) else values


@dataclass
class FileStatistics:
    """The statistics of one file, while its rows are written.

    Attributes:
        schema: Columns of the file.
        indexed: Columns with statistics, from `choose_indexed`.
        rows: Number of rows so far.
    """

    schema: pa.Schema
    indexed: Sequence[tuple[int, ...]]
    rows: int = 0
    _bounds: dict[tuple[int, ...], _Bounds] = field(default_factory=dict)

    def add(self, rows: pa.Table) -> None:
        """Add rows of the file."""
        self.rows += rows.num_rows
        for path in self.indexed:
            values = rows.column(path[0])
            if path[1:]:
                values = pc.struct_field(values, list(path[1:]))
            self._bounds.setdefault(path, _Bounds()).add(values)

    def to_json(self) -> str:
        """Return the statistics as the log has them."""
        low: dict[str, Any] = {}
        high: dict[str, Any] = {}
        nulls: dict[str, Any] = {}
        for path, bounds in self._bounds.items():
            names, kind = self._locate(path)
            _put(nulls, names, bounds.nulls)
            if not bounds.is_unknown and bounds.low is not None:
                _put(low, names, _to_low(bounds.low, kind))
                _put(high, names, _to_high(bounds.high, kind))
        texts = {"minValues": low, "maxValues": high, "nullCount": nulls}
        return _dump({"numRecords": self.rows, **texts})

    def _locate(self, path: tuple[int, ...]) -> tuple[list[str], pa.DataType]:
        found = self.schema.field(path[0])
        names = [found.name]
        for index in path[1:]:
            found = found.type.field(index)
            names.append(found.name)
        return names, found.type


def _put(tree: dict[str, Any], names: Sequence[str], value: Any) -> None:
    if value is None:
        return
    for name in names[:-1]:
        tree = tree.setdefault(name, {})
    tree[names[-1]] = value


def _to_low(value: Any, kind: pa.DataType) -> Any:
    if pa.types.is_string(kind):
        return value[:_MOST_CHARACTERS]
    if pa.types.is_timestamp(kind):
        return _to_time(value - value % _MILLISECOND, kind)
    return _to_day(value) if pa.types.is_date(kind) else value


def _to_high(value: Any, kind: pa.DataType) -> Any:
    if pa.types.is_string(kind):
        return _cut_above(value)
    if pa.types.is_timestamp(kind):  # rounded up: readers need not know that it was cut
        above = value + -value % _MILLISECOND
        return _to_time(value if value <= _END < above else above, kind)
    return _to_day(value) if pa.types.is_date(kind) else value


def _cut_above(text: str) -> str:
    """Return a text that is not less than another one, and short unless it has no short one."""
    rest = text[_MOST_CHARACTERS:].lstrip(_LAST_CHARACTER)
    if not rest:
        return text
    return text[: len(text) - len(rest)] + _LAST_CHARACTER


def _to_time(micros: int, kind: pa.DataType) -> str | None:
    if not _FIRST <= micros <= _END:
        return None
    # Microseconds only in the last millisecond of year 9999, which cannot be rounded up.
    digits = "microseconds" if micros % _MILLISECOND else "milliseconds"
    text = (_EPOCH + dt.timedelta(microseconds=micros)).isoformat(timespec=digits)
    return f"{text}Z" if kind.tz else text


def _to_day(days: int) -> str | None:
    try:
        return (_EPOCH.date() + dt.timedelta(days=days)).isoformat()
    except OverflowError:
        return None


def _dump(value: Any) -> str:
    """Return JSON in which decimals are numbers with all their digits."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k)}:{_dump(v)}" for k, v in value.items()) + "}"
    if isinstance(value, Decimal):
        return format(value, "f")
    return json.dumps(value, ensure_ascii=False)
