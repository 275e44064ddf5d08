"""Metrics that somebody gives on, until he stops. Driver."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any

from krishiv_spark.errors import OptionError
from krishiv_spark.metrics.figures import Metric, QueryView
from krishiv_spark.metrics.listening import RecordingListener
from krishiv_spark.metrics.records import QueryRecords
from krishiv_spark.queries.status import QueryState
from krishiv_spark.runtime.once import warn_once
from krishiv_spark.spark.jvm import is_stopped

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["QueryReadings", "Reporting", "readings", "require_library"]

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
        """Every query, as it is now."""
        if self._is_over:
            return []
        if is_stopped(self._spark):
            self._records.stopped()
        now_s = time.time()
        return [QueryView(record, progress, now_s) for record, progress in self._records.all()]

    def has_failed(self) -> bool:
        """Whether some query has ended with an error, and was not started again.

        Whoever waits for a query may hear of its end before listeners do: they get a moment.
        """
        until_s = time.monotonic() + _MOMENT_S
        while self._records.unended() - self._active() and time.monotonic() < until_s:
            time.sleep(_MOMENT_S / 100)
        return any(view.record.state is QueryState.FAILED for view in self.views())

    def _active(self) -> set[str]:
        """Queries that Spark says are running; all that are known, if it cannot be asked."""
        try:
            return {str(query.id) for query in self._spark.streams.active}
        except Exception:  # noqa: BLE001  of a JVM or a server that is not there any more
            return self._records.unended()


def readings(metric: Metric, views: list[QueryView]) -> Iterator[tuple[tuple[str, ...], float]]:
    """The values of a metric, each with those of all labels: of `OF_QUERY`, then its own.

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
    """A library of metrics.

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
