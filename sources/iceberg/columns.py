"""Which columns of a table are read, and under which names. Driver."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.name_mapping import NameMapping
from pyiceberg.types import NestedField

from krishiv_spark.arrow.schemas import plain_schema, pruned
from krishiv_spark.errors import OptionError, SchemaError
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.iceberg.scan import ScanProjection
from krishiv_spark.messages.suggestions import did_you_mean
from krishiv_spark.sources.iceberg.changelog.columns import CHANGE_COLUMNS, with_change_columns
from krishiv_spark.sources.iceberg.filters import columns_of, parsed, pushed
from krishiv_spark.sources.iceberg.options import IcebergSourceOptions
from krishiv_spark.sources.iceberg.starts import time_travel_snapshot

__all__ = ["Columns", "schema_of"]


def schema_of(options: IcebergSourceOptions, table: Table) -> pa.Schema:
    """The columns that a reader finds without a schema of the user, in types that Spark has.

    Raises:
        OptionError: If the option `columns` names one that is not there.
        SchemaError: See `with_change_columns`.
    """
    schema = schema_to_pyarrow(_schema(options, table), include_field_ids=False)
    found = pruned(plain_schema(schema), options.columns, FORMAT)
    return with_change_columns(found) if options.read_changes else found


def _schema(options: IcebergSourceOptions, table: Table) -> Schema:
    """The schema of the snapshot that a batch travels to, and otherwise that of the table.

    As Iceberg's connector has it: a branch is read with the table's schema.
    """
    travels = (options.snapshot_id, options.tag, options.as_of_timestamp)
    snapshot = (
        time_travel_snapshot(options, table)
        if any(place is not None for place in travels)
        else None
    )
    if snapshot is None or snapshot.schema_id is None:
        return table.schema()
    return table.metadata.schema_by_id(snapshot.schema_id) or table.schema()


@dataclass(frozen=True)
class Columns:
    """Columns by field id, found by name once: they stay the same if the table renames them.

    Attributes:
        options: Of the source, as the user gave them.
        schema: The table's schema, as it was when the reader was opened.
        fields: The columns to yield, with the names under which they are asked for.
        names: Field ids of files that have none.
    """

    options: IcebergSourceOptions
    schema: Schema
    fields: tuple[NestedField, ...]
    names: NameMapping | None

    @classmethod
    def of(cls, options: IcebergSourceOptions, table: Table, wanted: pa.Schema | None) -> Columns:
        """The columns of a table that have the names of a schema, in any case.

        Raises:
            SchemaError: If the table has no column of a name.
            OptionError: If the filter cannot be read, or a key is not among the columns.
        """
        schema = _schema(options, table)
        names = [f.name for f in schema.fields] if wanted is None else wanted.names
        if options.read_changes:
            names = [name for name in names if name not in CHANGE_COLUMNS]
        _check_keys(options, names)
        fields = tuple(_named(schema, name, table) for name in names)
        return cls(options, schema, fields, table.metadata.name_mapping())

    @property
    def arrow(self) -> pa.Schema:
        """The columns to yield, in types that Spark has."""
        schema = Schema(*self.fields)
        return plain_schema(schema_to_pyarrow(schema, include_field_ids=False))

    @property
    def event_time(self) -> NestedField | None:
        """The field of the event time."""
        name = self.options.event_time
        return next((field for field in self.fields if field.name == name), None)

    def row_filter(self, filters: Iterable[Any]) -> BooleanExpression | None:
        """The option `rowFilter` and filters of Spark's together; None where all rows are read."""
        text = self.options.row_filter
        own = AlwaysTrue() if text is None else parsed(text, self.schema)
        both = And(own, pushed(filters, self.schema))
        return None if both == AlwaysTrue() else both

    def scan(self, io: FileIO, row_filter: BooleanExpression | None) -> ScanProjection:
        """What tasks must know."""
        yielded = {field.field_id for field in self.fields}
        needed = set() if row_filter is None else columns_of(row_filter, self.schema)
        more = [self.schema.find_field(number) for number in sorted(needed - yielded)]
        wanted = Schema(*self.fields, *more)
        return ScanProjection(io, wanted, len(self.fields), self.names, row_filter)


def _check_keys(options: IcebergSourceOptions, names: Sequence[str]) -> None:
    if options.read_changes and not names:
        raise SchemaError(f"{FORMAT}: 'readChanges' needs at least one column of the table")
    for name in options.key_columns:
        if name not in names:
            hint = did_you_mean(name, names, f"there are {', '.join(names)}")
            raise OptionError(f"{FORMAT}: option 'keyColumns' has {name!r}; {hint}")


def _named(schema: Schema, name: str, table: Table) -> NestedField:
    top = {field.name: field for field in schema.fields}
    folded = {field.name.lower(): field for field in schema.fields}
    # Spark finds names in any case; the one that is written just so comes first.
    found = top.get(name) or folded.get(name.lower())
    if found is None:
        raise SchemaError(_missing(schema, name, table))
    return found.model_copy(update={"name": name})


def _missing(schema: Schema, name: str, table: Table) -> str:
    text = f"{FORMAT}: the table has no column {name!r}"
    for older in reversed(table.metadata.schemas):
        field = next((field for field in older.fields if field.name == name), None)
        now = None if field is None else schema.find_column_name(field.field_id)
        if now is not None:
            return f"{text} any more: it is called {now!r} now"
    return f"{text}; {did_you_mean(name, schema.column_names, f'there are {schema}')}"
