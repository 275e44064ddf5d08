"""Files that cannot have rows under Spark's conditions, by their statistics. Driver.

Spark checks each condition again, so one that is not understood skips nothing. Floats are left out:
writers disagree about NaN, which is the greatest number to Spark.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from krishiv_spark.arrow.compute import pc

__all__ = ["skip_files"]

_log = logging.getLogger(__name__)

_MILLISECOND = dt.timedelta(milliseconds=1)
"""Upper bounds of times are cut to milliseconds (protocol, "Per-file Statistics")."""


def skip_files(files: pa.Table, filters: Iterable[Any]) -> pa.Table:
    """Return the files that may have rows for which all conditions hold.

    Args:
        files: Files with their statistics, as the library lists them.
        filters: Instances of the classes of ``pyspark.sql.datasource.Filter``.
    """
    for each in filters:
        try:
            may_hold = _judge(files, each)
        # A value of another type than the column, a column without statistics, an unknown class.
        except (
            pa.ArrowException,
            ArithmeticError,
            AttributeError,
            LookupError,
            TypeError,
            ValueError,
        ) as error:
            _log.debug("not used to skip files: %s: %s", each, error)
            continue
        files = files.filter(pc.fill_null(may_hold, fill_value=True))
    return files


@dataclass(frozen=True)
class _ColumnStatistics:
    """The statistics of one column, with a value for each file; null where it is not known.

    Attributes:
        low: Smallest values.
        high: Largest values.
        nulls: Numbers of nulls.
        rows: Numbers of rows.
        is_partition: True if all rows of a file have its value, so that null is a value too.
    """

    low: pa.ChunkedArray
    high: pa.ChunkedArray
    nulls: pa.ChunkedArray
    rows: pa.ChunkedArray
    is_partition: bool = False

    @classmethod
    def of(cls, files: pa.Table, path: Sequence[str]) -> _ColumnStatistics:
        rows = files.column("num_records")
        if len(path) == 1 and _has(files, "partition", path[0]):
            values = pc.struct_field(files.column("partition"), [path[0]])
            nulls = pc.if_else(pc.is_null(values), rows, 0)
            _refuse_floats(values.type)
            return cls(values, values, nulls, rows, is_partition=True)
        parts = [pc.struct_field(files.column(name), list(path)) for name in ("min", "max")]
        low, high = parts
        _refuse_floats(low.type)
        if pa.types.is_timestamp(high.type):
            high = pc.add(high, pa.scalar(_MILLISECOND))
        return cls(low, high, pc.struct_field(files.column("null_count"), list(path)), rows)


def _refuse_floats(kind: pa.DataType) -> None:
    if pa.types.is_floating(kind):
        raise ValueError("floats are not used")


def _has(files: pa.Table, column: str, name: str) -> bool:
    if column not in files.column_names:
        return False
    return bool(files.schema.field(column).type.get_field_index(name) >= 0)


def _judge(files: pa.Table, item: Any) -> pa.ChunkedArray:
    """Return True for each file that may have a row under a condition."""
    kind = type(item).__name__
    is_not = kind == "Not"
    if is_not:
        item, kind = item.child, type(item.child).__name__
        if kind not in {"EqualTo", "In"}:
            raise ValueError(f"a negated {kind} is left to Spark")
    column = _ColumnStatistics.of(files, item.attribute)
    if kind == "IsNull":
        return pc.greater(column.nulls, 0)
    if kind == "IsNotNull":
        return pc.less(column.nulls, column.rows)
    values = item.value if kind == "In" else (item.value,)
    if not values:
        raise ValueError("no values")
    compare = _differs if is_not else _COMPARISONS["EqualTo" if kind == "In" else kind]
    combine = pc.and_kleene if is_not else pc.or_kleene
    result = None
    for value in values:
        found = compare(column, _scalar(value, column))
        result = found if result is None else combine(result, found)
    # A comparison with null holds for no row; statistics that are null are not known.
    return pc.fill_null(result, fill_value=False) if column.is_partition else result


def _scalar(value: Any, column: _ColumnStatistics) -> pa.Scalar:
    """Return a value as one of the column, whose type may be narrower than the reader's."""
    kind = column.low.type
    if value is None:
        raise ValueError("null equals nothing")
    is_time = isinstance(value, dt.datetime) and pa.types.is_timestamp(kind)
    if is_time and (value.tzinfo is None) != (kind.tz is None):
        raise ValueError("a time without a zone")
    found = pa.scalar(value, kind)
    if found.as_py() != value:
        raise ValueError("the column has no such value")
    return found


def _equals(column: _ColumnStatistics, value: pa.Scalar) -> pa.ChunkedArray:
    return pc.and_kleene(pc.less_equal(column.low, value), pc.greater_equal(column.high, value))


def _differs(column: _ColumnStatistics, value: pa.Scalar) -> pa.ChunkedArray:
    """Return True unless all rows have the value: only then both bounds are equal to it."""
    return pc.or_kleene(pc.not_equal(column.low, value), pc.not_equal(column.high, value))


_COMPARISONS: dict[str, Callable[[_ColumnStatistics, pa.Scalar], pa.ChunkedArray]] = {
    "EqualTo": _equals,
    "EqualNullSafe": _equals,  # the two differ in null only, which was refused before
    "GreaterThan": lambda column, value: pc.greater(column.high, value),
    "GreaterThanOrEqual": lambda column, value: pc.greater_equal(column.high, value),
    "LessThan": lambda column, value: pc.less(column.low, value),
    "LessThanOrEqual": lambda column, value: pc.less_equal(column.low, value),
}
