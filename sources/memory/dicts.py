"""Rows as dicts, as Arrow: each value is kept as it is, or refused."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from krishiv_spark.errors import SchemaError
from krishiv_spark.messages.suggestions import did_you_mean

__all__ = ["table_of"]


def table_of(rows: Sequence[Mapping[str, Any]], schema: pa.Schema | None) -> pa.Table:
    """Rows in a schema, or with the types that Arrow takes their values for.

    Arrow cuts values to fit: 1.5 as a whole number is 1, a time as a date loses its hours, a time
    without a zone is taken for one in UTC. So each value is read back and compared.

    Args:
        rows: The rows. A key that one of them lacks is null.
        schema: The schema, or None.

    Raises:
        SchemaError: If a row has a key that the schema lacks, or a value does not fit.
    """
    if schema is None:
        names = list(dict.fromkeys(key for row in rows for key in row))
        columns = [_column([row.get(name) for row in rows], name, None) for name in names]
        return pa.Table.from_arrays(columns, names=names)
    _check_keys(rows, schema.names)
    fields = list(schema)
    columns = [
        _column([row.get(field.name) for row in rows], field.name, field) for field in fields
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _check_keys(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    for number, row in enumerate(rows):
        for key in row:
            if key not in names:
                hint = did_you_mean(key, names, f"there are {', '.join(names)}")
                raise SchemaError(f"row {number} has {key!r}, which is no column; {hint}")


def _column(values: Sequence[Any], name: str, field: pa.Field | None) -> pa.Array:
    try:
        column = pa.array(values, None if field is None else field.type)
    except (ValueError, TypeError, OverflowError, NotImplementedError) as error:
        what = "one type" if field is None else f"its type {field.type}"
        raise SchemaError(f"the values of column {name!r} do not fit {what}: {error}") from error
    if field is not None and not field.nullable and column.null_count:
        raise SchemaError(f"column {name!r} has nulls, but is NOT NULL")
    for number, (given, held) in enumerate(zip(values, column.to_pylist(), strict=True)):
        if not _is_kept(given, held, column.type):
            raise SchemaError(
                f"row {number}: column {name!r} is {column.type}, which would make {held!r} of "
                f"{given!r}"
            )
    return column


def _is_kept(given: Any, held: Any, kind: pa.DataType) -> bool:
    if given is None or held is None:
        return given is held
    if pa.types.is_struct(kind):
        # Arrow leaves out what its struct has no field for.
        return given.keys() <= held.keys() and all(
            _is_kept(given.get(field.name), held[field.name], field.type) for field in kind
        )
    if pa.types.is_map(kind):
        pairs = list(given.items() if isinstance(given, Mapping) else given)
        parts = zip(pairs, held, strict=True)
        return all(
            _is_kept(mine[0], its[0], kind.key_type) and _is_kept(mine[1], its[1], kind.item_type)
            for mine, its in parts
        )
    if pa.types.is_nested(kind):
        parts = zip(given, held, strict=True)
        return all(_is_kept(mine, its, kind.value_type) for mine, its in parts)
    return _is_same(given, held, kind)


def _is_same(given: Any, held: Any, kind: pa.DataType) -> bool:
    """Whether a value is the same that was given; a short float may be the one next to it."""
    if isinstance(held, float) and isinstance(given, float):
        if not math.isfinite(given) or not math.isfinite(held):
            return repr(float(given)) == repr(held)
        return given == held or kind.bit_width < _DOUBLE_BITS
    # Arrow takes text for binary, and gives back bytes.
    as_bytes = [one.encode() if isinstance(one, str) else one for one in (given, held)]
    return bool(as_bytes[0] == as_bytes[1])


_DOUBLE_BITS = 64
