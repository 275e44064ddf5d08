"""Metrics of a session's queries: recorded from Spark's events, exported until stopped. Driver."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import JStreamingQueryListener, StreamingQueryListener

from krishiv_spark.errors import OptionError
from krishiv_spark.metrics.definitions import Metric, QueryView
from krishiv_spark.metrics.records import QueryRecords
from krishiv_spark.queries.handle import QueryState
from krishiv_spark.runtime.once import warn_once
from krishiv_spark.spark.jvm import hear_by, is_jvm_here, is_stopped, last_progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["QueryReadings", "RecordingListener", "Reporting", "readings", "require_library"]


class RecordingListener(StreamingQueryListener):
    """A listener that records events. Each call takes microseconds and raises nothing.

    Args:
        records: The records to which events are added.
    """

    def __init__(self, records: QueryRecords) -> None:
        self._records = records
        self._spark: SparkSession | None = None

    def attach(self, spark: SparkSession) -> None:
        """Start to listen, and record the queries that are active already."""
        self._spark = spark
        if is_jvm_here(spark):
            self._hear_json(spark)
        spark.streams.addListener(self)
        for query in spark.streams.active:
            self._records.found(query.id, query.name, query.runId)

    def _hear_json(self, spark: SparkSession) -> None:
        try:
            hear_by(spark, self, _JsonEvents(self))
        except Exception:  # noqa: BLE001  PySpark's own way then works, more slowly
            _log.debug("progress is not reported as JSON", exc_info=True)

    def detach(self, spark: SparkSession) -> None:
        """Stop listening. The session may have ended."""
        try:
            spark.streams.removeListener(self)
        except Exception:  # noqa: BLE001  the JVM or the server may have ended
            _log.debug("the listener could not be removed", exc_info=True)

    def onQueryStarted(self, event: Any) -> None:
        """Record the start of a query. Spark: driver, before ``start`` returns."""
        _safely(lambda: self._records.record_start(event.id, event.name, event.runId))

    def onQueryProgress(self, event: Any) -> None:
        """Record a completed epoch. Spark: driver, in the thread of its listeners."""
        self.record_progress(lambda: event.progress)

    def record_progress(self, tell: Callable[[], Mapping[str, Any]]) -> None:
        """Record a progress report.

        Args:
            tell: Returns the report, as in Spark's JSON.
        """
        _safely(lambda: self._records.record_progress(tell()))

    def onQueryIdle(self, event: Any) -> None:
        """Record an idle report. Spark: driver, every ten seconds without new data."""
        _safely(lambda: self._records.idle(event.id, event.runId, self._last(event.id)))

    def _last(self, query: object) -> Mapping[str, Any] | None:
        """Return the last report of an idle query, since the event itself contains only the ids.

        Only this report shows that an open transaction blocks all new records.
        """
        if self._spark is None:
            return None
        try:
            return last_progress(self._spark, str(query))
        except Exception:  # noqa: BLE001  the query or its session may have ended
            _log.debug("the state of query %s is unknown", query, exc_info=True)
            return None

    def onQueryTerminated(self, event: Any) -> None:
        """Record the end of a query. Spark: driver."""
        _safely(lambda: self._end(event))

    def _end(self, event: Any) -> None:
        condition = event.errorClassOnException
        self._records.record_end(event.id, event.runId, event.exception, condition)


class _JsonEvents(JStreamingQueryListener):
    """A listener that gets a progress report by one call of the JVM, in a classic session."""

    def onQueryProgress(self, jevent: Any) -> None:
        listener: Any = self.pylistener
        listener.record_progress(lambda: json.loads(jevent.progress().json()))


def _safely(note: Callable[[], object]) -> None:
    try:
        note()
    except Exception:  # noqa: BLE001  metrics must not stop a query
        _log.debug("an event of Spark cannot be parsed", exc_info=True)
        warn_once(_log, "event", "metrics: an event of Spark cannot be parsed, and is ignored")


_log = logging.getLogger(__name__)

_MOMENT_S = 2.0
"""Maximum delay of Spark's events to its listeners."""


class QueryReadings:
    """The values of all metrics of a session's queries. Any thread; it raises nothing.

    Args:
        spark: The session.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._records = QueryRecords()
        self._listener = RecordingListener(self._records)
        self._is_over = False
        self._listener.attach(spark)

    def stop(self) -> None:
        """Stop listening; there are no values afterwards."""
        self._is_over = True
        self._listener.detach(self._spark)

    def views(self) -> list[QueryView]:
        """Return every query in its current state."""
        if self._is_over:
            return []
        if is_stopped(self._spark):
            self._records.record_stop()
        now_s = time.time()
        return [QueryView(record, progress, now_s) for record, progress in self._records.all()]

    def has_failed(self) -> bool:
        """Return True if a query failed and was not restarted.

        A caller may learn of the end of a query before the listeners do, so this waits a moment for
        them.
        """
        until_s = time.monotonic() + _MOMENT_S
        while self._records.list_unended() - self._active() and time.monotonic() < until_s:
            time.sleep(_MOMENT_S / 100)
        return any(view.record.state is QueryState.FAILED for view in self.views())

    def _active(self) -> set[str]:
        """Return the ids of active queries; of all known ones if Spark cannot be reached."""
        try:
            return {str(query.id) for query in self._spark.streams.active}
        except Exception:  # noqa: BLE001  the JVM or the server may have ended
            return self._records.list_unended()


def readings(metric: Metric, views: list[QueryView]) -> Iterator[tuple[tuple[str, ...], float]]:
    """Yield the values of a metric with all label values: of `OF_QUERY`, then of its own.

    A metric that cannot be computed is omitted, and logged once.
    """
    for view in views:
        try:
            found = list(metric.read(view))
        except Exception:  # noqa: BLE001  the other metrics are still useful
            _log.debug("%s cannot be computed", metric.name, exc_info=True)
            warn_once(_log, metric.name, "metrics: %s cannot be computed", metric.name)
            continue
        for labels, value in found:
            texts = (view.record.query, view.record.name, *labels)
            yield tuple(map(_encodable, texts)), float(value)


def _encodable(label: str) -> str:
    """Return a label that UTF-8 can encode, since one bad label would break the whole export.

    JSON, as in Spark's progress, may contain halves of characters.
    """
    return label.encode("utf-8", "replace").decode()


class Reporting(AbstractContextManager["Reporting"]):
    """An export of metrics, which continues until `stop`, or the end of the ``with`` block.

    Args:
        address: The location of the metrics: a URL, or a file.
        end: Functions to call at the end, in this order.
    """

    def __init__(self, address: str, *end: Callable[[], object]) -> None:
        self.address = address
        self._end = end

    def __repr__(self) -> str:
        return f"Reporting({self.address})"

    def stop(self) -> None:
        """Stop the export. It may be called repeatedly."""
        end, self._end = self._end, ()
        for each in end:
            each()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def require_library(module: str, package: str, extra: str) -> Any:
    """Import a library of metrics.

    Args:
        module: The module to import.
        package: The package that contains it.
        extra: The extra of krishiv-spark that installs it.

    Raises:
        OptionError: If it is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise OptionError(
            f'these metrics need the package {package}: pip install "krishiv-spark[{extra}]"'
        ) from error
