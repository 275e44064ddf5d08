"""Options that make a table, when it is there already: they change nothing, so they must agree."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from krishiv_spark.errors import OptionError
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.runtime.once import warn_once
from krishiv_spark.sinks.iceberg.transforms import partition_spec, sort_order
from krishiv_spark.storage import StoreUrl

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.sorting import SortOrder

    from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions

__all__ = ["check_declared", "warn_of_dropped", "warn_of_unread"]

_log = logging.getLogger(__name__)
_UNREAD = {"write.metadata.compression-codec": ("none", "metadata files are written as plain JSON")}
"""Properties that PyIceberg passes over: what it does all the same, and that in words."""


def check_declared(options: IcebergSinkOptions, table: Table) -> None:
    """Refuse options of a new table that say otherwise than a table that is there. Planner.

    Where only files would be written in another way, there is a warning, once in a process.

    Raises:
        OptionError: If ``partitionBy``, ``sortBy`` or ``location`` differ, or cannot be read.
    """
    schema = table.schema()
    wanted = _partitions(partition_spec(options.partition_by, schema), schema)
    found = _partitions(table.spec(), schema)
    if options.partition_by and wanted != found:
        raise _differs("partitionBy", options.partition_by, found)
    wanted, found = (
        _order(sort_order(options.sort_by, schema), schema),
        _order(table.sort_order(), schema),
    )
    if options.sort_by and wanted != found:
        raise _differs("sortBy", options.sort_by, found)
    if options.location is not None and _place(options.location) != _place(table.location()):
        raise _differs("location", options.location, table.location())
    for text in _other_properties(options, table):
        warn_once(_log, text, "%s", text)


def warn_of_unread(options: IcebergSinkOptions) -> None:
    """Say once in a process which properties are kept for other programs only. Planner."""
    for key, (plain, what) in _UNREAD.items():
        text = options.table_properties.get(key, plain)
        if text != plain:
            said = (
                f"{FORMAT}: 'tableProperty.{key}' = {text!r} is kept in the table for other "
                f"programs, and without effect here: {what}"
            )
            warn_once(_log, said, "%s", said)


def warn_of_dropped(options: IcebergSinkOptions, table: Table) -> None:
    """Warn once in a process of the user's properties that a new table did not get. Planner."""
    found = {**table.properties, "format-version": str(table.format_version)}
    for key, text in options.table_properties.items():
        if found.get(key) != text:
            said = (
                f"{FORMAT}: 'tableProperty.{key}' = {text!r} is without effect: the catalog has "
                f"created table {options.table_name} with {found.get(key, 'none')!r}"
            )
            warn_once(_log, said, "%s", said)


def _differs(option: str, given: str, found: str) -> OptionError:
    return OptionError(
        f"{FORMAT}: option {option!r} = {given!r} is for a table that is made, and there is one "
        f"already, which has {found or 'none'}. Nothing was written: leave the option away, or "
        "change the table"
    )


def _partitions(spec: PartitionSpec, schema: Schema) -> str:
    # Version 1 keeps a field that was dropped as one of nothing.
    fields = (field for field in spec.fields if str(field.transform) != "void")
    return ", ".join(_term(str(one.transform), schema, one.source_id) for one in fields)


def _order(order: SortOrder, schema: Schema) -> str:
    return ", ".join(
        f"{_term(str(one.transform), schema, one.source_id)} {one.direction.value} "
        f"{one.null_order.value.replace('-', ' ')}"
        for one in order.fields
    )


def _term(transform: str, schema: Schema, source: int) -> str:
    column = schema.find_column_name(source) or f"a column that is gone ({source})"
    if transform == "identity":
        return column
    name, _, width = transform.rstrip("]").partition("[")
    return f"{name}({width}, {column})" if width else f"{name}({column})"


def _place(text: str) -> object:
    if StoreUrl.kind_of(text) is None:  # it is the catalog's to understand
        return text.rstrip("/")
    url = StoreUrl.parse(text)
    return url.kind, url.authority, url.path  # whether it is written s3: or s3a:


def _other_properties(options: IcebergSinkOptions, table: Table) -> Iterator[str]:
    found = {**table.properties, "format-version": str(table.format_version)}
    for key, text in options.table_properties.items():
        if found.get(key) != text:
            yield (
                f"{FORMAT}: 'tableProperty.{key}' = {text!r} is without effect: table "
                f"{options.table_name} is there already, and has {found.get(key, 'none')!r}"
            )
