"""Upserts from ``foreachBatch``, for Spark's output mode "update"."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from krishiv_spark.sinks.each_batch import BatchQuery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["upsert"]


def upsert(  # noqa: PLR0913  the user's words; all but two are keywords with defaults
    table: str,
    keys: str | Sequence[str],
    *,
    format: str = "krishiv-iceberg",  # noqa: A002  Spark's own word for it
    query: str | None = None,
    checkpoint: str | None = None,
    replaces: str | None = None,
    **options: str,
) -> Callable[[DataFrame, int], None]:
    """A function for ``foreachBatch`` that upserts each batch, exactly once.

        counts.writeStream.outputMode("update").foreachBatch(
            krishiv_spark.upsert("db.counts", "word", warehouse="/data/warehouse")
        ).option("checkpointLocation", ...).start()

    Of several rows of a batch that have one key the last one in Spark's order stays, which is not
    the order of files; in Iceberg tables that with the highest `orderColumn`, if that is given.
    After ``groupBy`` a batch has one row for each key.

    Spark repeats its last batch after a restart; the table knows by the query and the number of
    the batch that it has it already.

    Args:
        table: Name of the table, ``namespace.name``; or of the result in memory.
        keys: Columns that identify a row.
        format: ``krishiv-iceberg`` or ``krishiv-memory``.
        query: Name of the query, the same after each restart. By default the id of Spark's query,
            which the table keeps beside a name, so that another query of the name is refused.
        checkpoint: Location of the query's checkpoint, where its id is read if Spark does not tell
            it (Spark Connect).
        replaces: Spark's id of an earlier query of the name `query`, which this one continues: with
            a copy of its checkpoint, or a new one. It does not run any more.
        options: Further options of the sink; those with dots as ``**{"catalog.uri": ...}``.

    Returns:
        What ``foreachBatch`` takes. Called on the driver, it raises OptionError if the query's id
        is not known, CheckpointMismatch if the table holds a later batch of the query, lacks one
        that was committed, or was written by another query of its name, and whatever the sink
        raises.
    """
    names = keys if isinstance(keys, str) else ",".join(keys)

    def write(batch: DataFrame, number: int) -> None:
        writer = batch.write.format(format).mode("append").options(**options)
        writer = writer.option("mode", "upsert").option("keyColumns", names)
        found = BatchQuery.of(batch, "upsert", query, checkpoint, replaces)
        writer.options(**found.options(number)).save(table)

    return write
