"""Epochs of change data: a random life of a database table, and its mirror after each epoch."""

import pyarrow as pa
import pytest
from database_life import RECORDS, Database, to_rows
from debezium_events import PLACEHOLDER, to_json, write_event
from iceberg_life import IcebergLife, at_next_commit, table_of

from krishiv_spark.errors import CommitRejected, OptionError, SchemaError
from krishiv_spark.iceberg.catalogs import load_table
from krishiv_spark.sinks.iceberg import table_setup
from krishiv_spark.sinks.iceberg.upserts.unchanged_values import read_ends
from krishiv_spark.sinks.kept_values import LogEnd, LogTime, are_applied
from krishiv_spark.sinks.upserts import CLOCK, PARTITION, POSITION

NAME = "db.mirror"
MODES = pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
SEEDS = pytest.mark.parametrize(
    # a life of some 20 epochs takes two seconds
    "seed",
    [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 4))],
)


class Mirror(IcebergLife):
    def __init__(self, folder, **more):
        given = {
            "path": NAME,
            "mode": "upsert",
            "changeFormat": "debezium",
            "keyColumns": "id",
            "tableSchema": "id INT, n BIGINT, text STRING",
        }
        super().__init__(folder, **{**given, **more})
        self.folder, self.next = folder, 0

    def apply(self, records, first=0):
        self.epoch(self.next, to_rows(records, first))
        self.next += 1

    def rows(self):
        return sorted(
            table_of(self.folder, NAME).scan().to_arrow().to_pylist(), key=lambda row: row["id"]
        )


@MODES
@SEEDS
def test_the_mirror_equals_the_database_after_each_epoch(tmp_path, mode, seed):
    database = Database(seed)
    mirror = Mirror(tmp_path, upsertMode=mode)
    done = 0
    for _ in range(6):
        for _ in range(database.random.randrange(1, 25)):
            database.step()
        new = database.records[done:]
        mirror.apply(new, done)
        done += len(new)
        assert mirror.rows() == sorted(database.rows.values(), key=lambda row: row["id"])


@pytest.mark.long
@MODES
@pytest.mark.parametrize("seed", range(16))
def test_a_changed_key_takes_the_kept_values_along(tmp_path, mode, seed):
    """Each epoch ends between two statements, so that the halves of a change are together."""
    database = Database(seed, moves=True)
    mirror = Mirror(tmp_path, upsertMode=mode)
    done = 0
    for _ in range(6):
        for _ in range(database.random.randrange(1, 25)):
            database.step()
        new = database.records[done:]
        mirror.apply(new, done)
        done += len(new)
        assert mirror.rows() == sorted(database.rows.values(), key=lambda row: row["id"])
        if database.random.random() < 0.5:  # Debezium sends all of it again
            mirror.apply(new, done)
            assert mirror.rows() == sorted(database.rows.values(), key=lambda row: row["id"])


@pytest.mark.long
@MODES
@SEEDS
def test_repeated_events_end_in_the_same_rows(tmp_path, mode, seed):
    """After a restart, Debezium sends again what it had sent since its last offset."""
    database = Database(seed)
    mirror = Mirror(tmp_path, upsertMode=mode)
    for _ in range(60):
        database.step()
    sent = []
    for record in database.records:
        sent.append(record)
        if database.random.random() < 0.15:
            sent.extend(sent[-database.random.randrange(1, 12) :])
    at = 0
    while at < len(sent):
        size = database.random.randrange(1, 12)
        mirror.apply(sent[at : at + size], at)
        at += size
    assert mirror.rows() == sorted(database.rows.values(), key=lambda row: row["id"])


def insert(key, **row):
    return to_json({"id": key}), write_event("c", None, {"id": key, "n": 0, "text": None} | row)


def update(key, **row):
    return to_json({"id": key}), write_event(
        "u", None, {"id": key, "n": 0, "text": PLACEHOLDER} | row
    )


@pytest.mark.long
def test_a_value_is_kept_that_another_writer_changes_before_the_commit(tmp_path, monkeypatch):
    mirror = Mirror(tmp_path)
    mirror.apply([insert(1, text="old"), insert(2, text="two")])
    other = Mirror(tmp_path, query="query-2")

    def interfere(commit):
        other.apply([insert(1, text="newer")], 100)
        return commit()

    at_next_commit(monkeypatch, interfere)
    mirror.apply([update(1, n=5)], 2)
    assert mirror.rows() == [
        {"id": 1, "n": 5, "text": "newer"},
        {"id": 2, "n": 0, "text": "two"},
    ]


def test_an_update_of_an_unknown_row_without_a_value_is_refused(tmp_path):
    """As from a compacted topic, which has only the last event of each key."""
    with pytest.raises(CommitRejected, match="does not begin with a snapshot, or is compacted"):
        Mirror(tmp_path).apply([insert(1, text="one"), update(7, n=1)])
    lenient = Mirror(tmp_path, missingValues="null")
    lenient.apply([insert(1, text="one"), update(7, n=1)])
    assert [row["id"] for row in lenient.rows()] == [1, 7]


def test_a_new_row_without_a_value_is_refused_or_gets_null(tmp_path):
    half = to_json({"id": 2}), write_event("c", None, {"id": 2, "n": 1, "text": PLACEHOLDER}, 2)
    mirror = Mirror(tmp_path)
    mirror.apply([insert(1, text="one")])
    with pytest.raises(CommitRejected, match="REPLICA IDENTITY FULL"):
        mirror.apply([half], 1)
    assert [row["id"] for row in mirror.rows()] == [1]
    lenient = Mirror(tmp_path, missingValues="null")
    lenient.next = 1
    lenient.apply([half], 1)
    assert mirror.rows()[-1] == {"id": 2, "n": 1, "text": None}


def test_a_required_column_without_a_value_is_refused_by_its_name(tmp_path):
    mirror = Mirror(tmp_path, missingValues="null")
    mirror.apply([insert(1, text="one")])
    with table_of(tmp_path, NAME).update_schema(allow_incompatible_changes=True) as change:
        change._set_column_requirement("text", required=True)
    half = to_json({"id": 2}), write_event("c", None, {"id": 2, "n": 1, "text": PLACEHOLDER}, 2)
    with pytest.raises(CommitRejected, match=r"row with id = '2' would be null in column 'text'"):
        mirror.apply([half], 1)
    assert [row["id"] for row in mirror.rows()] == [1]


def test_columns_with_names_of_staged_changes_are_refused(tmp_path):
    wrong = Mirror(tmp_path, tableSchema="id INT, _krishiv_kept STRING")
    with pytest.raises(OptionError, match="column '_krishiv_kept' has a name of the sink's own"):
        wrong.apply([insert(1, text="one")])


def rows_alone(*rows):
    return [(to_json({"id": row["id"]}), to_json(row)) for row in rows]


def test_a_row_alone_that_may_be_new_is_refused_without_a_value(tmp_path):
    """With its defaults, ExtractNewRecordState does not say whether a row is new."""
    mirror = Mirror(tmp_path)
    mirror.apply(rows_alone({"id": 1, "n": 1, "text": "one"}))
    moved = rows_alone({"id": 2, "n": 1, "text": PLACEHOLDER})
    with pytest.raises(CommitRejected, match="REPLICA IDENTITY FULL"):
        mirror.apply([(to_json({"id": 1}), None), *moved], 1)
    assert [row["id"] for row in mirror.rows()] == [1]
    known = Mirror(tmp_path)
    known.next = 1
    known.apply(rows_alone({"id": 1, "n": 2, "text": PLACEHOLDER}), 1)
    assert mirror.rows() == [{"id": 1, "n": 2, "text": "one"}]


def test_an_update_of_the_key_takes_the_kept_values_along(tmp_path):
    """Debezium sends one event if its key (message.key.columns) has other columns."""
    mirror = Mirror(tmp_path)
    mirror.apply([insert(1, text="one")])
    before, after = {"id": 1, "n": 0, "text": None}, {"id": 2, "n": 3, "text": PLACEHOLDER}
    mirror.apply([(to_json({"other": 1}), write_event("u", before, after, 7))], 1)
    assert mirror.rows() == [{"id": 2, "n": 3, "text": "one"}]


def test_a_repeated_insert_whose_row_has_been_deleted_since_changes_nothing(tmp_path):
    """Its delete follows, perhaps in the next epoch; the query must not stop before."""
    mirror = Mirror(tmp_path)
    mirror.apply([insert(1, text="one")])
    delete = to_json({"id": 1}), write_event("d", {"id": 1}, None, 7)
    arrive = to_json({"id": 2}), write_event("c", None, {"id": 2, "n": 0, "text": PLACEHOLDER}, 7)
    mirror.apply([delete, arrive], 1)
    assert mirror.rows() == [{"id": 2, "n": 0, "text": "one"}]
    gone = to_json({"id": 2}), write_event("d", {"id": 2}, None, 9)
    mirror.apply([gone], 3)
    mirror.apply([delete, arrive], 4)
    mirror.apply([gone], 6)
    assert mirror.rows() == []


@pytest.mark.long
@MODES
@SEEDS
def test_a_changed_key_takes_the_kept_values_along_if_each_event_is_an_epoch(tmp_path, mode, seed):
    database = Database(seed, moves=True)
    for _ in range(20):
        database.step()
    mirror = Mirror(tmp_path, upsertMode=mode)
    rows = {}
    for offset, (record, effect) in enumerate(zip(database.records, database.effects, strict=True)):
        mirror.apply([record], offset)
        rows |= effect
        assert mirror.rows() == [rows[key] for key in sorted(rows) if isinstance(rows[key], dict)]


def leave(key, lsn):
    return to_json({"id": key}), write_event("d", {"id": key}, None, lsn)


def arrive(key, lsn):
    row = {"id": key, "n": 0, "text": PLACEHOLDER}
    return to_json({"id": key}), write_event("c", None, row, lsn)


ROWS = {1: "A", 2: "B"}
SWAP = [leave(1, 10), arrive(9, 10), leave(2, 20), arrive(1, 20), leave(9, 30), arrive(2, 30)]
REPLACE = [leave(2, 10), leave(1, 20), arrive(2, 20)]
THREE = to_json({"id": 3}), write_event("c", None, {"id": 3, "n": 0, "text": "C"}, 40)


@MODES
@pytest.mark.parametrize(
    ("window", "rows"),
    [
        ([*SWAP, THREE], {1: "B", 2: "A", 3: "C"}),
        (SWAP, {1: "B", 2: "A"}),
        ([*REPLACE, THREE], {2: "A", 3: "C"}),
        (REPLACE, {2: "A"}),
    ],
    ids=["exchanged", "exchanged at the end", "replaced", "replaced at the end"],
)
def test_changed_keys_that_are_repeated_keep_the_values_of_the_end(tmp_path, mode, window, rows):
    """The table has the rows of the end, so the row of the old key is another row by then."""
    mirror = Mirror(tmp_path, upsertMode=mode)
    mirror.apply([insert(key, text=text) for key, text in ROWS.items()])
    for first in (2, 12):
        mirror.apply(window, first)
        assert {row["id"]: row["text"] for row in mirror.rows()} == rows


def test_a_new_key_after_epochs_of_others_takes_the_kept_values_along(tmp_path):
    """The tombstone of the old key has no position, and another partition has nothing to do."""
    mirror = Mirror(tmp_path)
    mirror.apply([insert(1, text="one"), insert(5, text="five")])
    mirror.apply([leave(1, 7)], 2)
    mirror.apply([(to_json({"id": 1}), None)], 3)
    mirror.epoch(3, set_partition(to_rows([insert(4, text="four")], 0), 1))
    mirror.next = 4
    mirror.apply([arrive(2, 7)], 4)
    assert {row["id"]: row["text"] for row in mirror.rows()} == {2: "one", 4: "four", 5: "five"}


@pytest.mark.long
@pytest.mark.parametrize("apart", [False, True])
def test_repeated_events_between_a_delete_and_its_insert_keep_the_values(tmp_path, apart):
    """The repeated events end with a delete, too: the insert needs the first one's row."""
    mirror = Mirror(tmp_path)
    five = to_json({"id": 5}), write_event("c", None, {"id": 5, "n": 0, "text": "five"}, 3)
    mirror.apply([insert(1, text="one"), five, leave(5, 4)])
    mirror.apply([leave(1, 7)], 3)
    mirror.apply([five, leave(5, 4)], 4)
    if apart:
        mirror.apply([leave(1, 7)], 6)
        mirror.apply([arrive(2, 7)], 7)
    else:
        mirror.apply([leave(1, 7), arrive(2, 7)], 6)
    assert {row["id"]: row["text"] for row in mirror.rows()} == {2: "one"}


@pytest.mark.long  # 60 epochs
@MODES
@SEEDS
def test_changed_keys_keep_their_values_if_events_are_repeated_one_by_one(tmp_path, mode, seed):
    database = Database(seed, moves=True)
    for _ in range(20):
        database.step()
    sent = []
    for record in database.records:
        sent.append(record)
        if database.random.random() < 0.1:
            sent.extend(sent[-database.random.randrange(1, 9) :])
    mirror = Mirror(tmp_path, upsertMode=mode)
    for offset, record in enumerate(sent):
        mirror.apply([record], offset)
    assert mirror.rows() == sorted(database.rows.values(), key=lambda row: row["id"])


def test_a_row_that_the_epoch_had_changed_before_its_delete_is_not_guessed(tmp_path):
    """The snapshot before the epoch has an older value."""
    mirror = Mirror(tmp_path)
    mirror.apply([insert(1, text="old")])
    newer = to_json({"id": 1}), write_event("u", None, {"id": 1, "n": 0, "text": "new"}, 6)
    mirror.apply([newer, leave(1, 7)], 1)
    with pytest.raises(CommitRejected, match="came in another epoch"):
        mirror.apply([arrive(2, 7)], 3)


def test_a_key_that_changes_twice_takes_the_values_along_from_an_earlier_epoch(tmp_path):
    mirror = Mirror(tmp_path)
    mirror.apply([insert(1, text="one")])
    mirror.apply([leave(1, 7)], 1)
    mirror.apply([arrive(2, 7), leave(2, 8), arrive(3, 8)], 2)
    assert mirror.rows() == [{"id": 3, "n": 0, "text": "one"}]


def test_a_delete_of_another_server_replaces_the_recorded_one(tmp_path):
    """Positions start again there, and times are newer."""
    events = [
        ("c", None, {"id": 1, "n": 1, "text": "one"}, 900, 5),
        ("d", {"id": 1}, None, 901, 5),
        ("c", None, {"id": 5, "n": 5, "text": "five"}, 3, 9),
        ("d", {"id": 5}, None, 4, 9),
        ("c", None, {"id": 6, "n": 6, "text": PLACEHOLDER}, 4, 9),
    ]
    mirror = Mirror(tmp_path)
    for offset, (op, before, after, lsn, ms) in enumerate(events):
        key = to_json({"id": (after or before)["id"]})
        mirror.apply([(key, write_event(op, before, after, lsn, ts_ms=ms))], offset)
    assert mirror.rows() == [{"id": 6, "n": 6, "text": "five"}]


def test_the_position_of_another_partition_is_no_move(tmp_path):
    mirror = Mirror(tmp_path)
    mirror.apply([insert(1, text="one")])
    mirror.apply([leave(1, 7)], 1)
    with pytest.raises(CommitRejected, match="came in another epoch"):
        mirror.epoch(2, set_partition(to_rows([arrive(2, 7)], 0), 1))


def test_a_delete_of_the_old_server_is_no_move_to_a_position_of_the_new_one(tmp_path):
    """A newer time means that the insert after the delete has come, or never will."""
    mirror = Mirror(tmp_path)
    gone = to_json({"id": 1}), write_event("d", {"id": 1}, None, 5000, ts_ms=4)
    lower = to_json({"id": 3}), write_event("c", None, {"id": 3, "text": "c"}, 100, ts_ms=9)
    row = {"id": 2, "n": 0, "text": PLACEHOLDER}
    same = to_json({"id": 2}), write_event("c", None, row, 5000, ts_ms=12)
    mirror.apply([insert(1, text="one")])
    mirror.apply([gone], 1)
    mirror.apply([lower], 2)
    with pytest.raises(CommitRejected, match="came in another epoch"):
        mirror.apply([same], 3)


def test_a_change_of_a_transaction_that_was_open_at_the_snapshot_wins(tmp_path):
    """The snapshot has read the row at a later position of the log, and before the change."""
    mirror = Mirror(tmp_path)
    read = to_json({"id": 1}), write_event("r", None, {"id": 1, "n": 1, "text": ""}, 300)
    change = to_json({"id": 1}), write_event("u", None, {"id": 1, "n": 2, "text": ""}, 200)
    mirror.apply([read, change])
    assert [row["n"] for row in mirror.rows()] == [2]


def set_partition(rows, number):
    place = rows.column_names.index("partition")
    numbers = pa.array([number] * rows.num_rows, pa.int32())
    return rows.set_column(place, rows.field("partition"), numbers)


def test_the_position_of_one_partition_says_nothing_of_another(tmp_path):
    """The new key of a row came late, in a partition that is behind: its values are lost."""
    mirror = Mirror(tmp_path)
    mirror.apply([insert(1, text="one")])
    gone = to_json({"id": 1}), write_event("d", {"id": 1}, None, 7)
    later = to_json({"id": 3}), write_event("c", None, {"id": 3, "n": 0, "text": "three"}, 9)
    mirror.apply([gone, later], 1)
    arrive = to_json({"id": 2}), write_event("c", None, {"id": 2, "n": 0, "text": PLACEHOLDER}, 7)
    rows = to_rows([arrive])
    other = rows.set_column(3, "partition", pa.array([1], pa.int32()))
    with pytest.raises(CommitRejected, match="came in another epoch"):
        mirror.epoch(2, other)
    assert [row["id"] for row in mirror.rows()] == [3]


@pytest.mark.parametrize(
    ("ms", "is_repeated"),
    [(4, True), (5, True), (6, False)],
    ids=["older", "of the same time", "of another server"],
)
def test_a_lower_position_is_repeated_only_if_its_time_is_not_newer(tmp_path, ms, is_repeated):
    """Positions start again on another server: there, a row that is not known is an error."""
    mirror = Mirror(tmp_path)
    gone = to_json({"id": 1}), write_event("d", {"id": 1}, None, 5000, ts_ms=4)
    last = to_json({"id": 2}), write_event("c", None, {"id": 2, "text": "b"}, 5002, ts_ms=5)
    mirror.apply([insert(1, text="one"), gone, last])
    assert read_ends(table_of(tmp_path, NAME).metadata) == {"t-0": (5002, (5000, 5002))}
    late = (
        to_json({"id": 1}),
        write_event("u", None, {"id": 1, "n": 0, "text": PLACEHOLDER}, 100, ts_ms=ms),
    )
    if is_repeated:
        mirror.apply([late], 3)
    else:
        with pytest.raises(CommitRejected, match="leaves out the unchanged value"):
            mirror.apply([late], 3)
    assert [row["id"] for row in mirror.rows()] == [2]


def test_a_change_without_a_position_is_never_a_repeated_one():
    rows = pa.table(
        {
            PARTITION: ["t-0", "t-0"],
            POSITION: pa.array([None, 4], pa.int64()),
            CLOCK: pa.array([5, 5], pa.int64()),
        }
    )
    assert are_applied(rows, {"t-0": LogEnd(9, LogTime(5, 9))}).tolist() == [False, True]


def test_the_next_event_of_the_new_server_is_compared_with_its_own_position(tmp_path):
    """Two events of one millisecond are told apart by their positions."""
    mirror = Mirror(tmp_path)
    old = to_json({"id": 2}), write_event("c", None, {"id": 2, "text": "b"}, 5002, ts_ms=5)
    new = to_json({"id": 3}), write_event("c", None, {"id": 3, "text": "c"}, 100, ts_ms=9)
    mirror.apply([old])
    mirror.apply([new], 1)
    late = (
        to_json({"id": 4}),
        write_event("u", None, {"id": 4, "n": 0, "text": PLACEHOLDER}, 101, ts_ms=9),
    )
    with pytest.raises(CommitRejected, match="leaves out the unchanged value"):
        mirror.apply([late], 2)


def test_positions_of_epochs_that_were_rolled_back_do_not_count(tmp_path):
    """Their events are applied again, and must not be taken for repeated ones."""
    mirror = Mirror(tmp_path)
    mirror.apply([insert(1, text="one")])
    first = table_of(tmp_path, NAME).metadata.current_snapshot_id
    later = to_json({"id": 2}), write_event("c", None, {"id": 2, "n": 0, "text": "two"}, 9)
    mirror.apply([later], 1)
    metadata = table_of(tmp_path, NAME).metadata
    assert read_ends(metadata)["t-0"].position == 9
    rolled_back = metadata.model_copy(update={"current_snapshot_id": first})
    assert read_ends(rolled_back)["t-0"].position == 1


def test_the_later_offset_wins_whatever_the_order_of_the_rows(tmp_path):
    mirror = Mirror(tmp_path)
    rows = to_rows([insert(1, n=1), update(1, n=2, text="b"), update(1, n=3, text="c")])
    mirror.epoch(0, rows.take([2, 0, 1]))
    assert mirror.rows() == [{"id": 1, "n": 3, "text": "c"}]


def write_flat(lsn, **row):
    """A row alone, as ``ExtractNewRecordState`` writes it."""
    return to_json({**row, "__op": "u", "__lsn": lsn, "__deleted": "false"})


OTHER = to_json({"id": 7}), write_event("r", None, {"id": 7, "n": 7, "text": "other"}, 3)
OLD = {"id": 1, "n": 1, "text": "old"}
NEW = {"id": 1, "n": 2, "text": "new"}
IN_TWO_PARTITIONS = {
    "envelopes": ([write_event("c", None, OLD, 5)], [write_event("u", None, NEW, 9)]),
    "a row that a snapshot has read": (
        [write_event("r", None, OLD, 5)],
        [write_event("u", None, NEW, 9)],
    ),
    "a lower position of the same partition": (
        [write_event("c", None, OLD, 5)],
        [write_event("u", None, OLD, 9), write_event("u", None, NEW, 4)],
    ),
    "read again": (
        [write_event("c", None, OLD, 5)],
        [write_event("u", None, OLD, 9), write_event("r", None, NEW, 9)],
    ),
    "rows alone": ([write_flat(5, **OLD)], [write_flat(9, **NEW)]),
}


@pytest.mark.parametrize("others", [[], [OTHER]], ids=["alone", "beside a snapshot"])
@pytest.mark.parametrize("case", IN_TWO_PARTITIONS)
def test_the_later_partition_wins_if_a_key_is_in_two(tmp_path, case, others):
    """After a topic got more partitions; the offsets of the new one are lower."""
    mirror = Mirror(tmp_path)
    first, later = ([(to_json({"id": 1}), one) for one in part] for part in IN_TWO_PARTITIONS[case])
    new = set_partition(to_rows(later, 3), 1)
    mirror.epoch(0, pa.concat_tables([new, to_rows([*first, *others], 1000)]))
    found = {row["id"]: row for row in mirror.rows()}
    assert found[1] == NEW


@pytest.mark.long
@pytest.mark.parametrize("size", [1, 2, 5])
def test_events_of_another_server_are_the_newest_although_their_positions_are_lower(tmp_path, size):
    """Wherever epochs end: also a delete, and a value that an event leaves out."""
    events = [
        *[("c", {"id": 1, "n": 1, "text": "a"}, 5000), ("c", {"id": 2, "n": 1, "text": "b"}, 5001)],
        *[("u", {"id": 1, "n": 2, "text": "new"}, 100), ("d", {"id": 2}, 101)],
        ("u", {"id": 1, "n": 3, "text": PLACEHOLDER}, 102),
    ]
    mirror = Mirror(tmp_path)
    records = [
        (
            to_json({"id": row["id"]}),
            write_event(op, row if op == "d" else None, None if op == "d" else row, position),
        )
        for op, row, position in events
    ]
    for first in range(0, len(records), size):
        mirror.apply(records[first : first + size], first)
    assert mirror.rows() == [{"id": 1, "n": 3, "text": "new"}]


def test_the_columns_of_an_existing_table_need_no_declaration(tmp_path):
    Mirror(tmp_path).apply([insert(1, text="a")])
    bare = Mirror(tmp_path, tableSchema="")
    bare.next = 1
    bare.apply([insert(2, text="b")], 1)
    assert [row["text"] for row in bare.rows()] == ["a", "b"]


def test_a_declared_column_is_added_to_the_table(tmp_path):
    Mirror(tmp_path).apply([insert(1, text="a")])
    wider = Mirror(
        tmp_path, tableSchema="id INT, n BIGINT, text STRING, more INT", schemaEvolution="add"
    )
    wider.next = 1
    wider.apply([insert(2, more=7)], 1)
    assert [row["more"] for row in wider.rows()] == [None, 7]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"keyColumns": "nr"}, "'keyColumns' names 'nr', but the columns are id, n, text"),
        ({"tableSchema": "id FLOAT"}, "cannot be a key"),
    ],
)
def test_options_that_cannot_work_are_refused_before_a_row_is_read(tmp_path, given, reason):
    mirror = Mirror(tmp_path, **given)
    with pytest.raises(OptionError, match=reason):
        mirror.apply([insert(1)])


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"mode": "append", "keyColumns": ""}, "'changeFormat' requires 'mode' = 'upsert'"),
        ({"opColumn": "op"}, "'opColumn' and 'orderColumn' contradict 'changeFormat'"),
        ({"orderColumn": "n"}, "'opColumn' and 'orderColumn' contradict 'changeFormat'"),
        ({"timeUnits": '{"att": "ms"}'}, "'timeUnits' names 'att', which is no column"),
        ({"changeFormat": ""}, "changeFormat"),
        ({"timeUnits": "hours"}, "write ms, us or ns"),
        ({"tableSchema": "id NUMBER"}, "a type"),
        ({"decimalFormat": "double"}, "decimalFormat"),
    ],
)
def test_wrong_options_are_named(tmp_path, given, reason):
    with pytest.raises(OptionError, match=reason):
        Mirror(tmp_path, **given).apply([insert(1)])


def test_rows_that_are_no_records_are_refused(tmp_path):
    mirror = Mirror(tmp_path)
    with pytest.raises(OptionError, match="column 'key' is missing"):
        mirror.epoch(0, pa.table({"value": pa.array([b"{}"])}))
    with pytest.raises(OptionError, match="column 'value' is int64"):
        mirror.epoch(0, pa.table({"key": pa.array([b"{}"]), "value": [1]}))


@pytest.mark.long
@pytest.mark.parametrize("truncate", ["fail", "ignore", "apply"])
@pytest.mark.parametrize("row", [{"id": None, "__deleted": "true"}, {"n": 1, "__op": "d"}])
def test_a_delete_without_a_key_is_bad_and_deletes_nothing(tmp_path, row, truncate):
    """Inside of the sink, a delete without a key stands for a TRUNCATE."""
    mirror = Mirror(tmp_path, truncateEvents=truncate)
    mirror.apply([insert(1), insert(2)])
    with pytest.raises(SchemaError, match=r"at offset 2: the value .*id"):
        mirror.apply([(to_json({"id": 1}), to_json(row))], 2)
    assert [row["id"] for row in mirror.rows()] == [1, 2]


def test_a_bad_event_names_its_offset_and_writes_nothing(tmp_path):
    mirror = Mirror(tmp_path)
    mirror.apply([insert(1)])
    with pytest.raises(SchemaError, match="t-0 at offset 2: the value"):
        mirror.apply([insert(2), (None, b"{}")], 1)
    assert [row["id"] for row in mirror.rows()] == [1]


def test_a_table_is_loaded_once_to_know_its_columns(tmp_path, monkeypatch):
    Mirror(tmp_path).apply([(to_json({"id": 1}), write_event("c", None, {"id": 1}))])
    loads = []

    def count(*given):
        loads.append(given)
        return load_table(*given)

    monkeypatch.setattr(table_setup, "load_table", count)
    mirror = Mirror(tmp_path)
    del mirror.options["tableSchema"]
    mirror.writer(RECORDS.empty_table()).plan(None)
    assert len(loads) == 1
