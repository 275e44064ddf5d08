"""Conditions of Spark as conditions of PostgreSQL. Driver.

Spark checks each condition again. So one that is not understood is left out, and one of texts may
hold for more rows here: collations and ``char`` take different texts for equal.
"""

from __future__ import annotations

import datetime as dt
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa

from krishiv_spark.postgresql.names import quote, quote_text
from krishiv_spark.postgresql.read_columns import ReadColumn

__all__ = ["write_conditions"]

_log = logging.getLogger(__name__)


class _LeftOut(Exception):  # noqa: N818  no error
    """The server cannot check this condition as Spark does."""


def write_conditions(filters: Iterable[Any], columns: Iterable[ReadColumn]) -> list[str]:
    """Return conditions that hold for each row for which all filters hold.

    Args:
        filters: Instances of the classes of ``pyspark.sql.datasource.Filter``.
        columns: The columns, by the names that Spark knows.
    """
    known = {each.name: each for each in columns}
    found = []
    for each in filters:
        try:
            found.append(_write(each, known))
        except (_LeftOut, LookupError, TypeError, ValueError) as error:
            _log.debug("not checked by the server: %s: %s", each, error)
    return found


def _write(item: Any, columns: Mapping[str, ReadColumn], *, is_exact: bool = False) -> str:
    """Return a condition.

    Args:
        item: A filter.
        columns: The columns by name.
        is_exact: True if the condition may not hold for more rows than the filter.
    """
    kind = type(item).__name__
    if kind == "Not":
        return f"NOT ({_write(item.child, columns, is_exact=True)})"
    if len(item.attribute) != 1:
        raise _LeftOut("a part of a value")
    column = columns[item.attribute[0]]
    name = quote(column.target)
    if kind in _NULLS:
        # By its text, since a composite value with a null in it is neither null nor not null.
        return f"{column.sql} {_NULLS[kind]}"
    if column.is_array or (is_exact and column.decoder == "text" and column.base != "numeric"):
        raise _LeftOut("texts are compared differently")
    if kind in _PATTERNS:
        return _write_pattern(name, column, _PATTERNS[kind], item.value)
    if kind == "In":
        return f"{name} IN ({', '.join(_literal(value, column) for value in item.value)})"
    if is_exact and kind == "EqualNullSafe":
        raise _LeftOut("its negation holds for null, which the server's does not")
    sign = _SIGNS[kind]
    if column.decoder == "text" and column.base != "numeric" and sign != "=":
        raise _LeftOut("texts are ordered differently")
    return f"{name} {sign} {_literal(item.value, column)}"


_NULLS = {"IsNull": "IS NULL", "IsNotNull": "IS NOT NULL"}

_SIGNS = {
    "EqualTo": "=",
    "EqualNullSafe": "=",  # with a value; one with null is left out
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
}

_PATTERNS = {"StringStartsWith": "{}%", "StringEndsWith": "%{}", "StringContains": "%{}%"}


def _write_pattern(name: str, column: ReadColumn, form: str, value: str) -> str:
    if column.base not in {"text", "character varying"}:
        raise _LeftOut("no plain text")
    escaped = re.sub(r"([\\%_])", r"\\\1", value)
    # A collation that takes different texts for equal has no patterns.
    return f'{name} COLLATE "C" LIKE {quote_text(form.format(escaped))}'


def _literal(value: Any, column: ReadColumn) -> str:
    """Return a value that is compared with a column."""
    test, write = _LITERALS["numeric" if column.base == "numeric" else column.decoder]
    is_decimal = column.base == "numeric" and pa.types.is_decimal(column.arrow)
    if not test(value) or (column.base == "numeric" and not is_decimal):
        raise _LeftOut("a value of another type")
    if column.decoder != "text" or is_decimal:
        return write(value)
    # Blanks at the end of a char have no meaning there, as they have in a text.
    kinds = {"text": "text", "character varying": "text", "name": "text", "character": "bpchar"}
    if column.base == "uuid" and _UUID.fullmatch(value):
        return f"{quote_text(value)}::uuid"
    return f"{quote_text(value)}::{kinds[column.base]}"


_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def _is_number(value: Any) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool)


def _is_local(value: Any) -> bool:
    return isinstance(value, dt.datetime) and value.tzinfo is None


def _is_instant(value: Any) -> bool:
    return isinstance(value, dt.datetime) and value.tzinfo is not None


def _is_date(value: Any) -> bool:
    return isinstance(value, dt.date) and not isinstance(value, dt.datetime)


def _as(kind: str, show: Callable[[Any], str] = str) -> Callable[[Any], str]:
    return lambda value: f"'{show(value)}'::{kind}"


_WHOLE = (_is_whole, _as("bigint"))
_FLOAT = (_is_number, _as("double precision", lambda value: repr(float(value))))

_LITERALS: dict[str, tuple[Callable[[Any], bool], Callable[[Any], str]]] = {
    "boolean": (lambda value: isinstance(value, bool), _as("boolean")),
    "smallint": _WHOLE,
    "integer": _WHOLE,
    "bigint": _WHOLE,
    # Both sides are compared as double precision, as a FLOAT of Spark is with its own literals.
    "real": _FLOAT,
    "double precision": _FLOAT,
    "numeric": (lambda value: isinstance(value, Decimal) and value.is_finite(), _as("numeric")),
    "date": (_is_date, _as("date", dt.date.isoformat)),
    "timestamp": (_is_local, _as("timestamp", lambda value: value.isoformat(" "))),
    "timestamptz": (_is_instant, _as("timestamptz", lambda value: value.isoformat(" "))),
    "text": (lambda value: isinstance(value, str), str),
}
"""Values by decoder: a test of the value, and its literal."""
