"""The query that has landed the rows of a table, and the position of its source. Driver.

All is taken from one metadata file of the table: its newest snapshot, and the properties about the
query, came with one commit. Any doubt whether the rows are exactly those up to the offset is an
error: a guess would lose rows, or repeat some.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from krishiv_spark.errors import OffsetError, OptionError
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.iceberg.property_keys import (
    EPOCH_KEY,
    EPOCH_PREFIX,
    NO_EPOCH,
    OFFSETS_PREFIX,
    find_digest,
    find_query_id,
    parse_count,
)
from krishiv_spark.offsets import PlannedOffsets
from krishiv_spark.sources.handover import TableProvenance
from krishiv_spark.sources.iceberg.history import (
    History,
    format_time,
    get_operation,
    get_start_name,
)
from krishiv_spark.sources.iceberg.offset import IcebergOffset, start_of_scan
from krishiv_spark.sources.iceberg.options import IcebergSourceOptions
from krishiv_spark.spark.checkpoint import SparkCheckpoint

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

__all__ = ["find_landed_rows", "find_landing_query"]

_ADDS_NO_ROWS = {"replace", "delete"}
"""Operations that add no rows: compaction, and deletion."""


def find_landed_rows(
    options: IcebergSourceOptions, table: Table, by: str | None, snapshot: int | None
) -> TableProvenance[IcebergOffset]:
    """Return all rows of a table, and the source position that they correspond to.

    Args:
        options: Options of the source.
        table: The table, as loaded now.
        by: Id or checkpoint of the query that lands the rows; None if only one query has written.
        snapshot: Id of the snapshot to read, if the user specifies the position; None for the
            newest.

    Raises:
        OptionError: If it is not certain that the rows are exactly those up to a position.
        OffsetError: If the table's record of the position is damaged.
    """
    _refuse_other_starts(options)
    name, metadata = options.table_name, table.metadata
    history = History.of_branch(name, metadata, None)
    if snapshot is not None:
        found = metadata.snapshot_by_id(snapshot) or history.resolve(snapshot, "snapshot")
        return TableProvenance(_start_at(table, found), None, f"snapshot {snapshot}")
    if history.head is None:
        raise OptionError(
            f"{FORMAT}: table {name} has no snapshot yet, so the end of its rows is unknown: "
            "wait for the first epoch of the query that lands them"
        )
    landing = find_landing_query(options, metadata.properties, by)
    _check_newest(history, metadata.snapshots, landing, by)
    if by is None:
        _check_alone(history, landing)
    by_query = f"query {landing.query}, epoch {landing.epoch}"
    return TableProvenance(_start_at(table, history.head), landing.offset, by_query)


def _start_at(table: Table, snapshot: Snapshot | None) -> IcebergOffset:
    spot = None if snapshot is None else start_of_scan(snapshot)
    return IcebergOffset(table=str(table.metadata.table_uuid), spot=spot)


def _refuse_other_starts(options: IcebergSourceOptions) -> None:
    given = {
        "branch": options.branch,
        "readChanges": options.read_changes or None,
        **dict.fromkeys(options.list_meaningless(streaming=True), ""),
    }
    names = [name for name, value in given.items() if value is not None]
    if get_start_name(options) != "earliest" or "starting_offsets" in options.model_fields_set:
        names.append("startingOffsets' or 'snapshot-id")
    if names:
        raise OptionError(
            f"{FORMAT}: option '{names[0]}' has no meaning here: the table is read in its state "
            "when the query starts, or as of the option 'snapshot' of the chain"
        )


# --- other writers


def _check_newest(
    history: History, known: Sequence[Snapshot], landing: LandingQuery, by: str | None
) -> None:
    """Refuse a table that was rolled back: that keeps its properties and removes rows."""
    epochs = [_get_epoch(snapshot, landing.query) for snapshot in history.snapshots]
    newest_here = next((epoch for epoch in reversed(epochs) if epoch is not None), None)
    newest = str(landing.epoch)
    # If the line has none of the query's epochs, they may have expired. But if the table still has
    # the newest one elsewhere, the branch was rolled back.
    if newest_here != newest and (
        newest_here or newest in {_get_epoch(each, landing.query) for each in known}
    ):
        rows = "before the first epoch" if newest_here is None else f"up to epoch {newest_here}"
        raise OptionError(
            f"{FORMAT}: table {history.table} was rolled back: its rows are those {rows} of query "
            f"{landing.query}, which has written epoch {newest}. Wait for its next epoch (the "
            f"removed rows are not written again), or {_BY_HAND}"
        )
    if newest_here is None and by is None:
        raise OptionError(
            f"{FORMAT}: table {history.table} no longer has a snapshot of query {landing.query}, "
            "so it is unknown whether its rows are exactly the rows that this query has "
            f"written. If they are, {_NAME_IT}"
        )


def _check_alone(history: History, landing: LandingQuery) -> None:
    """Refuse rows that other queries have written after the first rows of the query."""
    # If the query's first epochs have expired, snapshots of others may have come after those.
    own = (_get_epoch(snapshot, landing.query) for snapshot in history.snapshots)
    first = next((epoch for epoch in own if epoch is not None), None)
    has_started = first != "0" and not history.is_whole()
    for snapshot in history.snapshots:
        if find_query_id(snapshot) == landing.query:
            has_started = True
        elif has_started and get_operation(snapshot) not in _ADDS_NO_ROWS:
            raise OptionError(
                f"{FORMAT}: table {history.table}: snapshot {snapshot.snapshot_id} of "
                f"{format_time(snapshot.timestamp_ms)}, of kind {get_operation(snapshot)!r}, was "
                f"not written by query {landing.query}, which lands the rows. If none of its rows "
                f"comes from the source after that query's position, {_NAME_IT}"
            )


def _get_epoch(snapshot: Snapshot, query: str) -> str | None:
    """Return the epoch of a query that a snapshot contains; None for other snapshots."""
    summary = snapshot.summary
    return summary.get(EPOCH_KEY) if summary and find_query_id(snapshot) == query else None


# --- the query

_BY_HAND = (
    "set both 'snapshot' and, for the source that follows, 'then.startingOffsets' with the "
    "offset of each partition at which the rows of that snapshot end"
)
_NAME_IT = "name the query with 'landedBy', by its id or by its checkpoint"


@dataclass(frozen=True)
class LandingQuery:
    """The query that lands the rows of a table.

    Attributes:
        query: Its id, from Spark or from its user.
        epoch: Number of its newest epoch.
        offset: Offset of its source at the end of that epoch, exclusive.
    """

    query: str
    epoch: int
    offset: Mapping[str, Any]


def find_landing_query(
    options: IcebergSourceOptions, properties: Mapping[str, str], by: str | None
) -> LandingQuery:
    """Find the query that lands the rows of a table, and its newest epoch.

    Args:
        options: Options of the source.
        properties: Properties of the table, from the metadata file that is read.
        by: The query's id or checkpoint, if the user specifies it.

    Raises:
        OptionError: If the query, or the position of its source, is not certain.
        OffsetError: If the table's record of the position is damaged.
    """
    checkpoint = SparkCheckpoint(by, options.storage) if by is not None and "/" in by else None
    query = by if checkpoint is None else checkpoint.query_id()
    if query is None:
        query = _find_only_query(options.table_name, properties)
    epoch = _parse_epoch(options.table_name, properties, query)
    text = properties.get(f"{OFFSETS_PREFIX}{query}")
    if text is not None:
        offsets = _parse_offsets(text, query, epoch)
    else:
        offsets = _read_checkpoint_offsets(options.table_name, properties, checkpoint, query, epoch)
    if len(offsets) != 1:
        raise OptionError(
            f"{FORMAT}: query {query}, which has written table {options.table_name}, reads "
            f"{len(offsets)} sources, and only one can follow: {_BY_HAND}"
        )
    return LandingQuery(query, epoch, offsets[0])


def _find_only_query(table: str, properties: Mapping[str, str]) -> str:
    """Return the query whose offsets are recorded, if no other has ever written into the table."""
    # Epochs stay in the properties; offsets are removed with a query's last snapshot.
    queries = _list_queries(properties)
    if len(queries) > 1:
        raise OptionError(
            f"{FORMAT}: {len(queries)} queries have written into table {table}: "
            f"{', '.join(queries)}. {_NAME_IT}: rows that the others have written must not be "
            "read again after the position of that one"
        )
    if queries and f"{OFFSETS_PREFIX}{queries[0]}" in properties:
        return queries[0]
    known = f"; it has epochs of {queries[0]}" if queries else ""
    raise OptionError(
        f"{FORMAT}: table {table} does not record the position of the source of its "
        f"rows{known}. krishiv-iceberg's sink records it for streams whose writer has the "
        "option 'checkpointLocation', if it is no longer than 16384 characters. Set 'landedBy' "
        f"to the checkpoint of the query that lands the rows, or {_BY_HAND}"
    )


def _list_queries(properties: Mapping[str, str]) -> list[str]:
    """Return the ids of the queries that have an epoch in the table, sorted."""
    return sorted(
        name.removeprefix(EPOCH_PREFIX)
        for name, text in properties.items()
        if name.startswith(EPOCH_PREFIX) and text != NO_EPOCH
    )


def _parse_epoch(table: str, properties: Mapping[str, str], query: str) -> int:
    text = properties.get(f"{EPOCH_PREFIX}{query}")
    if text is None or text == NO_EPOCH:
        raise OptionError(
            f"{FORMAT}: query {query} has written no epoch into table {table}; those that have: "
            f"{', '.join(_list_queries(properties)) or 'none'}"
        )
    epoch = parse_count(text)
    if epoch is None:
        raise OffsetError(
            f"{FORMAT}: table property '{EPOCH_PREFIX}{query}' is {text!r}, not an epoch"
        )
    return epoch


def _parse_offsets(text: str, query: str, epoch: int) -> list[dict[str, Any]]:
    """Parse the offsets in the table's property; refuse those of another epoch."""
    try:
        record = json.loads(text)
        number, offsets = record["epoch"], [dict(offset) for offset in record["offsets"]]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise OffsetError(
            f"{FORMAT}: table property '{OFFSETS_PREFIX}{query}' is damaged: {error}; {_BY_HAND}"
        ) from error
    if number != epoch:
        raise OffsetError(
            f"{FORMAT}: table property '{OFFSETS_PREFIX}{query}' is of epoch {number}, and the "
            f"newest of the query is {epoch}: another program has changed one of them; "
            f"{_BY_HAND}"
        )
    return offsets


def _read_checkpoint_offsets(
    table: str,
    properties: Mapping[str, str],
    checkpoint: SparkCheckpoint | None,
    query: str,
    epoch: int,
) -> list[dict[str, Any]]:
    """Return the offsets that Spark has planned for the newest epoch of the table."""
    if checkpoint is None:
        raise OptionError(
            f"{FORMAT}: table {table} does not record the position of the source of query "
            f"{query}: set 'landedBy' to the query's checkpoint instead of its id, or {_BY_HAND}"
        )
    try:
        planned = checkpoint.read_offset_seq(epoch)
    except OptionError as error:
        raise OptionError(
            f"{FORMAT}: {checkpoint.location}/offsets/{epoch} cannot be read, and table {table} "
            f"has epoch {epoch} of the query: {error}; {_BY_HAND}"
        ) from error
    digest = find_digest(properties, query, str(epoch))
    ends = None if digest is None else PlannedOffsets.ends_of(digest)
    if ends not in {None, checkpoint.offsets_of(epoch).ends}:
        raise OptionError(
            f"{FORMAT}: {checkpoint.location}/offsets/{epoch} does not match epoch {epoch} of "
            f"the query in table {table}: the checkpoint was restored from an older copy, or "
            f"edited; {_BY_HAND}"
        )
    return planned.objects
