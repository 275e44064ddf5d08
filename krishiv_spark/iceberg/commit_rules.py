"""Rules that every commit follows, and that PyIceberg does not check. Driver.

Times of commits never go back in a table, even if the clock of a writer does. Iceberg's libraries
for Java and Rust refuse to load a table whose snapshot log or metadata log goes back by more than a
minute. PyIceberg takes each time from the local clock and compares nothing, so one commit by a
clock that was ahead would lock those readers out of the table. Every commit of this package passes
through `raise_times` (in any catalog) and, where the client writes the metadata file, through
`order_times`.

Snapshots that branches and tags need do not expire, whenever the name was created. PyIceberg drops
every branch and tag whose snapshot expires, and no requirement of a commit covers names that are
new. So the catalogs whose client compares (`GuardedMetastoreCatalog`) check the names in the
metadata file that they compare and set by: a name that comes later makes the commit fail.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    ForbiddenError,
    NoSuchTableError,
    UnauthorizedError,
)
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update import AddSnapshotUpdate, RemoveSnapshotsUpdate

from krishiv_spark.iceberg.metadata_lists import ListIntegers
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.iceberg.property_keys import SnapshotIndex, iterate_ancestors
from krishiv_spark.runtime.once import warn_once

if TYPE_CHECKING:
    import numpy.typing as npt
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableUpdate

__all__ = [
    "REFUSALS",
    "check_expiry",
    "check_sequence_number",
    "find_named_ids",
    "get_aging_time_ms",
    "has_expired_since",
    "may_have_expired_since",
    "order_times",
    "raise_times",
    "repair_times",
    "warn_of_clock",
]

REFUSALS = (BadRequestError, ForbiddenError, NoSuchTableError, UnauthorizedError)
"""Responses of a catalog that would be the same after a repetition."""

_log = logging.getLogger(__name__)

_LOGS = ("snapshot_log", "metadata_log")
_logged_times = {log: ListIntegers(attrgetter("timestamp_ms")) for log in _LOGS}

_TOLERANCE_MS = 60_000
"""Iceberg-Java's ``TableMetadata.ONE_MINUTE``: it tolerates clocks that differ by this."""


def _newest_time_ms(metadata: TableMetadata) -> int:
    """Return the time that no later commit to a table may precede, in epoch milliseconds."""
    logged: tuple[Any, ...] = (*metadata.snapshot_log[-1:], *metadata.metadata_log[-1:])
    head = metadata.current_snapshot_id
    newest_first = reversed(metadata.snapshots)  # the parent is nearly always the newest
    parent = next((one for one in newest_first if one.snapshot_id == head), None)
    times = [metadata.last_updated_ms, *(entry.timestamp_ms for entry in logged)]
    newest_ms: int = max(times if parent is None else [*times, parent.timestamp_ms])
    return newest_ms


def _least_time_ms(metadata: TableMetadata) -> int:
    """Return the least time of the next commit, also if that repairs the end of a log."""
    logged: tuple[Any, ...] = (*metadata.snapshot_log[-1:], *metadata.metadata_log[-1:])
    is_in_order = all(
        one.timestamp_ms - _TOLERANCE_MS <= metadata.last_updated_ms for one in logged
    )
    return _newest_time_ms(metadata if is_in_order else _order_logs(metadata))


def get_aging_time_ms(metadata: TableMetadata) -> int:
    """Return the time at which a commit measures ages of snapshots, in epoch milliseconds.

    That is the time of the commit before it, or now if that is earlier: a clock that is ahead for
    one commit makes no snapshot old, neither in that commit nor in the next one.

    Args:
        metadata: Metadata of the table before the commit.
    """
    return min(_now_ms(), _newest_time_ms(metadata))


def raise_times(
    metadata: TableMetadata, updates: tuple[TableUpdate, ...]
) -> tuple[TableUpdate, ...]:
    """Return the updates with snapshots that are not older than the table's newest commit.

    Args:
        metadata: Metadata of the table before the updates.
        updates: The updates of one commit.
    """
    least_ms = _least_time_ms(metadata)
    return tuple(_raise_time(update, least_ms) for update in updates)


def _raise_time(update: TableUpdate, least_ms: int) -> TableUpdate:
    if not isinstance(update, AddSnapshotUpdate) or update.snapshot.timestamp_ms >= least_ms:
        return update
    snapshot = update.snapshot.model_copy(update={"timestamp_ms": least_ms})
    return update.model_copy(update={"snapshot": snapshot})


def order_times(before: TableMetadata, after: TableMetadata) -> TableMetadata:
    """Return the metadata of a commit with a time that is not before that of the last commit.

    Args:
        before: The metadata that the commit is based on, in order (`repair_times`).
        after: The metadata with the updates of the commit; a rollback adds a log entry that has
            the local time.
    """
    least_ms = _newest_time_ms(before)
    # PyIceberg leaves the time unchanged where only properties change.
    is_dated = after.last_updated_ms != before.last_updated_ms
    now_ms = max(least_ms, after.last_updated_ms if is_dated else _now_ms())
    changed: dict[str, Any] = {"last_updated_ms": now_ms}
    if after.snapshot_log and after.snapshot_log[-1].timestamp_ms < least_ms:
        newest = after.snapshot_log[-1].model_copy(update={"timestamp_ms": least_ms})
        changed["snapshot_log"] = [*after.snapshot_log[:-1], newest]
    return after.model_copy(update=changed)


def repair_times(name: str, metadata: TableMetadata) -> TableMetadata:
    """Return metadata whose logs are in order of time, which Iceberg-Java can load.

    Metadata that Iceberg-Java can load are returned unchanged. Otherwise the times of log entries
    change, as few of them as possible; no entry is removed, and no snapshot changes.

    Args:
        name: Name of the table, for the log.
        metadata: Metadata of the table; a writer without this rule may have written it.
    """
    ordered = _order_logs(metadata)
    if ordered is not metadata:
        _log.warning(
            "%s: the logs of table %s went back in time, so that Iceberg's libraries for Java and "
            "Rust could not load it: the clock of a writer was wrong. This commit puts the times "
            "in order",
            FORMAT,
            name,
        )
    return ordered


def _order_logs(metadata: TableMetadata) -> TableMetadata:
    last_ms, changed = metadata.last_updated_ms, {}
    for field in _LOGS:
        entries: list[Any] = getattr(metadata, field)
        times = _logged_times[field].get(metadata.location, entries)
        if not _goes_back(times, last_ms):
            continue
        *ordered, last_ms = _sort_times([*times.tolist(), last_ms])
        changed[field] = [
            entry.model_copy(update={"timestamp_ms": moment})
            for entry, moment in zip(entries, ordered, strict=True)
        ]
    if not changed:
        return metadata
    return metadata.model_copy(update={**changed, "last_updated_ms": last_ms})


def _goes_back(times: npt.NDArray[Any], last_ms: int) -> bool:
    """Return True if a time, or the last one, is more than a minute before the one before it."""
    if not len(times):
        return False
    return last_ms < times[-1] - _TOLERANCE_MS or bool(
        (times[1:] < times[:-1] - _TOLERANCE_MS).any()
    )


def _sort_times(times: Sequence[int]) -> list[int]:
    """Return times that never decrease, and as many of the given ones as either direction keeps."""
    lowered = list(accumulate(reversed(times), min))[::-1]  # one clock was ahead
    raised = list(accumulate(times, max))  # one clock was behind
    return min(lowered, raised, key=lambda made: sum(map(int.__ne__, made, times)))


def warn_of_clock(name: str, metadata: TableMetadata) -> None:
    """Warn once per table and process if the local clock is behind the table's newest commit."""
    newest_ms = _least_time_ms(metadata)
    behind_ms = newest_ms - _now_ms()
    if behind_ms <= _TOLERANCE_MS:
        return
    warn_once(
        _log,
        metadata.table_uuid,
        "%s: the clock of this driver is %d s behind the newest commit to table %s, which has the "
        "time %s UTC: this clock is behind, or that of another writer was ahead. No row is lost: "
        "commits get that time until the clock has passed it. Correct the clocks of all machines "
        "that write to the table (NTP): reading by a time ('as-of-timestamp', "
        "'stream-from-timestamp') and expiry by age go by these times",
        FORMAT,
        behind_ms // 1000,
        name,
        time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(newest_ms / 1000)),
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


# --- branches and tags


def check_expiry(metadata: TableMetadata, updates: Sequence[TableUpdate]) -> None:
    """Refuse to expire snapshots that have a name.

    Args:
        metadata: Metadata of the table, as the commit compares it.
        updates: The updates of the commit.

    Raises:
        CommitFailedException: If a branch or a tag needs one of them.
    """
    removing = [update for update in updates if isinstance(update, RemoveSnapshotsUpdate)]
    expiring = {number for update in removing for number in update.snapshot_ids}
    if expiring and (kept := expiring.intersection(find_named_ids(metadata))):
        numbers = ", ".join(map(str, sorted(kept)))
        raise CommitFailedException(
            f"Requirement failed: a branch or a tag needs snapshots that were to expire: {numbers}"
        )


def check_sequence_number(metadata: TableMetadata, updates: Sequence[TableUpdate]) -> None:
    """Refuse a snapshot that a commit to another branch has overtaken.

    PyIceberg raises ValueError for it, which leaves open whether the commit was accepted.

    Args:
        metadata: Metadata of the table, as the commit compares it.
        updates: The updates of the commit.

    Raises:
        CommitFailedException: If the table has a snapshot with this sequence number or a later one.
    """
    newest = _newest_sequence_number(metadata)
    for added in (one.snapshot for one in updates if isinstance(one, AddSnapshotUpdate)):
        number = added.sequence_number or 0
        if 0 < number <= newest and added.parent_snapshot_id is not None:
            raise CommitFailedException(
                f"Requirement failed: another commit has the sequence number {number}; the newest "
                f"one of the table is {newest}"
            )


def find_named_ids(metadata: TableMetadata) -> Iterator[int]:
    """Yield the ids of the snapshots that tags, and branches except the main one, need."""
    by_id = SnapshotIndex(metadata)
    for name, reference in metadata.refs.items():
        if name == MAIN_BRANCH:
            continue
        is_branch = reference.snapshot_ref_type == "branch"
        ancestors = iterate_ancestors(by_id, reference.snapshot_id)
        yield from (one.snapshot_id for one in islice(ancestors, None if is_branch else 1))


def may_have_expired_since(metadata: TableMetadata, base: TableMetadata) -> bool:
    """As `has_expired_since`, but return True for tables of version 1, which do not record it."""
    return metadata.format_version == 1 or has_expired_since(metadata, base)


def has_expired_since(metadata: TableMetadata, base: TableMetadata) -> bool:
    """Return True if a snapshot was committed and may have expired since `base`.

    Sequence numbers grow by one with each snapshot (Iceberg spec, "Sequence Numbers"). Only a
    commit that lost a race leaves some out (`LostRaces`), which count as expired here: the table
    does not show whether a number was never used or its snapshot has expired.
    """
    before, now = _newest_sequence_number(base), _newest_sequence_number(metadata)
    present = (snapshot.sequence_number or 0 for snapshot in metadata.snapshots)
    return sum(number > before for number in present) < now - before


def _newest_sequence_number(metadata: TableMetadata) -> int:
    """Return the sequence number of the newest snapshot, even an expired one; 0 in version 1."""
    return int(getattr(metadata, "last_sequence_number", 0))
