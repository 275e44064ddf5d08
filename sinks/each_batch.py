"""Functions for ``foreachBatch`` whose outputs are exactly once: `each_batch` and `upsert`."""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from krishiv_spark.errors import CheckpointMismatch, OptionError, StorageError
from krishiv_spark.runtime.caches import LruCache
from krishiv_spark.spark.checkpoint import QUERY_ID_PROPERTY, SparkCheckpoint, checked_id
from krishiv_spark.spark.jvm import running_query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter

__all__ = ["BatchQuery", "each_batch", "upsert", "upsert_by_options"]


_log = logging.getLogger(__name__)

_REST_S = 600.0
"""Time until a checkpoint that cannot be read here is tried again."""

_next_look_s: LruCache[tuple[str, str, bool], float] = LruCache(64)
"""The time when a checkpoint is read again, by location, query, and whether the id is stored there;
infinite if it is known to be the query's."""

_PROCESS = uuid.uuid4().hex
"""Identifies the start of a query if Spark does not: Spark Connect has a process for each."""

Write: TypeAlias = "Callable[..., DataFrameWriter]"


def each_batch(
    function: Callable[[DataFrame, Write], object],
    *,
    query: str | None = None,
    checkpoint: str | None = None,
    cache: bool = True,
    replaces: str | None = None,
) -> Callable[[DataFrame, int], None]:
    """Return a function for ``foreachBatch`` that may write each batch to several sinks, once.

        def write_orders(batch, write):
            write(batch.where("valid"), "good").format("krishiv-parquet").save("/data/orders")
            write(batch.where("not valid"), "bad").format("krishiv-kafka").options(...).save()

        orders.writeStream.foreachBatch(krishiv_spark.each_batch(write_orders)).option(
            "checkpointLocation", ...
        ).start()

    Spark repeats its last batch after a restart. Each output is identified by the query's id and
    its own name, and skips a batch that it already has; so only outputs that the crash prevented
    are written. Repeated rows are compared with the written ones by count and checksum (see
    `BatchMismatch`).

    This is exactly once for the formats ``krishiv-parquet``, ``-kafka``, ``-iceberg`` and
    ``-memory``, and for others that support the options ``txnAppId`` and ``txnVersion``, such as
    Delta's.

    Args:
        function: Called on the driver with each batch, and with ``write(frame, name)``, which
            returns the frame's ``DataFrameWriter`` in mode "append". The name, of up to 60 letters,
            digits, '-' and '_', must always be the same for an output; "output" if a batch has only
            one.
        query: A permanent name of this query, which replaces the id of Spark's query. The outputs
            store that id too, and refuse another query or checkpoint with the name.
        checkpoint: Location of the query's checkpoint, in which ``krishiv-kafka`` has its epoch
            logs; required if Spark does not report it, nor the query's id (Spark Connect); the id
            is then read there.
        cache: True if the batch is cached until it is written, so that it is computed once for
            several outputs, which receive the same rows. A batch with one output needs no copy.
        replaces: Spark's id of an earlier query of the name `query`, which this one continues: with
            a copy of its checkpoint, or a new one. The earlier query no longer runs.

    Raises (from the returned function):
        OptionError: If the id of the query is not known, or a name is used twice in a batch.
        CheckpointMismatch: If the checkpoint belongs to a query with another id, because its file
            ``metadata`` was lost: the outputs would not recognize their batches. If another query
            has written under the name `query`. If an output lacks a batch that was committed to it,
            because its target was restored from an older copy.
    """

    def write_batch(batch: DataFrame, number: int) -> None:
        found = BatchQuery.of(batch, "each_batch", query, checkpoint, replaces)
        outputs = _Outputs(found, number)
        if not cache:
            function(batch, outputs.write)
            return
        kept = batch.persist()
        try:
            function(kept, outputs.write)
        finally:
            kept.unpersist()

    return write_batch


class _Outputs:
    """The outputs of one batch. Driver."""

    def __init__(self, query: BatchQuery, number: int) -> None:
        self._query = query
        self._number = number
        self._names: dict[str, object] = {}

    def write(self, frame: DataFrame, name: str = "output") -> DataFrameWriter:
        """Return the writer of an output, still without a format."""
        try:
            checked_id(name)
        except ValueError as error:
            raise OptionError(f"each_batch: write(..., {name!r}): {error}") from error
        call = object()  # one step, since a function may write its outputs in threads
        if self._names.setdefault(name, call) is not call:
            raise OptionError(
                f"each_batch: two outputs of a batch are called {name!r}, and the second would "
                "be mistaken for the first: give each its own name, write(frame, 'name')"
            )
        given = self._query.options(self._number, output=name)
        if self._query.location is not None:
            given["checkpointLocation"] = self._query.location
        return frame.write.mode("append").options(**given)


@dataclass(frozen=True)
class BatchQuery:
    """The identity of the query around ``foreachBatch``, for its sinks. Driver.

    Attributes:
        name: The name by which sinks identify its batches: the user's, or Spark's id.
        spark_id: Spark's id, if it is known and differs from the name.
        location: The location of its checkpoint, if it is known.
        is_readable: True if this process has verified there that the checkpoint is the query's.
        run: A text that differs for each start of the query.
        replaces: Spark's id of the query with that name that this one continues.
    """

    name: str
    spark_id: str | None
    location: str | None
    is_readable: bool
    run: str
    replaces: str | None

    @classmethod
    def of(
        cls,
        batch: DataFrame,
        caller: str,
        name: str | None,
        checkpoint: str | None,
        replaces: str | None = None,
    ) -> BatchQuery:
        """Return the query that runs in this thread.

        For a query without a name, Spark's id is stored in its checkpoint, or compared with the
        stored one.

        Args:
            batch: The batch of the query.
            caller: The function that the user called, for the message.
            name: The user's name of the query, if it has one.
            checkpoint: Location of the checkpoint, which contains the id too. By default the one
                that Spark reports, if it does.
            replaces: As the attribute.

        Raises:
            OptionError: If the query has no name, and its id is not known here.
            CheckpointMismatch: If it has no name, and the checkpoint is that of another query.
        """
        known_location, run = _running_in(batch)
        location = checkpoint or known_location
        if name is None:
            found = _find_id(batch, caller, checkpoint)
            is_readable = location is not None and _verify_checkpoint(location, found)
            return cls(found, None, location, is_readable, run, replaces)
        named = _id_in_context(batch)
        if named is None and checkpoint is not None:
            named = _id_if_readable(checkpoint)
        is_readable = (
            named is not None
            and location is not None
            and _verify_checkpoint(location, named, stores=False)
        )
        return cls(name, named, location, is_readable, run, replaces)

    def options(self, number: int, *, output: str | None = None) -> dict[str, str]:
        """Return the options of a sink for one batch, or for one of its outputs by name."""
        given = {
            "txnAppId": self.name if output is None else f"{self.name}-{output}",
            "txnVersion": str(number),
            "txnRepeats": "newest",
        }
        if self.spark_id is not None:
            given["txnQueryId"] = self.spark_id
        if self.replaces is not None:
            given["txnReplaces"] = self.replaces
        if self.is_readable and self.location is not None:
            given |= {"txnCheckpoint": self.location, "txnRun": self.run}
        return given


def _find_id(batch: DataFrame, caller: str, checkpoint: str | None) -> str:
    """Return Spark's id of the query, by the thread or by its checkpoint.

    Raises:
        OptionError: If neither contains it.
    """
    found = _id_in_context(batch)
    if found is None and checkpoint is not None:
        found = SparkCheckpoint(checkpoint).query_id()
    if found is None:
        raise OptionError(
            f"{caller}: the id of the query is not known here (Spark Connect does not report "
            f"it): give {caller}(..., checkpoint='path of the checkpoint')"
        )
    return found


def _id_if_readable(checkpoint: str) -> str | None:
    """Return the id in a checkpoint; None if it cannot be read."""
    try:
        return SparkCheckpoint(checkpoint).query_id()
    except (CheckpointMismatch, OptionError, OSError, StorageError):
        return None


def _id_in_context(batch: DataFrame) -> str | None:
    context = getattr(batch.sparkSession, "_sc", None)
    found = None if context is None else context.getLocalProperty(QUERY_ID_PROPERTY)
    return None if found is None else str(found)


def _verify_checkpoint(location: str, query: str, *, stores: bool = True) -> bool:
    """Return True if a location is readable here and has the checkpoint of a query.

    Spark may reach stores that this process cannot, and the user's location may be in another file
    system or belong to another query: then nothing is stored in it, and the query continues. A
    failed check may take seconds, so it is repeated only after a pause.

    Args:
        location: The location of the checkpoint.
        query: Spark's id of the query.
        stores: True if the id is stored there, or compared with the stored one. False for a query
            that its sinks know by another name.

    Raises:
        CheckpointMismatch: If another id is stored there.
    """
    key = location, query, stores
    next_s = _next_look_s.get(key) or 0.0
    if time.monotonic() < next_s:
        return next_s == math.inf
    checkpoint = SparkCheckpoint(location)
    try:
        named = checkpoint.query_id()
        why: object = f"its file 'metadata' names query {named}, and this one is {query}"
        if named == query:
            if stores:
                checkpoint.record_query_id(query)
            _next_look_s.put(key, math.inf)
            return True
    except (OptionError, OSError, StorageError) as error:
        why = error
    except CheckpointMismatch as error:
        if stores:
            raise
        why = error
    _next_look_s.put(key, time.monotonic() + _REST_S)
    _log.warning(
        "the checkpoint %s cannot be read here: %s. The query continues; but if the file "
        "'metadata' in it is lost, or a target is restored from an older copy, that will not "
        "be noticed",
        location,
        why,
    )
    return False


def _running_in(batch: DataFrame) -> tuple[str | None, str]:
    """Return the checkpoint's location of the running query, and Spark's id of its start.

    Spark shows neither to users; ``StreamExecution`` and ``SharedState`` have them.
    """
    try:
        running = running_query(batch.sparkSession, _id_in_context(batch) or "")
        return str(running.resolvedCheckpointRoot()), str(running.runId())
    except Exception:  # noqa: BLE001  versions of Spark differ; users can give the location
        return None, _PROCESS


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
    """Return a function for ``foreachBatch`` that upserts each batch, exactly once.

        counts.writeStream.outputMode("update").foreachBatch(
            krishiv_spark.upsert("db.counts", "word", warehouse="/data/warehouse")
        ).option("checkpointLocation", ...).start()

    Of several rows of a batch with the same key, the last one in Spark's order is kept, which is
    not the order of files; in Iceberg tables it is the one with the highest `orderColumn`, if that
    is set. After ``groupBy`` a batch has one row for each key.

    Spark repeats its last batch after a restart; the table recognizes it by the query and its
    number.

    Args:
        table: Name of the table, ``namespace.name``; or of the result in memory.
        keys: Columns that identify a row.
        format: ``krishiv-iceberg`` or ``krishiv-memory``.
        query: Name of the query, the same after each restart. By default it is the id of Spark's
            query. The table stores that id beside a name, so that another query with the name is
            refused.
        checkpoint: Location of the query's checkpoint, where its id is read if Spark does not
            report it (Spark Connect).
        replaces: Spark's id of an earlier query of the name `query`, which this one continues: with
            a copy of its checkpoint, or a new one. The earlier query no longer runs.
        options: Further options of the sink; those with dots as ``**{"catalog.uri": ...}``.

    Returns:
        The argument of ``foreachBatch``. Called on the driver, it raises OptionError if the query's
        id is not known, CheckpointMismatch if the table has a later batch of the query, lacks one
        that was committed, or was written by another query of its name, and the errors of the sink.
    """
    names = keys if isinstance(keys, str) else ",".join(keys)
    options |= {"mode": "upsert", "keyColumns": names}
    identity = {"name": query, "checkpoint": checkpoint, "replaces": replaces}
    return upsert_by_options(format, options, identity, table)


def upsert_by_options(
    format: str,  # noqa: A002  as Spark's own argument
    options: Mapping[str, str],
    identity: Mapping[str, str | None],
    table: str | None = None,
) -> Callable[[DataFrame, int], None]:
    """Return the function of `upsert`. Spark Connect sends it to the server.

    Args:
        format: As for `upsert`.
        options: All options of the sink, with the mode and the keys.
        identity: The arguments of `BatchQuery.of` that identify the query.
        table: As for `upsert`; None if the options name it.
    """

    def write(batch: DataFrame, number: int) -> None:
        writer = batch.write.format(format).mode("append").options(**options)
        found = BatchQuery.of(batch, "upsert", **identity)
        writer.options(**found.options(number)).save(table)

    return write
