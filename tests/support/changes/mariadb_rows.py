"""Two tables of MariaDB, random SQL on them, and the rows that their mirrors must have."""

import random
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from changing_tables import Kind, Table
from mariadb import MariaDB
from random_values import make_small

_SECOND = timedelta(seconds=1)
_CLOCKS = ("-838:59:59", "-00:00:00.000001", "12:00:00.5", "838:59:59")
_MOMENTS = tuple(
    datetime.fromisoformat(text)
    for text in ("1000-01-01", "1969-12-31T23:59:59.999000", "9999-12-31T23:59:59.999000")
)
_KINDS = {
    kind.sql: kind
    for kind in (
        Kind("tinyint", "INT", "int"),
        Kind("int", "INT", "int"),
        Kind("bigint", "BIGINT", "long"),
        Kind("boolean", "INT", "int"),
        Kind("float", "FLOAT", "float"),
        Kind("double", "DOUBLE", "double"),
        Kind("decimal(12,2)", "DECIMAL(12,2)", "decimal(12, 2)"),
        Kind("decimal(30,6)", "DECIMAL(30,6)", "decimal(30, 6)"),
        Kind("varchar(100)", "STRING", "string"),
        Kind("enum('a','b')", "STRING", "string"),
        Kind("json", "STRING", "string"),
        Kind("blob", "BINARY", "binary", "hex({})"),
        Kind("datetime(6)", "TIMESTAMP_NTZ", "timestamp"),
        Kind("datetime(3)", "TIMESTAMP_NTZ", "timestamp", unit="ms"),
        Kind("timestamp(6) NULL", "TIMESTAMP", "timestamptz"),
        Kind("date", "DATE", "date"),
        Kind("time(6)", "BIGINT", "long"),  # microseconds
        Kind("year", "INT", "int"),
    )
}
TABLES = (
    Table(
        "goods",
        {"id": "bigint"},
        {
            "name": "varchar(100)",
            "amount": "decimal(12,2)",
            "big": "decimal(30,6)",
            "ratio": "double",
            "weight": "float",
            "small": "tinyint",
            "is_open": "boolean",
            "kind": "enum('a','b')",
            "raw": "blob",
            "info": "json",
        },
        kinds=_KINDS,
    ),
    Table(
        "moments",
        {"number": "int", "shop": "int"},
        {
            "at": "datetime(6)",
            "at_ms": "datetime(3)",
            "stamp": "timestamp(6) NULL",
            "day": "date",
            "clock": "time(6)",
            "made": "year",
        },
        kinds=_KINDS,
    ),
)


def make_transactions(seed: int, count: int) -> Iterator[str]:
    """Make transactions on keys that are often deleted and inserted again."""
    print(f"MariaDB: seed {seed}")
    dice = random.Random(seed)
    for _ in range(count):
        changes = [_make_change(dice, dice.choice(TABLES)) for _ in range(dice.randint(1, 5))]
        end = "ROLLBACK" if dice.random() < 0.05 else "COMMIT"
        yield f"BEGIN; {'; '.join(changes)}; {end};"


def make_rows(seed: int, numbers: range) -> Iterator[str]:
    """Make the statements that insert the keys with some numbers into each table."""
    dice = random.Random(seed)
    for table in TABLES:
        for number in numbers:
            yield f"{_make_insert(dice, table, number)};"


def _make_change(dice: random.Random, table: Table) -> str:
    number = dice.randrange(table.rows)
    kind = dice.choice(["replace", "upsert", "update", "update", "delete", "move", "many"])
    column, where = dice.choice(list(table.columns)), _where(table, number)
    value = f"{column} = {_make_value(dice, table.columns[column])}"
    match kind:
        case "replace":
            return _make_insert(dice, table, number).replace("INSERT", "REPLACE", 1)
        case "upsert":
            return f"{_make_insert(dice, table, number)} ON DUPLICATE KEY UPDATE {value}"
        case "delete":
            return f"DELETE FROM {table.name} WHERE {where}"
        case "move":  # nothing, if the other key exists
            return f"UPDATE IGNORE {table.name} SET {_where(table, number + 1, ', ')} WHERE {where}"
        case "many":
            return f"UPDATE {table.name} SET {value} WHERE {next(iter(table.keys))} % 9 = 4"
    return f"UPDATE {table.name} SET {value} WHERE {where}"


def _make_insert(dice: random.Random, table: Table, number: int) -> str:
    values = [_make_value(dice, sql) for sql in table.columns.values()]
    return f"INSERT INTO {table.name} VALUES ({', '.join([*map(str, table.key(number)), *values])})"


def _where(table: Table, number: int, between: str = " AND ") -> str:
    keys = zip(table.keys, table.key(number), strict=True)
    return between.join(f"{name} = {value}" for name, value in keys)


def _make_value(dice: random.Random, sql: str) -> str:
    """Return a literal."""
    if dice.random() < 0.1:
        return "NULL"
    value = _MAKE[sql](dice)
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    if isinstance(value, str | date):
        escaped = str(value).replace("\\", "\\\\").replace("'", "\\'")
        return f"'{escaped}'"
    return str(value)


def _of(kind: str) -> Callable[[random.Random], Any]:
    return lambda dice: make_small(dice, kind)


def _make_moment(dice: random.Random) -> datetime:
    return dice.choice([*_MOMENTS, _make_stamp(dice)])


def _make_stamp(dice: random.Random) -> datetime:
    """Return a time in the range of ``timestamp``."""
    return datetime.fromisoformat("1970-01-01") + dice.randint(1, 2**31 - 2) * _SECOND


_MAKE: dict[str, Callable[[random.Random], Any]] = {
    "tinyint": lambda dice: dice.randint(-128, 127),
    "boolean": _of("boolean"),
    "float": lambda dice: dice.randint(-99, 99) / 4,
    "double": _of("double precision"),
    "decimal(12,2)": _of("numeric(12,2)"),
    "decimal(30,6)": _of("numeric"),
    "varchar(100)": _of("text"),
    "enum('a','b')": lambda dice: dice.choice("ab"),
    "json": lambda dice: dice.choice(['{"a": [1, 2.50, null]}', '"text"']),
    "blob": _of("bytea"),
    "datetime(6)": lambda dice: _make_moment(dice).replace(microsecond=dice.randrange(10**6)),
    "datetime(3)": _make_moment,
    "timestamp(6) NULL": lambda dice: _make_stamp(dice).replace(microsecond=dice.randrange(10**6)),
    "date": lambda dice: _make_moment(dice).date(),
    "time(6)": lambda dice: dice.choice(_CLOCKS),
    "year": lambda dice: dice.randint(1901, 2155),
}


def read_rows(server: MariaDB, table: Table) -> list[tuple[Any, ...]]:
    """Return the rows that the mirror must have."""
    kinds = [_KINDS[sql] for sql in table.all_columns.values()]
    pairs = zip(table.all_columns, kinds, strict=True)
    rows = server.select([kind.select.format(name) for name, kind in pairs], table.name)
    return [tuple(map(_parse, kinds, row)) for row in rows]


def _parse(kind: Kind, text: str | None) -> Any:
    """Return the mirror's value for MariaDB's text."""
    if text is None:
        return None
    return _parse_clock(text) if kind.sql == "time(6)" else _PARSE[kind.iceberg](text)


def _parse_clock(text: str) -> int:
    """Return microseconds; a time may be negative, and longer than a day."""
    hours, minutes, seconds = text.removeprefix("-").split(":")
    size = (int(hours) * 60 + int(minutes)) * 60_000_000 + int(Decimal(seconds) * 1_000_000)
    return -size if text.startswith("-") else size


_PARSE: dict[str, Callable[[str], Any]] = {
    "int": int,
    "long": int,
    "float": float,  # the values of `_MAKE` need few digits
    "double": float,
    "decimal(12, 2)": Decimal,
    "decimal(30, 6)": Decimal,
    "string": str,
    "binary": bytes.fromhex,
    "date": date.fromisoformat,
    "timestamp": datetime.fromisoformat,
    "timestamptz": lambda text: datetime.fromisoformat(f"{text}+00:00"),
}
