"""A schema of JSON values, from some of them. Driver."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.json as pj

from krishiv_spark.arrow.schemas import plain_schema, spark_schema
from krishiv_spark.errors import SchemaError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["sampled_schema"]


def sampled_schema(values: DataFrame, shown: str) -> str:
    """The fields of the values of a bounded frame, as Spark writes columns.

    Args:
        values: One binary column, of a batch that ends.
        shown: Where they are from, for the message.

    Raises:
        SchemaError: If there is none, or one is no JSON object.
    """
    column = values.toArrow().column(0).drop_null()
    lines = b"\n".join(value.as_py().replace(b"\n", b" ") for value in column)
    if not lines:
        raise SchemaError(
            f"{shown}: there is no value yet from which fields could be found: give 'schema', as "
            "'id BIGINT, name STRING'"
        )
    try:
        found = pj.read_json(io.BytesIO(lines)).schema
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaError(
            f"{shown}: not all of the values that were sampled are JSON objects: give 'schema', "
            f"as 'id BIGINT, name STRING' ({str(error).partition(chr(10))[0]})"
        ) from None
    fields = spark_schema(plain_schema(pa.schema([_known(field) for field in found])))
    return ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in fields)


def _known(field: pa.Field) -> pa.Field:
    """Times look like texts in JSON, and stay such; what was null always may be any text."""
    is_text = pa.types.is_temporal(field.type) or pa.types.is_null(field.type)
    return field.with_type(pa.string()) if is_text else field
