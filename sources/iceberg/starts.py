"""Where reading begins: options and the table's history, as an offset. Driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from krishiv_spark.errors import DataLossError, OptionError
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.sources.iceberg.history import History, no_reference, when
from krishiv_spark.sources.iceberg.options import IcebergSourceOptions
from krishiv_spark.sources.iceberg.position import StartName, StreamingOffset
from krishiv_spark.sources.iceberg.slices import done, first_file

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

__all__ = ["start_name", "start_of_stream", "time_travel_snapshot"]


def start_name(options: IcebergSourceOptions) -> StartName:
    """The start that a stream was asked for, by its name."""
    if options.snapshot_id is not None or options.start_snapshot_id is not None:
        return "snapshot"
    return "timestamp" if options.stream_from_timestamp is not None else options.starting_offsets


def start_of_stream(options: IcebergSourceOptions, history: History) -> StreamingOffset | None:
    """What the start means now; None while it means nothing yet.

    Raises:
        OptionError: If it names a snapshot that is not there.
        DataLossError: If rows from the start on have expired.
    """
    if options.snapshot_id is not None:
        snapshot = history.named(options.snapshot_id, "snapshot-id")
        return None if snapshot is None else first_file(snapshot)
    if options.start_snapshot_id is not None:
        return _after(history, options.start_snapshot_id)
    if options.stream_from_timestamp is not None:
        return _since(history, options.stream_from_timestamp)
    if options.starting_offsets == "latest":
        return StreamingOffset() if history.head is None else done(history.head)
    if not history.line:
        return None
    return first_file(history.line[-1 if options.starting_offsets == "current" else 0])


def _after(history: History, snapshot_id: int) -> StreamingOffset:
    oldest = history.line[0] if history.line else None
    # It may have expired itself: nothing that came after it is missing.
    if oldest is not None and oldest.parent_snapshot_id == snapshot_id:
        return StreamingOffset(snapshot=snapshot_id)
    snapshot = history.named(snapshot_id, "start-snapshot-id")
    return StreamingOffset() if snapshot is None else done(snapshot)


def _since(history: History, moment_ms: int) -> StreamingOffset | None:
    """Before the first snapshot, in the order of commits, whose time is not before a moment.

    Where times are out of order, older snapshots may follow it: they are read too, so that none
    from the moment on is left out.
    """
    newer = (i for i, snapshot in enumerate(history.line) if snapshot.timestamp_ms >= moment_ms)
    index = next(newer, None)
    if index is None:
        return None
    if index > 0:
        return done(history.line[index - 1])
    if history.is_whole():
        return StreamingOffset()
    raise DataLossError(
        f"{FORMAT}: table {history.table}: snapshots between {when(moment_ms)} and the oldest "
        "remaining one have expired, so the rows that they appended are unknown; "
        f"{history.available()}. 'startingOffsets' = 'earliest' starts with all rows of the "
        "oldest snapshot"
    )


def time_travel_snapshot(options: IcebergSourceOptions, table: Table) -> Snapshot | None:
    """The one snapshot that a batch reads; None for an empty table.

    Raises:
        OptionError: If there is no such snapshot, branch or tag.
    """
    metadata = table.metadata
    history = History.of_branch(options.table_name, metadata, options.branch)
    if options.snapshot_id is not None:
        snapshot = metadata.snapshot_by_id(options.snapshot_id)
        return snapshot or history.named(options.snapshot_id, "snapshot-id")
    if options.tag is not None:
        return _tagged(metadata, options.tag)
    if options.as_of_timestamp is not None:
        return _as_of(history, metadata, options)
    return history.head


def _tagged(metadata: TableMetadata, tag: str) -> Snapshot | None:
    reference = metadata.refs.get(tag)
    if reference is None or reference.snapshot_ref_type != "tag":
        raise OptionError(no_reference(metadata, "tag", tag))
    return metadata.snapshot_by_id(reference.snapshot_id)


def _as_of(history: History, metadata: TableMetadata, options: IcebergSourceOptions) -> Snapshot:
    """The snapshot that was current then: by the table's log, which has rollbacks, or by a branch.

    That is the one with the greatest time that is not after the moment, as in Iceberg-Java since
    1.12: the clocks of writers differ, so that a log need not be in the order of its times. Of
    equal times the later entry counts.
    """
    moment = options.as_of_timestamp or 0
    log = [(entry.timestamp_ms, entry.snapshot_id) for entry in metadata.snapshot_log]
    if options.branch is not None:
        log = [(snapshot.timestamp_ms, snapshot.snapshot_id) for snapshot in history.line]
    newest_first = (entry for entry in reversed(log) if entry[0] <= moment)
    _, current = max(newest_first, key=lambda entry: entry[0], default=(0, None))
    snapshot = None if current is None else metadata.snapshot_by_id(current)
    if snapshot is None:
        raise OptionError(
            f"{FORMAT}: table {history.table} has no snapshot at or before {when(moment)}; "
            f"{history.available()}"
        )
    return snapshot
