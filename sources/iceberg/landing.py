"""Which query has landed the rows of a table, and where its source stood. Driver.

All is taken from one metadata file of the table: its newest snapshot, and what its properties say
of the query, came with one commit. Whatever makes it doubtful that the rows are those up to the
offset, and no others, is an error: to guess would lose rows, or repeat some.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from krishiv_spark.errors import OptionError
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.iceberg.query_marks import EPOCH_KEY, query_of
from krishiv_spark.sources.handover import TableProvenance
from krishiv_spark.sources.iceberg.history import History, operation_of, when
from krishiv_spark.sources.iceberg.lander import BY_HAND, NAME_IT, Lander, lander_of
from krishiv_spark.sources.iceberg.options import IcebergSourceOptions
from krishiv_spark.sources.iceberg.position import IcebergOffset
from krishiv_spark.sources.iceberg.slices import first_file
from krishiv_spark.sources.iceberg.starts import start_name

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

__all__ = ["rows_landed"]

_KEEPS_ROWS = {"replace", "delete"}
"""Kinds of snapshots that bring no rows: compaction, and what only takes some out."""


def rows_landed(
    options: IcebergSourceOptions, table: Table, by: str | None, snapshot: int | None
) -> TableProvenance[IcebergOffset]:
    """All rows of a table, and where they come from; see `SupportsBackfillSource`.

    Raises:
        OptionError: If that is not certain.
        OffsetError: If what the table says of it is damaged.
    """
    _refuse_other_starts(options)
    name, metadata = options.table_name, table.metadata
    history = History.of_branch(name, metadata, None)
    if snapshot is not None:
        found = metadata.snapshot_by_id(snapshot) or history.named(snapshot, "snapshot")
        return TableProvenance(_begin(table, found), None, f"snapshot {snapshot}")
    if history.head is None:
        raise OptionError(
            f"{FORMAT}: table {name} has no snapshot yet, so the end of its rows is unknown: "
            "wait for the first epoch of the query that lands them"
        )
    lander = lander_of(options, metadata.properties, by)
    _check_newest(history, metadata.snapshots, lander, by)
    if by is None:
        _check_alone(history, lander)
    told = f"query {lander.query}, epoch {lander.epoch}"
    return TableProvenance(_begin(table, history.head), lander.offset, told)


def _begin(table: Table, snapshot: Snapshot | None) -> IcebergOffset:
    spot = None if snapshot is None else first_file(snapshot)
    return IcebergOffset(table=str(table.metadata.table_uuid), spot=spot)


def _refuse_other_starts(options: IcebergSourceOptions) -> None:
    given = {
        "branch": options.branch,
        "readChanges": options.read_changes or None,
        **dict.fromkeys(options.refused(streaming=True), ""),
    }
    names = [name for name, value in given.items() if value is not None]
    if start_name(options) != "earliest" or "starting_offsets" in options.model_fields_set:
        names.append("startingOffsets' or 'snapshot-id")
    if names:
        raise OptionError(
            f"{FORMAT}: option '{names[0]}' has no meaning here: the table is read in its state "
            "when the query starts, or as of the option 'snapshot' of the chain"
        )


# --- what else was written


def _check_newest(
    history: History, known: Sequence[Snapshot], lander: Lander, by: str | None
) -> None:
    """Refuse a table that was rolled back: its properties stay, and its rows do not."""
    own = [_epoch_in(snapshot, lander.query) for snapshot in history.line]
    held = next((epoch for epoch in reversed(own) if epoch is not None), None)
    newest = str(lander.epoch)
    # With none of its epochs left, the newest may have expired; if it is there, it was left.
    if held != newest and (held or newest in {_epoch_in(each, lander.query) for each in known}):
        raise OptionError(
            f"{FORMAT}: table {history.table} was rolled back: its rows are those "
            f"{'before the first epoch' if held is None else f'up to epoch {held}'} of query "
            f"{lander.query}, which has written epoch {newest}. Wait for its next epoch (the "
            f"removed rows are not written again), or {BY_HAND}"
        )
    if held is None and by is None:
        raise OptionError(
            f"{FORMAT}: table {history.table} no longer has a snapshot of query {lander.query}, "
            "so it is unknown whether its rows are exactly the rows that this query has "
            f"written. If they are, {NAME_IT}"
        )


def _check_alone(history: History, lander: Lander) -> None:
    """Refuse rows of others that came after the first ones of the query."""
    # Where its first epochs have expired, what is left of others may have come after them.
    own = (_epoch_in(snapshot, lander.query) for snapshot in history.line)
    first = next((epoch for epoch in own if epoch is not None), None)
    begun = first != "0" and not history.is_whole()
    for snapshot in history.line:
        if query_of(snapshot) == lander.query:
            begun = True
        elif begun and operation_of(snapshot) not in _KEEPS_ROWS:
            raise OptionError(
                f"{FORMAT}: table {history.table}: snapshot {snapshot.snapshot_id} of "
                f"{when(snapshot.timestamp_ms)}, of kind {operation_of(snapshot)!r}, was not "
                f"written by query {lander.query}, which lands the rows. If none of its rows "
                f"comes from the source after that query's position, {NAME_IT}"
            )


def _epoch_in(snapshot: Snapshot, query: str) -> str | None:
    """Which epoch of a query a snapshot is of; None if it is of another one, or of none."""
    summary = snapshot.summary
    return summary.get(EPOCH_KEY) if summary and query_of(snapshot) == query else None
