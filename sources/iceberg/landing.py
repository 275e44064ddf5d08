"""Which query has landed the rows of a table, and where its source stood. Driver.

All is taken from one metadata file of the table: its newest snapshot, and what its properties say
of the query, came with one commit. Whatever makes it doubtful that the rows are those up to the
offset, and no others, is an error: to guess would lose rows, or repeat some.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from krishiv_spark.checkpoint import SparkCheckpoint
from krishiv_spark.errors import OffsetError, OptionError
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.iceberg.query_marks import (
    DIGEST_OF,
    EPOCH_KEY,
    EPOCH_OF,
    OFFSETS_OF,
    QUERY_KEY,
)
from krishiv_spark.sources.handover import Landed
from krishiv_spark.sources.iceberg.history import History, operation_of, when
from krishiv_spark.sources.iceberg.options import IcebergSourceOptions
from krishiv_spark.sources.iceberg.position import IcebergOffset
from krishiv_spark.sources.iceberg.slices import first_file
from krishiv_spark.sources.iceberg.starts import start_name

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

__all__ = ["rows_landed"]

_BY_HAND = (
    "say it yourself: 'snapshot', and for the source that follows 'then.startingOffsets' with the "
    "offset of each partition at which the rows of that snapshot end"
)
_NAME_IT = "name the query with 'landedBy', by its id or by its checkpoint"
_KEEPS_ROWS = {"replace", "delete"}
"""Kinds of snapshots that bring no rows: compaction, and what only takes some out."""


@dataclass(frozen=True)
class _Writing:
    """What is known of the query that lands the rows.

    Attributes:
        query: Id that Spark or its user has given it.
        epoch: Its newest one.
        offset: Where its source stood at the end of that.
    """

    query: str
    epoch: int
    offset: Mapping[str, Any]


def rows_landed(
    options: IcebergSourceOptions, table: Table, by: str | None, snapshot: int | None
) -> Landed[IcebergOffset]:
    """All rows of a table, and where they come from; see `SupportsHandover`.

    Raises:
        OptionError: If that is not certain.
        OffsetError: If what the table says of it is damaged.
    """
    _refuse_other_starts(options)
    name, metadata = options.table_name, table.metadata
    history = History.of_branch(name, metadata, None)
    if snapshot is not None:
        found = metadata.snapshot_by_id(snapshot) or history.named(snapshot, "snapshot")
        return Landed(_begin(table, found), None, f"snapshot {snapshot}")
    if history.head is None:
        raise OptionError(
            f"{FORMAT}: table {name} has no snapshot yet, so nothing says where its rows end: "
            "wait for the first epoch of the query that lands them"
        )
    writing = _writing(options, metadata.properties, by)
    _check_newest(history, metadata.snapshots, writing, by)
    if by is None:
        _check_alone(history, writing)
    told = f"query {writing.query}, epoch {writing.epoch}"
    return Landed(_begin(table, history.head), writing.offset, told)


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
            f"{FORMAT}: option '{names[0]}' has no meaning here: the table is read as it is when "
            "the query begins, or as of the option 'snapshot' of the chain"
        )


# --- who writes


def _writing(
    options: IcebergSourceOptions, properties: Mapping[str, str], by: str | None
) -> _Writing:
    checkpoint = SparkCheckpoint(by, options.storage) if by is not None and "/" in by else None
    query = by if checkpoint is None else checkpoint.query_id()
    if query is None:
        query = _only_one(options.table_name, properties)
    epoch = _epoch_of(options.table_name, properties, query)
    text = properties.get(f"{OFFSETS_OF}{query}")
    if text is not None:
        offsets = _kept(text, query, epoch)
    else:
        offsets = _in_checkpoint(options.table_name, properties, checkpoint, query, epoch)
    if len(offsets) != 1:
        raise OptionError(
            f"{FORMAT}: query {query}, which has written table {options.table_name}, reads "
            f"{len(offsets)} sources, and only one can follow: {_BY_HAND}"
        )
    return _Writing(query, epoch, offsets[0])


def _only_one(table: str, properties: Mapping[str, str]) -> str:
    """The query whose offsets are known, if no other has ever written into the table."""
    # By their epochs, which stay, and not by offsets: those go with a query's last snapshot.
    queries = _queries(properties)
    if len(queries) > 1:
        raise OptionError(
            f"{FORMAT}: {len(queries)} queries have written into table {table}: "
            f"{', '.join(queries)}. {_NAME_IT}: what the others have written must not come again "
            "from after the position of that one"
        )
    if queries and f"{OFFSETS_OF}{queries[0]}" in properties:
        return queries[0]
    known = f"; there are epochs of {queries[0]}" if queries else ""
    raise OptionError(
        f"{FORMAT}: table {table} does not say where the source of its rows stood{known}. "
        "krishiv-iceberg's sink keeps that for streams whose writer has the option "
        "'checkpointLocation', if it is no longer than 16384 characters. Give 'landedBy' the "
        f"checkpoint of the query that lands the rows, or {_BY_HAND}"
    )


def _queries(properties: Mapping[str, str]) -> list[str]:
    return sorted(n.removeprefix(EPOCH_OF) for n in properties if n.startswith(EPOCH_OF))


def _epoch_of(table: str, properties: Mapping[str, str], query: str) -> int:
    text = properties.get(f"{EPOCH_OF}{query}")
    if text is None:
        raise OptionError(
            f"{FORMAT}: query {query} has written no epoch into table {table}; those that have: "
            f"{', '.join(_queries(properties)) or 'none'}"
        )
    if not text.isdecimal():
        raise OffsetError(f"{FORMAT}: table property '{EPOCH_OF}{query}' is {text!r}, no epoch")
    return int(text)


def _kept(text: str, query: str, epoch: int) -> list[dict[str, Any]]:
    """The offsets in the table's property, if they are those of the epoch."""
    try:
        told = json.loads(text)
        number, offsets = told["epoch"], [dict(offset) for offset in told["offsets"]]
    except (ValueError, LookupError, TypeError) as error:
        raise OffsetError(
            f"{FORMAT}: table property '{OFFSETS_OF}{query}' is damaged: {error}; {_BY_HAND}"
        ) from error
    if number != epoch:
        raise OffsetError(
            f"{FORMAT}: table property '{OFFSETS_OF}{query}' is of epoch {number}, and the newest "
            f"of the query is {epoch}: somebody has changed one of them; {_BY_HAND}"
        )
    return offsets


def _in_checkpoint(
    table: str,
    properties: Mapping[str, str],
    checkpoint: SparkCheckpoint | None,
    query: str,
    epoch: int,
) -> list[dict[str, Any]]:
    """What Spark wrote down for the epoch that the table holds."""
    if checkpoint is None:
        raise OptionError(
            f"{FORMAT}: table {table} does not say where the source of query {query} stood: give "
            f"'landedBy' the query's checkpoint instead of its id, or {_BY_HAND}"
        )
    planned = checkpoint.offset_seq(epoch)
    if planned is None:
        raise OptionError(
            f"{FORMAT}: {checkpoint.location}/offsets/{epoch} cannot be read, and table {table} "
            f"holds epoch {epoch} of the query; {_BY_HAND}"
        )
    ends = _ends_of(properties.get(f"{DIGEST_OF}{query}", ""), epoch)
    if ends not in {None, checkpoint.offsets_of(epoch).ends}:
        raise OptionError(
            f"{FORMAT}: {checkpoint.location}/offsets/{epoch} is not what table {table} holds as "
            f"epoch {epoch} of the query: the checkpoint was put back from an older copy, or "
            f"edited; {_BY_HAND}"
        )
    return planned.objects


def _ends_of(plan: str, epoch: int) -> str | None:
    """The digest of where an epoch ends, by the table's property; None if that does not say it."""
    number, _, digest = plan.partition(":")
    _, _, ends = digest.partition("-")
    # Others stand for epochs without offsets: `krishiv_spark.offsets.planned.PlannedOffsets`.
    return ends if number == str(epoch) and ends and ":" not in ends else None


# --- what else was written


def _check_newest(
    history: History, known: Sequence[Snapshot], writing: _Writing, by: str | None
) -> None:
    """Refuse a table that was rolled back: its properties stay, and its rows do not."""
    own = [_epoch_in(snapshot, writing.query) for snapshot in history.line]
    held = next((epoch for epoch in reversed(own) if epoch is not None), None)
    newest = str(writing.epoch)
    # With none of its epochs left, the newest may have expired; if it is there, it was left.
    if held != newest and (held or newest in {_epoch_in(each, writing.query) for each in known}):
        raise OptionError(
            f"{FORMAT}: table {history.table} was rolled back: its rows are those "
            f"{'before the first epoch' if held is None else f'up to epoch {held}'} of query "
            f"{writing.query}, which has written epoch {newest}. Wait "
            f"for its next epoch (the rows that went do not come again), or {_BY_HAND}"
        )
    if held is None and by is None:
        raise OptionError(
            f"{FORMAT}: table {history.table} no longer has a snapshot of query {writing.query}, "
            "so it is not known whether its rows are all that this query has written, and no "
            f"others. If they are, {_NAME_IT}"
        )


def _check_alone(history: History, writing: _Writing) -> None:
    """Refuse rows of others that came after the first ones of the query."""
    # Where its first epochs have expired, what is left of others may have come after them.
    own = (_epoch_in(snapshot, writing.query) for snapshot in history.line)
    first = next((epoch for epoch in own if epoch is not None), None)
    begun = first != "0" and not history.is_whole()
    for snapshot in history.line:
        if _query_of(snapshot) == writing.query:
            begun = True
        elif begun and operation_of(snapshot) not in _KEEPS_ROWS:
            raise OptionError(
                f"{FORMAT}: table {history.table}: snapshot {snapshot.snapshot_id} of "
                f"{when(snapshot.timestamp_ms)}, of kind {operation_of(snapshot)!r}, is not of "
                f"query {writing.query}, which lands the rows. If its rows are none that come from "
                f"the source after that query's position, {_NAME_IT}"
            )


def _epoch_in(snapshot: Snapshot, query: str) -> str | None:
    """Which epoch of a query a snapshot is of; None if it is of another one, or of none."""
    summary = snapshot.summary
    return summary.get(EPOCH_KEY) if summary and _query_of(snapshot) == query else None


def _query_of(snapshot: Snapshot) -> str | None:
    return None if snapshot.summary is None else snapshot.summary.get(QUERY_KEY)
