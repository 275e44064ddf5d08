"""The columns of a table that are read, their names, and the filters over its rows. Driver."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.name_mapping import NameMapping
from pyiceberg.types import NestedField

from krishiv_spark.arrow.schemas import plain_schema, select_columns
from krishiv_spark.errors import OptionError, SchemaError
from krishiv_spark.iceberg.file_io import create_worker_io
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.iceberg.scan_tasks import ScanProjection
from krishiv_spark.messages.suggestions import did_you_mean
from krishiv_spark.sources.iceberg.changelog.row_changes import CHANGE_COLUMNS, add_change_columns
from krishiv_spark.sources.iceberg.history import find_batch_snapshot
from krishiv_spark.sources.iceberg.options import IcebergSourceOptions

__all__ = ["ColumnSelection", "infer_schema"]


def infer_schema(options: IcebergSourceOptions, table: Table) -> pa.Schema:
    """Return the columns that a reader has without a schema of the user, in types of Spark.

    Raises:
        OptionError: If the option `columns` names a column that the table lacks.
        SchemaError: If the table has a column of a name that `readChanges` adds.
    """
    schema = schema_to_pyarrow(_find_schema(options, table), include_field_ids=False)
    found = select_columns(plain_schema(schema), options.columns, FORMAT)
    return add_change_columns(found) if options.read_changes else found


def _find_schema(options: IcebergSourceOptions, table: Table) -> Schema:
    """Return the schema of the snapshot that a batch travels to, and otherwise that of the table.

    As in Iceberg's own connector, a branch is read with the table's schema.
    """
    travels = (options.snapshot_id, options.tag, options.as_of_timestamp)
    snapshot = (
        find_batch_snapshot(options, table)
        if any(option is not None for option in travels)
        else None
    )
    if snapshot is None or snapshot.schema_id is None:
        return table.schema()
    return table.metadata.schema_by_id(snapshot.schema_id) or table.schema()


@dataclass(frozen=True)
class ColumnSelection:
    """Columns that are read, by field id: they stay the same if the table renames them.

    Attributes:
        options: The options of the source.
        schema: The table's schema when the reader was opened.
        fields: The columns to yield, with the names that Spark uses for them.
        names: Field ids of files that have none.
    """

    options: IcebergSourceOptions
    schema: Schema
    fields: tuple[NestedField, ...]
    names: NameMapping | None

    @classmethod
    def resolve(
        cls, options: IcebergSourceOptions, table: Table, wanted: pa.Schema | None
    ) -> ColumnSelection:
        """Find the columns of a table that have the names of a schema, case-insensitive.

        Raises:
            SchemaError: If the table has no column of a name.
            OptionError: If the filter cannot be read, or a key is not among the columns.
        """
        schema = _find_schema(options, table)
        names = [f.name for f in schema.fields] if wanted is None else wanted.names
        if options.read_changes:
            names = [name for name in names if name not in CHANGE_COLUMNS]
        _check_keys(options, names)
        fields = tuple(_find_field(schema, name, table) for name in names)
        return cls(options, schema, fields, table.metadata.name_mapping())

    @property
    def arrow(self) -> pa.Schema:
        """The columns to yield, in types of Spark."""
        schema = Schema(*self.fields)
        return plain_schema(schema_to_pyarrow(schema, include_field_ids=False))

    @property
    def event_time(self) -> NestedField | None:
        """The field of the event time."""
        name = self.options.event_time
        return next((field for field in self.fields if field.name == name), None)

    def combine_filters(self, filters: Iterable[Any]) -> BooleanExpression | None:
        """Return the option `rowFilter` and filters of Spark as one; None to read all rows."""
        text = self.options.row_filter
        own = AlwaysTrue() if text is None else parse_filter(text, self.schema)
        both = And(own, translate_filters(filters, self.schema))
        return None if both == AlwaysTrue() else both

    def create_projection(
        self, table: Table, row_filter: BooleanExpression | None
    ) -> ScanProjection:
        """Return the projection that tasks need to read files of the table. Driver."""
        yielded = {field.field_id for field in self.fields}
        needed = set() if row_filter is None else find_columns(row_filter, self.schema)
        more = [self.schema.find_field(number) for number in sorted(needed - yielded)]
        wanted = Schema(*self.fields, *more)
        return ScanProjection(
            create_worker_io(table), wanted, len(self.fields), self.names, row_filter
        )


def _check_keys(options: IcebergSourceOptions, names: Sequence[str]) -> None:
    if options.read_changes and not names:
        raise SchemaError(f"{FORMAT}: 'readChanges' needs at least one column of the table")
    for name in options.key_columns:
        if name not in names:
            hint = did_you_mean(name, names, f"there are {', '.join(names)}")
            raise OptionError(f"{FORMAT}: option 'keyColumns' has {name!r}; {hint}")


def _find_field(schema: Schema, name: str, table: Table) -> NestedField:
    top = {field.name: field for field in schema.fields}
    folded = {field.name.lower(): field for field in schema.fields}
    # Spark resolves names case-insensitively; an exact match takes precedence.
    found = top.get(name) or folded.get(name.lower())
    if found is None:
        raise SchemaError(_describe_missing(schema, name, table))
    return found.model_copy(update={"name": name})


def _describe_missing(schema: Schema, name: str, table: Table) -> str:
    text = f"{FORMAT}: the table has no column {name!r}"
    for older in reversed(table.metadata.schemas):
        field = next((field for field in older.fields if field.name == name), None)
        now = None if field is None else schema.find_column_name(field.field_id)
        if now is not None:
            return f"{text} any more: its name is now {now!r}"
    return f"{text}; {did_you_mean(name, schema.column_names, f'there are {schema}')}"


# --- filters


_log = logging.getLogger(__name__)

_PUSHED_TYPES = {"boolean", "int", "long", "string", "date", "timestamp", "timestamptz"}
"""Types that Spark and Iceberg compare alike. Floats are not: in Spark, NaN equals NaN."""


def parse_filter(text: str, schema: Schema) -> BooleanExpression:
    """Parse the option `rowFilter`.

    Raises:
        OptionError: If it cannot be parsed, or names a column that the table lacks.
    """
    from pyiceberg.expressions.parser import parse
    from pyparsing import ParseException

    try:
        expression = parse(text)
        find_columns(expression, schema)
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


def find_columns(expression: BooleanExpression, schema: Schema) -> set[int]:
    """Return the ids of the top-level fields that an expression uses.

    Raises:
        ValueError: If the schema lacks a column, or a value does not fit its type.
    """
    from pyiceberg.expressions.visitors import extract_field_ids

    from krishiv_spark.iceberg.projection import bind_filter, find_root_id

    inside = extract_field_ids(bind_filter(expression, schema))
    return {find_root_id(number, schema) for number in inside}


def translate_filters(filters: Iterable[Any], schema: Schema) -> BooleanExpression:
    """Translate filters of Spark (4.1 and later) that have the same meaning in Iceberg.

    Spark evaluates all of them again, so that one may be left out, but none may be stricter.
    """
    from pyiceberg.expressions import AlwaysTrue, And

    result: BooleanExpression = AlwaysTrue()
    for item in filters:
        try:
            expression = _translate(item, schema)
            find_columns(expression, schema)
        except (TypeError, ValueError, LookupError) as error:
            _log.debug("not pushed down: %s: %s", item, error)
        else:
            result = And(result, expression)
    return result


def _translate(item: Any, schema: Schema) -> BooleanExpression:
    from pyiceberg import expressions

    ice: Any = expressions
    kind = type(item).__name__
    if kind == "Not" and type(item.child).__name__ == "EqualNullSafe":
        raise ValueError("null is another value to Spark, and unknown to Iceberg")
    if kind == "Not":
        return ~_translate(item.child, schema)
    name = _get_column_name(item, schema)
    if kind in {"IsNull", "IsNotNull"}:
        null: BooleanExpression = ice.IsNull(name)
        return null if kind == "IsNull" else ~null
    values = item.value if kind == "In" else (item.value,)
    if any(value is None for value in values):
        raise ValueError("null equals nothing")
    # A filter without a counterpart is a LookupError, and left to Spark.
    result: BooleanExpression = getattr(ice, _COMPARISONS[kind])(name, item.value)
    return result


_COMPARISONS = {
    "EqualTo": "EqualTo",
    # The two differ in null only, which was refused before.
    "EqualNullSafe": "EqualTo",
    "GreaterThan": "GreaterThan",
    "GreaterThanOrEqual": "GreaterThanOrEqual",
    "LessThan": "LessThan",
    "LessThanOrEqual": "LessThanOrEqual",
    "In": "In",
    "StringStartsWith": "StartsWith",
}
"""Spark's filters, and PyIceberg's expressions of the same meaning."""


def _get_column_name(item: Any, schema: Schema) -> str:
    # The name of a struct's field has several parts: a ValueError leaves the filter to Spark.
    (name,) = item.attribute
    kind = str(schema.find_field(name, case_sensitive=False).field_type)
    if kind not in _PUSHED_TYPES and not kind.startswith("decimal"):
        raise ValueError(f"{name} is {kind}")
    return str(name)
