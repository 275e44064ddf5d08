"""The definition of a view as users write it, and the columns that maintain it. Driver."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from krishiv_spark.errors import OptionError, SchemaError
from krishiv_spark.messages.suggestions import did_you_mean

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

__all__ = ["CALLER", "KEY", "OP", "ROWS", "WEIGHT", "Total", "ViewDefinition"]

CALLER = "krishiv_spark.aggregate"
"""The public name, with which messages begin."""

WEIGHT = "_weight"
"""Column of changes: 1 for an inserted row, -1 for a deleted one, as `readChanges` has it."""

OP, KEY, ROWS = "_op", "_key", "_rows"
"""Names of the columns of operations, of a group's key as text, and of its number of rows."""

_CALL = re.compile(r"\s*(\w+)\s*\(\s*(?:(\*)|`([^`]+)`|([^`()*]+?))\s*\)\s*")
_FUNCTIONS = ("avg", "count", "max", "min", "sum")
_ADDED, _RANKED = {"avg", "sum"}, {"max", "min"}
_WHOLE = ("tinyint", "smallint", "int", "bigint")
_KEYS = (*_WHOLE, "boolean", "string", "date", "timestamp", "timestamp_ntz", "binary")
_ORDERED = (*_KEYS, "float", "double")


@dataclass(frozen=True)
class Total:
    """A column of a view.

    Attributes:
        name: Name of the column.
        function: One of avg, count, max, min and sum.
        column: Argument of the function; None for ``count(*)``.
    """

    name: str
    function: str
    column: str | None

    @classmethod
    def of(cls, name: str, text: str) -> Total:
        """Parse a total such as ``sum(amount)``; a name may have backticks.

        Raises:
            OptionError: If the text is not a call of a known function with one column.
        """
        found = _CALL.fullmatch(text)
        if found is None:
            raise OptionError(
                f"{CALLER}: {name!r} is {text!r}: write a function of a column, as "
                "'sum(amount)', or 'count(*)'; add a computed value to the changes as a column "
                "first, as with withColumn"
            )
        function, star, *names = found.groups()
        if function.lower() not in _FUNCTIONS:
            hint = did_you_mean(function.lower(), _FUNCTIONS, f"known: {', '.join(_FUNCTIONS)}")
            raise OptionError(
                f"{CALLER}: {name!r} is {text!r}, and its function is unknown; {hint}"
            )
        if star and function.lower() != "count":
            raise OptionError(f"{CALLER}: {name!r} is {text!r}: only count accepts '*'")
        return cls(name, function.lower(), next(filter(None, names), None))

    def __str__(self) -> str:
        return f"{self.function}({self.column or '*'})"


@dataclass(frozen=True)
class ViewDefinition:
    """The groups of a view, and the totals of each group.

    Attributes:
        by: Columns whose values define a group.
        totals: Totals in the order of the view's columns.
    """

    by: tuple[str, ...]
    totals: tuple[Total, ...]

    @classmethod
    def of(cls, by: str | Sequence[str], columns: Mapping[str, str]) -> ViewDefinition:
        """Parse a definition.

        Raises:
            OptionError: If there is no group or no total, or one cannot be parsed; if two columns
                of the view would have one name.
        """
        names = tuple(part.strip() for part in by.split(",")) if isinstance(by, str) else tuple(by)
        made = cls(names, tuple(Total.of(name, text) for name, text in columns.items()))
        if not all(names) or not names or not columns:
            raise OptionError(
                f"{CALLER}: give columns to group by and at least one total, as by='region', "
                "columns={'total': 'sum(amount)'}"
            )
        taken: set[str] = set()
        for name in [*names, *columns, *made.hidden, OP, WEIGHT]:
            if name.lower() in taken:
                raise OptionError(
                    f"{CALLER}: two columns of the view would be called {name!r}: it has the "
                    "columns of 'by' and 'columns', and its internal columns "
                    f"{', '.join(made.hidden)}"
                )
            taken.add(name.lower())
        return made

    @property
    def text(self) -> str:
        """The definition as text in one form, which a property of the table contains."""
        told = {"by": self.by, "columns": {total.name: str(total) for total in self.totals}}
        return json.dumps(told, separators=(",", ":"))

    # --- columns that maintain the view

    @property
    def counted(self) -> list[str]:
        """Columns whose non-null values are counted."""
        return self._columns({*_ADDED, "count"})

    @property
    def added(self) -> list[str]:
        """Columns whose values are added up."""
        return self._columns(_ADDED)

    @property
    def ranked(self) -> list[str]:
        """Columns whose values are kept, each with its number."""
        return self._columns(_RANKED)

    @property
    def used(self) -> list[str]:
        """All columns with totals."""
        return self._columns(set(_FUNCTIONS))

    @property
    def hidden(self) -> list[str]:
        """Names of the internal columns."""
        kept = [
            *map(count_of, self.counted),
            *map(sum_of, self.added),
            *map(values_of, self.ranked),
        ]
        return [KEY, ROWS, *kept]

    def _columns(self, functions: set[str]) -> list[str]:
        found = (total.column for total in self.totals if total.function in functions)
        return list(dict.fromkeys(name for name in found if name is not None))

    # --- changes

    def check(self, changes: StructType) -> None:
        """Refuse changes that cannot maintain the view.

        Raises:
            OptionError: If they lack a column.
            SchemaError: If a column has a type without such a total or group.
        """
        if WEIGHT not in changes.names:
            raise OptionError(
                f"{CALLER}: the batch has no column {WEIGHT!r}, which marks a row as inserted "
                "(1) or deleted (-1): read the table with the option 'readChanges' = 'true' "
                "and keep the column; if rows are only inserted, add it with "
                f"withColumn({WEIGHT!r}, lit(1))"
            )
        for place, name in self._iter_used_columns():
            if name not in changes.names:
                known = [other for other in changes.names if other not in {WEIGHT, OP}]
                hint = did_you_mean(name, known, f"there are {', '.join(known)}")
                raise OptionError(f"{CALLER}: {place} names {name!r}, an unknown column; {hint}")
        for place, name, kinds, advice in self._iter_type_rules():
            kind = changes[name].dataType
            if not _is_of(kind, kinds):
                raise SchemaError(f"{CALLER}: {place}: {name!r} is {kind.simpleString()}; {advice}")

    def _iter_used_columns(self) -> Iterator[tuple[str, str]]:
        yield from (("'by'", name) for name in self.by)
        for total in self.totals:
            if total.column is not None:
                yield f"'{total.name}' = '{total}'", total.column

    def _iter_type_rules(self) -> Iterator[tuple[str, str, tuple[str, ...], str]]:
        """Return for each column its part of the definition, name, allowed types, and advice."""
        yield "the changes", WEIGHT, _WHOLE, "it must be a whole number, 1 or -1"
        for name in self.by:
            yield "'by'", name, _KEYS, "cast it to a string, a whole number or a decimal"
        for total in self.totals:
            place = f"'{total.name}' = '{total}'"
            if total.column is not None and total.function in _ADDED:
                # The rounding errors of deleted rows would remain.
                advice = "sums are exact: cast it to a decimal or a whole number"
                yield place, total.column, _WHOLE, advice
            if total.column is not None and total.function in _RANKED:
                yield place, total.column, _ORDERED, "its values have no order: cast it"


def count_of(column: str) -> str:
    """Return the name of the column with the number of non-null values."""
    return f"_count_{column}"


def sum_of(column: str) -> str:
    """Return the name of the column with the sum of the values."""
    return f"_sum_{column}"


def values_of(column: str) -> str:
    """Return the name of the column with the distinct values and their numbers."""
    return f"_values_{column}"


def _is_of(kind: DataType, names: tuple[str, ...]) -> bool:
    return kind.typeName() == "decimal" or kind.simpleString() in names
