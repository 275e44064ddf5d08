"""Five tables of PostgreSQL whose rows change, and the mirror that each of them must equal."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MARKED = 10_000
"""Number of the key of a table's last row: no other statement uses it."""


@dataclass(frozen=True)
class Kind:
    """A type of a database, as Debezium's default settings and the mirror have it.

    Attributes:
        sql: Type of the column in the database.
        mirror: Type of the column in ``tableSchema``.
        iceberg: Type of the column in the mirror's schema.
        select: Expression of the database with the value that the mirror must have.
        unit: Unit of the numbers in messages, if the mirror has a time and it is not "us".
    """

    sql: str
    mirror: str
    iceberg: str
    select: str = "{}"
    unit: str = ""


_TEXT, _MICROS = "{}::text", "(extract(epoch from {}) * 1000000)::bigint"
_MILLIS = "(extract(epoch from {}) * 1000)::bigint"
_UTC = "replace((timezone('UTC', {}))::text, '+00', 'Z')"
KINDS = {
    kind.sql: kind
    for kind in (
        Kind("smallint", "SMALLINT", "int"),
        Kind("int", "INT", "int"),
        Kind("bigint", "BIGINT", "long"),
        Kind("boolean", "BOOLEAN", "boolean"),
        Kind("real", "FLOAT", "float"),
        Kind("double precision", "DOUBLE", "double"),
        Kind("numeric(12,2)", "DECIMAL(12,2)", "decimal(12, 2)"),
        Kind("numeric", "DECIMAL(38,6)", "decimal(38, 6)"),  # arrives with a scale in each value
        Kind("text", "STRING", "string"),
        Kind("uuid", "STRING", "string", _TEXT),
        Kind("inet", "STRING", "string", "host({})"),
        Kind("jsonb", "STRING", "string", _TEXT),
        Kind("bytea", "BINARY", "binary"),
        Kind("text[]", "ARRAY<STRING>", "list<string>"),
        Kind("int[]", "ARRAY<INT>", "list<int>"),
        Kind("timestamp", "TIMESTAMP_NTZ", "timestamp"),
        Kind("timestamp(3)", "TIMESTAMP_NTZ", "timestamp", unit="ms"),
        Kind("timestamptz", "TIMESTAMP", "timestamptz"),
        Kind("date", "DATE", "date"),
        Kind("time", "BIGINT", "long", _MICROS),
        Kind("time(3)", "INT", "int", _MILLIS),
        Kind("timetz", "STRING", "string", _UTC),
        Kind("interval", "BIGINT", "long", _MICROS),
    )
}


@dataclass(frozen=True)
class Table:
    """A table whose key is among the first `rows` of its kind.

    Attributes:
        name: Its name.
        keys: Columns of the key, and their types in the database.
        columns: The other columns, and their types.
        large: Columns with values that may be stored outside of the row.
        rows: Count of the keys: a key comes often enough to be deleted and inserted again.
        kinds: The types of the database.
    """

    name: str
    keys: Mapping[str, str]
    columns: Mapping[str, str]
    large: tuple[str, ...] = ()
    rows: int = 120
    kinds: Mapping[str, Kind] = field(default_factory=lambda: KINDS)

    @property
    def all_columns(self) -> dict[str, str]:
        return {**self.keys, **self.columns}

    def create_statement(self) -> str:
        columns = [f"{name} {sql}" for name, sql in self.all_columns.items()]
        outside = f"ALTER TABLE {self.name} ALTER COLUMN {{}} SET STORAGE EXTERNAL;"
        body = ", ".join([*columns, f"PRIMARY KEY ({', '.join(self.keys)})"])
        return f"CREATE TABLE {self.name} ({body});" + "".join(map(outside.format, self.large))

    def mirror_schema(self) -> str:
        """Return the mirror's columns, for the option ``tableSchema``."""
        return ", ".join(
            f"{name} {self.kinds[sql].mirror}" for name, sql in self.all_columns.items()
        )

    def time_units(self) -> dict[str, str]:
        """Return the units of columns, for the option ``timeUnits``."""
        units = {name: self.kinds[sql].unit for name, sql in self.all_columns.items()}
        return {name: unit for name, unit in units.items() if unit}

    def iceberg_types(self) -> dict[str, str]:
        return {name: self.kinds[sql].iceberg for name, sql in self.all_columns.items()}

    def select_statement(self) -> str:
        """Return the query whose rows the mirror must have, with the keys first."""
        columns = (self.kinds[sql].select.format(name) for name, sql in self.all_columns.items())
        return f"SELECT {', '.join(columns)} FROM {self.name}"

    def key_columns(self, number: int) -> dict[str, Any]:
        """Return the columns of the key with a number."""
        return dict(zip(self.keys, self.key(number), strict=True))

    def key(self, number: int) -> list[Any]:
        """Return the key with a number."""
        return [_key(sql, number // 7**place) for place, sql in enumerate(self.keys.values())]


TABLES = (
    Table(
        "orders",
        {"id": "bigint"},
        {
            "customer": "text",
            "amount": "numeric(12,2)",
            "big": "numeric",
            "quantity": "int",
            "is_open": "boolean",
            "at": "timestamptz",
        },
    ),
    Table(
        "lines",
        {"number": "int", "order_id": "bigint"},
        {
            "sku": "text",
            "price": "numeric(12,2)",
            "ratio": "double precision",
            "weight": "real",
            "small": "smallint",
        },
    ),
    Table(
        "documents",
        {"id": "uuid"},
        {"version": "int", "title": "text", "body": "text", "scan": "bytea", "details": "jsonb"},
        large=("body", "scan", "details"),
    ),
    Table(
        "moments",
        {"code": "text"},
        {
            "at": "timestamp",
            "at_ms": "timestamp(3)",
            "at_tz": "timestamptz",
            "day": "date",
            "clock": "time",
            "clock_ms": "time(3)",
            "zoned": "timetz",
            "span": "interval",
        },
    ),
    Table(
        "things",
        {"id": "int"},
        {
            "counts": "int[]",
            "words": "text[]",
            "raw": "bytea",
            "owner": "uuid",
            "address": "inet",
            "info": "jsonb",
        },
        large=("words", "counts"),
    ),
)


def _key(sql: str, number: int) -> Any:
    if sql == "uuid":
        return str(uuid.UUID(int=number))
    return f"k-{number}" if sql == "text" else number
