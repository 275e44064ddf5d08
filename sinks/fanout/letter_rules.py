"""The columns by which rows become dead letters, and rules that set them. Driver, without rows."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING

from krishiv_spark.errors import OptionError, SchemaError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["ERROR", "LETTER_COLUMNS", "OBSERVED_LETTERS", "RAW", "RULE", "SOURCE", "with_rules"]

OBSERVED_LETTERS = "krishiv_dead_letters_"
"""Prefix of the names of Spark's observed metrics with numbers of dead letters, by rule."""

RAW, ERROR, RULE, SOURCE = "_raw", "_error", "_rule", "_source"
LETTER_COLUMNS = (RAW, ERROR, RULE, SOURCE)
"""Columns that only dead letters have: the value, the reason, the rule, and the position."""

_BROKEN = "_krishiv_broken_rule"

_JSON = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Options of a row as JSON. By default, Spark drops microseconds and columns that are null."""


def with_rules(frame: DataFrame, **rules: str) -> DataFrame:
    """Return a frame in which each row that breaks a rule is a dead letter.

    ::

        orders = krishiv_spark.with_rules(orders, positive="amount > 0", dated="at IS NOT NULL")

    The sink's options ``deadLetters.*`` then write those rows to another target. Spark evaluates
    the rules, in their order; the first rule that is not true counts, also if it is null. A row
    that has an `_error` already, such as a bad record of ``krishiv-kafka``, keeps it.

    Spark counts the dead letters of each epoch by rule, for `queries` and `metrics`. Without rules,
    the bad records of the frame are counted, and nothing else changes.

    Args:
        frame: A stream or a batch, with or without the columns `_raw`, `_error` and `_rule`.
        rules: A condition in SQL by the name of the rule.

    Returns:
        The frame with these columns. `_raw` of a row that breaks a rule has all other columns of
        the row as a JSON object, unless it has a value.

    Raises:
        OptionError: If a rule is no text.
        SchemaError: If the frame has no column besides those of dead letters.
    """
    from pyspark.sql import functions as F  # noqa: N812  Spark's usual name

    _check_rules(rules)
    given = {name.lower(): name for name in frame.columns}
    own = [name for name in frame.columns if name.lower() not in LETTER_COLUMNS]
    if not own:
        raise SchemaError("with_rules: the frame has no column besides those of dead letters")

    fields = [F.col(f"`{name.replace('`', '``')}`") for name in own]
    broken = _first_broken(rules)
    if ERROR in given:
        broken = F.when(F.col(given[ERROR]).isNull(), broken)
    # As an inner column it is evaluated once: three evaluations of a condition with a
    # random number or a clock would make dead letters without a value or a rule.
    checked = frame.select("*", broken.alias(_BROKEN))
    broken = F.col(_BROKEN)
    value, reason = F.to_json(F.struct(*fields), _JSON).cast("binary"), _reason_of(broken, rules)
    found = {RAW: F.when(broken.isNotNull(), value), ERROR: reason, RULE: broken}
    for name, column in found.items():
        if name in given:
            kind = "binary" if name == RAW else "string"
            found[name] = F.coalesce(F.col(given[name]).cast(kind), column)
    source = [F.col(given[SOURCE])] if SOURCE in given else []
    made = checked.select(*fields, *(found[name].alias(name) for name in found), *source)
    # Spark refuses two observations of one name in a query.
    counts = _count_letters(rules, is_first=RULE not in given)
    return made.observe(f"{OBSERVED_LETTERS}{uuid.uuid4().hex[:12]}", *counts)


def _count_letters(rules: Mapping[str, str], *, is_first: bool) -> list[Column]:
    """Return the number of dead letters by rule, and of those without a rule.

    Args:
        rules: The rules.
        is_first: False if the frame has a column `_rule`, so that an earlier call counts the rows
            without a rule.
    """
    from pyspark.sql import functions as F  # noqa: N812  Spark's usual name

    rule = F.col(RULE)
    plain = F.col(ERROR).isNotNull() & rule.isNull()
    found = [F.count_if(rule == name).alias(name) for name in rules]
    return [*found, F.count_if(plain & F.lit(is_first)).alias("(bad record)")]


def _first_broken(rules: Mapping[str, str]) -> Column:
    """Return the name of the first rule that a row breaks; null for none."""
    from pyspark.sql import functions as F  # noqa: N812  Spark's usual name

    broken = F.lit(None).cast("string")
    for name, condition in reversed([*rules.items()]):
        is_broken = ~F.coalesce(F.expr(condition), F.lit(False))  # noqa: FBT003  Spark's function
        broken = F.when(is_broken, F.lit(name)).otherwise(broken)
    return broken


def _reason_of(broken: Column, rules: Mapping[str, str]) -> Column:
    """Return the reason by the name of a rule; null for none."""
    from pyspark.sql import functions as F  # noqa: N812  Spark's usual name

    reason = F.lit(None).cast("string")
    for name, condition in reversed([*rules.items()]):
        text = F.lit(f"the rule {name} is not true: {condition}")
        reason = F.when(broken == name, text).otherwise(reason)
    return reason


def _check_rules(rules: Mapping[str, object]) -> None:
    for name, condition in rules.items():
        if not isinstance(condition, str):
            raise OptionError(f"with_rules: the rule {name!r} is {condition!r}: write it as SQL")
