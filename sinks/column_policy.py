"""The columns of rows and of a table, compared by name in any order; what a table needs first.

Libraries of table formats accept types that lose values later: another scale of a decimal, binary
as a string. So this module has the rules by which one type represents all values of another.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple, TypeAlias

import pyarrow as pa

from krishiv_spark.arrow.cast import is_uuid
from krishiv_spark.arrow.compute import children
from krishiv_spark.errors import SchemaError
from krishiv_spark.messages.suggestions import did_you_mean

__all__ = ["Evolution", "SchemaUpdate", "check_columns", "grow_columns", "limit_evolution"]

Evolution: TypeAlias = Literal["none", "add", "widen"]
"""The allowed changes of a table's columns; `widen` adds columns too."""

_Fields: TypeAlias = list[pa.Field]


class _Pair(NamedTuple):
    """A column of the rows and the table's column of this name; None where it is missing.

    Attributes:
        path: Names from the top down.
        row: The column of the rows.
        table: The column of the table.
        twin: If the table lacks the column, one whose name differs only by case: Spark's SQL could
            not distinguish them.
    """

    path: tuple[str, ...]
    row: pa.Field | None
    table: pa.Field | None
    twin: str | None = None

    @property
    def name(self) -> str:
        """The path as text, for messages."""
        return ".".join(self.path)


class SchemaUpdate(NamedTuple):
    """A column that a table needs, or a type that one of its columns needs.

    Attributes:
        path: Names from the top down; ``element``, ``key`` and ``value`` inside of lists and maps.
        kind: The type, as Arrow.
        is_new: Whether the table has no such column.
    """

    path: tuple[str, ...]
    kind: pa.DataType
    is_new: bool


def check_columns(
    rows: pa.Schema, table: pa.Schema, misfit: str, evolution: Evolution = "none"
) -> list[SchemaUpdate]:
    """Refuse rows that do not fit the table.

    Args:
        rows: Columns of the rows, in types that a new table of the format would have.
        table: Columns of the table.
        misfit: The beginning of the error: the format, and the table's name.
        evolution: The changes of the table that are allowed.

    Returns:
        The changes that the table needs first; none without `evolution`.

    Raises:
        SchemaError: If the table has no such column, lacks one that it requires, or has it with
            another type that does not hold all values.
    """
    pairs = list(_iter_pairs((), list(rows), list(table)))
    updates = [update for pair in pairs if (update := _find_update(pair, evolution))]
    paths = {update.path for update in updates}
    wrong = (_describe_problem(pair, table) for pair in pairs if pair.path not in paths)
    problems = [problem for problem in wrong if problem]
    if problems:
        raise SchemaError(f"{misfit}: {'; '.join(problems)}")
    return updates


def limit_evolution(evolution: Evolution, most: Evolution) -> Evolution:
    """Return the changes of a table that both allow."""
    both = {evolution, most}
    return "none" if "none" in both else "add" if "add" in both else "widen"


def grow_columns(columns: pa.Schema, rows: pa.Schema, evolution: Evolution) -> pa.Schema:
    """Return the columns that a table has after it was adapted to rows; the same if it fits.

    Only whole columns are added or widened, and columns that do not fit remain.

    Args:
        columns: Columns of the table.
        rows: Columns of the rows, in types that a new table of the format would have.
        evolution: The changes of the table that are allowed.
    """
    grown = columns
    pairs = [pair for pair in _iter_pairs((), list(rows), list(columns)) if len(pair.path) == 1]
    for update in (found for pair in pairs if (found := _find_update(pair, evolution))):
        (name,) = update.path
        if update.is_new:
            grown = grown.append(pa.field(name, update.kind))
        else:
            place = grown.get_field_index(name)
            grown = grown.set(place, grown.field(place).with_type(update.kind))
    return grown


def _find_update(pair: _Pair, evolution: Evolution) -> SchemaUpdate | None:
    if pair.row is None or evolution == "none":
        return None
    if pair.table is None:
        return None if pair.twin else SchemaUpdate(pair.path, pair.row.type, is_new=True)
    fits = _represents(pair.table.type, pair.row.type)
    if evolution == "widen" and not fits and _represents(pair.row.type, pair.table.type):
        return SchemaUpdate(pair.path, pair.row.type, is_new=False)
    return None


def _iter_pairs(above: tuple[str, ...], rows: _Fields, table: _Fields) -> Iterator[_Pair]:
    ours = {field.name: field for field in rows}
    theirs = {field.name: field for field in table}
    twins = {name.casefold(): name for name in theirs}
    for name in dict.fromkeys([*ours, *theirs]):
        twin = None if name in theirs else twins.get(name.casefold())
        pair = _Pair((*above, name), ours.get(name), theirs.get(name), twin)
        inner = _get_inner_columns(pair)
        if inner is None:
            yield pair
        else:
            yield from _iter_pairs(pair.path, *inner)


def _get_inner_columns(pair: _Pair) -> tuple[_Fields, _Fields] | None:
    """Return the columns inside two columns of one kind."""
    if pair.row is None or pair.table is None:
        return None
    row, table = pair.row.type, pair.table.type
    if pa.types.is_struct(row) and pa.types.is_struct(table):
        return children(row), children(table)
    if pa.types.is_list(row) and pa.types.is_list(table):
        return _parts(element=(row.value_field, table.value_field))
    if pa.types.is_map(row) and pa.types.is_map(table):
        return _parts(
            key=(row.key_field, table.key_field), value=(row.item_field, table.item_field)
        )
    return None


def _parts(**parts: tuple[pa.Field, pa.Field]) -> tuple[_Fields, _Fields]:
    ours = [row.with_name(name) for name, (row, _) in parts.items()]
    return ours, [table.with_name(name) for name, (_, table) in parts.items()]


def _describe_problem(pair: _Pair, table: pa.Schema) -> str | None:
    if pair.table is None and pair.twin:
        return f"column {pair.name!r} is {pair.twin!r} in the table: rename it in the rows"
    if pair.table is None:
        hint = did_you_mean(pair.name, table.names, "remove it, or set 'schemaEvolution' = add")
        return f"the table has no column {pair.name!r}; {hint}"
    if pair.row is None:
        return f"required column {pair.name!r} is missing" if not pair.table.nullable else None
    row, table_type = pair.row.type, pair.table.type
    if _represents(table_type, row):
        return None
    widens = _represents(row, table_type)
    hint = "cast it, or set 'schemaEvolution' = widen" if widens else "cast it"
    return f"column {pair.name!r} is {row}, but {table_type} in the table: {hint}"


def _represents(wide: pa.DataType, kind: pa.DataType) -> bool:
    """Return True if a type of a table represents every value of a type of Spark."""
    if wide == kind or (pa.types.is_time(wide) and pa.types.is_time(kind)):
        return True
    if pa.types.is_signed_integer(kind) and pa.types.is_signed_integer(wide):
        return bool(wide.bit_width >= kind.bit_width)
    if pa.types.is_decimal(kind) and pa.types.is_decimal(wide):
        return bool(wide.scale == kind.scale and wide.precision >= kind.precision)
    if is_uuid(wide):  # Spark has no such type; each value is checked when it is converted
        return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))
    if pa.types.is_fixed_size_binary(wide):
        return bool(pa.types.is_binary(kind))  # the length of each value is checked by the cast
    return bool(pa.types.is_float32(kind) and pa.types.is_float64(wide))
