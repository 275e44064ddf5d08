"""Checks of columns and of the table's folder before any row is written. Planner."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from urllib.parse import unquote

import pyarrow as pa

from krishiv_spark.arrow.compute import children
from krishiv_spark.arrow.conform import twins
from krishiv_spark.arrow.schemas import STAND_INS, plain_schema, stands_for
from krishiv_spark.errors import OptionError, SchemaError
from krishiv_spark.parquet.layout import SINK_LOG, is_hidden
from krishiv_spark.runtime.caches import LruCache
from krishiv_spark.sinks.parquet.participant import TableFolder

__all__ = [
    "check_columns",
    "check_no_links",
    "check_no_sink_log",
    "check_partitioning",
    "check_same_types",
]


def check_columns(schema: pa.Schema, partition_by: tuple[str, ...]) -> None:
    """Check that columns can partition, and that Spark's own reader can restore them.

    The columns of a query are the same in each epoch, and are checked once.

    Raises:
        OptionError: If a column of ``partitionBy`` cannot partition, or no column is left.
        SchemaError: If Parquet or Spark's reader does not support a column.
    """
    cached = _checked.get(partition_by)
    # With metadata, which distinguishes a variant from a struct. To compare schemas takes less time
    # than to hash one.
    if cached is not None and cached.equals(schema, check_metadata=True):
        return
    for name in partition_by:
        if name not in schema.names:
            raise OptionError(
                f"krishiv-parquet: option 'partitionBy' names column {name!r}, but the columns "
                f"are {', '.join(schema.names)}"
            )
        _check_partition(name, schema.field(name).type)
    if len(set(partition_by)) == len(schema.names):
        raise OptionError("krishiv-parquet: 'partitionBy' leaves no column for the files")
    _check_fields(list(schema))
    _checked.put(partition_by, schema)


_checked: LruCache[tuple[str, ...], pa.Schema] = LruCache(64)
"""By partition columns, the columns that were checked last."""


def _check_partition(name: str, kind: pa.DataType) -> None:
    reason = None
    if pa.types.is_nested(kind):
        reason = "is nested"
    elif pa.types.is_binary(kind):
        reason = "is binary (use hex(...): Spark's reader does not restore all bytes)"
    elif is_hidden(f"{name}="):
        reason = "has a name that starts with a dot (readers ignore folders that start with one)"
    if reason is not None:
        raise OptionError(f"krishiv-parquet: column {name!r} {reason} and cannot partition")


def _check_fields(fields: Sequence[pa.Field], above: str = "") -> None:
    """Check that Spark's own reader can restore fields."""
    pair = twins(field.name for field in fields)
    if pair is not None:
        one, other = (above + name for name in pair)
        raise SchemaError(
            f"columns {one!r} and {other!r} differ only in case, and Spark's reader does not "
            "distinguish them: rename one of them"
        )
    for field in fields:
        _check_type(above + field.name, field.type)


def _check_type(name: str, kind: pa.DataType) -> None:
    foreign = stands_for(kind)
    if pa.types.is_duration(kind):
        raise SchemaError(
            f"column {name!r} is an interval, which Parquet does not support: cast it"
        )
    if foreign is not None:
        advice = STAND_INS[foreign]
        raise SchemaError(
            f"column {name!r} is a {foreign}, which this sink does not support: {advice}"
        )
    if pa.types.is_struct(kind):
        _check_fields(children(kind), f"{name}.")
    elif pa.types.is_list(kind):
        _check_type(f"{name}.element", kind.value_type)
    elif pa.types.is_map(kind):
        _check_type(f"{name}.key", kind.key_type)
        _check_type(f"{name}.value", kind.item_type)


@lru_cache(maxsize=64)
def check_no_sink_log(table: TableFolder) -> None:
    """Check that the folder is not one of Spark's own file sink. Planner, once in a process.

    Spark's readers read only the files in the log of that sink (``FileStreamSink.hasMetadata``),
    and would see none of the new files.

    Raises:
        OptionError: If it is one.
    """
    if table.has_sink_log():
        raise OptionError(
            f"krishiv-parquet: 'path' {table} was written by Spark's own file sink: Spark reads "
            f"the files in its {SINK_LOG}, and would find none of these rows. Write into "
            "another folder; or, if no query of Spark's writes there any more, remove "
            f"{SINK_LOG}; files of failed tasks there are then visible to readers too"
        )


def check_no_links(table: TableFolder) -> None:
    """Check that the folder has no links to folders, whose rows could not be replaced. Planner.

    Readers enter them. The target of a link may belong to another program, so its files are not
    removed; and if only the link were removed, new files of the same partition would disappear.

    Raises:
        OptionError: If there is one.
    """
    for link in table.links():
        raise OptionError(
            f"krishiv-parquet: {table}/{link} is a link: its rows would stay in a table that is "
            "overwritten, or whose epochs replace each other, because files behind a link are "
            "not removed. Remove the link or make it a plain folder, or write into another "
            "folder"
        )


class _NoFileError(Exception):
    """There is no file to compare with. An exception, since `lru_cache` does not cache these."""


def check_same_types(table: TableFolder, schema: pa.Schema) -> None:
    """Compare the types with those of one existing file, once in a process.

    Raises:
        SchemaError: If a column has another type there.
    """
    with suppress(_NoFileError):
        _compare_types(table, schema)


def _find_file(table: TableFolder) -> str:
    found = next(table.visible(), None)
    if found is None:
        raise _NoFileError
    return found


# An error is not cached: the user may have moved the files.
@lru_cache(maxsize=64)
def _compare_types(table: TableFolder, schema: pa.Schema) -> None:
    existing = _find_file(table)
    # Case does not matter: Spark's reader does not distinguish columns by it.
    found = {field.name.lower(): field for field in plain_schema(table.schema_of(existing))}
    for field in schema:
        there = found.get(field.name.lower(), field)
        if there.type != field.type:
            other = "" if there.name == field.name else f" as {there.name!r}"
            raise SchemaError(
                f"column {field.name!r} is {field.type}, but {there.type}{other} in "
                f"{table}/{existing}: cast it, or write into another folder"
            )


def check_partitioning(table: TableFolder, partition_by: tuple[str, ...]) -> None:
    """Check that existing files have the same partition columns. Planner, once in a process.

    Readers infer the partition columns of a table from its folders: files outside of them, or in
    folders of other columns, are ignored or refused.

    Raises:
        OptionError: If existing files are in folders of other columns.
    """
    with suppress(_NoFileError):
        _compare_partitioning(table, partition_by)


@lru_cache(maxsize=64)  # the columns of a query are fixed, and to list a folder takes long
def _compare_partitioning(table: TableFolder, partition_by: tuple[str, ...]) -> None:
    there = _find_file(table)
    found = tuple(unquote(part.partition("=")[0]) for part in there.split("/")[:-1] if "=" in part)
    if found != partition_by:
        raise OptionError(
            f"krishiv-parquet: 'partitionBy' is {_quote(partition_by)}, but the files of "
            f"{table} are partitioned by {_quote(found)}, as {table}/{there} shows, and readers "
            "would not find all rows: give the same columns, or write into another folder"
        )


def _quote(columns: Sequence[str]) -> str:
    return ", ".join(map(repr, columns)) or "nothing"
