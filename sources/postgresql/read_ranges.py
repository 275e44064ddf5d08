"""The division of a table or query into tasks. Driver.

A table is divided by its pages (``ctid``), of which the server reads a range without an index. The
parts of a partitioned table are read one by one, since each of them has separate pages.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, InvalidOperation
from typing import Any

from krishiv_spark.errors import OptionError
from krishiv_spark.messages.suggestions import did_you_mean
from krishiv_spark.postgresql.connection import DatabaseTransaction
from krishiv_spark.postgresql.names import TableName, quote
from krishiv_spark.postgresql.options import FORMAT
from krishiv_spark.postgresql.read_columns import ReadColumn
from krishiv_spark.sources.postgresql.options import PostgresqlSourceOptions

__all__ = ["ReadRange", "divide_rows"]


@dataclass(frozen=True)
class ReadRange:
    """A part of the rows.

    Attributes:
        relation: What follows FROM.
        condition: A condition; empty for all rows of the relation.
        size: Its bytes, as an estimate.
    """

    relation: str
    condition: str = ""
    size: int = 0


def divide_rows(
    transaction: DatabaseTransaction,
    options: PostgresqlSourceOptions,
    columns: Sequence[ReadColumn],
    statement: str,
    *,
    has_filters: bool,
) -> list[list[ReadRange]]:
    """Return the parts that each task reads; together they have each row once.

    Args:
        transaction: A transaction with the snapshot of the read.
        options: The options of the source.
        columns: All columns of the table or query.
        statement: The SELECT of all rows, with the conditions that the server checks.
        has_filters: True if it has conditions.

    Raises:
        OptionError: If the rows cannot be divided by the column that the options name.
    """
    if options.partition_column is not None:
        return [[each] for each in _divide_by_column(transaction, options, columns)]
    whole = [[ReadRange(options.relation)]]
    name = options.table_name
    if name is None or options.num_partitions == 1:
        return whole
    if has_filters and _is_selective(transaction, statement, options.max_partition_bytes):
        return whole
    parts = _list_parts(transaction, name)
    if parts is None:
        return whole
    total = sum(part.size for part in parts)
    number = options.num_partitions
    most = options.max_partition_bytes if number is None else -(-total // number)
    return _pack((piece for part in parts for piece in part.split(max(1, most))), most)


def _pack(ranges: Iterator[ReadRange], most: int) -> list[list[ReadRange]]:
    packed: list[list[ReadRange]] = []
    room = 0
    for each in ranges:
        if not packed or each.size > room:
            packed.append([])
            room = most
        packed[-1].append(each)
        room -= each.size
    return packed


def _is_selective(transaction: DatabaseTransaction, statement: str, most: int) -> bool:
    """Return True if the server finds the rows by an index, and expects few of them."""
    (plans,) = transaction.first(f"EXPLAIN (FORMAT JSON) {statement}")
    plan = plans[0]["Plan"]
    texts = str(plan)
    return "Seq Scan" not in texts and plan["Plan Rows"] * plan["Plan Width"] <= most


# --- pages

_PARTS = """
WITH RECURSIVE tree (oid) AS (
    SELECT pg_catalog.to_regclass(%s)::oid
    UNION
    SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN tree ON i.inhparent = tree.oid
)
SELECT n.nspname, c.relname, c.relkind,
       CASE WHEN c.relkind IN ('r', 'm') THEN pg_catalog.pg_table_size(c.oid) ELSE 0 END,
       CASE WHEN c.relkind IN ('r', 'm') THEN pg_catalog.pg_relation_size(c.oid)
            / pg_catalog.current_setting('block_size')::bigint ELSE 0 END,
       coalesce(a.amname = 'heap', false),
       c.relrowsecurity OR NOT pg_catalog.has_table_privilege(c.oid, 'SELECT')
FROM tree
JOIN pg_catalog.pg_class c ON c.oid = tree.oid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_am a ON a.oid = c.relam
"""


@dataclass(frozen=True)
class _PagedTable:
    """A table, or a part of a partitioned one.

    Attributes:
        name: Its schema and name.
        size: Its bytes, with values that are stored apart.
        pages: Number of its pages; 0 if it has none that can be read by range.
    """

    name: TableName
    size: int
    pages: int

    def split(self, most: int) -> Iterator[ReadRange]:
        """Yield ranges of about so many bytes. The first and the last one have no limit outside."""
        relation = f"ONLY {self.name.sql}"
        count = max(1, min(self.pages, -(-self.size // most)))
        borders = [self.pages * n // count for n in range(count + 1)]
        for n in range(count):
            low = [f"ctid >= '({borders[n]},0)'::tid"] if n else []
            high = [f"ctid < '({borders[n + 1]},0)'::tid"] if n < count - 1 else []
            yield ReadRange(relation, " AND ".join(low + high), self.size // count)


def _list_parts(transaction: DatabaseTransaction, name: TableName) -> list[_PagedTable] | None:
    """Return the parts of a table; None if it can only be read as a whole."""
    rows = transaction.run(_PARTS, [name.sql]).fetchall()
    is_split = len(rows) > 1
    parts = []
    for schema, own, kind, size, pages, is_heap, is_guarded in rows:
        # Policies and rights of the whole do not apply to a part that a statement names.
        if kind not in "rpmf" or (is_split and is_guarded) or (kind == "f" and not is_split):
            return None
        if kind != "p":
            readable = pages if is_heap and not is_guarded else 0
            parts.append(_PagedTable(TableName(schema, own), size, readable))
    return parts


# --- values of a column


def _divide_by_column(
    transaction: DatabaseTransaction,
    options: PostgresqlSourceOptions,
    columns: Sequence[ReadColumn],
) -> Iterator[ReadRange]:
    column = _find_column(options, columns)
    kind = _KINDS[column.base]
    name = quote(column.target)
    low, high = _find_bounds(transaction, options, column)
    count = min(options.num_partitions or 1, max(1, high - low))
    borders = [kind.show(low + (high - low) * n // count) for n in range(1, count)]
    for n in range(count):
        parts = [f"{name} >= {borders[n - 1]}"] if n else []
        parts += [f"{name} < {borders[n]}"] if n < count - 1 else []
        condition = " AND ".join(parts)
        if n == 0 and condition:
            condition = f"({condition} OR {name} IS NULL)"
        yield ReadRange(options.relation, condition)


def _find_column(options: PostgresqlSourceOptions, columns: Sequence[ReadColumn]) -> ReadColumn:
    wanted = options.partition_column or ""
    known = {each.target: each for each in columns}
    near = [each for each in columns if each.target.lower() == wanted.lower()]
    found = known.get(wanted) or (near[0] if len(near) == 1 else None)
    if found is None:
        hint = did_you_mean(wanted, known, f"there are {', '.join(known)}")
        raise OptionError(
            f"{FORMAT}: option 'partitionColumn' = {wanted!r}: no such column; {hint}"
        )
    if found.base not in _KINDS or found.is_array:
        raise OptionError(
            f"{FORMAT}: option 'partitionColumn' = {wanted!r}: its type has no ranges of equal "
            "width: name a column of whole numbers, numeric, dates or times"
        )
    return found


def _find_bounds(
    transaction: DatabaseTransaction, options: PostgresqlSourceOptions, column: ReadColumn
) -> tuple[int, int]:
    """Return the limits as whole numbers: of units, days or microseconds."""
    kind = _KINDS[column.base]
    if options.lower_bound is not None and options.upper_bound is not None:
        low = _parse_bound(kind, "lowerBound", options.lower_bound)
        high = _parse_bound(kind, "upperBound", options.upper_bound)
        if low >= high:
            raise OptionError(
                f"{FORMAT}: option 'lowerBound' = {options.lower_bound!r} is not below 'upperBound'"
                f" = {options.upper_bound!r}"
            )
        return low, high
    name = quote(column.target)
    low, high = transaction.first(  # the names are quoted
        f"SELECT {kind.number.format('low')}, {kind.number.format('high')} FROM (SELECT "  # noqa: S608
        f"min({name}) AS low, max({name}) AS high FROM {options.relation} "
        f"WHERE {kind.finite.format(name)}) AS krishiv_bounds"
    )
    if low is None:
        return 0, 0
    return (
        int(Decimal(low).to_integral_value(ROUND_FLOOR)),
        int(Decimal(high).to_integral_value(ROUND_CEILING)),
    )


def _parse_bound(kind: _Kind, option: str, text: str) -> int:
    try:
        return kind.parse(text.strip())
    except (ValueError, InvalidOperation):
        raise OptionError(
            f"{FORMAT}: option {option!r} = {text!r}: {kind.form}, as 'partitionColumn' is"
        ) from None


@dataclass(frozen=True)
class _Kind:
    """Values of a type as whole numbers.

    Attributes:
        number: An expression of the number of a column's value.
        finite: A condition that excludes infinity.
        type: Name of the type.
        form: The form of a bound, for a message.
    """

    number: str
    finite: str
    type: str
    form: str

    def show(self, number: int) -> str:
        """Return the literal of a number."""
        value: Any = number
        if self.type == "date":
            return f"('2000-01-01'::date + {number})"
        if self.type.startswith("timestamp"):
            # Before PostgreSQL 15 a number in an interval has 32 bits. A day has 24 hours in UTC.
            days, micros = divmod(number, _MICROS_OF_DAY)
            seconds = f"{micros // 1_000_000}.{micros % 1_000_000:06}"
            return f"('2000-01-01'::{self.type} + interval '{days} days {seconds} seconds')"
        return f"'{value}'::{self.type}"

    def parse(self, text: str) -> int:
        """Return the number of a bound."""
        if self.type == "date":
            return (dt.date.fromisoformat(text) - dt.date(2000, 1, 1)).days
        if self.type.startswith("timestamp"):
            time = dt.datetime.fromisoformat(text.replace("Z", "+00:00"))
            if time.tzinfo is not None:
                time = time.astimezone(dt.timezone.utc).replace(tzinfo=None)
            return (time - dt.datetime(2000, 1, 1)) // dt.timedelta(microseconds=1)  # noqa: DTZ001  both are UTC
        return int(Decimal(text).to_integral_value(ROUND_FLOOR))


_MICROS_OF_DAY = 86_400_000_000
_MICROS = "(extract(epoch FROM {0} - '2000-01-01'::%s) * 1000000)::numeric"
_WHOLE = _Kind("{0}::numeric", "true", "bigint", "write a whole number")
_TIME = "write a time, such as '2013-01-01 12:00:00'"

_KINDS = {
    **dict.fromkeys(("smallint", "integer", "bigint"), _WHOLE),
    "numeric": _Kind(
        "{0}",
        "{0}::text NOT IN ('NaN', 'Infinity', '-Infinity')",
        "numeric",
        "write a number",
    ),
    "date": _Kind(
        "({0} - '2000-01-01'::date)::numeric",
        "isfinite({0})",
        "date",
        "write a date, such as '2013-01-01'",
    ),
    "timestamp without time zone": _Kind(
        _MICROS % "timestamp", "isfinite({0})", "timestamp", _TIME
    ),
    "timestamp with time zone": _Kind(
        _MICROS % "timestamptz", "isfinite({0})", "timestamptz", _TIME
    ),
}
"""The types that are divided, by the names of the catalog."""
