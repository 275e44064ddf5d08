"""Spark's reader methods, implemented by a `StreamReader`, and the schema of the rows for Spark."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from krishiv_spark.arrow.conform import conform
from krishiv_spark.errors import OffsetError, OptionError, SchemaError
from krishiv_spark.lifecycle.errors import explain_disk_full, message_before_traceback
from krishiv_spark.offsets import Offset, Start
from krishiv_spark.offsets.watermark import (
    LATE_COLUMN,
    check_event_time,
    check_watermark,
    judge,
)
from krishiv_spark.runtime.workers import tune_worker
from krishiv_spark.sources.base import (
    UNLIMITED,
    Limit,
    SourceOptions,
    StreamReader,
    SupportsAvailableNow,
    SupportsBacklog,
    SupportsFilters,
    SupportsMovingStart,
)
from krishiv_spark.spark.checkpoint import EPOCH_PROPERTY, QUERY_ID_PROPERTY
from krishiv_spark.spark.logs import set_log_context
from krishiv_spark.storage import use_long_timeouts

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit

__all__ = ["BatchRead", "RowSchema", "stream_read"]

_CACHED_OFFSETS = 2
"""The start and the end of a batch are cached."""
_WRAPPER = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"


def _find_available_now_class() -> Any:
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
    except ImportError:  # PySpark 4.0 and 4.1 do not have the module
        return object
    return SupportsTriggerAvailableNow


_SupportsTriggerAvailableNow: Any = _find_available_now_class()


@dataclass(frozen=True)
class RowSchema:
    """The columns of a source as Spark expects them.

    Attributes:
        columns: Arrow schema of the reader's batches.
        target: Arrow schema that Spark expects: the same, with `_late` after it under the policy
            "flag".
        options: Event time column and late-row policy.
    """

    columns: pa.Schema
    target: pa.Schema
    options: SourceOptions

    def __post_init__(self) -> None:
        if self.options.event_time is not None:
            check_event_time(self.options.event_time, self.columns)
        elif self.options.late_rows != "keep":
            raise SchemaError(
                f"option 'lateRows' = {self.options.late_rows!r} needs an event time: "
                "name its column with the option 'eventTime'"
            )

    @classmethod
    def from_reader(cls, columns: pa.Schema, options: SourceOptions) -> RowSchema:
        """Return the schema of a reader if the user specified none."""
        late = pa.field(LATE_COLUMN, pa.bool_(), nullable=False)
        flags = options.late_rows == "flag"
        return cls(columns, columns.append(late) if flags else columns, options)

    @classmethod
    def from_user(cls, target: pa.Schema, options: SourceOptions) -> RowSchema:
        """Return the schema of a reader for given columns.

        Raises:
            SchemaError: If late rows are to be flagged, but the schema that the user specified has
                no column for the flag.
        """
        if options.late_rows != "flag":
            return cls(target, target, options)
        if LATE_COLUMN not in target.names:
            raise SchemaError(
                f"option 'lateRows' = 'flag' needs a column {LATE_COLUMN} BOOLEAN in the schema"
            )
        return cls(target.remove(target.names.index(LATE_COLUMN)), target, options)

    def convert(self, batch: pa.RecordBatch, watermark_ms: int | None) -> pa.RecordBatch:
        """Apply the late-row policy to a batch of the reader, and return it as Spark expects it."""
        rows = conform(batch, self.columns)
        if self.options.event_time is not None:
            rows = judge(rows, self.options.event_time, self.options.late_rows, watermark_ms)
        return conform(rows, self.target)


class Slice(InputPartition):
    """One partition of a batch, with the watermark at the start of the batch."""

    def __init__(self, value: Any, watermark_ms: int | None) -> None:
        super().__init__(value)
        self.watermark_ms = watermark_ms


def _plan_slices(
    reader: StreamReader[Any, Any], start: Offset, end: Offset
) -> list[InputPartition]:
    watermark_ms = start.watermark.ms if start.watermark else None
    return [Slice(part, watermark_ms) for part in reader.plan(start, end)]


def _read_rows(
    reader: StreamReader[Any, Any], row_schema: RowSchema, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    tune_worker()
    use_long_timeouts()
    set_log_context(reader.options.log_level, **_describe_task(TaskContext.get()))
    # Spark replaces an empty plan by one InputPartition(None) (write_read_func_and_partitions).
    if isinstance(partition, Slice):
        for batch in reader.read(partition.value):
            yield row_schema.convert(batch, partition.watermark_ms)


def _describe_task(context: TaskContext | None) -> dict[str, object]:
    """Return the values that each log line of a task names."""
    if context is None:
        return {}
    return {
        "query": context.getLocalProperty(QUERY_ID_PROPERTY),
        "epoch": context.getLocalProperty(EPOCH_PROPERTY),
        "task": context.partitionId(),
        "attempt": context.attemptNumber(),
    }


def _resolve_start(reader: StreamReader[Any, Any], start: Start) -> Offset:
    if not isinstance(reader, SupportsMovingStart):
        raise TypeError(f"{type(reader).__name__} has no moving start, but began at {start}")
    position: Offset = reader.resolve(start)
    return position


class _FilterPushdown:
    """The method ``pushFilters`` of a reader that supports it, if Spark offers it.

    If ``spark.sql.python.filterPushdown.enabled`` is off, which is the default, Spark refuses
    readers that define this method, and detects that by `__func__` (``plan_data_source_read`` of
    PySpark). Results do not depend on the method, so `__func__` is Spark's own one.
    """

    __func__ = staticmethod(getattr(DataSourceReader, "pushFilters", None) or _read_rows)

    def __init__(self, reader: SupportsFilters) -> None:
        self._reader = reader

    def __call__(self, filters: Sequence[Any]) -> Sequence[Any]:
        self._reader.push(filters)
        return filters  # Spark applies them to the rows as well


class _TunesWorkerOnUnpickle:
    """A reader that is pickled with the function that tasks run."""

    _reader: StreamReader[Any, Any]

    def known_secrets(self) -> set[str]:
        """Return the secrets in the options, which must not appear in an error."""
        found: set[str] = self._reader.options.secrets()
        return found

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # `read` would be too late: PySpark calls it after it has received the partition, which is
        # one of the messages whose acknowledgements are delayed.
        tune_worker()


@final
class BatchRead(_TunesWorkerOnUnpickle, DataSourceReader):
    """The reader of ``spark.read``: all data from the initial position to the newest, once."""

    def __init__(self, reader: StreamReader[Any, Any], row_schema: RowSchema) -> None:
        self._reader = reader
        self._row_schema = row_schema
        if isinstance(reader, SupportsFilters) and hasattr(DataSourceReader, "pushFilters"):
            self.pushFilters: Any = _FilterPushdown(reader)

    @message_before_traceback
    def partitions(self) -> Sequence[InputPartition]:
        """Plan the partitions. Spark: planner process, once."""
        tune_worker()
        set_log_context(self._reader.options.log_level)
        first = self._reader.initial()
        start = _resolve_start(self._reader, first) if isinstance(first, Start) else first
        return _plan_slices(self._reader, start, self._reader.latest(start, UNLIMITED))

    @message_before_traceback
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a partition. Spark: executor, once per attempt of a task."""
        return _read_rows(self._reader, self._row_schema, partition)


class _StreamRead(_TunesWorkerOnUnpickle, DataSourceStreamReader):
    """The reader of ``spark.readStream`` without `latestOffset`, which differs between versions."""

    def __init__(self, reader: StreamReader[Any, Any], row_schema: RowSchema) -> None:
        self._reader = reader
        self._row_schema = row_schema
        # 4.0 and 4.1 request the newest offset without the position of the query. On a restart they
        # call partitions(last, last) first, so the last end is always known here.
        self._position: Offset | None = None
        # At each trigger Spark returns the offsets that it received last. With this cache, an
        # offset of 10 000 partitions is parsed and serialized only if the query advances.
        self._offset_cache: deque[tuple[dict[str, Any], Offset]] = deque(maxlen=_CACHED_OFFSETS)

    def __getstate__(self) -> dict[str, Any]:
        return {
            **self.__dict__,
            "_offset_cache": deque(maxlen=_CACHED_OFFSETS),
        }  # executors ask for no position

    @message_before_traceback
    def initialOffset(self) -> dict[str, Any]:
        return self._find_initial().to_dict()

    def _find_initial(self) -> Offset | Start:
        # An error in `streamReader` would be reported as an UnboundLocalError of PySpark 4.3.
        if self._reader.only_batches:
            raise OptionError(self._reader.only_batches)
        initial: Offset | Start = self._reader.initial()
        return initial

    @message_before_traceback
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, last = self._load(start), self._load(end)
        self._note_position(first, last)
        if isinstance(first, Start) or first == last:
            return []
        return _plan_slices(self._reader, first, last)

    @message_before_traceback
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read_rows(self._reader, self._row_schema, partition)

    @message_before_traceback
    def commit(self, end: dict[str, Any]) -> None:
        position = self._load(end)
        if not isinstance(position, Start):
            self._reader.committed(position)

    def _note_position(self, first: Offset, last: Offset) -> None:
        """Record the position of the query from the batch that Spark plans or repeats."""
        del first
        self._position = last

    def _load(self, value: dict[str, Any]) -> Offset:
        for text, offset in self._offset_cache:
            if text == value:
                return offset
        if value.get("kind") == Start.kind:
            return Start.from_dict(value)
        return self._reader.offset_type.from_dict(value)

    def _next(self, start: Offset, limit: Limit) -> dict[str, Any]:
        tune_worker()
        set_log_context(self._reader.options.log_level)
        if isinstance(start, Start):
            return self._serialize_offset(_resolve_start(self._reader, start))
        options = self._reader.options
        check_watermark(start.watermark, options.late_rows, options.max_event_time_ahead)
        with explain_disk_full(options):  # the disk with the reader's state
            end: Offset = self._reader.latest(start, limit)
        return self._serialize_offset(end)

    def _serialize_offset(self, offset: Offset) -> dict[str, Any]:
        for text, same in self._offset_cache:
            if same is offset:
                return text
        self._offset_cache.append((offset.to_dict(), offset))
        return self._offset_cache[-1][0]


@final
class _PlainStreamRead(_StreamRead):
    """The reader for PySpark 4.0 and 4.1."""

    def __init__(self, reader: StreamReader[Any, Any], row_schema: RowSchema) -> None:
        super().__init__(reader, row_schema)
        self._initial: Offset | None = None
        self._is_end_from_initial = False

    @message_before_traceback
    def initialOffset(self) -> dict[str, Any]:
        initial = self._initial = self._find_initial()
        return initial.to_dict()

    @message_before_traceback
    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # the signature of 4.0 and 4.1
        self._is_end_from_initial = self._position is None
        start = self._reader.initial() if self._position is None else self._position
        return self._next(start, self._reader.options.limit())

    def _note_position(self, first: Offset, last: Offset) -> None:
        if self._is_end_from_initial and first != self._initial:
            # Spark's AvailableNowMicroBatchStreamWrapper requests the end before the query starts,
            # and so before Spark passes the position of a restarted query. A batch up to that end
            # would contain rows that were read before.
            raise OffsetError(
                f"the query continues from {first.to_json()}, and Spark has asked for new "
                f"offsets before it announced that: set {_WRAPPER} to false, with which PySpark "
                "4.0 and 4.1 do so"
            )
        self._is_end_from_initial = False
        super()._note_position(first, last)


class _LimitedStreamRead(_StreamRead):
    """The reader for PySpark 4.2 and later, in which Spark passes the position and read limits."""

    @message_before_traceback
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        from pyspark.sql.streaming.datasource import ReadAllAvailable

        # Trigger.Once requests all data; otherwise Spark passes getDefaultReadLimit().
        own = UNLIMITED if isinstance(limit, ReadAllAvailable) else self._reader.options.limit()
        return self._next(self._load(start), own)

    def getDefaultReadLimit(self) -> ReadLimit:
        from pyspark.sql.streaming import datasource as spark

        # Spark takes one limit; `latestOffset` honours all of them, whichever Spark passes.
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
class _AvailableNowStreamRead(_LimitedStreamRead, _SupportsTriggerAvailableNow):  # type: ignore[misc]  # by version  # pyright: ignore[reportGeneralTypeIssues]  # absent in 4.0 and 4.1
    """The reader for PySpark 4.2 and later, over a reader that supports AvailableNow."""

    @message_before_traceback
    def prepareForTriggerAvailableNow(self) -> None:
        self._reader.freeze()  # type: ignore[attr-defined]  # chosen in stream_read for this ability


def stream_read(reader: StreamReader[Any, Any], row_schema: RowSchema) -> DataSourceStreamReader:
    """Return the stream reader in the form that the running PySpark calls."""
    if _SupportsTriggerAvailableNow is object:
        return _PlainStreamRead(reader, row_schema)
    can_end = isinstance(reader, SupportsAvailableNow)
    return (_AvailableNowStreamRead if can_end else _LimitedStreamRead)(reader, row_schema)
