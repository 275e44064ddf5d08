"""Spark's reader methods, in terms of `StreamReader`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from krishiv_spark.errors import OffsetError
from krishiv_spark.lifecycle.full_disks import explain_disk_full
from krishiv_spark.lifecycle.row_schema import RowSchema
from krishiv_spark.lifecycle.telling import message_before_traceback
from krishiv_spark.offsets import Offset, Start
from krishiv_spark.offsets.watermark import check_watermark
from krishiv_spark.runtime.workers import tune_worker
from krishiv_spark.sources.base import (
    UNLIMITED,
    Limit,
    StreamReader,
    SupportsAvailableNow,
    SupportsBacklog,
    SupportsFilters,
    SupportsMovingStart,
)
from krishiv_spark.spark.checkpoint import EPOCH_PROPERTY, QUERY_ID_PROPERTY
from krishiv_spark.spark.logs import set_log_context
from krishiv_spark.storage import be_patient

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit

__all__ = ["BatchRead", "stream_read"]

_HANDED = 2
"""The begin of a batch and its end."""
_WRAPPER = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"


def _ending_class() -> Any:
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
    except ImportError:  # PySpark 4.0 and 4.1 do not have the module
        return object
    return SupportsTriggerAvailableNow


_SupportsTriggerAvailableNow: Any = _ending_class()


class Slice(InputPartition):
    """One partition of a batch, with the watermark that the batch began at."""

    def __init__(self, value: Any, watermark_ms: int | None) -> None:
        super().__init__(value)
        self.watermark_ms = watermark_ms


def _slices(reader: StreamReader[Any, Any], start: Offset, end: Offset) -> list[InputPartition]:
    mark = start.watermark.ms if start.watermark else None
    return [Slice(part, mark) for part in reader.plan(start, end)]


def _rows(
    reader: StreamReader[Any, Any], row_schema: RowSchema, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    tune_worker()
    be_patient()
    set_log_context(reader.options.log_level, **_about(TaskContext.get()))
    # Spark turns an empty plan into one InputPartition(None) (write_read_func_and_partitions).
    if isinstance(partition, Slice):
        for batch in reader.read(partition.value):
            yield row_schema.judged(batch, partition.watermark_ms)


def _about(context: TaskContext | None) -> dict[str, object]:
    """What the lines of a task's log are of."""
    if context is None:
        return {}
    return {
        "query": context.getLocalProperty(QUERY_ID_PROPERTY),
        "epoch": context.getLocalProperty(EPOCH_PROPERTY),
        "task": context.partitionId(),
        "attempt": context.attemptNumber(),
    }


def _pinned(reader: StreamReader[Any, Any], start: Start) -> Offset:
    if not isinstance(reader, SupportsMovingStart):
        raise TypeError(f"{type(reader).__name__} has no moving start, but began at {start}")
    position: Offset = reader.resolve(start)
    return position


class _Push:
    """``pushFilters`` of a reader that has the ability, where Spark offers it.

    With ``spark.sql.python.filterPushdown.enabled`` off, which is the default, Spark refuses
    readers that have a method of this name, by a look at its `__func__` (``plan_data_source_read``
    of PySpark). Nothing is lost there, so it is shown the one that it knows.
    """

    __func__ = staticmethod(getattr(DataSourceReader, "pushFilters", None) or _rows)

    def __init__(self, reader: SupportsFilters) -> None:
        self._reader = reader

    def __call__(self, filters: Sequence[Any]) -> Sequence[Any]:
        self._reader.push(filters)
        return filters  # to be checked by Spark as well


class _Travels:
    """What a task is given as a part of the function that it runs."""

    _reader: StreamReader[Any, Any]

    def known_secrets(self) -> set[str]:
        """Return the secrets in the options, which no error may show."""
        found: set[str] = self._reader.options.secrets()
        return found

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # Here, not in `read` alone: its call waits until PySpark has received which partition it
        # is of, and that is one of the messages that are acknowledged late.
        tune_worker()


@final
class BatchRead(_Travels, DataSourceReader):
    """``spark.read``: everything from the initial position to the newest, once."""

    def __init__(self, reader: StreamReader[Any, Any], row_schema: RowSchema) -> None:
        self._reader = reader
        self._row_schema = row_schema
        if isinstance(reader, SupportsFilters) and hasattr(DataSourceReader, "pushFilters"):
            self.pushFilters: Any = _Push(reader)

    @message_before_traceback
    def partitions(self) -> Sequence[InputPartition]:
        """Spark: planner process, once."""
        tune_worker()
        set_log_context(self._reader.options.log_level)
        first = self._reader.initial()
        start = _pinned(self._reader, first) if isinstance(first, Start) else first
        return _slices(self._reader, start, self._reader.latest(start, UNLIMITED))

    @message_before_traceback
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Spark: executor, once per attempt of a task."""
        return _rows(self._reader, self._row_schema, partition)


class _StreamRead(_Travels, DataSourceStreamReader):
    """``spark.readStream``, without `latestOffset`, whose form differs between versions."""

    def __init__(self, reader: StreamReader[Any, Any], row_schema: RowSchema) -> None:
        self._reader = reader
        self._row_schema = row_schema
        # 4.0 and 4.1 ask for the newest offset without saying where the query stands. On a
        # restart they call partitions(last, last) first, so the last end is always known here.
        self._position: Offset | None = None
        # Spark hands back what it was given last, at each trigger: 10 000 partitions are read from
        # it, and written into it, only where the query moves.
        self._handed: deque[tuple[dict[str, Any], Offset]] = deque(maxlen=_HANDED)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handed": deque(maxlen=_HANDED)}  # executors ask for no position

    @message_before_traceback
    def initialOffset(self) -> dict[str, Any]:
        return self._reader.initial().to_dict()

    @message_before_traceback
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, last = self._load(start), self._load(end)
        self._stand_between(first, last)
        if isinstance(first, Start) or first == last:
            return []
        return _slices(self._reader, first, last)

    @message_before_traceback
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _rows(self._reader, self._row_schema, partition)

    @message_before_traceback
    def commit(self, end: dict[str, Any]) -> None:
        position = self._load(end)
        if not isinstance(position, Start):
            self._reader.committed(position)

    def _stand_between(self, first: Offset, last: Offset) -> None:
        """Learn from the batch that Spark plans, or repeats, where the query stands."""
        del first
        self._position = last

    def _load(self, value: dict[str, Any]) -> Offset:
        for handed, offset in self._handed:
            if handed == value:
                return offset
        if value.get("kind") == Start.kind:
            return Start.from_dict(value)
        return self._reader.offset_type.from_dict(value)

    def _next(self, start: Offset, limit: Limit) -> dict[str, Any]:
        tune_worker()
        set_log_context(self._reader.options.log_level)
        if isinstance(start, Start):
            return self._hand(_pinned(self._reader, start))
        options = self._reader.options
        check_watermark(start.watermark, options.late_rows, options.max_event_time_ahead)
        with explain_disk_full(options):  # of what it remembers
            end: Offset = self._reader.latest(start, limit)
        return self._hand(end)

    def _hand(self, offset: Offset) -> dict[str, Any]:
        for handed, same in self._handed:
            if same is offset:
                return handed
        self._handed.append((offset.to_dict(), offset))
        return self._handed[-1][0]


@final
class _PlainStreamRead(_StreamRead):
    """PySpark 4.0 and 4.1."""

    def __init__(self, reader: StreamReader[Any, Any], row_schema: RowSchema) -> None:
        super().__init__(reader, row_schema)
        self._initial: Offset | None = None
        self._is_end_from_initial = False

    @message_before_traceback
    def initialOffset(self) -> dict[str, Any]:
        initial = self._initial = self._reader.initial()
        return initial.to_dict()

    @message_before_traceback
    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # the form of 4.0 and 4.1
        self._is_end_from_initial = self._position is None
        start = self._reader.initial() if self._position is None else self._position
        return self._next(start, self._reader.options.limit())

    def _stand_between(self, first: Offset, last: Offset) -> None:
        if self._is_end_from_initial and first != self._initial:
            # Spark's AvailableNowMicroBatchStreamWrapper asks for the end before the query begins,
            # and so before Spark says where a restarted one stands. What is planned up to there
            # would be rows that were read before.
            raise OffsetError(
                f"the query continues from {first.to_json()}, and Spark has asked for new "
                f"offsets before it announced that: set {_WRAPPER} to false, with which PySpark "
                "4.0 and 4.1 do so"
            )
        self._is_end_from_initial = False
        super()._stand_between(first, last)


class _LimitedStreamRead(_StreamRead):
    """PySpark 4.2 and later: Spark says where the query stands, and knows read limits."""

    @message_before_traceback
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        from pyspark.sql.streaming.datasource import ReadAllAvailable

        # Trigger.Once asks for everything; otherwise Spark hands back getDefaultReadLimit().
        own = UNLIMITED if isinstance(limit, ReadAllAvailable) else self._reader.options.limit()
        return self._next(self._load(start), own)

    def getDefaultReadLimit(self) -> ReadLimit:
        from pyspark.sql.streaming import datasource as spark

        # Spark takes one limit; `latestOffset` honours all of them, whichever it gets back.
        limit = self._reader.options.limit()
        if limit.files is not None:
            return spark.ReadMaxFiles(limit.files)
        if limit.bytes is not None:
            return spark.ReadMaxBytes(limit.bytes)
        return spark.ReadMaxRows(limit.rows) if limit.rows is not None else spark.ReadAllAvailable()

    @message_before_traceback
    def reportLatestOffset(self) -> dict[str, Any] | None:
        return dict(self._reader.backlog()) if isinstance(self._reader, SupportsBacklog) else None


@final
class _EndingStreamRead(_LimitedStreamRead, _SupportsTriggerAvailableNow):  # type: ignore[misc]  # by version  # pyright: ignore[reportGeneralTypeIssues]  # absent in 4.0 and 4.1
    """PySpark 4.2 and later, over a reader that can end."""

    @message_before_traceback
    def prepareForTriggerAvailableNow(self) -> None:
        self._reader.freeze()  # type: ignore[attr-defined]  # chosen in stream_read for this ability


def stream_read(reader: StreamReader[Any, Any], row_schema: RowSchema) -> DataSourceStreamReader:
    """The stream reader in the form that the running PySpark calls."""
    if _SupportsTriggerAvailableNow is object:
        return _PlainStreamRead(reader, row_schema)
    ending = isinstance(reader, SupportsAvailableNow)
    return (_EndingStreamRead if ending else _LimitedStreamRead)(reader, row_schema)
