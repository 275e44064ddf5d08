"""Functions that are called when something happens to a session's queries. Driver."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from krishiv_spark.errors import QueryFailed
from krishiv_spark.messages.exception_chains import scrub
from krishiv_spark.queries.failures import failure_of
from krishiv_spark.queries.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Listening", "listen"]

_log = logging.getLogger(__name__)


def listen(
    spark: SparkSession,
    *,
    started: Callable[[str, str | None], object] | None = None,
    progress: Callable[[Progress], object] | None = None,
    ended: Callable[[str, QueryFailed | None], object] | None = None,
) -> Listening:
    """Have functions called, in a thread of Spark's, for all queries of a session.

    What they raise is logged, and no query fails of it.

    Args:
        spark: The session.
        started: Given a query's id and name, when it starts.
        progress: Given each epoch, when it is over.
        ended: Given a query's id, and its error if it has failed.

    Returns:
        Until it is removed, or its ``with`` is left, they are called.
    """
    return Listening(spark, _Listener(started, progress, ended))


class Listening(AbstractContextManager["Listening"]):
    """Functions that are called, until `remove`.

    Args:
        spark: The session.
        listener: Spark's.
    """

    def __init__(self, spark: SparkSession, listener: StreamingQueryListener) -> None:
        self._spark = spark
        self._listener = listener
        spark.streams.addListener(listener)

    def remove(self) -> None:
        """Call them no more; any number of times."""
        self._spark.streams.removeListener(self._listener)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()


class _Listener(StreamingQueryListener):
    """Spark's events, as values."""

    def __init__(
        self,
        started: Callable[[str, str | None], object] | None,
        progress: Callable[[Progress], object] | None,
        ended: Callable[[str, QueryFailed | None], object] | None,
    ) -> None:
        self._started = started
        self._progress = progress
        self._ended = ended

    def onQueryStarted(self, event: Any) -> None:
        """Spark: driver."""
        if self._started is not None:
            _call(self._started, str(event.id), event.name)

    def onQueryProgress(self, event: Any) -> None:
        """Spark: driver."""
        if self._progress is not None:
            _call(self._progress, Progress.of(event.progress))

    def onQueryIdle(self, event: Any) -> None:
        """Spark: driver. Nothing has happened."""

    def onQueryTerminated(self, event: Any) -> None:
        """Spark: driver."""
        if self._ended is not None:
            _call(self._ended, str(event.id), _failed(event.exception))


def _failed(text: str | None) -> QueryFailed | None:
    if text is None:
        return None
    found = failure_of(RuntimeError(text))
    return QueryFailed(found.line, passes=found.passes, name=found.name)


def _call(function: Callable[..., object], *given: object) -> None:
    try:
        function(*given)
    except Exception as error:  # noqa: BLE001  a listener is nobody's reason to fail
        _log.error("a listener of queries has failed", exc_info=scrub(error))
