"""The options that describe a new table: partitions, sort order, location and properties.

They are parsed in Iceberg's notation: ``days(ts), bucket(16, id)``; ``ts desc``. They have no
effect on an existing table, so they must agree with it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from krishiv_spark.errors import OptionError
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.runtime.once import warn_once
from krishiv_spark.storage import StoreUrl

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.sorting import SortField, SortOrder
    from pyiceberg.types import NestedField

    from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions

__all__ = [
    "check_existing_table_matches",
    "parse_partition_spec",
    "parse_sort_order",
    "warn_of_dropped_properties",
]

_log = logging.getLogger(__name__)

_FIRST_PARTITION_ID = 1000
"""First id of partition fields (spec, "Partition Specs")."""

_NAMES = {
    "years": "year",
    "year": "year",
    "months": "month",
    "month": "month",
    "days": "day",
    "day": "day",
    "date": "day",
    "hours": "hour",
    "hour": "hour",
    "date_hour": "hour",
    "bucket": "bucket",
    "truncate": "truncate",
    "identity": "identity",
    "void": "void",
}
"""Names of transforms, as the spec and as Spark's SQL extensions of Iceberg write them."""

_ITEM = re.compile(r"\s*(?:(\w+)\s*\(([^()]*)\)|([^(),\s]+|`[^`]+`))((?:\s+\w+)*)\s*")

_SUFFIX = {"truncate": "trunc"}
"""Suffixes in the names of partition fields, as Iceberg's Java builder chooses them."""


def check_existing_table_matches(options: IcebergSinkOptions, table: Table) -> None:
    """Refuse options of a new table that differ from an existing table. Planner.

    Differences that only affect how files are written cause a warning, once in a process.

    Raises:
        OptionError: If ``partitionBy``, ``sortBy`` or ``location`` differ, or cannot be read.
    """
    schema = table.schema()
    wanted = _format_partitions(parse_partition_spec(options.partition_by, schema), schema)
    found = _format_partitions(table.spec(), schema)
    if options.partition_by and wanted != found:
        raise _to_difference_error("partitionBy", options.partition_by, found)
    wanted, found = (
        _format_order(parse_sort_order(options.sort_by, schema), schema),
        _format_order(table.sort_order(), schema),
    )
    if options.sort_by and wanted != found:
        raise _to_difference_error("sortBy", options.sort_by, found)
    if options.location is not None and _to_comparable(options.location) != _to_comparable(
        table.location()
    ):
        raise _to_difference_error("location", options.location, table.location())
    for text in _describe_other_properties(options, table):
        warn_once(_log, text, "%s", text)


def warn_of_dropped_properties(options: IcebergSinkOptions, table: Table) -> None:
    """Warn once in a process of properties of options that a new table did not get. Planner."""
    found = {**table.properties, "format-version": str(table.format_version)}
    for key, text in options.table_properties.items():
        if found.get(key) != text:
            message = (
                f"{FORMAT}: 'tableProperty.{key}' = {text!r} has no effect: the catalog has "
                f"created table {options.table_name} with {found.get(key, 'none')!r}"
            )
            warn_once(_log, message, "%s", message)


def _to_difference_error(option: str, given: str, found: str) -> OptionError:
    return OptionError(
        f"{FORMAT}: option {option!r} = {given!r} applies to a table that is created, but the "
        f"table exists already and has {found or 'none'}. Nothing was written: remove the "
        "option, or change the table"
    )


def _format_partitions(spec: PartitionSpec, schema: Schema) -> str:
    # Format version 1 keeps a dropped field with the transform void.
    fields = (field for field in spec.fields if str(field.transform) != "void")
    return ", ".join(_format_term(str(one.transform), schema, one.source_id) for one in fields)


def _format_order(order: SortOrder, schema: Schema) -> str:
    return ", ".join(
        f"{_format_term(str(one.transform), schema, one.source_id)} {one.direction.value} "
        f"{one.null_order.value.replace('-', ' ')}"
        for one in order.fields
    )


def _format_term(transform: str, schema: Schema, source: int) -> str:
    column = schema.find_column_name(source) or f"a column that was dropped ({source})"
    if transform == "identity":
        return column
    name, _, width = transform.rstrip("]").partition("[")
    return f"{name}({width}, {column})" if width else f"{name}({column})"


def _to_comparable(text: str) -> object:
    if StoreUrl.kind_of(text) is None:  # only the catalog understands it
        return text.rstrip("/")
    url = StoreUrl.parse(text)
    return url.kind, url.authority, url.path  # equal for s3: and s3a:


def _describe_other_properties(options: IcebergSinkOptions, table: Table) -> Iterator[str]:
    found = {**table.properties, "format-version": str(table.format_version)}
    for key, text in options.table_properties.items():
        if found.get(key) != text:
            yield (
                f"{FORMAT}: 'tableProperty.{key}' = {text!r} has no effect: table "
                f"{options.table_name} exists already, and has {found.get(key, 'none')!r}"
            )


class _Term(NamedTuple):
    """One item between commas: a transform of a column, and the words after it."""

    text: str
    transform: str
    column: str
    words: tuple[str, ...]


def parse_partition_spec(text: str, schema: Schema) -> PartitionSpec:
    """Parse the partitions of an option.

    Args:
        text: Transforms of columns, separated by commas; empty for none.
        schema: Schema of the table, with field ids for the spec.

    Raises:
        OptionError: If it cannot be read, or a transform does not fit its column.
    """
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.transforms import parse_transform

    fields: list[PartitionField] = []
    for term in _parse_terms("partitionBy", text):
        field = _find_column("partitionBy", term, schema)
        short = term.transform.partition("[")[0]
        name = term.column if short == "identity" else f"{term.column}_{_SUFFIX.get(short, short)}"
        if name in {other.name for other in fields}:
            raise _to_option_error(
                "partitionBy", term.text, f"two columns or transforms have the name {name!r}"
            )
        number, transform = _FIRST_PARTITION_ID + len(fields), parse_transform(term.transform)
        fields.append(PartitionField(field.field_id, number, transform, name.replace(".", "_")))
    return PartitionSpec(*fields)


def parse_sort_order(text: str, schema: Schema) -> SortOrder:
    """Parse the sort order of an option: ``ts desc nulls last, bucket(16, id)``.

    Raises:
        OptionError: If it cannot be read, or a transform does not fit its column.
    """
    from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder

    fields = [_to_sort_field(term, schema) for term in _parse_terms("sortBy", text)]
    return SortOrder(*fields) if fields else UNSORTED_SORT_ORDER


def _to_sort_field(term: _Term, schema: Schema) -> SortField:
    from pyiceberg.table.sorting import NullOrder, SortDirection, SortField
    from pyiceberg.transforms import parse_transform

    field = _find_column("sortBy", term, schema)
    words = [word for word in term.words if word != "nulls"]
    if any(word not in {"asc", "desc", "first", "last"} for word in words):
        raise _to_option_error(
            "sortBy", term.text, "write 'column', 'column desc' or 'column desc nulls last'"
        )
    descends = "desc" in words
    # As in Spark's SQL: nulls come first, and last where the order descends.
    last = "last" in words or (descends and "first" not in words)
    return SortField(
        source_id=field.field_id,
        transform=parse_transform(term.transform),
        direction=SortDirection.DESC if descends else SortDirection.ASC,
        null_order=NullOrder.NULLS_LAST if last else NullOrder.NULLS_FIRST,
    )


def _parse_terms(option: str, text: str) -> Iterator[_Term]:
    at = 0
    while at < len(text.rstrip()):
        match = _ITEM.match(text, at)
        if match is None or text[match.end() : match.end() + 1] not in {"", ","}:
            raise _to_option_error(
                option, text[at:].strip(), "write columns and transforms between commas"
            )
        yield _parse_term(option, match)
        at = match.end() + 1


def _parse_term(option: str, match: re.Match[str]) -> _Term:
    called, inside, plain, after = match.groups()
    words = tuple(after.lower().split())
    text = match[0].strip()
    if called is None:
        return _Term(text, "identity", plain.strip("`"), words)
    name = _NAMES.get(called.lower())
    parts = [part.strip() for part in inside.split(",")]
    if name is None:
        raise _to_option_error(
            option, text, f"there is no transform {called!r}; known: {_list_transforms()}"
        )
    if name not in {"bucket", "truncate"} and len(parts) == 1:
        return _Term(text, name, parts[0].strip("`"), words)
    width = next((part for part in parts if part.isdigit() and int(part)), None)
    column = next((part for part in parts if not part.isdigit()), None)
    # Two parts: a width and a column, in either order.
    if name not in {"bucket", "truncate"} or len(parts) != 2 or not width or not column:  # noqa: PLR2004
        raise _to_option_error(
            option, text, f"write {name}(column) or, with a width, bucket(16, column)"
        )
    return _Term(text, f"{name}[{int(width)}]", column.strip("`"), words)


def _find_column(option: str, term: _Term, schema: Schema) -> NestedField:
    """Find the column of a term.

    Raises:
        OptionError: If there is no such column, or the transform does not fit its type.
    """
    from pyiceberg.transforms import parse_transform

    try:
        field = schema.find_field(term.column)
    except ValueError:
        known = ", ".join(field.name for field in schema.fields)
        reason = f"there is no column {term.column!r}; known: {known}"
        raise _to_option_error(option, term.text, reason) from None
    if not parse_transform(term.transform).can_transform(field.field_type):
        raise _to_option_error(option, term.text, f"column {term.column!r} is {field.field_type}")
    return field


def _list_transforms() -> str:
    return "years, months, days, hours, bucket, truncate, identity, void"


def _to_option_error(option: str, text: str, reason: str) -> OptionError:
    return OptionError(f"{FORMAT}: option {option!r} has {text!r}: {reason}")
