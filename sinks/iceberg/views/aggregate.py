"""Materialised views from ``foreachBatch``, maintained by the changes of a table. Driver.

The old totals are read from one snapshot, and the new ones are committed only if that is still the
newest snapshot (`ifSnapshot`). So the commit of the sink is the one step that makes a batch
visible. A writer that lost the race starts again with the newest snapshot.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from krishiv_spark.arrow.schemas import arrow_schema
from krishiv_spark.errors import CheckpointMismatch, OptionError
from krishiv_spark.iceberg.catalogs import open_table
from krishiv_spark.iceberg.options import FORMAT, IcebergOptions
from krishiv_spark.sinks.base import CommittedEpoch, Epoch
from krishiv_spark.sinks.each_batch import BatchQuery
from krishiv_spark.sinks.iceberg.committer import EpochCommit
from krishiv_spark.sinks.iceberg.epoch_properties import read_committed_epoch, read_epoch_of_rows
from krishiv_spark.sinks.iceberg.epoch_updates import Append
from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions
from krishiv_spark.sinks.iceberg.table_setup import prepare_table
from krishiv_spark.sinks.iceberg.upserts.key_rule import KeyRule
from krishiv_spark.sinks.iceberg.views.definition import CALLER, KEY, OP, ViewDefinition
from krishiv_spark.sinks.iceberg.views.totals import (
    add_group_keys,
    compute_checksum,
    compute_totals,
)
from krishiv_spark.sinks.numbered import JobNumber, check_same, check_writer, is_done

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession

    from krishiv_spark.sinks.each_batch import BatchQuery

__all__ = ["ViewKeeper", "aggregate"]

_log = logging.getLogger(__name__)
_PROPERTY = "krishiv.view"
_ADAPTIVE = "spark.sql.adaptive.enabled"
_MAX_ATTEMPTS = 10


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
    """Return a function for ``foreachBatch`` that maintains a table of totals, exactly once.

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
    all rows returns: a group is deleted with its last row. The table has further columns, whose
    names begin with ``_``, for the totals of later batches. Each batch is one snapshot.

    Args:
        table: Name of the view's table, ``namespace.name``. This function creates it, and no other
            query may write it.
        by: Columns of the changes whose values, including null, define a group.
        columns: For each name of a view's column, ``count(*)``, or ``count``, ``sum``, ``avg``,
            ``min`` or ``max`` of one column of the changes. Sums and averages accept whole numbers
            and decimals.
        query: Name of the writer, as in `upsert`. Default: the id of Spark's query.
        checkpoint: Location of the query's checkpoint. The query's id is read from it where Spark
            does not provide the id (Spark Connect).
        replaces: As in `upsert`.
        options: Further options of the sink; those with dots as ``**{"catalog.uri": ...}``.

    Returns:
        A function for ``foreachBatch``. On the driver, it raises OptionError if the batch lacks a
        column, ``_weight`` included, or the table is another view or none; SchemaError if a column
        has a type without such a total; CheckpointMismatch if the table does not have exactly the
        earlier batches of this query; and all errors of the sink. Tasks fail if a sum does not fit
        its type, or more rows are deleted than were inserted.

    Raises:
        OptionError: If a function is unknown, or options are wrong.
    """
    view = ViewDefinition.of(by, columns)
    query_of = partial(
        BatchQuery.of, caller="aggregate", name=query, checkpoint=checkpoint, replaces=replaces
    )
    return ViewKeeper(table, view, options, query_of)


class ViewKeeper:
    """A function for ``foreachBatch`` that maintains a view.

    Args:
        table: Name of the view's table.
        view: Definition of the view.
        options: Options of the sink.
        query_of: Returns the query of a batch, as `BatchQuery.of`.

    Raises:
        OptionError: If the options are wrong.
    """

    def __init__(
        self,
        table: str,
        view: ViewDefinition,
        options: Mapping[str, str],
        query_of: Callable[[DataFrame], BatchQuery],
    ) -> None:
        self._table = table
        self._view = view
        self._given = {**options, f"tableProperty.{_PROPERTY}": view.text}
        self._options = IcebergSinkOptions.parse({**self._given, "path": table}, FORMAT)
        self._query_of = query_of

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Commit a batch to the view, unless the view has it."""
        self._view.check(batch.schema)
        found = self._query_of(batch)
        writer, replaces = found.spark_id, found.replaces
        job = JobNumber(found.name, number, "newest", writer=writer, replaces=replaces)
        with _adaptive(batch.sparkSession):
            changes = add_group_keys(batch, self._view).persist()
            try:
                self._commit_batch(changes, job)
            finally:
                changes.unpersist()

    def _commit_batch(self, changes: DataFrame, job: JobNumber) -> None:
        rows = arrow_schema(compute_totals(changes, None, self._view).drop(OP).schema)
        # Limited by number, not by time: computing the totals may take longer than 'commitTimeout'.
        for left in reversed(range(_MAX_ATTEMPTS)):
            table = prepare_table(self._options, rows, self._check_view)
            held = self._find_committed(table, job)
            job = self._with_checksum(job, changes)
            if held is not None:
                check_same(_epoch(job), held)
                _log.warning("batch %d of %s is in the view already: skipped", job.number, job.name)
                return
            base = table.metadata.current_snapshot_id
            try:
                self._write(changes, job, base)
            except Exception:
                # Errors of Spark do not contain the cause: the table shows if a commit was faster.
                if not left or not self._was_overtaken(base, job):
                    raise
            else:
                return

    def _check_view(self, table: Table) -> None:
        """Refuse a table that is not this view.

        Raises:
            OptionError: If the table is another view, or none.
        """
        found = table.metadata.properties.get(_PROPERTY)
        if found == self._view.text:
            return
        is_now, hint = f"is the view {found}", ""
        if found is None:
            is_now = "was not made by this function"
            hint = ". If it was, its catalog does not keep table properties, which a view needs"
        raise OptionError(
            f"{CALLER}: table {self._options.table_name} {is_now}, and cannot become the view "
            f"{self._view.text}: name another table, or drop this one and start with a new "
            f"checkpoint: all rows of the source are read again{hint}"
        )

    def _with_checksum(self, job: JobNumber, changes: DataFrame) -> JobNumber:
        """Return the job with a checksum of its changes, unless it has one or none is wanted.

        The number alone does not identify the changes: a new checkpoint, and one that was rolled
        back, give the number of the newest batch to other rows.
        """
        if not self._options.txn_compare or job.rows is not None:
            return job
        return replace(job, rows=compute_checksum(changes, self._view))

    def _find_committed(self, table: Table, job: JobNumber) -> CommittedEpoch | None:
        """Return the committed epoch if the table has the batch.

        Raises:
            CheckpointMismatch: If the table lacks an earlier batch, or has those of another query.
        """
        mark = read_committed_epoch(table.metadata, job.name)
        check_writer(job, mark)
        if is_done(job, mark):
            return mark
        if mark is None and table.metadata.current_snapshot_id is not None:
            raise CheckpointMismatch(
                f"{CALLER}: {self._options.table_name} is maintained by another query or "
                f"checkpoint than {job.name}, whose batches would be counted again: continue "
                "with that one, or name another table, or drop this one"
            )
        newest = -1 if mark is None else mark.epoch
        of_rows = read_epoch_of_rows(table.metadata, job.name)
        if newest != job.number - 1 or of_rows not in {None, newest}:
            raise CheckpointMismatch(
                f"{CALLER}: batch {job.number} of {job.name} does not follow the newest batch "
                f"in {self._options.table_name}, {newest if of_rows is None else of_rows}: the "
                "table was recreated or rolled back, or the function was not called for each "
                "batch; start with a new checkpoint and no table: all rows of the source are "
                "read again"
            )
        return None

    def _was_overtaken(self, base: int | None, job: JobNumber) -> bool:
        """Return True if another writer has changed the table: another attempt may succeed."""
        metadata = open_table(self._options).metadata
        is_held = is_done(job, read_committed_epoch(metadata, job.name))
        return not is_held and metadata.current_snapshot_id != base

    # --- writing

    def _write(self, changes: DataFrame, job: JobNumber, base: int | None) -> None:
        """Commit the totals of a snapshot and these changes, if it is still the newest."""
        told: dict[str, str | int] = {
            "mode": "upsert",
            "keyColumns": KEY,
            "opColumn": OP,
            "txnAppId": job.name,
            "txnVersion": job.number,
            "txnRepeats": job.repeats,
            # Totals of the same changes differ between snapshots, so the changes are compared.
            "txnCompare": "false" if job.rows is None else "true",
            "ifSnapshot": "none" if base is None else base,
        }
        more = {"txnRows": job.rows, "txnQueryId": job.writer, "txnReplaces": job.replaces}
        told |= {name: text for name, text in more.items() if text is not None}
        with contextlib.ExitStack() as stack:
            touched = self._read_touched(changes, base)
            if touched is not None:  # several columns are computed from it
                stack.callback(touched.persist().unpersist)
            totals = compute_totals(changes, touched, self._view)
            writer = totals.write.format(FORMAT).mode("append").options(**self._given)
            writer.options(**told).save(self._table)
        table = open_table(self._options)
        if not is_done(job, read_committed_epoch(table.metadata, job.name)):
            self._commit_empty_batch(table, job, base)

    def _read_touched(self, changes: DataFrame, snapshot: int | None) -> DataFrame | None:
        """Read the rows of a snapshot whose groups have changes; None without a snapshot."""
        if snapshot is None:
            return None
        reader = changes.sparkSession.read.format(FORMAT)
        reader = reader.options(**IcebergOptions.select(self._given))
        rows = reader.option("snapshot-id", snapshot).load(self._table)
        return rows.join(changes.select(KEY).distinct(), KEY, "left_semi")

    def _commit_empty_batch(self, table: Table, job: JobNumber, base: int | None) -> None:
        """Commit the epoch of a batch without rows, which the sink does not record.

        With the epoch of each batch, a table that lacks a batch is detected.
        """
        options = self._options.model_copy(update={"if_snapshot": "none" if base is None else base})
        update = Append(())
        # Without rows, no key can occur twice.
        rule = KeyRule(options, (KEY,), replaces=False, query=job.name, is_decided=True)
        EpochCommit(options, _epoch(job), update, rule).run(table)


def _epoch(job: JobNumber) -> Epoch:
    return Epoch(job.name, job.number, offsets=job.offsets)


@contextlib.contextmanager
def _adaptive(spark: SparkSession) -> Iterator[None]:
    """Let Spark choose the number of tasks by the amount of data.

    The session of a query disables this for its states. Here are no states, and each step would
    have the 200 tasks of ``spark.sql.shuffle.partitions``.
    """
    before = spark.conf.get(_ADAPTIVE)
    spark.conf.set(_ADAPTIVE, "true")
    try:
        yield
    finally:
        if before is not None:
            spark.conf.set(_ADAPTIVE, before)
