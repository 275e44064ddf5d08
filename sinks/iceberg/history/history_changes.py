"""The staged changes of an epoch of a history, and its events. Driver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from krishiv_spark.arrow.compute import pc
from krishiv_spark.changes.change_origins import BINLOG, GTID_MARK, OFFSET, SNAPSHOT
from krishiv_spark.errors import CommitRejected
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.sinks.iceberg.history.history_spec import split_positions
from krishiv_spark.sinks.iceberg.history.version_chains import (
    NEVER,
    Events,
    Flags,
    Numbers,
    accumulate_before,
)
from krishiv_spark.sinks.iceberg.upserts.changed_keys import LastDelete
from krishiv_spark.sinks.iceberg.upserts.epoch_changes import (
    EpochChanges,
    find_end_deletes,
    find_positions,
    number_keys,
    to_sortable,
)
from krishiv_spark.sinks.kept_values import LogTime
from krishiv_spark.sinks.upserts import (
    DELETES,
    KEPT,
    ORDER,
    PARTITION,
    PLACE,
    POSITION,
    READ,
    TIME,
    describe_values,
)

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

    from krishiv_spark.sinks.iceberg.history.history_spec import HistorySpec

__all__ = ["HistoryChanges"]


class HistoryChanges(EpochChanges):
    """The changes that tasks have staged for an epoch of a history. Driver.

    Args:
        io: Accesses their files.
        paths: The files, in the order of the tasks.
        spec: The columns of the history.
        columns: The columns of its rows; see `EpochChanges`.
    """

    def __init__(
        self, io: FileIO, paths: Sequence[str], spec: HistorySpec, columns: pa.Schema
    ) -> None:
        super().__init__(io, paths, spec, columns)
        self._spec = spec

    @property
    def positions(self) -> Mapping[str, int]:
        """The highest position of the database's log among the changes, by partition."""
        return find_positions(self._control) if self._spec.is_of_records else {}

    @property
    def times(self) -> Mapping[str, LogTime]:
        """No times: versions have their own."""
        return {}

    @property
    def last_deletes(self) -> pa.Table | None:
        """The deletes with which partitions end, with their further columns; None for rows."""
        return find_end_deletes(self._control, self._spec.keys) if self.positions else None

    @property
    def further(self) -> pa.Table:
        """The further columns by which the old keys of changes of records are known."""
        return self._control.select([KEPT, DELETES, PARTITION, POSITION])

    @property
    def is_truncated(self) -> bool:
        """Return False: a history has no such events."""
        return False

    @property
    def keys(self) -> pa.Table:
        """The keys of all changes, each once."""
        own = list(self._spec.keys)
        return self._control.group_by(own).aggregate([]).select(own)

    def list_moves(self, inserts: Numbers) -> Iterator[tuple[str, LastDelete]]:
        """Yield the deletes at the positions of some inserts, each with its partition.

        An earlier epoch has deleted these rows, if the epoch does not: Debezium has repeated the
        delete.
        """
        rows = self._control.select([*self._spec.keys, DELETES, PARTITION, POSITION])
        wanted = rows[POSITION].take(pa.array(inserts)).drop_null()
        flags = pc.and_(rows[DELETES], pc.is_in(rows[POSITION], pc.unique(wanted)))
        found = rows.filter(pc.and_(flags, rows[PARTITION].is_valid())).drop_columns([DELETES])
        for one in found.group_by(found.column_names).aggregate([]).to_batches(1):
            key = pa.Table.from_batches([one.select(list(self._spec.keys))])
            yield one[PARTITION][0].as_py(), LastDelete(one[POSITION][0].as_py(), key)

    @cached_property
    def kept(self) -> pa.Array | None:
        """For each change the names of the columns that keep their values; None for rows."""
        if KEPT not in self._control.column_names:
            return None
        return pa.concat_arrays(self._control[KEPT].chunks)

    @cached_property
    def _control(self) -> pa.Table:
        """The columns of all changes that determine the versions, in a fixed order."""
        of_records = [PLACE, ORDER, KEPT, PARTITION, POSITION]
        further = of_records if self._spec.is_of_records else [self._spec.rank_column]
        names = list(dict.fromkeys([*self._spec.keys, DELETES, TIME, READ, *further]))
        read = to_sortable(pa.Table.from_batches(self.read_batches(names)).select(names))
        for name in self._spec.keys:
            if read[name].null_count:
                raise CommitRejected(
                    f"{FORMAT}: {read[name].null_count} changes have no value in the key column "
                    f"{name!r}. Nothing was committed. Let the records have the key of the table"
                )
        return read

    def number_events(self, found: pa.Table, keys: pa.Table, *, is_complete: bool) -> Events:
        """Return the events of the epoch.

        Args:
            found: The versions that were found in the table.
            keys: The keys of all changes.
            is_complete: Whether these are all versions of the keys. Otherwise it is known only for
                keys without a current version.

        Raises:
            CommitRejected: If positions of a key are of two kinds.
        """
        spec, control = self._spec, self._control
        rows = to_sortable(found)
        count, size = rows.num_rows, control.num_rows
        groups = np.r_[number_keys(rows, keys), number_keys(control, keys)]
        deletes = np.r_[np.zeros(count, np.bool_), control[DELETES].to_numpy()]
        reads = np.r_[np.zeros(count, np.bool_), control[READ].to_numpy()]
        columns = spec.columns
        times = np.r_[_to_micros(rows[columns.valid_from]), _to_micros(control[TIME])]
        ends = np.r_[_to_micros(rows[columns.valid_to], NEVER), np.full(size, NEVER)]
        places = _join(rows[spec.rank_column], control[self._rank_name])
        if spec.is_of_records:
            reads = np.asarray(pc.starts_with(places, SNAPSHOT))
            ranked = self._rank_records(places, groups, deletes, times, ends)
        else:
            ranked = _rank_rows(places, count)
        events = Events(
            groups,
            ranked.ranks,
            times,
            ends,
            np.r_[np.zeros(count, np.int64), ranked.arrivals],
            deletes,
            reads,
            count,
            np.full(keys.num_rows, is_complete),
            ranked.end_ranks,
            ranked.replayed,
            *ranked.logged,
        )
        events.complete[:] |= ~events.have_current()
        return events

    def _rank_records(
        self, places: pa.Array, groups: Numbers, deletes: Flags, times: Numbers, ends: Numbers
    ) -> _Ranked:
        """Return the order of records by their positions in the database's log.

        Args:
            places: The positions, of versions with that of the delete.
            groups: The number of each event's key.
            deletes: Whether it is a change that deletes.
            times: The times of events.
            ends: The times at which they end.

        Raises:
            CommitRejected: If positions of a key are of two kinds.
        """
        count = len(places) - self._control.num_rows
        ranks, end_ranks = _rank_positions(places, groups, deletes, count)
        arrivals = _number_arrivals(self._control, groups[count:], ranks[count:])
        none = np.full(count, -1)
        known = _Known(
            np.r_[groups, groups[:count]],
            np.r_[ranks, end_ranks],
            np.r_[times, ends[:count]],
            np.r_[none, arrivals, none],
        )
        return _Ranked(ranks, end_ranks, arrivals, *_find_replayed(places, count, known))

    def describe(self, change: int) -> str:
        """Return key, position and time of a change, by its number among the changes."""
        row = self._control.slice(change, 1)
        key = describe_values(self._spec.keys, (row[name][0] for name in self._spec.keys))
        return f"{key} at {row[PLACE][0]} of {row[TIME][0]}"

    def list_positions(self, changes: Numbers) -> pa.Array:
        """Return the positions of changes, by their numbers among the changes; null for -1."""
        places = pa.chunked_array(self._control[PLACE].chunks, pa.string())
        return places.take(pa.array(np.maximum(changes, 0), mask=changes < 0)).combine_chunks()

    @property
    def _rank_name(self) -> str:
        return PLACE if self._spec.is_of_records else self._spec.rank_column


class _Logged(NamedTuple):
    """The GTIDs of events.

    Attributes:
        files: The number of the log file of each event; -1 for a position without a GTID.
        transactions: A number for its transaction, likewise.
    """

    files: Numbers
    transactions: Numbers


class _Ranked(NamedTuple):
    """The order of the events of an epoch: the versions of the table, then the changes.

    Attributes:
        ranks: The place of each event in the order of its key; -1 for none.
        end_ranks: For each version, the place of the delete that ended it; -1 for none.
        arrivals: The order in which the changes have come.
        replayed: Whether an event is a change that another server has logged before.
        logged: The GTIDs of the events.
    """

    ranks: Numbers
    end_ranks: Numbers
    arrivals: Numbers
    replayed: Flags
    logged: _Logged


def _rank_rows(ranks: pa.Array, count: int) -> _Ranked:
    """Return the order of rows by the column that orders them; `count` of them are versions."""
    size = len(ranks)
    found = pc.rank(ranks, "ascending", tiebreaker="dense")
    none = np.full(size, -1)
    return _Ranked(
        np.asarray(found).astype(np.int64),
        none[:count],
        np.arange(size - count),
        np.zeros(size, np.bool_),
        _Logged(none, none),
    )


def _rank_positions(
    places: pa.Array, groups: Numbers, deletes: Flags, count: int
) -> tuple[Numbers, Numbers]:
    """Return the ranks of the positions of events, and those of deletes that ended versions.

    Args:
        places: The positions, of versions with that of the delete.
        groups: The number of each event's key.
        deletes: Whether it is a change that deletes.
        count: Number of versions of the table, the first ones.

    Raises:
        CommitRejected: As `_find_redundant`.
    """
    opened, ended = split_positions(places.slice(0, count))
    of_changes = places.slice(count)
    every = pa.concat_arrays([opened, of_changes])
    bare = pc.replace_substring_regex(every, f"^{SNAPSHOT}|{GTID_MARK}", "")
    ended = pc.replace_substring_regex(ended, GTID_MARK, "")
    reads = np.asarray(pc.starts_with(places, SNAPSHOT))
    redundant = _find_redundant(bare, groups, deletes, reads)
    found = pc.rank(pa.concat_arrays([bare, ended]), "ascending", tiebreaker="dense")
    ranks = np.asarray(found).astype(np.int64)
    of_ends = np.where(ended.is_null(), -1, ranks[len(bare) :])
    return np.where(redundant, -1, ranks[: len(bare)]), of_ends


def _find_redundant(places: pa.Array, groups: Numbers, deletes: Flags, reads: Flags) -> Flags:
    """Return the deletes by tombstones whose row is deleted by an event, too.

    A tombstone has only an offset. Of other changes, all or none of a topic have a position in the
    database's log. Rows that a snapshot has read may lack it: their positions are not compared with
    those of changes.

    Raises:
        CommitRejected: If a key has positions of both kinds.
    """
    of_kafka = np.asarray(pc.starts_with(places, OFFSET))
    in_log = np.zeros(int(groups.max(initial=-1)) + 1, np.bool_)
    in_log[groups[~of_kafka]] = True
    mixed = of_kafka & in_log[groups] & ~reads
    if (mixed & ~deletes).any():
        raise CommitRejected(
            f"{FORMAT}: events of one row have positions of two kinds, in the database's log and "
            "in the topic, which cannot be compared: the form of the events has changed. (Rows "
            "alone have positions in the log only with '__lsn' and a flag of deletes, '__deleted'.)"
            " Nothing was committed. Write the events of the other form into a new table"
        )
    return mixed


class _Known(NamedTuple):
    """The events of an epoch, and after these the deletes that ended versions of the table.

    Attributes:
        groups: The number of each one's key.
        ranks: Its place in the order of positions; -1 for none.
        times: Its time.
        arrivals: The order of the changes; -1 for the others.
    """

    groups: Numbers
    ranks: Numbers
    times: Numbers
    arrivals: Numbers

    def take(self, chosen: Numbers) -> _Known:
        """Return some of them."""
        return _Known(*(each[chosen] for each in self))


def _find_replayed(places: pa.Array, count: int, known: _Known) -> tuple[Flags, _Logged]:
    """Return which events are changes of a transaction that another server has logged before.

    A transaction has one GTID on all servers, and is in one log file of each.

    Args:
        places: The positions, of versions with that of the delete.
        count: Number of versions of the table, the first ones.
        known: The events and deletes.
    """
    flags, none = np.zeros(len(places), np.bool_), np.full(len(known.groups), -1, np.int64)
    files, transactions = none.copy(), none.copy()
    opened, ended = split_positions(places.slice(0, count))
    parts = pc.extract_regex(pa.concat_arrays([opened, places.slice(count), ended]), BINLOG)
    spots = np.flatnonzero(parts.is_valid().to_numpy(zero_copy_only=False))
    if len(spots):
        found = parts.take(pa.array(spots))
        own = known.take(spots)
        files[spots] = logs = np.asarray(found.field("file").cast(pa.int64()))
        transactions[spots] = gtids = _number_texts(found.field("gtid"))
        pairs = own.groups * (int(gtids.max()) + 1) + gtids
        is_other = _differ_from_first(pairs, logs, own.times, own.arrivals)
        numbers = np.asarray(found.field("number").cast(pa.int64()))
        is_other |= _are_lower(own, logs, _number_texts(found.field("source")), numbers)
        chosen = own.arrivals >= 0
        flags[spots[chosen]] = is_other[chosen]
    return flags, _Logged(files[: len(places)], transactions[: len(places)])


def _number_texts(texts: pa.Array) -> Numbers:
    found: Numbers = np.asarray(texts.dictionary_encode().indices).astype(np.int64)
    return found


def _are_lower(own: _Known, logs: Numbers, sources: Numbers, numbers: Numbers) -> Flags:
    """Return which elements have a lower number than one before in their log, and are not newer.

    Numbers of a source rise in each log, so it is another server's log file of this number. A newer
    time is that of a number that was used again after the log was reset.
    """
    order = np.lexsort((own.ranks, sources, logs, own.groups))
    keys = np.stack([own.groups, logs, sources])[:, order]
    is_first = np.r_[True, (keys[:, 1:] != keys[:, :-1]).any(axis=0)]
    highest = accumulate_before(is_first, numbers[order])
    newest = accumulate_before(is_first, own.times[order], -NEVER)
    found = np.zeros(len(order), np.bool_)
    found[order] = (numbers[order] < highest) & (own.times[order] <= newest)
    return found


def _differ_from_first(pairs: Numbers, logs: Numbers, times: Numbers, arrivals: Numbers) -> Flags:
    """Return which elements are in another log file than the first of their pair, and not newer.

    Elements in a file in which the table has the pair are not: their positions can be compared.
    Newer ones have a GTID that was used again after the server's log was reset.
    """
    is_change = arrivals >= 0
    order = np.argsort(arrivals, kind="stable")
    _, first, owners = np.unique(pairs[order], return_index=True, return_inverse=True)
    own = np.empty(len(pairs), np.int64)
    own[order] = owners.reshape(-1)
    newest = times[order][first]
    np.maximum.at(newest, own[~is_change], times[~is_change])
    _, numbers = np.unique(logs, return_inverse=True)
    both = pairs * (len(logs) + 1) + numbers.reshape(-1)
    is_other = (logs != logs[order][first][own]) & (times <= newest[own])
    found: Flags = is_other & ~np.isin(both, both[~is_change])
    return found


def _number_arrivals(control: pa.Table, groups: Numbers, ranks: Numbers) -> Numbers:
    """Return the order of changes: by offset, or by position for a key in several partitions.

    A key is in two of them after a topic got more partitions.
    """
    partitions = pc.fill_null(control[PARTITION], "").combine_chunks().dictionary_encode()
    numbers = np.asarray(partitions.indices).astype(np.int64)
    lowest = np.full(int(groups.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    highest = np.full(len(lowest), -1)
    np.minimum.at(lowest, groups, numbers)
    np.maximum.at(highest, groups, numbers)
    offsets: Numbers = pc.fill_null(control[ORDER], 0).to_numpy()
    return np.where((lowest < highest)[groups], ranks, offsets)


def _join(one: pa.ChunkedArray, other: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays([pa.array([], one.type), *one.chunks, *other.chunks])


def _to_micros(times: pa.ChunkedArray, none: int = 0) -> Numbers:
    found = pc.fill_null(times.cast(pa.timestamp("us", "UTC")).cast(pa.int64()), none)
    micros: Numbers = found.to_numpy().astype(np.int64)
    return micros
