"""Upserts from ``foreachBatch``, for Spark's output mode "update"."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from krishiv_spark.sinks.each_batch import id_of_query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["upsert"]


def upsert(
    table: str,
    keys: str | Sequence[str],
    *,
    format: str = "krishiv-iceberg",  # noqa: A002  Spark's own word for it
    query: str | None = None,
    checkpoint: str | None = None,
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
        query: Who writes: the same after each restart, and no other query's into this table, nor
            that of an older checkpoint, whose numbers would be taken for these. By default the
            id of Spark's query.
        checkpoint: Location of the query's checkpoint, where its id is read if Spark does not tell
            it (Spark Connect).
        options: Further options of the sink; those with dots as ``**{"catalog.uri": ...}``.

    Returns:
        What ``foreachBatch`` takes. Called on the driver, it raises OptionError if the query's id
        is not known, CheckpointMismatch if the table holds a later batch of the query, and whatever
        the sink raises.
    """
    names = keys if isinstance(keys, str) else ",".join(keys)

    def write(batch: DataFrame, number: int) -> None:
        writer = batch.write.format(format).mode("append").options(**options)
        writer = writer.option("mode", "upsert").option("keyColumns", names)
        name = query or id_of_query(batch, "upsert", checkpoint)
        writer = writer.option("txnAppId", name).option("txnVersion", number)
        writer.option("txnRepeats", "newest").save(table)

    return write
