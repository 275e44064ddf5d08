"""``foreachBatch`` with outputs that are exactly once: by query, batch and a name of their own."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from krishiv_spark.checkpoint import QUERY_ID_PROPERTY, SparkCheckpoint, checked_id
from krishiv_spark.errors import OptionError, StorageError
from krishiv_spark.jvm import running_query
from krishiv_spark.lru import LruCache

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter

__all__ = ["each_batch", "id_of_query"]

_log = logging.getLogger(__name__)

_REST_S = 600.0
"""Time until a checkpoint that cannot be read here is tried again."""

_next_look_s: LruCache[tuple[str, str], float] = LruCache(64)
"""By location and query, when the checkpoint is looked at again; infinite once the id is stored."""

Write: TypeAlias = "Callable[..., DataFrameWriter]"


def each_batch(
    function: Callable[[DataFrame, Write], object],
    *,
    query: str | None = None,
    checkpoint: str | None = None,
    cache: bool = True,
) -> Callable[[DataFrame, int], None]:
    """A function for ``foreachBatch`` that may write each batch to several sinks, exactly once.

        def write_orders(batch, write):
            write(batch.where("valid"), "good").format("krishiv-parquet").save("/data/orders")
            write(batch.where("not valid"), "bad").format("krishiv-kafka").options(...).save()

        orders.writeStream.foreachBatch(krishiv_spark.each_batch(write_orders)).option(
            "checkpointLocation", ...
        ).start()

    Spark repeats its last batch after a restart. Each output is known by the query's id and its
    own name, and skips, whole, a batch that it holds; so those that the crash came before are
    written, and no other. Rows that come again are compared with those that were written, by count
    and checksum (see `BatchMismatch`).

    Exactly once are the formats ``krishiv-parquet``, ``-kafka``, ``-iceberg`` and ``-memory``, and
    others that know the options ``txnAppId`` and ``txnVersion``, such as Delta's.

    Args:
        function: Called on the driver with each batch, and with ``write(frame, name)``, which
            returns the frame's ``DataFrameWriter`` in mode "append". The name, of up to 60 letters,
            digits, '-' and '_', is the output's for ever; "output" if a batch has only one.
        query: A name that is this query's for ever, where a new checkpoint is to go on with what
            the sinks hold, or where nobody tells its id.
        checkpoint: Location of the query's checkpoint, in which ``krishiv-kafka`` has its epoch
            logs; needed where Spark does not tell it (Spark Connect), nor the query's id, which is
            then read there.
        cache: Whether the batch is kept until it is written, so that several outputs compute it
            once, and see the same rows. A batch with one output needs no copy.

    Raises (from the returned function):
        OptionError: If the id of the query is not known, or a name is used twice in a batch.
        CheckpointMismatch: If the checkpoint is that of a query with another id, since its file
            ``metadata`` was lost: the outputs would not know what they hold.
    """

    def write_batch(batch: DataFrame, number: int) -> None:
        outputs = _Outputs(query or id_of_query(batch, "each_batch", checkpoint), number)
        outputs.checkpoint = checkpoint or _checkpoint_of(batch)
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
    """Those of one batch. Driver."""

    checkpoint: str | None = None

    def __init__(self, query: str, number: int) -> None:
        self._query = query
        self._number = number
        self._names: set[str] = set()

    def write(self, frame: DataFrame, name: str = "output") -> DataFrameWriter:
        """The writer of an output, which has yet to be given its format."""
        try:
            checked_id(name)
        except ValueError as error:
            raise OptionError(f"each_batch: write(..., {name!r}): {error}") from error
        if name in self._names:
            raise OptionError(
                f"each_batch: two outputs of a batch are called {name!r}, of which the second "
                "would be taken for the first: give each a name of its own, write(frame, 'name')"
            )
        self._names.add(name)
        given = {
            "txnAppId": f"{self._query}-{name}",
            "txnVersion": str(self._number),
            "txnRepeats": "newest",
        }
        if self.checkpoint is not None:
            given["checkpointLocation"] = self.checkpoint
        return frame.write.mode("append").options(**given)


def id_of_query(batch: DataFrame, caller: str, checkpoint: str | None = None) -> str:
    """Return Spark's id of the query that runs ``foreachBatch`` in this thread. Driver.

    The id is stored in the checkpoint, and compared with the one that is stored there.

    Args:
        batch: What the query gives.
        caller: Who asks, for the message.
        checkpoint: Location of the query's checkpoint, which contains the id too. By default the
            one that Spark names, if it does.

    Raises:
        OptionError: If the id is not known here, and not to be found in the checkpoint.
        CheckpointMismatch: If the checkpoint is that of another query.
    """
    found = _id_in_context(batch)
    if found is None and checkpoint is not None:
        found = SparkCheckpoint(checkpoint).query_id()
    if found is None:
        raise OptionError(
            f"{caller}: the id of the query is not known here (Spark Connect does not tell it): "
            f"give {caller}(..., checkpoint='where its checkpoint is')"
        )
    location = checkpoint or _checkpoint_of(batch)
    if location is not None:
        _record_id(SparkCheckpoint(location), found)
    return found


def _id_in_context(batch: DataFrame) -> str | None:
    context = getattr(batch.sparkSession, "_sc", None)
    found = None if context is None else context.getLocalProperty(QUERY_ID_PROPERTY)
    return None if found is None else str(found)


def _record_id(checkpoint: SparkCheckpoint, query: str) -> None:
    """Store the id of the query in its checkpoint, or compare it with the stored one.

    Spark may reach stores that this process does not, and a location that the user gives may be
    that of another file system, or of another query: then nothing is stored in it, and the query
    goes on. To find that out may take seconds, so it is tried again only after a while.
    """
    key = checkpoint.location, query
    if time.monotonic() < (_next_look_s.get(key) or 0.0):
        return
    try:
        named = checkpoint.query_id()
        why: object = f"its file 'metadata' names query {named}, and this one is {query}"
        if named == query:
            checkpoint.record_query_id(query)
            _next_look_s.put(key, math.inf)
            return
    except (OptionError, OSError, StorageError) as error:
        why = error
    _next_look_s.put(key, time.monotonic() + _REST_S)
    _log.warning(
        "the checkpoint %s cannot be read here: %s. The query goes on; but if the file "
        "'metadata' in it is lost, that will not be noticed",
        checkpoint.location,
        why,
    )


def _checkpoint_of(batch: DataFrame) -> str | None:
    """Return the location of the checkpoint of the query that runs here, as the JVM knows it.

    Spark shows that to nobody; ``StreamExecution`` and ``SharedState`` have it.
    """
    try:
        running = running_query(batch.sparkSession, _id_in_context(batch) or "")
        return str(running.resolvedCheckpointRoot())
    except Exception:  # noqa: BLE001  whatever a version of Spark calls it: users can say it
        return None
