"""The columns of rows and of a table, compared by name in any order.

PyIceberg's own check accepts types that lose values later: another scale of a decimal, binary as a
string. So this module has the rules of the spec ("Schema Evolution", type promotion).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from krishiv_spark.arrow.compute import children
from krishiv_spark.arrow.schemas import STAND_INS, stands_for
from krishiv_spark.errors import CommitRejected, SchemaError
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.sinks import column_policy
from krishiv_spark.sinks.column_policy import Evolution, SchemaUpdate

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata

__all__ = [
    "Evolution",
    "SchemaUpdate",
    "check_columns",
    "get_manifest_schema",
    "to_arrow_columns",
    "to_iceberg_columns",
]


def to_iceberg_columns(rows: pa.Schema) -> pa.Schema:
    """Convert the columns of rows to the types of Iceberg, for a new table.

    All are optional, as in tables that Spark creates (``CREATE TABLE AS SELECT``): rows of later
    queries may have nulls.

    Raises:
        SchemaError: If a column has a type that Iceberg does not support.
    """
    return pa.schema([_to_iceberg_field(field, field.name) for field in rows])


def _to_iceberg_field(field: pa.Field, path: str) -> pa.Field:
    return pa.field(field.name, _to_iceberg_type(field.type, path))


def _to_iceberg_type(kind: pa.DataType, path: str) -> pa.DataType:
    if pa.types.is_struct(kind):
        foreign = stands_for(kind)
        if foreign is not None:
            raise _to_type_error(path, f"a {foreign}", STAND_INS[foreign])
        fields = children(kind)
        return pa.struct([_to_iceberg_field(field, f"{path}.{field.name}") for field in fields])
    if pa.types.is_list(kind):
        return pa.list_(_to_iceberg_field(kind.value_field, f"{path}.element"))
    if pa.types.is_map(kind):
        value = _to_iceberg_field(kind.item_field, f"{path}.value")
        return pa.map_(_to_iceberg_type(kind.key_type, f"{path}.key"), value)
    if pa.types.is_int8(kind) or pa.types.is_int16(kind):
        return pa.int32()
    if pa.types.is_time(kind):
        return pa.time64("us")
    if pa.types.is_duration(kind):
        raise _to_type_error(path, "an interval", "cast it to a number or a string")
    if pa.types.is_null(kind):
        raise _to_type_error(path, "without a type (void)", "cast it to the intended type")
    return kind


def _to_type_error(path: str, what: str, advice: str) -> SchemaError:
    return SchemaError(
        f"{FORMAT}: column {path!r} is {what}, which Iceberg does not support: {advice}"
    )


def to_arrow_columns(schema: Schema) -> pa.Schema:
    """Convert a table's columns to Arrow, in the table's order, with field ids."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    columns = schema_to_pyarrow(schema, include_field_ids=True)
    return pa.schema([field.with_type(_with_small_offsets(field.type)) for field in columns])


def _with_small_offsets(kind: pa.DataType) -> pa.DataType:
    """Return a type with small offsets, as Spark has them, for strings and lists."""
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct(
            [field.with_type(_with_small_offsets(field.type)) for field in children(kind)]
        )
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_with_small_offsets(kind.value_type)))
    if pa.types.is_map(kind):
        key, value = kind.key_field, kind.item_field
        return pa.map_(
            key.with_type(_with_small_offsets(key.type)),
            value.with_type(_with_small_offsets(value.type)),
        )
    return kind


def check_columns(
    rows: pa.Schema, table: pa.Schema, name: str, evolution: Evolution = "none"
) -> list[SchemaUpdate]:
    """Refuse rows that do not fit the table; see `column_policy.check_columns`."""
    return column_policy.check_columns(
        to_iceberg_columns(rows), table, f"{FORMAT}: rows do not fit table {name}", evolution
    )


# --- columns of partitions


def get_manifest_schema(metadata: TableMetadata, spec: PartitionSpec) -> Schema:
    """Return the schema for manifests of a partition spec: it has the type of each partition value.

    That is the table's current schema, and the columns of the partitions that were dropped from it.
    For a dropped column, PyIceberg would give the values of the partition the type "unknown", and
    then either fail or write a manifest that it cannot read.

    Raises:
        CommitRejected: If no schema in the metadata has such a column.
    """
    from pyiceberg.schema import Schema
    from pyiceberg.types import NestedField

    schema = metadata.schema()
    missing = {field.source_id for field in spec.fields} - schema.field_ids
    if not missing:
        return schema
    restored = []
    for field_id in sorted(missing):
        older = (one for one in reversed(metadata.schemas) if field_id in one.field_ids)
        found = next(older, None)
        if found is None:
            raise CommitRejected(
                f"{FORMAT}: the table at {metadata.location!r} has files whose partitions (spec "
                f"{spec.spec_id}) are values of a column that was dropped (field {field_id}), and "
                "its metadata no longer has the column's type. Nothing was committed. Have the "
                "engine that dropped the column rewrite the data files"
            )
        kind = found.find_field(field_id).field_type
        restored.append(NestedField(field_id, f"dropped_{field_id}", kind, required=False))
    return Schema(*schema.fields, *restored, schema_id=schema.schema_id)
