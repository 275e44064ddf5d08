"""Materialised views from ``foreachBatch``, kept by the changes of a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from krishiv_spark.sinks.each_batch import BatchQuery
from krishiv_spark.sinks.iceberg.views.definition import ViewDefinition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["aggregate"]


def aggregate(  # noqa: PLR0913  the user's words; all but three are keywords with defaults
    table: str,
    by: str | Sequence[str],
    columns: Mapping[str, str],
    *,
    query: str | None = None,
    checkpoint: str | None = None,
    replaces: str | None = None,
    **options: str,
) -> Callable[[DataFrame, int], None]:
    """A function for ``foreachBatch`` that keeps an Iceberg table of totals, exactly once.

        changes = (
            spark.readStream.format("krishiv-iceberg")
            .option("warehouse", "/data/warehouse")
            .option("readChanges", "true")
            .load("db.orders")
        )
        changes.writeStream.foreachBatch(
            krishiv_spark.aggregate(
                "db.totals",
                by="region",
                columns={"n": "count(*)", "total": "sum(amount)", "top": "max(amount)"},
                warehouse="/data/warehouse",
            )
        ).option("checkpointLocation", ...).start()

    After each batch the table has what ``SELECT region, count(*) AS n, ... GROUP BY region`` over
    all rows gives: a group whose last row has gone has gone too. The table has further columns,
    whose names begin with ``_``, from which that is kept. Each batch is one snapshot.

    Args:
        table: Name of the view's table, ``namespace.name``. It is made by this function, and
            written by no other query.
        by: Columns of the changes whose values make a group, null included.
        columns: By name of the view's column, ``count(*)``, or ``count``, ``sum``, ``avg``,
            ``min`` or ``max`` of one column of the changes, which is written as it is there. Sums
            and averages are of whole numbers and decimals.
        query: As in `upsert`: who writes; the id of Spark's query by default.
        checkpoint: Location of the query's checkpoint, where its id is read if Spark does not tell
            it (Spark Connect).
        replaces: As in `upsert`.
        options: Further options of the sink; those with dots as ``**{"catalog.uri": ...}``.

    Returns:
        What ``foreachBatch`` takes. Called on the driver, it raises OptionError if a column is not
        among the batch's, ``_weight`` included, or the table is no view of this kind, SchemaError
        if a total cannot be kept of a column's type, CheckpointMismatch if the table does not have
        exactly the batches of this query before this one, and whatever the sink raises. Tasks fail
        where a sum does not fit its type, or more rows go than have come.

    Raises:
        OptionError: If a function is not known, or options are wrong.
    """
    from krishiv_spark.sinks.iceberg.views.keeper import ViewKeeper

    view = ViewDefinition.of(by, columns)
    query_of = partial(
        BatchQuery.of, caller="aggregate", name=query, checkpoint=checkpoint, replaces=replaces
    )
    return ViewKeeper(table, view, options, query_of)
