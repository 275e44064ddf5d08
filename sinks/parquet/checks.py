"""What is refused before any row moves. Planner."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from krishiv_spark.arrow import STAND_INS, plain_schema, stands_for
from krishiv_spark.durable import make_folder
from krishiv_spark.errors import OptionError, SchemaError
from krishiv_spark.names import twins
from krishiv_spark.nested import children
from krishiv_spark.parquet.layout import visible_files
from krishiv_spark.parquet.names import is_hidden

__all__ = ["check_columns", "check_same_types", "check_writable"]


def check_columns(schema: pa.Schema, partition_by: Sequence[str]) -> None:
    """Refuse columns that cannot partition, or that Spark's own reader would not get back.

    Raises:
        OptionError: If it is a column of ``partitionBy``, or if that leaves none.
        SchemaError: If Parquet or Spark's reader cannot hold a column.
    """
    for name in partition_by:
        if name not in schema.names:
            raise OptionError(
                f"krishiv-parquet: option 'partitionBy' names column {name!r}, but there are "
                f"{', '.join(schema.names)}"
            )
        _check_partition(name, schema.field(name).type)
    if len(set(partition_by)) == len(schema.names):
        raise OptionError("krishiv-parquet: 'partitionBy' leaves no column for the files")
    _check_fields(list(schema))


def _check_partition(name: str, kind: pa.DataType) -> None:
    reason = None
    if pa.types.is_nested(kind):
        reason = "is nested"
    elif pa.types.is_binary(kind):
        reason = "is binary (use hex(...): Spark's reader does not get all bytes back)"
    elif is_hidden(f"{name}="):
        reason = "has a name with a dot in front (readers pass over folders that begin with one)"
    if reason is not None:
        raise OptionError(f"krishiv-parquet: column {name!r} {reason} and cannot partition")


def _check_fields(fields: Sequence[pa.Field], above: str = "") -> None:
    """Refuse what Spark's own reader would not get back."""
    pair = twins(field.name for field in fields)
    if pair is not None:
        one, other = (above + name for name in pair)
        raise SchemaError(
            f"columns {one!r} and {other!r} differ by nothing but case, by which Spark's reader "
            "does not tell columns apart: rename one of them"
        )
    for field in fields:
        _check_type(above + field.name, field.type)


def _check_type(name: str, kind: pa.DataType) -> None:
    foreign = stands_for(kind)
    if pa.types.is_duration(kind):
        raise SchemaError(f"column {name!r} is an interval, which Parquet cannot hold: cast it")
    if foreign is not None:
        advice = STAND_INS[foreign]
        raise SchemaError(f"column {name!r} is a {foreign}, which this sink cannot hold: {advice}")
    if pa.types.is_struct(kind):
        _check_fields(children(kind), f"{name}.")
    elif pa.types.is_list(kind):
        _check_type(f"{name}.element", kind.value_type)
    elif pa.types.is_map(kind):
        _check_type(f"{name}.key", kind.key_type)
        _check_type(f"{name}.value", kind.item_type)


def check_writable(table: Path) -> None:
    """Make the table's folder, if it is not there.

    Raises:
        OptionError: If it cannot be made, or not be written.
    """
    try:
        make_folder(table)
    except OSError as error:
        raise OptionError(f"krishiv-parquet: 'path' {table} cannot be made: {error}") from error
    if not os.access(table, os.W_OK | os.X_OK):
        raise OptionError(f"krishiv-parquet: 'path' {table} cannot be written: permission denied")


# A refusal is an exception, which is not remembered: the user may have moved the files.
@lru_cache(maxsize=64)
def check_same_types(table: Path, schema: pa.Schema) -> None:
    """Compare with one file that is there; once per process, the schema of a query is fixed.

    Raises:
        SchemaError: If a column has another type there.
    """
    existing = next(visible_files(table), None)
    if existing is None:
        return
    found = _schema_of(existing)
    for field in schema:
        index = found.get_field_index(field.name)
        if index >= 0 and found.field(index).type != field.type:
            raise SchemaError(
                f"column {field.name!r} is {field.type}, but {found.field(index).type} in "
                f"{existing}: cast it, or write into another folder"
            )


def _schema_of(file: Path) -> pa.Schema:
    try:
        return plain_schema(pq.read_schema(file))
    except (pa.ArrowException, OSError):
        return pa.schema([])  # a damaged file, or one that is just being removed, says nothing
