"""The columns of a table or query of PostgreSQL, and the Arrow types in which they are read.

A column is read in a type whose binary form is known (`DECODERS`); the server casts others to text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from krishiv_spark.arrow.conform import places
from krishiv_spark.errors import SchemaError
from krishiv_spark.postgresql.catalog import TableColumn
from krishiv_spark.postgresql.connection import DatabaseTransaction
from krishiv_spark.postgresql.copy_decoding import UnreadableValue, decode_rows
from krishiv_spark.postgresql.names import quote
from krishiv_spark.postgresql.options import FORMAT
from krishiv_spark.postgresql.types import WIRE_OF, arrow_type

__all__ = ["ReadColumn", "check_types", "choose_columns", "describe_rows", "make_batch"]

_PLAIN_TEXTS = frozenset({"text", "character varying", "character", "name", "json"})
"""Types whose binary form is their text."""


@dataclass(frozen=True)
class ReadColumn:
    """A column, and how it is read.

    Attributes:
        name: Its name in the rows that Spark gets.
        target: Its name in the table or query.
        base: Its built-in type below domains; of an array, that of its elements; empty for others.
        decoder: Name in `DECODERS`.
        is_array: True for an array.
        arrow: The Arrow type of its values.
    """

    name: str
    target: str
    base: str
    decoder: str
    is_array: bool
    arrow: pa.DataType

    @property
    def sql(self) -> str:
        """The column in a SELECT, in the type that is decoded."""
        name = quote(self.target)
        if self.decoder != "text" or self.base in _PLAIN_TEXTS:
            return name
        return f"{name}::text{'[]' if self.is_array else ''}"


_TYPES = """
SELECT t.oid,
       CASE WHEN e.typnamespace = 'pg_catalog'::regnamespace AND e.typtype = 'b'
            THEN pg_catalog.format_type(e.oid, NULL) ELSE '' END,
       t.typcategory = 'A' AND t.typtype = 'b'
FROM pg_catalog.pg_type t
JOIN pg_catalog.pg_type e ON e.oid = CASE WHEN t.typcategory = 'A' AND t.typtype = 'b'
                                          THEN t.typelem ELSE t.oid END
WHERE t.oid = ANY (%s::oid[])
"""


def describe_rows(transaction: DatabaseTransaction, relation: str) -> list[ReadColumn]:
    """Return the columns of a table or query, which is locked against changes of its columns.

    Args:
        transaction: A transaction, which has the lock until its end.
        relation: What follows FROM.

    Raises:
        SchemaError: If two columns have one name.
    """
    found = transaction.run(f"SELECT * FROM {relation} LIMIT 0").pgresult  # noqa: S608  quoted, or a query
    assert found is not None
    encoding = transaction.connection.info.encoding
    names = [(found.fname(n) or b"").decode(encoding) for n in range(found.nfields)]
    kinds = [(found.ftype(n), found.fmod(n)) for n in range(found.nfields)]
    types = {oid: rest for oid, *rest in transaction.run(_TYPES, [[oid for oid, _ in kinds]])}
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SchemaError(
            f"{FORMAT}: the query has two columns {twice!r}: give one of them another name by AS"
        )
    return [
        _read_as(name, types[oid], limit) for name, (oid, limit) in zip(names, kinds, strict=True)
    ]


def _read_as(name: str, described: Sequence[Any], limit: int) -> ReadColumn:
    base, is_array = described
    decoder = WIRE_OF.get(base, "text")
    column = TableColumn(name, base, base, base, limit=limit)  # an element, if it is an array
    kind = arrow_type(column) if base == "numeric" else pa.null()
    if pa.types.is_null(kind):
        kind = _ARROW[decoder]
    return ReadColumn(name, name, base, decoder, is_array, pa.list_(kind) if is_array else kind)


_ARROW = {
    "boolean": pa.bool_(),
    "smallint": pa.int16(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "real": pa.float32(),
    "double precision": pa.float64(),
    "text": pa.string(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "time": pa.time64("us"),
    "interval": pa.duration("us"),
}
"""The Arrow types of `DECODERS`."""


def choose_columns(found: Iterable[ReadColumn], wanted: pa.Schema) -> list[ReadColumn]:
    """Return the columns of a schema, by name; columns that are missing are left out.

    A ``numeric`` becomes the decimal that the schema has.
    """
    known = list(found)
    chosen = []
    for field, place in zip(
        wanted, places(wanted.names, [each.name for each in known]), strict=True
    ):
        if place is None:
            continue
        column = replace(known[place], name=field.name)
        if column.base == "numeric" and _decimal_in(field.type, is_array=column.is_array):
            column = replace(column, arrow=field.type)
        chosen.append(column)
    return chosen


def _decimal_in(kind: pa.DataType, *, is_array: bool) -> bool:
    if is_array:
        return bool(pa.types.is_list(kind) and pa.types.is_decimal(kind.value_type))
    return bool(pa.types.is_decimal(kind))


def check_types(
    transaction: DatabaseTransaction, relation: str, columns: Iterable[ReadColumn]
) -> None:
    """Check that columns have the types of the plan, whose binary form is decoded. Executor.

    Raises:
        SchemaError: If a column has been changed since then.
    """
    now = {each.target: each for each in describe_rows(transaction, relation)}
    for each in columns:
        found = now.get(each.target)
        if found is None or (found.sql, found.decoder, found.is_array) != (
            each.sql,
            each.decoder,
            each.is_array,
        ):
            raise SchemaError(
                f"{FORMAT}: column {each.target!r} was changed or dropped after Spark planned the "
                "read: run load() again"
            )


def make_batch(
    data: bytearray, starts: list[int], columns: list[ReadColumn] | tuple[ReadColumn, ...]
) -> pa.RecordBatch:
    """Return some rows of COPY. Executor.

    Raises:
        SchemaError: If Arrow or Spark cannot represent a value; it names the column.
    """
    try:
        arrays = decode_rows(data, starts, [(each.decoder, each.is_array) for each in columns])
    except UnreadableValue as error:
        reason, place = error.args
        raise SchemaError(f"{FORMAT}: column {columns[place].target!r} has {reason}") from None
    made = [_cast(array, column) for array, column in zip(arrays, columns, strict=True)]
    return pa.RecordBatch.from_arrays(made, schema=pa.schema([(c.name, c.arrow) for c in columns]))


def _cast(array: pa.Array, column: ReadColumn) -> pa.Array:
    try:
        return array if array.type.equals(column.arrow) else array.cast(column.arrow)
    except pa.ArrowInvalid as error:
        raise SchemaError(
            f"{FORMAT}: column {column.target!r} has a value that {column.arrow} does not have "
            f"({error}): give the column another type in the schema, as STRING, or cast it in the "
            "option 'query'"
        ) from None
