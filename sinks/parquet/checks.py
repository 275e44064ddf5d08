"""What is refused before any row moves. Planner."""

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
from krishiv_spark.parquet.layout import SINK_LOG
from krishiv_spark.parquet.names import is_hidden
from krishiv_spark.runtime.caches import LruCache
from krishiv_spark.sinks.parquet.tables import TableFolder

__all__ = [
    "check_columns",
    "check_no_links",
    "check_no_sink_log",
    "check_partitioning",
    "check_same_types",
]


def check_columns(schema: pa.Schema, partition_by: tuple[str, ...]) -> None:
    """Refuse columns that cannot partition, or that Spark's own reader would not get back.

    The columns of a query are the same in each epoch, and are looked at once.

    Raises:
        OptionError: If it is a column of ``partitionBy``, or if that leaves none.
        SchemaError: If Parquet or Spark's reader cannot hold a column.
    """
    known = _checked.get(partition_by)
    # Metadata too: it tells a variant from a struct. To hash a schema takes longer than to compare.
    if known is not None and known.equals(schema, check_metadata=True):
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
"""By partition columns, the columns that have been checked last."""


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
    """Refuse what Spark's own reader would not get back."""
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
    """Refuse a folder of Spark's own file sink. Planner, once in a process.

    Spark's readers go by the log of that sink (``FileStreamSink.hasMetadata``), and would see none
    of the files that are written beside it.

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
    """Refuse a folder with links to folders, of which rows could not be replaced. Planner.

    Readers go into them. What a link leads to is somebody else's, too, and is not removed; and with
    the link alone, new files of the same partition would go.

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


class _NothingThereError(Exception):
    """There is no file to compare with; as an exception, since these are not remembered."""


def check_same_types(table: TableFolder, schema: pa.Schema) -> None:
    """Compare with one file that is there; once per process, the schema of a query is fixed.

    Raises:
        SchemaError: If a column has another type there.
    """
    with suppress(_NothingThereError):
        _compare_types(table, schema)


def _some_file(table: TableFolder) -> str:
    found = next(table.visible(), None)
    if found is None:
        raise _NothingThereError
    return found


# A refusal is an exception, which is not remembered: the user may have moved the files.
@lru_cache(maxsize=64)
def _compare_types(table: TableFolder, schema: pa.Schema) -> None:
    existing = _some_file(table)
    # By any case: Spark's reader does not tell columns apart by it.
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
    """Refuse rows that a reader of the whole table would not find. Planner, once in a process.

    Readers take the partition columns of a table from its folders: files beside them, or in other
    folders, are passed over, or refused.

    Raises:
        OptionError: If the files that are there lie in folders of other columns.
    """
    with suppress(_NothingThereError):
        _compare_partitioning(table, partition_by)


@lru_cache(maxsize=64)  # the columns of a query are fixed, and a folder is long to list
def _compare_partitioning(table: TableFolder, partition_by: tuple[str, ...]) -> None:
    there = _some_file(table)
    found = tuple(unquote(part.partition("=")[0]) for part in there.split("/")[:-1] if "=" in part)
    if found != partition_by:
        raise OptionError(
            f"krishiv-parquet: 'partitionBy' is {_listed(partition_by)}, but the files of {table} "
            f"are partitioned by {_listed(found)}, as {table}/{there} shows, and readers would not "
            "find all rows: give the same columns, or write into another folder"
        )


def _listed(columns: Sequence[str]) -> str:
    return ", ".join(map(repr, columns)) or "nothing"
