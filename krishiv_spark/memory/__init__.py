"""Results of ``krishiv-memory`` as Arrow, on the driver's machine.

    sink = df.writeStream.format("krishiv-memory").option("checkpointLocation", ...)
    sink.start("clicks").processAllAvailable() krishiv_spark.memory_table("clicks")

Results are in shared memory (see `krishiv_spark.memory.store`), so they outlive the query and its
session, until `memory_clear` or a restart of the machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from krishiv_spark.errors import OptionError, SchemaError
from krishiv_spark.memory.entry import decode, schemas
from krishiv_spark.memory.results import forget, result_bodies
from krishiv_spark.memory.store import open_store

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = [
    "common_schema",
    "memory_batches",
    "memory_clear",
    "memory_table",
]


def memory_batches(query_or_name: StreamingQuery | str) -> list[pa.RecordBatch]:
    """Return the rows of a memory result, in the order of its epochs. Driver's machine.

    Each epoch is returned completely or not at all. Timestamps are in UTC.

    Args:
        query_or_name: The streaming query, its id, or the name of the result.

    Returns:
        Batches with at least one row each.

    Raises:
        OptionError: If there is no such result, or it has no epoch yet; the message names the
            existing results.
    """
    bodies = result_bodies(open_store(), _key(query_or_name))
    return [batch for body in bodies for batch in decode(body)]


def memory_table(query_or_name: StreamingQuery | str) -> pa.Table:
    """Return the rows of a memory result as one table, with its schema even if there are no rows.

    Args:
        query_or_name: The streaming query, its id, or the name of the result.

    Raises:
        OptionError: As `memory_batches`.
        SchemaError: If a column has changed its type between epochs.
    """
    key = _key(query_or_name)
    bodies = result_bodies(open_store(), key)
    schema = common_schema(key, bodies)
    batches = [batch for body in bodies for batch in decode(body)]
    if all(batch.schema.equals(schema) for batch in batches):
        return pa.Table.from_batches(batches, schema)
    tables = [schema.empty_table(), *(pa.Table.from_batches([batch]) for batch in batches)]
    return pa.concat_tables(tables, promote_options="default")


def memory_clear(query_or_name: StreamingQuery | str) -> None:
    """Remove a memory result. Stop its query first: an active one would start the result again.

    Args:
        query_or_name: The streaming query, its id, or the name of the result.

    Raises:
        OptionError: As `memory_batches`.
    """
    forget(open_store(), _key(query_or_name))


def common_schema(key: str, bodies: list[bytes]) -> pa.Schema:
    """Return a schema with all columns of a result.

    Raises:
        OptionError: If the result has no epoch.
        SchemaError: If a column has changed its type between epochs.
    """
    found = schemas(bodies)
    if not found:
        raise OptionError(f"krishiv-memory: result {key!r} has published nothing yet")
    try:
        return pa.unify_schemas(found)
    except pa.ArrowException as error:
        raise SchemaError(
            f"memory result {key!r} has a column whose type has changed: {error}; read it with "
            "memory_batches(), or remove it with memory_clear()"
        ) from error


def _key(query_or_name: StreamingQuery | str) -> str:
    return query_or_name if isinstance(query_or_name, str) else str(query_or_name.id)
