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
            _log.debug("progress is not reported as JSON", exc_info=True)

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
        """Record the last poll of an idle query; the event itself has the ids only.

        Only there it is seen that an open transaction holds back all that has come.
        """
        if self._spark is None:
            return None
        try:
            return last_progress(self._spark, str(query))
        except Exception:  # noqa: BLE001  it has ended meanwhile, or is of a session that has gone
            _log.debug("the state of query %s is unknown", query, exc_info=True)
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


_log = logging.getLogger(__name__)

_MOMENT_S = 2.0
"""How long an event of Spark's may take to its listeners."""


class QueryReadings:
    """The values of all metrics of a session's queries. Any thread; raises nothing.

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
        """Listen no more, and have no values any more."""
        self._is_over = True
        self._listener.detach(self._spark)

    def views(self) -> list[QueryView]:
        """Return every query in its current state."""
        if self._is_over:
            return []
        if is_stopped(self._spark):
            self._records.stopped()
        now_s = time.time()
        return [QueryView(record, progress, now_s) for record, progress in self._records.all()]

    def has_failed(self) -> bool:
        """Return True if a query failed and was not restarted.

        Whoever waits for a query may hear of its end before listeners do: they get a moment.
        """
        until_s = time.monotonic() + _MOMENT_S
        while self._records.unended() - self._active() and time.monotonic() < until_s:
            time.sleep(_MOMENT_S / 100)
        return any(view.record.state is QueryState.FAILED for view in self.views())

    def _active(self) -> set[str]:
        """Return the ids of running queries; of all known ones if Spark cannot be asked."""
        try:
            return {str(query.id) for query in self._spark.streams.active}
        except Exception:  # noqa: BLE001  of a JVM or a server that is not there any more
            return self._records.unended()


def readings(metric: Metric, views: list[QueryView]) -> Iterator[tuple[tuple[str, ...], float]]:
    """Yield the values of a metric with all label values: of `OF_QUERY`, then of its own.

    One that cannot be worked out is left out, and said once.
    """
    for view in views:
        try:
            found = list(metric.read(view))
        except Exception:  # noqa: BLE001  the others are worth having
            _log.debug("%s cannot be worked out", metric.name, exc_info=True)
            warn_once(_log, metric.name, "metrics: %s cannot be worked out", metric.name)
            continue
        for labels, value in found:
            texts = (view.record.query, view.record.name, *labels)
            yield tuple(map(_encodable, texts)), float(value)


def _encodable(label: str) -> str:
    """Return a label that UTF-8 can encode; one of a single query would end the others' metrics.

    JSON, as Spark's progress is, may contain halves of characters.
    """
    return label.encode("utf-8", "replace").decode()


class Reporting(AbstractContextManager["Reporting"]):
    """Metrics that are given on until `stop`, or until the ``with`` is left.

    Args:
        address: Where they are: a URL, or a file.
        end: What has to be done at the end, in this order.
    """

    def __init__(self, address: str, *end: Callable[[], object]) -> None:
        self.address = address
        self._end = end

    def __repr__(self) -> str:
        return f"Reporting({self.address})"

    def stop(self) -> None:
        """Give them on no more; any number of times."""
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
        module: To be imported.
        package: That has it.
        extra: Of krishiv-spark, which brings it.

    Raises:
        OptionError: If it is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise OptionError(
            f'these metrics need the package {package}: pip install "krishiv-spark[{extra}]"'
        ) from error
