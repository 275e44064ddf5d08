"""Filters of users and of Spark, as PyIceberg's expressions. Driver."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from krishiv_spark.errors import OptionError
from krishiv_spark.iceberg.options import FORMAT

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.schema import Schema

__all__ = ["columns_of", "parsed", "pushed"]

_log = logging.getLogger(__name__)

_PUSHED_TYPES = {"boolean", "int", "long", "string", "date", "timestamp", "timestamptz"}
"""Types that Spark and Iceberg compare alike; floats are not, since to Spark NaN equals NaN."""


def parsed(text: str, schema: Schema) -> BooleanExpression:
    """The option `rowFilter`.

    Raises:
        OptionError: If it cannot be read, or names a column that there is not.
    """
    from pyiceberg.expressions.parser import parse
    from pyparsing import ParseException

    try:
        expression = parse(text)
        columns_of(expression, schema)
    except ParseException as error:
        reason = f"cannot be read at {text[error.loc :]!r}"
    except (TypeError, ValueError) as error:
        reason = str(error)
    else:
        return expression
    raise OptionError(
        f"{FORMAT}: option 'rowFilter' = {text!r}: {reason}; the columns are "
        f"{', '.join(field.name for field in schema.fields)}; an example: carrier = 'UA' and "
        "delay >= 15"
    )


def columns_of(expression: BooleanExpression, schema: Schema) -> set[int]:
    """Ids of the top-level fields that an expression looks at.

    Raises:
        ValueError: If there is no such column, or a value does not fit its type.
    """
    from pyiceberg.expressions.visitors import extract_field_ids

    from krishiv_spark.iceberg.conditions import bind_filter, root_of

    inside = extract_field_ids(bind_filter(expression, schema))
    return {root_of(number, schema) for number in inside}


def pushed(filters: Iterable[Any], schema: Schema) -> BooleanExpression:
    """Filters of Spark (4.1 and later), as far as Iceberg can tell the same.

    Spark is asked to check them once more, so that one may be left out, but none may be stricter.
    """
    from pyiceberg.expressions import AlwaysTrue, And

    result: BooleanExpression = AlwaysTrue()
    for item in filters:
        try:
            expression = _translated(item, schema)
            columns_of(expression, schema)
        except (TypeError, ValueError, LookupError) as error:
            _log.debug("not pushed down: %s: %s", item, error)
        else:
            result = And(result, expression)
    return result


def _translated(item: Any, schema: Schema) -> BooleanExpression:
    from pyiceberg import expressions

    ice: Any = expressions
    kind = type(item).__name__
    if kind == "Not" and type(item.child).__name__ == "EqualNullSafe":
        raise ValueError("null is another value to Spark, and unknown to Iceberg")
    if kind == "Not":
        return ~_translated(item.child, schema)
    name = _column(item, schema)
    if kind in {"IsNull", "IsNotNull"}:
        null: BooleanExpression = ice.IsNull(name)
        return null if kind == "IsNull" else ~null
    values = item.value if kind == "In" else (item.value,)
    if any(value is None for value in values):
        raise ValueError("null equals nothing")
    # A filter without an equal here is a LookupError, and left to Spark.
    result: BooleanExpression = getattr(ice, _COMPARISONS[kind])(name, item.value)
    return result


_COMPARISONS = {
    "EqualTo": "EqualTo",
    # They differ in null only, which was refused before.
    "EqualNullSafe": "EqualTo",
    "GreaterThan": "GreaterThan",
    "GreaterThanOrEqual": "GreaterThanOrEqual",
    "LessThan": "LessThan",
    "LessThanOrEqual": "LessThanOrEqual",
    "In": "In",
    "StringStartsWith": "StartsWith",
}
"""Spark's filters, and PyIceberg's expressions of the same meaning."""


def _column(item: Any, schema: Schema) -> str:
    # A field of a struct has more parts than one: a ValueError leaves it to Spark.
    (name,) = item.attribute
    kind = str(schema.find_field(name, case_sensitive=False).field_type)
    if kind not in _PUSHED_TYPES and not kind.startswith("decimal"):
        raise ValueError(f"{name} is {kind}")
    return str(name)
