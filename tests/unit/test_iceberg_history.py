"""Epochs of a history (`mode` = `scd2`), compared with one that plain Python keeps."""

import datetime as dt
import json
import os
import random
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from database_life import to_rows
from debezium_events import PLACEHOLDER, to_json, wrap, write_event
from history_life import COLUMNS, EPOCH, Database, at, sort_versions
from iceberg_life import IcebergLife, at_next_commit, catalog_of, table_of
from iceberg_reading import reader, rows_of

from krishiv_spark.errors import CommitRejected, OptionError, SchemaError
from krishiv_spark.sinks.base import Epoch
from krishiv_spark.sinks.iceberg.route import (
    StagedForTable,
    read_intent_files,
    read_mode,
    write_intent_files,
)
from krishiv_spark.sources.base import UNLIMITED

NAME = "db.history"


class History(IcebergLife):
    """A history that epochs of records change."""

    def __init__(self, folder, **more):
        given = {
            "path": NAME,
            "mode": "scd2",
            "changeFormat": "debezium",
            "keyColumns": "id",
            "tableSchema": COLUMNS,
        }
        super().__init__(folder, **{**given, **more})
        self.folder, self.next, self.offset = folder, 0, 0

    def apply(self, *records):
        rows = to_rows(records, self.offset)
        times = pa.array([10**9] * len(records), pa.timestamp("ms", tz="UTC"))
        self.epoch(self.next, rows.append_column("timestamp", times))
        self.next += 1
        self.offset += len(records)

    def versions(self):
        return sort_versions(self.rows())

    def rows(self):
        return table_of(self.folder, self.options["path"]).scan().to_arrow().to_pylist()


SEEDS = pytest.mark.parametrize(
    # an epoch takes a fifth of a second
    "seed",
    [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 5))],
)


@pytest.mark.parametrize("moves", [False, True])
@SEEDS
def test_the_history_equals_that_of_the_database_after_each_epoch(tmp_path, seed, moves):
    database, history = Database(seed, moves=moves), History(tmp_path)
    database.snapshot()
    done = 0
    for _ in range(6):
        for _ in range(database.random.randrange(1, 12)):
            database.run()
        new = database.transactions[done:]
        done += len(new)
        history.apply(*[record for records in new for record in records])
        assert history.versions() == database.history.sorted()


@pytest.mark.parametrize(
    "options",
    [
        {"partitionBy": "is_current"},
        pytest.param({"partitionBy": "n"}, marks=pytest.mark.long),
        pytest.param({"compact": "auto"}, marks=pytest.mark.long),
    ],
)
@SEEDS
def test_repeated_events_change_nothing(tmp_path, seed, options):
    """After a restart, Debezium sends again what it had sent since its last offset."""
    database, history = Database(seed, moves=True), History(tmp_path, **options)
    database.snapshot()
    for _ in range(30):
        database.run()
    records = [record for records in database.transactions for record in records]
    sent = []
    for record in records:
        sent.append(record)
        if database.random.random() < 0.1:
            sent.extend(sent[-database.random.randrange(1, 12) :])
    while sent:
        size = database.random.randrange(1, 24)
        history.apply(*sent[:size])
        del sent[:size]
    assert history.versions() == database.history.sorted()


# --- single events


def change(op, lsn, time, **row):
    """Return the record of a change of row 1, or of another one."""
    key = row.setdefault("id", 1)
    found = {"n": None, "text": None, "tags": None, **row}
    before, after = (found, None) if op == "d" else (None, found)
    return to_json({"id": key}), write_event(op, before, after, lsn, ts_us=time)


def intervals(history):
    """Return key, value, start and end of each version, in microseconds."""
    return [
        (row["id"], row["n"], *(to_micros(row[name]) for name in ("valid_from", "valid_to")))
        for row in history.versions()
    ]


def to_micros(time):
    return time and (time - EPOCH) // dt.timedelta(microseconds=1)


def test_versions_of_one_transaction_have_no_gap(tmp_path):
    history = History(tmp_path)
    changes = [change("c", 5, 10, n=1), change("u", 6, 10, n=2), change("u", 7, 10, n=3)]
    history.apply(*changes)
    assert intervals(history) == [(1, 1, 10, 10), (1, 2, 10, 10), (1, 3, 10, None)]
    assert [row["is_current"] for row in history.versions()] == [False, False, True]


def test_a_change_that_a_transaction_made_before_the_snapshot_wins(tmp_path):
    """Debezium waits for no transaction that is open: its changes have lower positions."""
    history = History(tmp_path)
    history.apply(change("r", 300, 1000, n=1), change("r", 300, 1000, id=2, n=1))
    history.apply(change("u", 200, 900, n=2))
    assert intervals(history) == [(1, 1, 900, 900), (1, 2, 900, None), (2, 1, 1000, None)]
    history.apply(change("r", 300, 1000, n=1), change("u", 200, 900, n=2))
    history.apply(change("u", 310, 1100, n=3), change("u", 200, 900, id=2, n=2))
    assert intervals(history)[1:3] == [(1, 2, 900, 1100), (1, 3, 1100, None)]
    assert intervals(history)[3:] == [(2, 1, 900, 900), (2, 2, 900, None)]


@pytest.mark.long
def test_a_repeated_row_of_a_snapshot_opens_no_version_after_such_a_change(tmp_path):
    """The version from the snapshot is in a file that has no current one."""
    history = History(tmp_path, partitionBy="is_current")
    read = change("r", 300, 1000, n=1)
    history.apply(read)
    history.apply(change("u", 200, 900, n=2))
    wanted = [(1, 1, 900, 900), (1, 2, 900, None)]
    for records in ([read], [read, change("u", 200, 900, n=2)], [change("r", 310, 1000, n=2)]):
        history.apply(*records)
        assert intervals(history) == wanted
    history.apply(change("r", 400, 2000, n=3))
    assert intervals(history)[1:] == [(1, 2, 900, 2000), (1, 3, 2000, None)]
    history.apply(change("u", 200, 900, n=2), read)
    assert intervals(history)[1:] == [(1, 2, 900, 2000), (1, 3, 2000, None)]


@pytest.mark.long
@pytest.mark.parametrize("options", [{}, {"partitionBy": "is_current"}])
def test_a_second_snapshot_opens_versions_of_changed_rows_only(tmp_path, options):
    history = History(tmp_path, **options)
    first = [change("r", 10, 100, n=1), change("r", 10, 100, id=2, n=1, tags=["a", None])]
    history.apply(*first)
    history.apply(change("r", 20, 200, n=5), change("r", 20, 200, id=2, n=1, tags=["a", None]))
    wanted = [(1, 1, 100, 200), (1, 5, 200, None), (2, 1, 100, None)]
    assert intervals(history) == wanted
    history.apply(*first)
    assert intervals(history) == wanted


def test_a_row_that_was_deleted_is_not_opened_by_a_repeated_snapshot(tmp_path):
    history = History(tmp_path)
    read = change("r", 10, 100, n=1)
    history.apply(read, change("u", 5, 110, n=2), change("d", 12, 120))
    history.apply(read, change("u", 5, 110, n=2))
    assert intervals(history) == [(1, 1, 100, 110), (1, 2, 110, 120)]
    history.apply(change("c", 15, 150, n=3), change("d", 12, 120))
    assert intervals(history)[2:] == [(1, 3, 150, None)]


def test_tombstones_do_not_change_the_place_of_a_row_that_is_read_again(tmp_path):
    history = History(tmp_path)
    new, tombstone = {"n": 2, "text": "a"}, (to_json({"id": 1}), None)
    history.apply(
        *(change("c", 1, 110, n=1), change("d", 3, 120), tombstone, change("c", 4, 130, **new)),
        *(change("r", 9, 140, **new), change("d", 12, 150), tombstone),
    )
    assert intervals(history) == [(1, 1, 110, 120), (1, 2, 130, 150)]


def test_repeated_changes_do_not_change_the_place_of_a_row_that_is_read_again(tmp_path):
    history = History(tmp_path)
    history.apply(change("c", 1, 110, n=1))
    both = [change("u", 5, 120, n=2), change("r", 5, 130, n=2)]
    history.apply(*both, change("c", 1, 110, n=1), *both)
    assert intervals(history) == [(1, 1, 110, 120), (1, 2, 120, None)]


@pytest.mark.long
@pytest.mark.parametrize("size", [1, 2, 9])
@pytest.mark.parametrize("options", [{}, {"partitionBy": "is_current"}])
def test_changes_of_another_server_are_new_and_its_repeated_ones_are_not(tmp_path, options, size):
    """Its positions start again, and times of MySQL have whole seconds."""
    history = History(tmp_path, **options)
    old = [change("c", 5000, 100, n=1), change("u", 6000, 110, n=2)]
    new = [change("u", 10, 500, n=3), change("d", 20, 500), change("c", 30, 500, n=4)]
    sent = [*old, *new, old[1], new[1], *new, *old]
    for first in range(0, len(sent), size):
        history.apply(*sent[first : first + size])
    assert intervals(history) == [
        *((1, 1, 100, 110), (1, 2, 110, 500), (1, 3, 500, 500)),
        (1, 4, 500, None),
    ]


@pytest.mark.long
@pytest.mark.parametrize("options", [{}, {"partitionBy": "is_current"}])
def test_a_snapshot_of_another_server_opens_versions_of_rows_that_differ(tmp_path, options):
    history = History(tmp_path, **options)
    history.apply(change("c", 5000, 100, n=1), change("c", 6000, 110, id=2, n=2))
    history.apply(change("r", 10, 900, n=1), change("r", 10, 900, id=2, n=5))
    history.apply(change("u", 20, 890, n=7), change("u", 30, 950, id=2, n=6))
    assert intervals(history) == [
        *((1, 1, 100, 890), (1, 7, 890, None)),
        *((2, 2, 110, 900), (2, 5, 900, 950), (2, 6, 950, None)),
    ]


@pytest.mark.long
def test_an_unclear_event_stops_the_query_until_an_option_decides(tmp_path, caplog):
    """It is older than the row, and no version has its position."""
    sent = change("c", 5000, 100, n=1), change("u", 6000, 110, n=2)
    unclear = change("u", 10, 110, n=3)
    history = History(tmp_path / "apply")
    history.apply(*sent)
    with pytest.raises(CommitRejected, match=r"id = '1' at lsn:0+10 of .*'unclearEvents' = 'appl"):
        history.apply(unclear)
    history.options["unclearEvents"] = "apply"
    history.apply(unclear)
    history.options["unclearEvents"] = "fail"
    history.apply(unclear, change("u", 20, 112, n=4))
    assert intervals(history)[1:] == [(1, 2, 110, 111), (1, 3, 111, 112), (1, 4, 112, None)]
    ignoring = History(tmp_path / "ignore", unclearEvents="ignore")
    ignoring.apply(*sent)
    caplog.clear()
    ignoring.apply(unclear)
    assert intervals(ignoring) == [(1, 1, 100, 110), (1, 2, 110, None)]
    assert "1 unclear events were ignored, the first of the row with id = '1' at" in caplog.text


def binlog(op, time, n, file="", pos=0):
    """Return the record of a change of row 1 in MariaDB; of an incremental snapshot by default."""
    row = {"id": 1, "n": n, "text": None, "tags": None}
    before, after = (row, None) if op == "d" else (None, row)
    given = {"file": file, "pos": pos, "row": 0, "ts_us": time}
    return to_json({"id": 1}), write_event(op, before, after, None, **given)


@pytest.mark.long
@pytest.mark.parametrize("size", [1, 9])
def test_rows_that_a_snapshot_reads_need_no_position(tmp_path, size):
    history = History(tmp_path)
    sent = [binlog("r", 100, 1), binlog("u", 110, 2, "bin.000001", 100), binlog("r", 120, 2)]
    sent += [binlog("r", 130, 3), binlog("u", 140, 4, "bin.000001", 200)]
    sent += [binlog("d", 150, 4, "bin.000001", 300), (to_json({"id": 1}), None)]
    for first in range(0, len(sent), size):
        history.apply(*sent[first : first + size])
    assert intervals(history) == [
        *((1, 1, 100, 110), (1, 2, 110, 130), (1, 3, 130, 140)),
        (1, 4, 140, 150),
    ]


def test_a_clock_that_goes_back_leaves_intervals_in_order(tmp_path):
    history = History(tmp_path)
    history.apply(change("c", 1, 100, n=1), change("u", 2, 90, n=2))
    history.apply(change("u", 3, 80, n=3), change("d", 4, 85))
    history.apply(change("c", 5, 95, n=4))
    assert intervals(history) == [
        (1, 1, 100, 100),
        (1, 2, 100, 100),
        (1, 3, 100, 100),
        (1, 4, 100, None),
    ]


@pytest.mark.long
@pytest.mark.parametrize("options", [{}, {"partitionBy": "is_current"}])
def test_a_changed_key_takes_its_values_along_from_an_earlier_epoch(tmp_path, options):
    """Also if that epoch has changed the row before, and if Debezium repeats the delete."""
    history = History(tmp_path, **options)
    left = [change("d", 7, 20), (to_json({"id": 1}), None)]
    history.apply(change("c", 1, 10, n=1, text="old"), change("u", 2, 15, n=2, text="a"), *left)
    history.apply(left[1])
    history.apply(change("c", 9, 25, id=5, n=5, text="b"), *left)
    arrived = change("c", 7, 20, id=2, n=2, text=PLACEHOLDER)
    history.apply(arrived, change("d", 10, 30, id=2), change("c", 10, 30, n=3, text=PLACEHOLDER))
    history.apply(arrived, change("d", 10, 30, id=2))
    found = [(row["id"], row["n"], row["text"], row["is_current"]) for row in history.versions()]
    assert found == [
        *((1, 1, "old", False), (1, 2, "a", False), (1, 3, "a", True)),
        *((2, 2, "a", False), (5, 5, "b", True)),
    ]


def test_an_update_of_an_unknown_row_without_a_value_is_refused(tmp_path):
    half = change("u", 5, 10, n=1, text=PLACEHOLDER)
    history = History(tmp_path)
    with pytest.raises(CommitRejected, match="REPLICA IDENTITY FULL"):
        history.apply(half)
    lenient = History(tmp_path, missingValues="null")
    lenient.apply(half)
    assert intervals(lenient) == [(1, 1, 10, None)]


def test_rows_alone_have_the_order_of_the_topic_without_positions(tmp_path):
    history = History(tmp_path, tableSchema="id INT, n BIGINT")
    rows = [{"id": 1, "n": n, "__source_ts_ms": n * 1000} for n in (1, 2)]
    history.apply(*[(to_json({"id": 1}), to_json(row)) for row in rows])
    history.apply((to_json({"id": 1}), None))
    assert intervals(history) == [(1, 1, 10**6, 2 * 10**6), (1, 2, 2 * 10**6, 10**12)]
    positions = [row["change_position"] for row in history.versions()]
    assert positions == [f"offset:{0:020}", f"offset:{1:020}/offset:{2:020}"]


@pytest.mark.long
@pytest.mark.parametrize("size", [1, 2, 5])
def test_rows_alone_whose_deletes_are_only_tombstones_are_deleted(tmp_path, size):
    """Their positions cannot be compared with that of a tombstone, which has an offset only."""
    history = History(tmp_path, tableSchema="id INT, n BIGINT")
    key = to_json({"id": 1})
    rows = [{"id": 1, "n": n, "__lsn": 4 + n, "__source_ts_us": n * 1000} for n in (1, 2, 3)]
    first, second, third = ((key, to_json(row)) for row in rows)
    sent = [first, second, (key, None), third, (key, None)]
    for start in range(0, len(sent), size):
        history.apply(*sent[start : start + size])
    kafka = 10**12
    assert intervals(history) == [
        *((1, 1, 1000, 2000), (1, 2, 2000, kafka)),
        (1, 3, kafka, kafka),
    ]
    assert not any(row["is_current"] for row in history.versions())


@pytest.mark.long
@pytest.mark.parametrize("size", [1, 3, 7])
def test_rows_alone_with_a_flag_of_deletes_have_positions(tmp_path, size):
    history = History(tmp_path, tableSchema="id INT, n BIGINT")
    key = to_json({"id": 1})

    def row(n, *, deleted="false"):
        more = {"__deleted": deleted, "__lsn": n, "__source_ts_us": n * 1000}
        return key, to_json({"id": 1, "n": n, **more})

    sent = [row(1), row(2, deleted="true"), (key, None), row(3)]
    sent = [*sent, *sent[-3:]]
    for start in range(0, len(sent), size):
        history.apply(*sent[start : start + size])
    assert intervals(history) == [(1, 1, 1000, 2000), (1, 3, 3000, None)]
    positions = [row["change_position"] for row in history.versions()]
    assert positions == [f"lsn:{1:020}/lsn:{2:020}", f"lsn:{3:020}"]


@pytest.mark.long
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_a_tombstone_after_its_delete_has_no_time(tmp_path, size):
    """Without positions in the log, it is one more delete, at the time of its record."""
    history = History(tmp_path)
    key = to_json({"id": 1})
    changes = [change("c", None, 100, n=1), change("d", None, 200), change("c", None, 300, n=2)]
    sent = [*changes[:2], (key, None), (key, None), changes[2]]
    for start in range(0, len(sent), size):
        history.apply(*sent[start : start + size])
    assert intervals(history) == [(1, 1, 100, 200), (1, 2, 300, None)]


def test_a_delete_without_its_key_ends_no_version(tmp_path):
    history = History(tmp_path, tableSchema="id INT, n BIGINT")
    history.apply((to_json({"id": 1}), to_json({"id": 1, "n": 1, "__source_ts_ms": 1})))
    gone = {"id": None, "n": None, "__deleted": "true", "__source_ts_ms": 2}
    with pytest.raises((CommitRejected, SchemaError), match="key"):
        history.apply((to_json({"id": None}), to_json(gone)))
    assert [row["valid_to"] for row in history.versions()] == [None]


def test_events_whose_positions_are_of_another_kind_are_refused(tmp_path):
    history = History(tmp_path)
    history.apply(change("c", 5, 10, n=1))
    with pytest.raises(CommitRejected, match="positions of two kinds"):
        history.apply((to_json({"id": 1}), to_json({"id": 1, "n": 2, "__source_ts_ms": 3})))


def test_positions_of_a_binlog_are_ordered_by_number(tmp_path):
    history = History(tmp_path)
    spots = [("bin.000009", 900, 0), ("bin.000010", 40, 0), ("bin.000010", 40, 1)]
    records = [
        (
            to_json({"id": 1}),
            write_event("u", None, {"id": 1, "n": n}, None, file=file, pos=pos, row=row, ts_ms=7),
        )
        for n, (file, pos, row) in enumerate(spots)
    ]
    for record in records:
        history.apply(record)
    history.apply(*records)
    assert [row["n"] for row in history.versions()] == [0, 1, 2]
    assert [row["is_current"] for row in history.versions()] == [False, False, True]


def test_versions_are_computed_again_after_a_lost_race(tmp_path, monkeypatch):
    history, other = History(tmp_path), History(tmp_path, query="query-2")
    history.apply(change("c", 1, 10, n=1))

    def interfere(commit):
        other.apply(change("u", 2, 20, n=2))
        return commit()

    at_next_commit(monkeypatch, interfere)
    history.apply(change("u", 3, 30, n=3))
    assert intervals(history) == [(1, 1, 10, 20), (1, 2, 20, 30), (1, 3, 30, None)]


# --- rows


ROWS = pa.schema(
    [
        ("id", pa.int64()),
        ("n", pa.int64()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("op", pa.string()),
    ]
)


class RowHistory(History):
    """A history of rows: number `n` of a key is its change at second `n`."""

    def __init__(self, folder, **more):
        given = {"mode": "scd2", "keyColumns": "id", "opColumn": "op", "orderColumn": "n"}
        IcebergLife.__init__(self, folder, **{"path": NAME, "timeColumn": "at", **given, **more})
        self.folder, self.next = folder, 0

    @staticmethod
    def to_rows(*changes):
        rows = [{"id": key, "n": n, "at": at(n * 10**6), "op": op} for key, n, op in changes]
        return pa.Table.from_pylist(rows, ROWS)

    def apply(self, *changes):
        self.epoch(self.next, self.to_rows(*changes), tasks=2)
        self.next += 1

    def versions(self):
        return sorted(self.rows(), key=lambda row: (row["id"], row["n"]))

    def spans(self):
        """Return key, start and end of each version, in seconds."""
        return [
            (key, start // 10**6, end and end // 10**6) for key, _, start, end in intervals(self)
        ]


def spans_of(changes):
    """Return the same of changes, by a loop over all of them."""
    found, current = [], {}
    for key, n, op in sorted(set(changes)):
        if key in current:
            found.append((key, current.pop(key), n))
        if op != "d":
            current[key] = n
    return sorted([*found, *((key, n, None) for key, n in current.items())])


@pytest.mark.long
@SEEDS
def test_late_rows_are_inserted_into_the_past(tmp_path, seed):
    """Upserts arrive later than they should, but not after the next delete of their key."""
    dice = random.Random(seed)
    changes = [(dice.randrange(6), n, dice.choice("cuuud")) for n in range(1, 90)]
    arrival = []
    for place, (key, n, op) in enumerate(changes):
        deleted = (later for later, (k, _, o) in enumerate(changes) if k == key and o == "d")
        limit = next((later for later in deleted if later > place), len(changes))
        delay = 0 if op == "d" else dice.choice([0, 0, 0, 5, 30])
        arrival.append((min(place + delay, limit - 0.5), n, (key, n, op)))
    sent = [change for *_, change in sorted(arrival)]
    history, done = RowHistory(tmp_path), 0
    while done < len(sent):
        size = dice.randrange(1, 25)
        history.apply(*sent[done : done + size], *dice.sample(sent[:done], min(done, 2)))
        done += size
    assert history.spans() == spans_of(sent)


def test_versions_may_be_older_than_1970(tmp_path):
    history = RowHistory(tmp_path)
    history.apply((1, -90, "c"), (1, -80, "u"), (2, -70, "c"))
    history.apply((1, -60, "d"), (2, -75, "u"))
    history.apply((1, -50, "u"))
    assert history.spans() == [
        *((1, -90, -80), (1, -80, -60), (1, -50, None)),
        *((2, -75, -70), (2, -70, None)),
    ]


def test_late_rows_follow_their_option(tmp_path):
    RowHistory(tmp_path).apply((1, 1, "c"), (1, 5, "u"), (2, 5, "c"))
    ignoring = RowHistory(tmp_path, lateRows="ignore")
    ignoring.next = 1
    ignoring.apply((1, 3, "u"), (1, 7, "u"), (2, 4, "d"), (1, 5, "u"))
    assert ignoring.spans() == [(1, 1, 5), (1, 5, 7), (1, 7, None), (2, 5, None)]
    failing = RowHistory(tmp_path, lateRows="fail")
    failing.next = 2
    failing.apply((1, 7, "u"), (1, 5, "u"))
    with pytest.raises(CommitRejected, match="1 rows are older, by 'n', than a version"):
        failing.apply((1, 2, "u"), (1, 8, "u"))
    assert ignoring.spans() == failing.spans()


def test_a_table_of_versions_takes_no_upserts_by_the_key_of_its_rows(tmp_path):
    history = RowHistory(tmp_path)
    history.apply((1, 1, "c"))
    mirror = RowHistory(tmp_path, mode="upsert", query="query-2")
    mirror.options.pop("timeColumn")
    with pytest.raises(OptionError, match=r"'keyColumns' = 'id', but table db\.history"):
        mirror.apply((1, 2, "u"))


def test_an_epoch_is_finished_from_its_intent_with_the_columns_of_the_history(tmp_path):
    """As a route of krishiv-fanout, whose driver may have died after the intent."""
    history = RowHistory(tmp_path, validToColumn="until")
    history.apply((1, 1, "c"))
    rows = history.to_rows((1, 2, "u"), (2, 3, "c"), (2, 4, "d"))
    committer = history.writer(rows).committer()
    item = write_intent_files(committer.table(), history.stage(1, rows), committer.mode)
    item = StagedForTable.model_validate_json(item.model_dump_json())
    staged = read_intent_files(committer.table(), item)
    committer.finish(Epoch(history.query, 1), [staged], read_mode(item))
    found = [(row["id"], row["n"], row["until"]) for row in history.versions()]
    assert found == [(1, 1, at(2 * 10**6)), (1, 2, None), (2, 3, at(4 * 10**6))]


@pytest.mark.long
def test_changes_of_a_history_can_be_followed(tmp_path):
    """A reader of changes has the versions after each epoch, also beside compactions."""
    history = RowHistory(tmp_path, path="db.t", compact="auto")
    history.apply((9, -1, "c"))
    source = reader(tmp_path, readChanges="true")
    offset, found = source.initial(), Counter()
    for first in range(0, 60, 6):
        changes = [(n % 7, n, "d" if n % 5 == 4 else "u") for n in range(first, first + 6)]
        history.apply(*changes)
        end = source.latest(offset, UNLIMITED)
        for row in rows_of(source, offset, end).to_pylist():
            version = row["id"], row["n"], row["valid_to"], row["is_current"]
            found[version] += row["_weight"]
        offset = end
        versions = [
            (row["id"], row["n"], row["valid_to"], row["is_current"]) for row in history.versions()
        ]
        assert +found == Counter(versions)
        assert min(found.values()) >= 0


# --- options


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"keyColumns": ""}, "'mode' = 'scd2' needs the option 'keyColumns'"),
        ({"orderColumn": ""}, "orderColumn"),
        ({"timeColumn": "n"}, "'n' is int64: name a TIMESTAMP or DATE column with 'timeColumn'"),
        ({"timeColumn": "time"}, "'timeColumn' names 'time', but the columns are"),
        ({"validFromColumn": "At"}, "a column 'At' already.* name with 'validFromColumn'"),
        ({"validToColumn": "valid_from"}, "a column 'valid_from' already.*'validToColumn'"),
        ({"upsertMode": "copy-on-write"}, "'scd2' contradicts 'upsertMode' = 'copy-on-write'"),
        ({"tableProperty.format-version": "1"}, "format version 2"),
        ({"mode": "upsert"}, "'timeColumn' requires 'mode' = 'scd2'"),
        ({"lateRows": "maybe"}, "lateRows"),
        ({"unclearEvents": "apply"}, "'unclearEvents' requires 'changeFormat'"),
        (
            {"changeFormat": "debezium", "opColumn": "", "orderColumn": ""},
            "contradict 'changeFormat'",
        ),
    ],
)
def test_options_that_cannot_work_are_refused_before_a_row_is_read(tmp_path, given, reason):
    with pytest.raises(OptionError, match=reason):
        RowHistory(tmp_path, **given).apply((1, 1, "c"))


def test_a_table_that_is_no_history_is_refused(tmp_path):
    catalog = catalog_of(tmp_path)
    catalog.create_namespace("db")
    catalog.create_table(NAME, ROWS.remove(3))
    with pytest.raises(OptionError, match="has no column 'valid_from': write the history to a new"):
        RowHistory(tmp_path, schemaEvolution="add").apply((1, 1, "c"))


def test_rows_without_a_time_or_an_order_are_refused(tmp_path):
    history = RowHistory(tmp_path)
    rows = pa.Table.from_pylist([{"id": 1, "n": 1, "op": "c"}], ROWS)
    with pytest.raises(SchemaError, match="column 'at' has nulls in 1 of 1 rows"):
        history.epoch(0, rows)


def test_records_need_their_offset_and_time(tmp_path):
    with pytest.raises(OptionError, match="needs Kafka's column 'timestamp'"):
        History(tmp_path).epoch(0, to_rows([change("c", 1, 1, n=1)]))


# --- real messages, with the final state of the database beside them

CORPUS = os.environ.get("KRISHIV_DEBEZIUM_CORPUS")
OF_ORDERS = """
    id INT, customer STRING, qty BIGINT, ratio DOUBLE, ok BOOLEAN, day DATE, tags ARRAY<STRING>,
    uid STRING, ip STRING, note STRING
"""


def read_corpus(name):
    lines = (Path(CORPUS or "") / f"{name}.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [tuple(row[side] and row[side].encode() for side in ("key", "value")) for row in rows]


def assert_contiguous(rows, *keys):
    """Assert that no two versions of a key overlap, and that one at most is current."""
    by_key = {}
    for row in rows:
        by_key.setdefault(tuple(row[name] for name in keys), []).append(row)
    for versions in by_key.values():
        ends = [row["valid_to"] for row in versions]
        starts = [row["valid_from"] for row in versions]
        assert None not in ends[:-1]
        assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))
        assert [row["is_current"] for row in versions] == [end is None for end in ends]


def plain(value):
    return value.isoformat() if isinstance(value, dt.date) else value


@pytest.mark.skipif(CORPUS is None, reason="KRISHIV_DEBEZIUM_CORPUS is not set")
@pytest.mark.parametrize("size", [500, 60])
def test_the_current_versions_of_recorded_orders_are_the_rows_of_the_database(tmp_path, size):
    records = read_corpus("plain-orders")
    history = History(tmp_path, tableSchema=OF_ORDERS, unknownFields="ignore", compact="auto")
    for first in range(0, len(records), size):
        history.apply(*records[first : first + size])
        history.apply(*records[max(0, first - 20) : first + size])
    rows = sort_versions(history.rows(), "id")
    assert_contiguous(rows, "id")
    events = [json.loads(value) for _, value in records if value is not None]
    assert len(rows) == sum(event["op"] != "d" for event in events)
    expected = json.loads((Path(CORPUS) / "orders.expected.json").read_text())
    current = {row["id"]: row for row in rows if row["is_current"]}
    assert current.keys() == {row["id"] for row in expected}
    for wanted in expected:
        row = current[wanted["id"]]
        assert {name: plain(row[name]) for name in wanted.keys() & row.keys()} == {
            name: wanted[name] for name in wanted.keys() & row.keys()
        }


@pytest.mark.skipif(CORPUS is None, reason="KRISHIV_DEBEZIUM_CORPUS is not set")
def test_the_history_of_recorded_events_has_each_change(tmp_path):
    given = {"keyColumns": "k1,k2", "tableSchema": "k1 INT, k2 STRING, v INT"}
    history = History(tmp_path, **given)
    records = read_corpus("plain-events")
    for record in records:
        history.apply(record)
    history.apply(*records)
    rows = sort_versions(history.rows(), "k1", "k2")
    assert_contiguous(rows, "k1", "k2")
    assert [(row["k1"], row["k2"], row["v"]) for row in rows if row["is_current"]] == [
        (1, "a", 10),
        (2, "z", 30),
        (9, "z", 9),
    ]
    assert len(rows) == 8


@pytest.mark.skipif(CORPUS is None, reason="KRISHIV_DEBEZIUM_CORPUS is not set")
@pytest.mark.parametrize(
    ("name", "decimals"), [("with-schema-small", "precise"), ("flattened-small", "string")]
)
def test_all_forms_of_recorded_messages_have_one_history(tmp_path, name, decimals):
    columns = "id INT, name STRING, price DECIMAL(10, 4), at TIMESTAMP"
    history = History(tmp_path, tableSchema=columns, decimalFormat=decimals)
    records = read_corpus(name)
    history.apply(*records)
    history.apply(*records)
    rows = sort_versions(history.rows(), "id")
    assert_contiguous(rows, "id")
    wanted = json.loads((Path(CORPUS) / "small.expected.json").read_text())
    assert [row["id"] for row in rows if row["is_current"]] == [row["id"] for row in wanted]
    assert all(row["change_position"].removeprefix("snapshot:")[:4] == "lsn:" for row in rows)


# --- events with their schema


def wrapped(op, lsn, time, fields, **row):
    """Return the record of a change of row 1 with Connect's schema."""
    kinds = {"id": "int32", "n": "int64", "more": "int32", "Is_Current": "int32"}
    columns = [{"field": name, "type": kinds[name], "optional": name != "id"} for name in fields]
    image = {"type": "struct", "fields": columns, "optional": True}
    numbers = [{"field": name, "type": "int64", "optional": True} for name in ("lsn", "ts_us")]
    schema = {
        "type": "struct",
        "fields": [
            {**image, "field": "before"},
            {**image, "field": "after"},
            {"type": "struct", "fields": numbers, "field": "source"},
            {"type": "string", "field": "op"},
        ],
    }
    after = {name: row.get(name) for name in fields}
    event = {"before": None, "after": after, "source": {"lsn": lsn, "ts_us": time}, "op": op}
    return to_json({"id": row["id"]}), wrap(schema, event)


def test_a_history_gets_a_new_column_from_the_schemas_of_events(tmp_path):
    history = History(tmp_path, schemaEvolution="add", tableSchema="id INT, n BIGINT")
    history.apply(wrapped("c", 1, 10, ["id", "n"], id=1, n=1))
    del history.options["tableSchema"]
    both = ["id", "n", "more"]
    first, other = {"id": 1, "n": 2, "more": 7}, {"id": 2, "n": 1}
    history.apply(wrapped("u", 2, 20, both, **first), wrapped("c", 3, 30, both, **other))
    assert intervals(history) == [(1, 1, 10, 20), (1, 2, 20, None), (2, 1, 30, None)]
    assert [row["more"] for row in history.versions()] == [None, 7, None]


def test_a_new_column_with_the_name_of_one_of_the_history_is_refused(tmp_path):
    """Its values would be overwritten."""
    history = History(tmp_path, schemaEvolution="add", tableSchema="id INT, n BIGINT")
    history.apply(wrapped("c", 1, 10, ["id", "n"], id=1, n=1))
    del history.options["tableSchema"]
    with pytest.raises(SchemaError, match=r"'is_current' already.* name with 'currentColumn'"):
        history.apply(wrapped("u", 2, 20, ["id", "n", "Is_Current"], id=1, n=2, Is_Current=3))
    assert intervals(history) == [(1, 1, 10, None)]
