"""The state of a query in its checkpoint, its epoch log and its table, whether it runs or not.

Nothing is changed. `NextStart` describes the actions of the next start of the query.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol, TypeGuard

import pyarrow as pa
from typing_extensions import Self

from krishiv_spark.errors import CheckpointMismatch, KrishivError, OptionError
from krishiv_spark.messages.redaction import first_line
from krishiv_spark.offsets import State, open_log
from krishiv_spark.operate.inspection.positions import describe_position
from krishiv_spark.operate.moving.boundaries import is_incomplete_marker
from krishiv_spark.parquet.layout import log_within
from krishiv_spark.sinks.base import OutputMode, TwoPhaseCommitter
from krishiv_spark.sinks.logged import LogCommitter
from krishiv_spark.sinks.numbered import RECORD_SUFFIX
from krishiv_spark.spark.checkpoint import KRISHIV, QUERY_ID_FILE, TARGET_FILES, SparkCheckpoint
from krishiv_spark.spark.offset_log import OffsetSeq
from krishiv_spark.spark.query_target import QueryTarget
from krishiv_spark.storage import Storage, StoreUrl
from krishiv_spark.storage.files import StoredEntry

__all__ = [
    "CheckpointStatus",
    "EpochStatus",
    "LetterStatus",
    "LogStatus",
    "TableStatus",
    "inspect_checkpoint",
    "inspect_table",
    "inspect_target",
    "list_file_sizes",
    "locate_log",
    "read_epoch_status",
]


_NAMES = {"table", "iceberg.table", "warehouse", "iceberg.warehouse"}
_CATALOG = "catalog."
_ICEBERG = "krishiv-iceberg"


@dataclass(frozen=True)
class TableStatus:
    """The state of a query in a target that records epochs itself, such as a table.

    Attributes:
        name: The name of the table in the options, or of another target in the checkpoint.
        is_there: True if the table exists; the first epoch may create it. Other targets are not
            asked: it is True if they have an epoch.
        snapshot: Id of its newest snapshot; None if it has none, or is no table of Iceberg.
        held: The newest committed epoch of the query; None if there is none.
        unknown: The reason if the state could not be read; None otherwise.
        format: The format of the sink.
    """

    name: str
    is_there: bool = False
    snapshot: int | None = None
    held: int | None = None
    unknown: str | None = None
    format: str = _ICEBERG


def inspect_table(given: Mapping[str, str], query: str) -> TableStatus | None:
    """Read the state from the catalog and the table; changes nothing.

    Any process that reaches them.

    Args:
        given: Options of a sink, which may include those of a source.
        query: Id of the query.

    Returns:
        The state; None if the options name no Iceberg table, or one for each topic.

    Raises:
        OptionError: If an option is invalid.
        SinkError: If the recorded epoch is not a number, because another program has changed it.
    """
    if not any(key.lower() in _NAMES or key.lower().startswith(_CATALOG) for key in given):
        return None
    from krishiv_spark.sinks.iceberg.epoch_properties import read_committed_epoch
    from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions
    from krishiv_spark.sinks.iceberg.table_setup import find_table

    options = IcebergSinkOptions.parse(IcebergSinkOptions.select(given), "krishiv-spark status")
    if options.is_by_topic:
        return None  # the epoch log has the state of the query
    try:
        table = find_table(options)
    except KrishivError as error:
        if isinstance(error, ValueError):  # an option
            raise
        return TableStatus(options.table_name, unknown=str(error))
    if table is None:
        return TableStatus(options.table_name)
    newest = table.metadata.current_snapshot_id
    mark = read_committed_epoch(table.metadata, query)
    held = None if mark is None else mark.epoch
    return TableStatus(options.table_name, is_there=True, snapshot=newest, held=held)


def inspect_target(target: QueryTarget, given: Mapping[str, str], query: str) -> TableStatus | None:
    """Read the newest epoch of a query from a target without an epoch log; changes nothing.

    Any process that reaches it.

    Args:
        target: The target that the checkpoint records.
        given: Options of its sink, which may include those of a source.
        query: Id of the query.

    Returns:
        The state; None if the format is not installed or has epoch logs, or the options do not
        name a target.

    Raises:
        OptionError: If an option is invalid.
    """
    from krishiv_spark.formats import find_format

    source = find_format(target.format)
    if source is None or source.writer_type is None:
        return None
    own = source.writer_type.options_type.select(given)
    if all(key.lower().startswith("storage.") for key in own):
        return None  # these may be for the store of the checkpoint
    kind, options = source.open_sink(own)
    # There are no columns, since nothing is written.
    writer = kind(options, pa.schema([]), OutputMode.APPEND, streaming=True)
    committer = writer.committer()
    if not _has_epochs_in_target(committer):
        return None
    try:
        named = writer.describe_target()
        if named is not None and not target.is_same(named):
            raise OptionError(f"the query writes to {target}, and the options name {named}")
        mark = committer.peek_committed(query)
    except (KrishivError, OSError) as error:
        shown = first_line(str(error), options.secrets())
        return TableStatus(target.name, unknown=shown, format=target.format)
    held = None if mark is None else mark.epoch
    return TableStatus(target.name, held is not None, held=held, format=target.format)


def _has_epochs_in_target(committer: object) -> TypeGuard[TwoPhaseCommitter[Any]]:
    """Return True if a sink has no epoch log, and its committer reads epochs without a change."""
    return (
        isinstance(committer, TwoPhaseCommitter)
        and not isinstance(committer, LogCommitter)
        and type(committer).peek_committed is not TwoPhaseCommitter.peek_committed
    )


class _Epoch(Protocol):
    @property
    def epoch(self) -> int: ...

    @property
    def is_over(self) -> bool: ...


@dataclass(frozen=True)
class NextStart:
    """The state of a query that determines its next start.

    Attributes:
        planned: The newest epoch that Spark has planned; -1 before the first.
        is_over: True if Spark has logged that epoch as completed; also True before the first.
        held: The newest epoch that its target has committed; -1 for none.
        told_by: The source of `held`: "log" or "table"; None if neither was found.
        open_epoch: The epoch of an intent that may be unfinished; None for none.
    """

    planned: int
    is_over: bool
    held: int
    told_by: str | None
    open_epoch: int | None

    @classmethod
    def of(
        cls,
        newest: _Epoch | None,
        held: int | None = None,
        told_by: str | None = None,
        open_epoch: int | None = None,
    ) -> Self:
        """Return the next start for the given state; None means that nothing was found."""
        planned, is_over = (-1, True) if newest is None else (newest.epoch, newest.is_over)
        return cls(planned, is_over, -1 if held is None else held, told_by, open_epoch)

    def words(self, left: Sequence[str] = ()) -> str:
        """Return a description of the next start's actions.

        Args:
            left: Files in Spark's offset log before it has planned an epoch.
        """
        if self.held > self.planned:
            return self._refusal()
        if self.planned < 0:
            return _first(left)
        if self.is_over:
            finishes = "" if self.open_epoch is None else (
                f"makes epoch {self.open_epoch} visible, if it is not, then "
            )  # fmt: skip
            return (
                f"{finishes}plans epoch {self.planned + 1}, from where epoch {self.planned} ended"
            )
        if self.held == self.planned:
            return (
                f"completes epoch {self.planned}, which the {self.told_by} has committed; its rows "
                "are not staged again"
            )
        unless = "" if self.told_by else (
            ", unless its target has the epoch already: give its location, or the sink's options"
        )  # fmt: skip
        return f"runs epoch {self.planned} again, with the same rows of its sources{unless}"

    def _refusal(self) -> str:
        """Return the error for a target ahead of its checkpoint, as after a restored copy."""
        known = f"only epochs up to {self.planned}" if self.planned >= 0 else "no epoch"
        return (
            f"is refused (CheckpointMismatch), unless it plans exactly the same rows: the "
            f"{self.told_by} has epoch {self.held}, and the checkpoint has planned {known}"
        )


def _first(left: Sequence[str]) -> str:
    if left:
        return (
            f"is refused by Spark 4.1 and later, since offsets/ has {left[0]}, which a driver that "
            "ended while it planned epoch 0 has left: no row was written yet; empty "
            "offsets/, or set spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart=false"
        )
    return "plans epoch 0, from the start that the options of its sources specify"


_log = logging.getLogger(__name__)

_LOOKS = 5
"""Maximum number of readings while the query continues."""


@dataclass(frozen=True)
class EpochStatus:
    """The record of an epoch in Spark's logs.

    Attributes:
        epoch: Spark's batch id.
        is_over: True if Spark has logged the epoch as completed.
        planned_ms: Time of its planning, milliseconds since 1970 UTC; None if it is not recorded.
        sources: Description of each source's position at its end, by name or index of the source.
        offsets: The same positions as Spark stores them.
        watermark_ms: Spark's own watermark at its start; None if there is none.
        source_watermarks_ms: Watermarks of krishiv-spark's sources at its end.
    """

    epoch: int
    is_over: bool
    planned_ms: int | None
    sources: Mapping[str, str]
    offsets: Mapping[str, str]
    watermark_ms: int | None
    source_watermarks_ms: tuple[int, ...]


@dataclass(frozen=True)
class LetterStatus:
    """The numbers of dead letters that an epoch log contains.

    Attributes:
        rows: Number of all rows of the newest epoch with rows.
        bad: Number of its dead letters by reason.
        total: Number of dead letters of all epochs by reason.
    """

    rows: int
    bad: Mapping[str, int]
    total: Mapping[str, int]


@dataclass(frozen=True)
class LogStatus:
    """The content of an epoch log.

    Attributes:
        place: Its location.
        files: Number of its files.
        size: Size of all files, in bytes.
        entries: Number of the newest entry.
        held: The newest committed epoch; None for none.
        open_epoch: The epoch of an intent that may be unfinished; None for none.
        owner: Host and process of the newest owner; empty for none.
        owner_ms: Start time of the owner by its clock; None if it is not recorded.
        target: The identity of the external system, if the log contains it.
        letters: The numbers of dead letters; None for a sink without dead letters.
    """

    place: str
    files: int
    size: int
    entries: int
    held: int | None
    open_epoch: int | None
    owner: str
    owner_ms: int | None
    target: str | None
    letters: LetterStatus | None = None


@dataclass(frozen=True)
class CheckpointStatus:
    """The state of a query by its folders.

    Attributes:
        location: The location of the checkpoint.
        query: The id of the query in `metadata`.
        newest: The newest epoch that was planned; None before the first.
        log: Its epoch log; None if none was found.
        table: The state in its target, for a sink without a log; None if the options name none.
        next: A description of the next start's actions.
        targets: The targets of the query, by output of `forEachBatchMode`; the key is empty for a
            query with one sink. Empty if the checkpoint records no target.
    """

    location: str
    query: str
    newest: EpochStatus | None
    log: LogStatus | None
    table: TableStatus | None
    next: str
    targets: Mapping[str, str] = field(default_factory=dict)


def inspect_checkpoint(
    checkpoint: SparkCheckpoint,
    *,
    table: str | None = None,
    epoch_log: str | None = None,
    given: Mapping[str, str] = MappingProxyType({}),
) -> CheckpointStatus:
    """Return the state of a query by its folders; any process that reaches them.

    Args:
        checkpoint: The checkpoint of the query.
        table: The folder of its table, if the sink is krishiv-parquet, which has the log there.
        epoch_log: The option ``epochLog`` of its sink, if it is set.
        given: Options of its sink, which name the target if that has no epoch log.

    Raises:
        OptionError: If there is no checkpoint, or an option is invalid.
        StorageError: If a store cannot be reached.
        LogError: If the log is damaged.
        SinkError: If the epoch that the table records is not a number.
    """
    query = checkpoint.query_id()
    place = locate_log(checkpoint, query, table, epoch_log)
    newest, log, held = _look(checkpoint, query, place, given)
    for _ in range(_LOOKS):
        # A running query may have continued, so that the first reading would not fit the later
        # ones.
        if _newest(checkpoint) == newest:
            break
        newest, log, held = _look(checkpoint, query, place, given)
    then = _next(checkpoint, newest, log, held)
    targets = _targets(checkpoint)
    return CheckpointStatus(checkpoint.location, query, newest, log, held, then, targets)


def _targets(checkpoint: SparkCheckpoint) -> dict[str, str]:
    try:
        found = checkpoint.recorded_targets()
    except CheckpointMismatch as error:
        return {"": f"not known: {error}"}
    return {output or "": str(target) for output, target in found.items()}


def _look(
    checkpoint: SparkCheckpoint, query: str, place: StoreUrl, given: Mapping[str, str]
) -> tuple[EpochStatus | None, LogStatus | None, TableStatus | None]:
    newest = _newest(checkpoint)
    log = _log_status(place, query, checkpoint)
    return newest, log, _inspect_without_log(checkpoint, given, query) if log is None else None


def _inspect_without_log(
    checkpoint: SparkCheckpoint, given: Mapping[str, str], query: str
) -> TableStatus | None:
    found = inspect_table(given, query)
    if found is not None or not given:
        return found
    try:
        target = checkpoint.recorded_target()
    except CheckpointMismatch:
        return None  # `_targets` reports it
    if target is None or target.format == _ICEBERG:
        return None
    return inspect_target(target, given, query)


def _newest(checkpoint: SparkCheckpoint) -> EpochStatus | None:
    epochs = checkpoint.epochs()
    return read_epoch_status(checkpoint, epochs[-1]) if epochs else None


def read_epoch_status(checkpoint: SparkCheckpoint, epoch: int) -> EpochStatus:
    """Return the record of an epoch in Spark's logs.

    Raises:
        OptionError: If there is no record, or it was removed, or is incomplete.
        StorageError: If the store cannot be reached.
    """
    found = checkpoint.offset_seq(epoch)
    # A query has at least one source.
    if found is not None and found.sources:
        is_over = checkpoint.is_committed(epoch)
        try:
            return _status(epoch, found, is_over=is_over)
        except ValueError:  # an incomplete offset
            _log.debug("epoch %d cannot be parsed", epoch, exc_info=True)
    kept = checkpoint.epochs()
    if epoch in kept:
        entry = checkpoint.folder("offsets").read(str(epoch)) or b""
        if is_incomplete_marker(entry):
            raise OptionError(f"{checkpoint.location} is {entry.decode().splitlines()[0]}")
        raise OptionError(
            f"{checkpoint.location}/offsets/{epoch} cannot be read: it was not written to its end, "
            "or by a Spark that this version does not know"
        )
    which = f"{kept[0]} to {kept[-1]}" if kept else "none"
    raise OptionError(f"{checkpoint.location} does not record epoch {epoch}: recorded are {which}")


def _status(epoch: int, found: OffsetSeq, *, is_over: bool) -> EpochStatus:
    planned: Any = found.metadata.get("batchTimestampMs")
    return EpochStatus(
        epoch=epoch,
        is_over=is_over,
        planned_ms=planned or None,
        sources={name: describe_position(text) for name, text in found.sources.items()},
        offsets=found.sources,
        watermark_ms=found.watermark_ms,
        source_watermarks_ms=tuple(found.source_watermarks_ms),
    )


def locate_log(
    checkpoint: SparkCheckpoint, query: str, table: str | None, epoch_log: str | None
) -> StoreUrl:
    """Return the location of a query's epoch log; arguments as for `inspect_checkpoint`."""
    if epoch_log is not None:
        return StoreUrl.parse(epoch_log) / query
    if table is not None:
        return StoreUrl.parse(table) / log_within(query)
    return StoreUrl.parse(checkpoint.location) / KRISHIV


def _log_status(place: StoreUrl, query: str, checkpoint: SparkCheckpoint) -> LogStatus | None:
    storage = checkpoint.storage
    state = open_log(str(place), query, storage).state()
    if state.number == 0:
        return None
    sizes = list_file_sizes(storage, place)
    return LogStatus(
        place=str(place),
        files=len(sizes),
        size=sum(sizes),
        entries=state.number,
        held=state.committed_epoch,
        open_epoch=_open_epoch(state, checkpoint),
        owner=state.owner_writer,
        owner_ms=state.at,
        target=None if state.claim is None else state.claim.target,
        letters=_letters(state),
    )


def _letters(state: State) -> LetterStatus | None:
    staged = None if state.intent is None else state.intent.staged
    found = [item for item in staged or () if isinstance(item, dict) and "bad" in item]
    if not found:
        return None
    newest = found[0]
    return LetterStatus(newest.get("rows", 0), newest["bad"], newest.get("total", {}))


def list_file_sizes(storage: Storage, folder: StoreUrl) -> list[int]:
    """Return the sizes of the files directly in a folder, bytes; empty if it does not exist.

    Raises:
        StorageError: If a store cannot list it. A disk raises OSError.
    """
    try:
        found = list(storage.files(folder).entries(str(folder)))
    except FileNotFoundError:
        return []
    files = (entry for entry in found if not entry.is_dir())
    # In a checkpoint, records are stored beside the log, and are not part of it.
    return [_size(entry) for entry in files if not _is_record(entry.name)]


def _is_record(name: str) -> bool:
    is_of_query = name == QUERY_ID_FILE or TARGET_FILES.fullmatch(name) is not None
    return is_of_query or name.endswith(RECORD_SUFFIX)


def _size(entry: Any) -> int:
    """Return the size of a file in a store or on a disk."""
    if isinstance(entry, StoredEntry):
        return 0 if entry.identity is None else entry.identity.size
    try:
        return int(entry.stat().st_size)
    except FileNotFoundError:  # removed since
        return 0


def _open_epoch(state: State, checkpoint: SparkCheckpoint) -> int | None:
    """Return the epoch of the newest intent, unless it is recorded as finished."""
    epoch = None if state.intent is None else state.intent.epoch
    is_noted = (state.finished_intent or 0) >= state.intent_number
    return None if epoch is None or is_noted or checkpoint.is_committed(epoch) else epoch


def _next(
    checkpoint: SparkCheckpoint,
    newest: EpochStatus | None,
    log: LogStatus | None,
    table: TableStatus | None,
) -> str:
    """Return a description of the next start's actions."""
    left = sorted(checkpoint.folder("offsets").names()) if newest is None else []
    if log is not None:
        return NextStart.of(newest, log.held, "log", log.open_epoch).words(left)
    if table is not None and table.unknown is None:
        return NextStart.of(newest, table.held, "table").words(left)
    return NextStart.of(newest).words(left)
