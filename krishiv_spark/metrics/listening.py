"""Spark's events of a session's queries, noted. Driver."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import JStreamingQueryListener, StreamingQueryListener

from krishiv_spark.metrics.records import QueryRecords
from krishiv_spark.runtime.once import warn_once
from krishiv_spark.spark.jvm import hear_by, is_jvm_here, last_progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["RecordingListener"]

_log = logging.getLogger(__name__)


class RecordingListener(StreamingQueryListener):
    """Notes events. What it does is over in microseconds, and it raises nothing.

    Args:
        records: Where they are noted.
    """

    def __init__(self, records: QueryRecords) -> None:
        self._records = records
        self._spark: SparkSession | None = None

    def attach(self, spark: SparkSession) -> None:
        """Begin to listen, and note the queries that run already."""
        self._spark = spark
        if is_jvm_here(spark):
            self._hear_json(spark)
        spark.streams.addListener(self)
        for query in spark.streams.active:
            self._records.found(query.id, query.name, query.runId)

    def _hear_json(self, spark: SparkSession) -> None:
        try:
            hear_by(spark, self, _JsonEvents(self))
        except Exception:  # noqa: BLE001  then as PySpark does it
            _log.debug("progress is not told as JSON", exc_info=True)

    def detach(self, spark: SparkSession) -> None:
        """Listen no more; the session may have gone."""
        try:
            spark.streams.removeListener(self)
        except Exception:  # noqa: BLE001  of a JVM or a server that is not there any more
            _log.debug("the listener could not be removed", exc_info=True)

    def onQueryStarted(self, event: Any) -> None:
        """Spark: driver, before ``start`` returns."""
        _safely(lambda: self._records.started(event.id, event.name, event.runId))

    def onQueryProgress(self, event: Any) -> None:
        """Spark: driver, in the thread of its listeners."""
        self.progressed(lambda: event.progress)

    def progressed(self, tell: Callable[[], Mapping[str, Any]]) -> None:
        """Note a progress.

        Args:
            tell: What Spark says of it, as in its JSON.
        """
        _safely(lambda: self._records.progressed(tell()))

    def onQueryIdle(self, event: Any) -> None:
        """Spark: likewise, every ten seconds without anything to do."""
        _safely(lambda: self._records.idle(event.id, event.runId, self._last(event.id)))

    def _last(self, query: object) -> Mapping[str, Any] | None:
        """What Spark says of the look that found nothing: an event has no more than the ids.

        Only there it is seen that an open transaction holds back all that has come.
        """
        if self._spark is None:
            return None
        try:
            return last_progress(self._spark, str(query))
        except Exception:  # noqa: BLE001  it has ended meanwhile, or is of a session that has gone
            _log.debug("the look of query %s is not known", query, exc_info=True)
            return None

    def onQueryTerminated(self, event: Any) -> None:
        """Spark: likewise."""
        _safely(lambda: self._end(event))

    def _end(self, event: Any) -> None:
        condition = event.errorClassOnException
        self._records.ended(event.id, event.runId, event.exception, condition)


class _JsonEvents(JStreamingQueryListener):
    """Progress by one question to the JVM, on a classic session."""

    def onQueryProgress(self, jevent: Any) -> None:
        listener: Any = self.pylistener
        listener.progressed(lambda: json.loads(jevent.progress().json()))


def _safely(note: Callable[[], object]) -> None:
    try:
        note()
    except Exception:  # noqa: BLE001  metrics are nobody's reason to fail
        _log.debug("an event of Spark's is not understood", exc_info=True)
        warn_once(_log, "event", "metrics: an event of Spark's is not understood, and left out")
