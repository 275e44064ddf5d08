"""The new totals of a view, computed by Spark from old ones and changes. Driver; rows in tasks.

All internal columns are sums, so old totals are treated as further changes: they are appended to
the new ones and grouped again. Adding two columns would not do: Spark reduces the digits of the sum
of two decimals of 38 digits, but not of an aggregate.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  as everybody calls it
from pyspark.sql.types import DataType, DecimalType, DoubleType, LongType, StructType

from krishiv_spark.sinks.iceberg.views.definition import (
    CALLER,
    KEY,
    OP,
    ROWS,
    WEIGHT,
    Total,
    ViewDefinition,
    count_of,
    sum_of,
    values_of,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["add_group_keys", "compute_checksum", "compute_totals"]

_MAX_DIGITS = 38
_MORE_OF_SUM, _MORE_OF_AVERAGE = 10, 4  # digits that Spark's own results have more than the values
_VALUE, _NUMBER = "value", "n"


def add_group_keys(batch: DataFrame, view: ViewDefinition) -> DataFrame:
    """Return the used columns of the changes, with the key of their group."""
    weight = _c(WEIGHT).cast("long")
    strange = F.concat(F.lit(f"{CALLER}: a change has {WEIGHT} = "), _show(weight))
    checked = F.when(weight.isin(1, -1), weight).otherwise(
        F.raise_error(F.concat(strange, F.lit(", which must be 1 or -1")))
    )
    names = dict.fromkeys([*view.by, *view.used])
    key = F.concat(*(_to_key_part(batch.schema[name].dataType, name) for name in view.by))
    return batch.select(*map(_c, names), checked.alias(WEIGHT), key.alias(KEY))


def _to_key_part(kind: DataType, name: str) -> Column:
    """Return a value as unique text with its length, so that parts of a key are unambiguous.

    The sink cannot find rows by null, and finds them faster by one column than by several.
    """
    text = _c(name).cast("string")
    if kind.typeName() == "timestamp":  # as text it depends on the session's time zone
        text = F.unix_micros(_c(name)).cast("string")
    elif kind.typeName() == "binary":
        text = F.hex(_c(name))
    elif isinstance(kind, DecimalType):
        text = _without_exponent(text, kind.scale)
    return F.coalesce(F.concat(F.length(text).cast("string"), F.lit(":"), text), F.lit("-"))


def _without_exponent(text: Column, scale: int) -> Column:
    """Return a decimal as text with all its digits: 0E-8 as 0.00000000.

    Spark writes small decimals with an exponent if `spark.sql.ansi.enabled` is off, and a group
    must have the same key in every session.
    """
    sign = F.when(text.startswith("-"), F.lit("-")).otherwise(F.lit(""))
    digits = F.lpad(F.regexp_replace(text, "[-.]|E.*", ""), scale, "0")
    return F.when(text.contains("E"), F.concat(sign, F.lit("0."), digits)).otherwise(text)


def compute_checksum(changes: DataFrame, view: ViewDefinition) -> str:
    """Return number and checksum of the changes in any order, in the form of `txnRows`.

    Tables contain it, so that the hashed columns must not change between releases.

    Args:
        changes: The result of `add_group_keys`.
        view: Definition of the view.
    """
    values = [_c(name) for name in dict.fromkeys([*view.by, *view.added, *view.ranked])]
    # The hash of a null does not depend on its column. Columns that are only counted may have types
    # without a hash.
    nulls = [_c(name).isNull() for name in dict.fromkeys([*view.by, *view.used])]
    hashes = F.xxhash64(_c(WEIGHT), *values, *nulls).cast(DecimalType(20, 0))  # longs overflow
    ((rows, checksum),) = changes.agg(F.count("*"), F.sum(hashes)).collect()
    return f"{rows}:{int(checksum or 0) % 2**64:016x}"


def compute_totals(
    changes: DataFrame, touched: DataFrame | None, view: ViewDefinition
) -> DataFrame:
    """Compute the upserts and deletes that add these changes to the totals of the table.

    Args:
        changes: The result of `add_group_keys`.
        touched: Current rows of the groups with changes; None if the table has no snapshot.
        view: Definition of the view.

    Returns:
        One row for each group with changes: `by`, the totals, the internal columns, and `OP`.
    """
    kinds = changes.schema
    together = _to_totals(changes, view)
    if touched is not None:
        together = together.unionByName(touched.select(*map(_c, together.columns)))
    kept = _add_up(together, view)
    if view.ranked:
        kept = kept.join(_collect_values(changes, touched, view.ranked), KEY, "left")
    kept = kept.withColumn(ROWS, _check_rows(view))
    shown = [_to_shown_total(total, kinds).alias(total.name) for total in view.totals]
    op = F.when(_c(ROWS) == 0, "delete").otherwise("upsert").alias(OP)
    return kept.select(*map(_c, view.by), *shown, *map(_c, view.hidden), op)


def _to_totals(changes: DataFrame, view: ViewDefinition) -> DataFrame:
    """Return each change as the totals of a group of one row, negative for a deleted row."""
    weight = _c(WEIGHT)
    counts = [
        F.when(_c(name).isNull(), F.lit(0)).otherwise(weight).cast("long").alias(count_of(name))
        for name in view.counted
    ]
    sums = []
    for name in view.added:
        value = _c(name).cast(_to_summed_type(changes.schema[name].dataType))
        sums.append(F.when(weight > 0, value).otherwise(-value).alias(sum_of(name)))
    return changes.select(_c(KEY), *map(_c, view.by), weight.alias(ROWS), *counts, *sums)


def _to_summed_type(kind: DataType) -> DecimalType:
    return DecimalType(_MAX_DIGITS, kind.scale if isinstance(kind, DecimalType) else 0)


def _add_up(rows: DataFrame, view: ViewDefinition) -> DataFrame:
    kept = [ROWS, *map(count_of, view.counted)]
    sums = [sum_of(name) for name in view.added]
    return rows.groupBy(KEY).agg(
        *(F.first(_c(name)).alias(name) for name in view.by),  # those of a key are all the same
        *(F.sum(_c(name)).alias(name) for name in kept),
        *(F.try_sum(_c(name)).alias(name) for name in sums),  # null if there are too many digits
    )


def _collect_values(changes: DataFrame, touched: DataFrame | None, ranked: list[str]) -> DataFrame:
    """Return the sorted distinct values of each group and column, with their numbers."""
    pairs = [_count_new_values(changes, name) for name in ranked]
    if touched is not None:
        pairs += [_read_old_values(touched, name) for name in ranked]
    # A row has a value in one column, and nulls in the others.
    together = functools.reduce(
        lambda some, more: some.unionByName(more, allowMissingColumns=True), pairs
    )
    names = [values_of(name) for name in ranked]
    summed = together.groupBy(KEY, *map(_c, names)).agg(F.sum(_NUMBER).alias(_NUMBER))
    number = F.when(_c(_NUMBER) < 0, _raise_too_many_deletes()).otherwise(_c(_NUMBER))
    left = summed.where(_c(_NUMBER) != 0).withColumn(_NUMBER, number)
    return left.groupBy(KEY).agg(*map(_collect_list, names))


def _count_new_values(changes: DataFrame, column: str) -> DataFrame:
    values = changes.where(_c(column).isNotNull())
    return values.select(KEY, _c(WEIGHT).alias(_NUMBER), _c(column).alias(values_of(column)))


def _read_old_values(touched: DataFrame, column: str) -> DataFrame:
    pairs = touched.select(KEY, F.explode(_c(values_of(column))).alias("pair"))
    return pairs.select(KEY, f"pair.{_NUMBER}", F.col(f"pair.{_VALUE}").alias(values_of(column)))


def _collect_list(name: str) -> Column:
    pair = F.struct(_c(name).alias(_VALUE), _c(_NUMBER))
    return F.sort_array(F.collect_list(F.when(_c(name).isNotNull(), pair))).alias(name)


def _check_rows(view: ViewDefinition) -> Column:
    """Return the number of rows; fail the task if more rows were deleted than inserted."""
    wrong = _c(ROWS) < 0
    for name in view.counted:
        count = _c(count_of(name))
        wrong = wrong | (count < 0) | (count > _c(ROWS))
    return F.when(wrong, _raise_too_many_deletes()).otherwise(_c(ROWS))


def _raise_too_many_deletes() -> Column:
    return F.raise_error(
        F.concat(
            F.lit(f"{CALLER}: more rows of group "),
            _c(KEY),
            F.lit(
                " were deleted than inserted: the stream of changes must start with all rows "
                "of the table ('startingOffsets' = 'earliest' or 'current'), and changes must "
                "be processed in the same way for a deleted row as for the inserted one"
            ),
        )
    ).cast("long")


# --- totals


def _to_shown_total(total: Total, kinds: StructType) -> Column:
    if total.column is None:
        return _c(ROWS)
    if total.function == "count":
        return _c(count_of(total.column))
    if total.function in {"max", "min"}:
        values = _c(values_of(total.column))
        place = F.lit(0) if total.function == "min" else F.size(values) - 1
        return F.get(values, place).getField(_VALUE)
    kind = kinds[total.column].dataType
    found = _sum(total.column, kind) if total.function == "sum" else _average(total.column, kind)
    too_long = f"{CALLER}: {total.name!r} = '{total}' of group "
    advice = (
        f" has more digits than {_get_sum_type(kind).simpleString()}: cast the column to a "
        "type with more digits"
    )
    error = F.raise_error(F.concat(F.lit(too_long), _c(KEY), F.lit(advice)))
    return F.when(_c(count_of(total.column)) > 0, F.coalesce(found, error))


def _sum(column: str, kind: DataType) -> Column:
    return _c(sum_of(column)).try_cast(_get_sum_type(kind))


def _average(column: str, kind: DataType) -> Column:
    """Divide as Spark does: whole numbers as doubles, decimals with four more digits."""
    count = _c(count_of(column))
    if not isinstance(kind, DecimalType):
        return _c(sum_of(column)).cast(DoubleType()) / count
    precision, scale = (
        min(_MAX_DIGITS, digits + _MORE_OF_AVERAGE) for digits in (kind.precision, kind.scale)
    )
    quotient = _sum(column, kind) / count.cast(DecimalType(20, 0))
    return quotient.try_cast(DecimalType(precision, scale))


def _get_sum_type(kind: DataType) -> DataType:
    """Return the type of Spark's own sum."""
    if not isinstance(kind, DecimalType):
        return LongType()
    return DecimalType(min(_MAX_DIGITS, kind.precision + _MORE_OF_SUM), kind.scale)


def _c(name: str) -> Column:
    """Return a column by its name, which may have any characters."""
    return F.col("`" + name.replace("`", "``") + "`")


def _show(value: Column) -> Column:
    return F.coalesce(value.cast("string"), F.lit("null"))
