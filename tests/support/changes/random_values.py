"""Random values for columns of PostgreSQL, from a seed."""

import random
import string
import uuid
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

from psycopg2.extras import Json

LARGE = range(2_500, 9_000)
"""Characters, bytes or elements: too many for the row, so the log lacks them if unchanged."""

_SECOND = timedelta(seconds=1)
_MICROSECOND = timedelta(microseconds=1)
_MOMENTS = tuple(
    datetime.fromisoformat(text)
    for text in ("0001-01-01", "1969-12-31T23:59:59.000001", "9999-12-31T23:59:59.999000")
)
_JSON = ({}, [1, None], "text", {"ä": {"b": [1.5, True]}})


def make_small(dice: random.Random, sql: str) -> Any:
    """Return a value of a type; those at the ends of its range, and strange ones, are frequent."""
    return _SMALL[sql](dice)


def make_large(dice: random.Random, sql: str) -> Any:
    """Return a value that PostgreSQL stores outside of the row."""
    return _LARGE[sql](dice, dice.choice(LARGE))


def _make_integer(bits: int) -> Callable[[random.Random], int]:
    ends = (-(2**bits), -1, 0, 2**bits - 1)
    return lambda dice: dice.choice([*ends, dice.randint(-999, 999)])


def _make_text(dice: random.Random, size: int = 20) -> str:
    return "".join(dice.choices(string.ascii_letters, k=size))


def _make_moment(dice: random.Random) -> datetime:
    recent = datetime.fromisoformat("2026-01-01") + dice.randint(0, 10**14) * _MICROSECOND
    return dice.choice([*_MOMENTS, recent])


def _make_milliseconds(dice: random.Random) -> datetime:
    return _make_moment(dice).replace(microsecond=1000 * dice.randrange(1000))


def _make_zoned_time(dice: random.Random) -> Any:
    zone = timezone(timedelta(hours=dice.randint(-3, 3)))
    return _make_moment(dice).time().replace(tzinfo=zone)


def _make_decimal(dice: random.Random, digits: int, scale: int) -> Decimal:
    return Decimal(dice.randint(-(10**digits) + 1, 10**digits - 1)).scaleb(-scale)


def _make_list(dice: random.Random, *values: Any) -> list[Any]:
    return [dice.choice(values) for _ in range(dice.randint(0, 4))]


_SMALL: dict[str, Callable[[random.Random], Any]] = {
    "smallint": _make_integer(15),
    "int": _make_integer(31),
    "bigint": _make_integer(63),
    "boolean": lambda dice: dice.random() < 0.5,
    "real": lambda dice: dice.randint(-(2**20), 2**20) / 64,
    "double precision": lambda dice: dice.choice([0.1, -1e300, 5e-324, dice.random()]),
    "numeric(12,2)": lambda dice: _make_decimal(dice, 12, 2),
    "numeric": lambda dice: _make_decimal(dice, 24, dice.randint(0, 6)),
    "text": lambda dice: dice.choice(["", "NULL", "ä\U0001f600\\\"'\n\t", _make_text(dice)]),
    "uuid": lambda dice: str(uuid.UUID(int=dice.getrandbits(128))),
    "inet": lambda dice: f"10.{dice.randint(0, 255)}.0.{dice.randint(0, 255)}",
    "jsonb": lambda dice: Json(dice.choice(_JSON)),
    "bytea": lambda dice: dice.randbytes(dice.randint(0, 20)),
    "text[]": lambda dice: _make_list(dice, "", None, "a,b", '{"x"}', "NULL"),
    "int[]": lambda dice: _make_list(dice, None, 0, -(2**31), 2**31 - 1),
    "timestamp": _make_moment,
    "timestamp(3)": _make_milliseconds,
    "timestamptz": lambda dice: _make_moment(dice).replace(tzinfo=timezone.utc),
    "date": lambda dice: dice.choice([date.min, date.max, _make_moment(dice).date()]),
    "time": lambda dice: _make_moment(dice).time(),
    "time(3)": lambda dice: _make_milliseconds(dice).time(),
    "timetz": _make_zoned_time,
    # Whole seconds: Debezium computes with doubles, and 18:14:19.000001 loses its microsecond.
    "interval": lambda dice: dice.randint(-(10**6), 10**6) * _SECOND,
}

_LARGE: dict[str, Callable[[random.Random, int], Any]] = {
    "text": _make_text,
    "bytea": lambda dice, size: dice.randbytes(size),
    "jsonb": lambda dice, size: Json({"text": _make_text(dice, size), "n": size}),
    "text[]": lambda dice, size: [_make_text(dice, size), None, ""],
    "int[]": lambda dice, size: [dice.randint(-9, 9) for _ in range(size)],
}
