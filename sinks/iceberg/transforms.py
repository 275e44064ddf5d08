"""Partitions and sort orders as Iceberg writes them: ``days(ts), bucket(16, id)``; ``ts desc``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from krishiv_spark.errors import OptionError
from krishiv_spark.iceberg.options import FORMAT

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.sorting import SortField, SortOrder
    from pyiceberg.types import NestedField

__all__ = ["partition_spec", "sort_order"]

_FIRST_PARTITION_ID = 1000
"""Where the ids of partition fields begin (spec, "Partition Specs")."""

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


class _Term(NamedTuple):
    """One item between commas: a transform of a column, and the words after it."""

    text: str
    transform: str
    column: str
    words: tuple[str, ...]


def partition_spec(text: str, schema: Schema) -> PartitionSpec:
    """The partitions that an option asks for.

    Args:
        text: Transforms of columns, separated by commas; empty for none.
        schema: Of the table, with the field ids that the spec names.

    Raises:
        OptionError: If it cannot be read, or a transform does not fit its column.
    """
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.transforms import parse_transform

    fields: list[PartitionField] = []
    for term in _terms("partitionBy", text):
        field = _source("partitionBy", term, schema)
        short = term.transform.partition("[")[0]
        name = term.column if short == "identity" else f"{term.column}_{_SUFFIX.get(short, short)}"
        if name in {other.name for other in fields}:
            raise _bad(
                "partitionBy", term.text, f"two columns or transforms have the name {name!r}"
            )
        number, transform = _FIRST_PARTITION_ID + len(fields), parse_transform(term.transform)
        fields.append(PartitionField(field.field_id, number, transform, name.replace(".", "_")))
    return PartitionSpec(*fields)


_SUFFIX = {"truncate": "trunc"}
"""Ends of the names of partition fields, as Iceberg's Java builder gives them."""


def sort_order(text: str, schema: Schema) -> SortOrder:
    """The sort order that an option asks for: ``ts desc nulls last, bucket(16, id)``.

    Raises:
        OptionError: If it cannot be read, or a transform does not fit its column.
    """
    from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder

    fields = [_sort_field(term, schema) for term in _terms("sortBy", text)]
    return SortOrder(*fields) if fields else UNSORTED_SORT_ORDER


def _sort_field(term: _Term, schema: Schema) -> SortField:
    from pyiceberg.table.sorting import NullOrder, SortDirection, SortField
    from pyiceberg.transforms import parse_transform

    field = _source("sortBy", term, schema)
    words = [word for word in term.words if word != "nulls"]
    if any(word not in {"asc", "desc", "first", "last"} for word in words):
        raise _bad("sortBy", term.text, "write 'column', 'column desc' or 'column desc nulls last'")
    descends = "desc" in words
    # As in Spark's SQL: nulls come first, and last where the order descends.
    last = "last" in words or (descends and "first" not in words)
    return SortField(
        source_id=field.field_id,
        transform=parse_transform(term.transform),
        direction=SortDirection.DESC if descends else SortDirection.ASC,
        null_order=NullOrder.NULLS_LAST if last else NullOrder.NULLS_FIRST,
    )


def _terms(option: str, text: str) -> Iterator[_Term]:
    at = 0
    while at < len(text.rstrip()):
        match = _ITEM.match(text, at)
        if match is None or text[match.end() : match.end() + 1] not in {"", ","}:
            raise _bad(option, text[at:].strip(), "write columns and transforms between commas")
        yield _term(option, match)
        at = match.end() + 1


def _term(option: str, match: re.Match[str]) -> _Term:
    called, inside, plain, after = match.groups()
    words = tuple(after.lower().split())
    text = match[0].strip()
    if called is None:
        return _Term(text, "identity", plain.strip("`"), words)
    name = _NAMES.get(called.lower())
    parts = [part.strip() for part in inside.split(",")]
    if name is None:
        raise _bad(option, text, f"there is no transform {called!r}; known: {_known()}")
    if name not in {"bucket", "truncate"} and len(parts) == 1:
        return _Term(text, name, parts[0].strip("`"), words)
    width = next((part for part in parts if part.isdigit() and int(part)), None)
    column = next((part for part in parts if not part.isdigit()), None)
    # Two parts: a width and a column, in either order.
    if name not in {"bucket", "truncate"} or len(parts) != 2 or not width or not column:  # noqa: PLR2004
        raise _bad(option, text, f"write {name}(column) or, with a width, bucket(16, column)")
    return _Term(text, f"{name}[{int(width)}]", column.strip("`"), words)


def _source(option: str, term: _Term, schema: Schema) -> NestedField:
    """The column of a term."""
    from pyiceberg.transforms import parse_transform

    try:
        field = schema.find_field(term.column)
    except ValueError:
        known = ", ".join(field.name for field in schema.fields)
        reason = f"there is no column {term.column!r}; known: {known}"
        raise _bad(option, term.text, reason) from None
    if not parse_transform(term.transform).can_transform(field.field_type):
        raise _bad(option, term.text, f"column {term.column!r} is {field.field_type}")
    return field


def _known() -> str:
    return "years, months, days, hours, bucket, truncate, identity, void"


def _bad(option: str, text: str, reason: str) -> OptionError:
    return OptionError(f"{FORMAT}: option {option!r} has {text!r}: {reason}")
