"""Changes of a table as rows with a weight: deleted, inserted, and only moved rows."""

from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from iceberg_life import IcebergLife
from iceberg_reading import batch, reader, rows_of
from iceberg_tables import (
    append,
    append_grouped,
    catalog,
    compact,
    delete_by_vector,
    delete_equal,
    delete_rows,
    drop_deletes,
    expire,
    expire_as_java,
    make_table,
    newest,
    paths,
    rewrite,
    table_in,
)
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import IntegerType, LongType

from krishiv_spark.errors import DataLossError, OptionError, SchemaError
from krishiv_spark.iceberg.planning import UnreadableError
from krishiv_spark.parquet.inputs import ParquetInput
from krishiv_spark.sources.base import UNLIMITED, Limit
from krishiv_spark.sources.iceberg.changelog import row_changes as changelog_rows
from krishiv_spark.sources.iceberg.reader import IcebergOffset

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
ONE = Limit(files=1)
SHARES = [pytest.param(1, marks=pytest.mark.long), 2**18]
"""Rows of a file that a task compares at once; with 1, each row is compared alone."""
"""A batch of one snapshot, or of one file that was appended."""


def rows(*pairs):
    return pa.table([list(column) for column in zip(*pairs, strict=True)], schema=SCHEMA)


class Life(IcebergLife):
    """A query that upserts into ``db.t``; epochs are numbered automatically."""

    def __init__(self, folder, **more):
        given = {"mode": "upsert", "keyColumns": "id", "opColumn": "op", **more}
        super().__init__(folder, **{"path": "db.t", **given})
        self.next = 0

    def __call__(self, *changes):
        ids, texts, ops = zip(*changes, strict=True)
        columns = {"id": ids, "text": pa.array(texts, pa.string()), "op": list(ops)}
        self.write(pa.table(columns))

    def write(self, changes):
        self.epoch(self.next, changes)
        self.next += 1


class Changes:
    """A stream of changes, batch by batch."""

    def __init__(self, folder, limit=ONE, **options):
        self.limit = limit
        self.source = reader(folder, readChanges="true", **options)
        self.at = self.source.initial()

    def trigger(self):
        """Return the next batch; None if there is none."""
        end = self.source.latest(self.at, self.limit)
        if end == self.at:
            return None
        found = rows_of(self.source, self.at, end)
        assert rows_of(self.source, self.at, end) == found
        self.at = IcebergOffset.from_json(end.to_json())
        return found

    def drain(self):
        """Return the rows of each remaining batch, as tuples."""
        return [tuples(found) for found in iter(self.trigger, None)]


def tuples(table):
    return [tuple(row.values()) for row in table.to_pylist()]


@pytest.fixture
def folder(tmp_path):
    make_table(tmp_path, SCHEMA)
    return tmp_path


in_both_modes = pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])

# --- what a batch has


@in_both_modes
def test_upserts_are_read_as_what_they_change(folder, mode):
    upsert = Life(folder, upsertMode=mode)
    upsert((1, "a", "i"), (2, "b", "i"), (3, "c", "i"))
    upsert((1, None, "d"), (2, "b", "u"), (3, "C", "u"), (4, "d", "i"))
    upsert((5, "e", "i"))
    first = [(n, text, "insert", 1) for n, text in enumerate("abc", 1)]
    gone = [(1, "a", "delete", -1), (3, "c", "delete", -1)]
    new = [(3, "C", "insert", 1), (4, "d", "insert", 1)]
    last = [(5, "e", "insert", 1)]
    assert Changes(folder).drain() == [first, gone + new, last]
    new = [(3, "C", "update", 1), (4, "d", "insert", 1)]
    assert Changes(folder, keyColumns="id").drain() == [first, gone + new, last]


@pytest.mark.long
@in_both_modes
def test_a_batch_has_the_net_changes_of_its_snapshots(folder, mode):
    upsert = Life(folder, upsertMode=mode)
    upsert((1, "a", "i"), (2, "b", "i"))
    stream = Changes(folder, UNLIMITED)
    assert len(stream.trigger()) == 2
    upsert((1, "x", "u"), (7, "x", "i"))
    upsert((1, "y", "u"), (7, None, "d"))
    append(folder, rows((3, "c")))
    compact(folder)
    upsert((3, "C", "u"))
    gone, new = [(1, "a", "delete", -1)], [(1, "y", "insert", 1), (3, "C", "insert", 1)]
    found = tuples(stream.trigger())
    assert (found[:1], sorted(found[1:])) == (gone, new)
    assert sorted(Changes(folder, UNLIMITED).drain()[0]) == [
        (1, "y", "insert", 1),
        (2, "b", "insert", 1),
        (3, "C", "insert", 1),
    ]


def test_each_row_group_with_a_change_is_read_once_and_no_other(folder, monkeypatch):
    append_grouped(folder, rows(*((n, "a") for n in range(100))), 10)
    append_grouped(folder, rows(*((n, "a") for n in range(100, 200))), 10)
    upsert, read, real = Life(folder, upsertMode="merge-on-read"), [], ParquetInput.batches
    stream = Changes(folder, UNLIMITED)
    stream.drain()

    def batches(file, group, number, columns):
        if file.metadata.num_row_groups > 1:
            read.append((file.metadata.row_group(group).column(0).statistics.min, columns))
        return real(file, group, number, columns)

    upsert((3, "b", "u"), (7, "b", "u"), (55, None, "d"), (150, "b", "u"), (999, "new", "i"))
    upsert((3, "c", "u"), (4, "c", "u"))
    monkeypatch.setattr(ParquetInput, "batches", batches)
    monkeypatch.setattr(Changes, "trigger", trigger_once)
    found = tuples(stream.trigger())
    gone = [(n, "a", "delete", -1) for n in (3, 4, 7, 55, 150)]
    new = [(3, "c"), (4, "c"), (7, "b"), (150, "b"), (999, "new")]
    assert sorted(found[:5]) == gone
    assert sorted(found[5:]) == [(*row, "insert", 1) for row in new]
    assert sorted(first for first, _ in read) == [0, 50, 150]


def trigger_once(stream):
    """As `trigger`, without reading twice."""
    end = stream.source.latest(stream.at, stream.limit)
    return rows_of(stream.source, stream.at, end)


def test_limits_count_the_rows_that_changed(folder):
    append(folder, rows(*((n, "a") for n in range(100))))
    upsert = Life(folder, upsertMode="merge-on-read")
    for number in range(4):
        upsert((number, "b", "u"))
    stream = Changes(folder, Limit(rows=4))
    assert [len(found) for found in stream.drain()] == [100, 4, 4]


def test_rows_whose_deletes_are_taken_back_are_inserted(folder):
    append(folder, rows((1, "a"), (2, "b"), (3, "c")))
    delete_rows(folder, {paths(folder)[0]: [0, 1]})
    stream = Changes(folder)
    assert stream.drain()[1:] == [[(1, "a", "delete", -1), (2, "b", "delete", -1)]]
    drop_deletes(folder)
    assert stream.drain() == [[(1, "a", "insert", 1), (2, "b", "insert", 1)]]


def test_compaction_changes_nothing(folder):
    append(folder, rows((1, "a")))
    append(folder, rows((2, "b")))
    stream = Changes(folder, startingOffsets="latest")
    assert stream.drain() == [[]]  # the start is pinned
    compact(folder)
    assert stream.drain() == [[]]
    append(folder, rows((3, "c")))
    assert stream.drain() == [[(3, "c", "insert", 1)]]


def test_rows_that_are_there_twice_go_one_by_one(folder):
    twice = rows((1, "a"), (1, "a"), (2, "b"))
    append(folder, twice)
    stream = Changes(folder)
    assert len(stream.drain()[0]) == 3
    rewrite(folder, paths(folder), rows((1, "a"), (2, "b"), (2, "b")))
    assert stream.drain() == [[(1, "a", "delete", -1), (2, "b", "insert", 1)]]


def test_snapshots_of_others_are_changes_too(folder):
    append(folder, rows((1, "a"), (2, "b"), (3, "c")))
    append(folder, rows((4, "d")))
    stream = Changes(folder)
    stream.drain()
    table_in(folder).delete("id = 2")
    table_in(folder).delete("id = 4")
    table_in(folder).overwrite(rows((1, "a")))
    assert [sorted(found) for found in stream.drain()] == [
        [(2, "b", "delete", -1)],
        [(4, "d", "delete", -1)],
        [(1, "a", "delete", -1), (3, "c", "delete", -1)],  # PyIceberg takes all out, then appends
        [(1, "a", "insert", 1)],
    ]


def test_deletes_by_position_and_by_vector(folder):
    append(folder, rows((1, "a"), (2, "b"), (3, "c")))
    append(folder, rows((4, "d"), (5, "e")))
    stream = Changes(folder)
    stream.drain()
    first = next(path for path in paths(folder) if 1 in ids_in(folder, path))
    delete_rows(folder, {first: [1]})
    assert stream.drain() == [[(2, "b", "delete", -1)]]
    other = next(path for path in paths(folder) if path != first)
    delete_by_vector(folder, other, [0])
    append(folder, rows((6, "f")))
    assert stream.drain() == [[(4, "d", "delete", -1)], [(6, "f", "insert", 1)]]
    rewrite(folder, [first], rows((1, "a"), (3, "C")))
    assert stream.drain() == [[(3, "c", "delete", -1), (3, "C", "insert", 1)]]


def test_rows_that_were_deleted_before_do_not_go_again(folder):
    append(folder, rows((1, "a"), (2, "b"), (3, "c")))
    delete_rows(folder, {path: [1] for path in paths(folder)})
    stream = Changes(folder, startingOffsets="current")
    assert len(stream.drain()[0]) == 2
    rewrite(folder, paths(folder), rows((1, "a")), drops_deletes=True)
    assert stream.drain() == [[(3, "c", "delete", -1)]]


def ids_in(folder, path):
    (task,) = (task for task in table_in(folder).scan().plan_files() if task.file.file_path == path)
    low, high = (next(iter(b.values())) for b in (task.file.lower_bounds, task.file.upper_bounds))
    return range(int.from_bytes(low, "little"), int.from_bytes(high, "little") + 1)


def test_equality_deletes_are_refused(folder):
    append(folder, rows((1, "a")))
    stream = Changes(folder)
    stream.drain()
    delete_equal(folder, rows((1, "a")).select(["id"]), [1])
    with pytest.raises(UnreadableError, match="equality deletes"):
        stream.trigger()


def test_a_batch_reads_the_changes_between_two_snapshots(folder):
    upsert = Life(folder)
    upsert((1, "a", "i"), (2, "b", "i"))
    start = newest(folder)
    upsert((1, "x", "u"))
    compact(folder)
    upsert((1, "y", "u"), (2, None, "d"))
    end = newest(folder)
    upsert((9, "z", "i"))
    found = batch(folder, readChanges="true", start_snapshot_id=start, end_snapshot_id=end)
    gone = [(1, "a", "delete", -1), (2, "b", "delete", -1)]
    assert tuples(found) == [*gone, (1, "y", "insert", 1)]
    assert len(batch(folder, readChanges="true", snapshot_id=start)) == 2


def test_columns_and_filters(folder):
    upsert = Life(folder)
    upsert((1, "a", "i"), (2, "b", "i"), (3, "c", "i"))
    upsert((1, "x", "u"), (2, "y", "u"), (3, None, "d"))
    assert Changes(folder, columns="id").drain()[1:] == [[(3, "delete", -1)]]
    found = Changes(folder, rowFilter="id < 2 or text = 'y'").drain()
    assert found[0] == [(1, "a", "insert", 1)]
    assert sorted(found[1]) == [
        (1, "a", "delete", -1),
        (1, "x", "insert", 1),
        (2, "y", "insert", 1),
    ]


def test_the_schema_may_change_between_snapshots(folder):
    upsert = Life(folder)
    upsert((1, "a", "i"), (2, "b", "i"))
    with table_in(folder).update_schema() as update:
        update.add_column("more", IntegerType())
        update.rename_column("text", "label")
    upsert.write(
        pa.table({"id": [2], "label": ["B"], "more": pa.array([7], pa.int32()), "op": "u"})
    )
    with table_in(folder).update_schema() as update:
        update.update_column("more", LongType())
    upsert.write(pa.table({"id": [3], "label": ["c"], "more": [8], "op": ["u"]}))
    assert Changes(folder).drain()[1:] == [
        [(2, "b", None, "delete", -1), (2, "B", 7, "insert", 1)],
        [(3, "c", 8, "insert", 1)],
    ]


@pytest.mark.long
@in_both_modes
@pytest.mark.parametrize("transform", [IdentityTransform(), BucketTransform(3)], ids=str)
def test_partitioned_tables(folder, transform, mode):
    with table_in(folder).update_spec() as update:
        update.add_field("text", transform, "part")
    upsert = Life(folder, upsertMode=mode)
    upsert((1, "a", "i"), (2, "b", "i"), (3, "b", "i"))
    upsert((1, "b", "u"), (2, "b", "u"))
    assert Changes(folder).drain()[-1] == [(1, "a", "delete", -1), (1, "b", "insert", 1)]


# --- history


@pytest.mark.parametrize("forget", [expire, expire_as_java])
def test_what_lies_behind_an_expired_position_is_read(folder, forget):
    upsert = Life(folder)
    upsert((1, "a", "i"), (2, "b", "i"))
    stream = Changes(folder)
    stream.drain()
    position = newest(folder)
    upsert((1, "x", "u"))
    forget(folder, position)
    assert stream.drain() == [[(1, "a", "delete", -1), (1, "x", "insert", 1)]]


def test_changes_that_have_expired_are_missed(folder):
    upsert = Life(folder, keepSnapshots="1")
    upsert((1, "a", "i"))
    stream = Changes(folder)
    stream.drain()
    upsert((1, "x", "u"))
    upsert((1, "y", "u"))
    with pytest.raises(DataLossError, match="whose rows cannot be determined any more"):
        stream.trigger()


def test_delete_files_behind_an_expired_snapshot(folder):
    first = append(folder, rows((1, "a"), (2, "b")))
    stream = Changes(folder)
    stream.drain()
    delete_rows(folder, {path: [0] for path in paths(folder)})
    expire_as_java(folder, first)
    with pytest.raises(DataLossError, match=r"has delete files, .* and the snapshot before has"):
        stream.trigger()


def test_the_end_of_a_batch_is_never_inside_of_a_change(folder):
    upsert = Life(folder, partitionBy="bucket(4, id)")
    catalog(folder).drop_table("db.t")
    upsert(*((n, "a", "i") for n in range(20)))
    upsert(*((n, "b", "u") for n in range(0, 20, 2)))
    stream = Changes(folder, UNLIMITED, maxFilesPerTrigger=2)
    stream.limit = Limit(files=2)
    sizes = [len(found) for found in stream.drain()]
    assert sum(sizes[:-1]) == 20
    assert sizes[-1] == 20  # ten rows go, ten come


# --- refused


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"keyColumns": "id"}, "'keyColumns' needs 'readChanges'"),
        ({"readChanges": "true", "keyColumns": "idd"}, "did you mean 'id'"),
        ({"readChanges": "true", "eventTime": "id"}, "'readChanges' and 'eventTime'"),
        ({"readChanges": "true", "streaming_skip_delete_snapshots": "true"}, "exclude each other"),
        ({"readChange": "true"}, "did you mean 'readChanges'"),
    ],
)
def test_options_that_cannot_be_followed(folder, options, said):
    append(folder, rows((1, "a")))
    with pytest.raises(OptionError, match=said):
        batch(folder, **options)


def test_a_table_that_has_such_a_column(folder):
    with table_in(folder).update_schema() as update:
        update.add_column("_weight", IntegerType())
    with pytest.raises(SchemaError, match=r"has a column '_weight'.*'columns'"):
        batch(folder, readChanges="true")
    append(folder, rows((1, "a")))
    found = batch(folder, readChanges="true", columns="id, text")
    assert tuples(found) == [(1, "a", "insert", 1)]


# --- all of it together

_IDS, _TEXTS = st.integers(0, 6), st.sampled_from(["a", "b", None])
_EPOCH = st.lists(st.tuples(_IDS, _TEXTS, st.sampled_from("uud")), min_size=1, max_size=5)
_STEPS = st.one_of(
    st.tuples(st.just("upsert"), _EPOCH),
    st.tuples(st.just("append"), st.lists(st.tuples(_IDS, _TEXTS), min_size=1, max_size=3)),
    st.tuples(st.just("delete"), _IDS),
    st.tuples(st.just("compact"), st.none()),
    st.tuples(st.just("trigger"), st.none()),
)


class _Played:
    """A table, and the rows that a reader of its changes has computed."""

    def __init__(self, folder, limit, options, mode="copy-on-write"):
        make_table(folder, SCHEMA)
        self.folder, self.limit = folder, limit
        self.upsert = Life(folder, upsertMode=mode)
        self.stream = Changes(folder, limit, **options)
        self.known: Counter = Counter()

    def step(self, kind, value):
        if kind == "upsert":
            self.upsert(*value)
        elif kind == "append":
            append(self.folder, rows(*value))
        elif kind == "trigger":
            self.read()
        elif table_in(self.folder).current_snapshot() is not None:
            compact(self.folder) if kind == "compact" else table_in(self.folder).delete(
                f"id = {value}"
            )

    def read(self):
        while (found := self.stream.trigger()) is not None:
            spot = self.stream.at.spot
            for *row, _, weight in tuples(found):
                self.known[tuple(row)] += weight
            if spot.file is None:
                assert +self.known == self.table(spot.snapshot)
                assert min(self.known.values(), default=0) >= 0

    def table(self, snapshot):
        return Counter(tuples(table_in(self.folder).scan(snapshot_id=snapshot).to_arrow()))


@pytest.mark.long
@in_both_modes
@pytest.mark.parametrize("limit", [ONE, Limit(rows=5), UNLIMITED], ids=["one", "some", "all"])
@pytest.mark.parametrize("share_rows", SHARES)
@pytest.mark.parametrize("keys", ["", "id"])
def test_changes_applied_by_weight_give_the_table(
    tmp_path_factory, monkeypatch, limit, share_rows, keys, mode
):
    monkeypatch.setattr(changelog_rows, "_SHARE_ROWS", share_rows)
    monkeypatch.setattr(changelog_rows, "_CHUNK_ROWS", 2)

    @settings(max_examples=5)
    @given(st.lists(_STEPS, min_size=2, max_size=8))
    def play(steps):
        given = {"keyColumns": keys} if keys else {}
        played = _Played(tmp_path_factory.mktemp("t"), limit, given, mode)
        for step in steps:
            played.step(*step)
        played.read()

    play()


@pytest.mark.long
def test_a_change_is_never_larger_than_the_difference(tmp_path_factory):
    @settings(max_examples=15)
    @given(st.lists(_EPOCH, min_size=2, max_size=4))
    def play(epochs):
        folder = tmp_path_factory.mktemp("t")
        played = _Played(folder, ONE, {})
        before: Counter = Counter()
        for epoch in epochs:
            played.upsert(*epoch)
            found = played.stream.drain()
            after = played.table(newest(folder))
            wanted = Counter({(row, 1): n for row, n in (after - before).items()})
            wanted += Counter({(row, -1): n for row, n in (before - after).items()})
            assert Counter((row[:2], row[3]) for part in found for row in part) == wanted
            before = after

    play()


@pytest.mark.long
@pytest.mark.parametrize("share_rows", SHARES)
@pytest.mark.parametrize("keys", ["", "id"])
@pytest.mark.parametrize("limit", [ONE, UNLIMITED], ids=["one", "all"])
def test_changes_are_what_another_upsert_takes(
    tmp_path_factory, monkeypatch, share_rows, keys, limit
):
    monkeypatch.setattr(changelog_rows, "_SHARE_ROWS", share_rows)

    @settings(max_examples=5)
    @given(st.lists(st.one_of(_EPOCH, st.none()), min_size=2, max_size=6))
    def play(epochs):
        first, second = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two")
        played = _Played(first, limit, {"keyColumns": keys} if keys else {})
        copy = Life(second, opColumn="_op")
        for epoch in epochs:
            if epoch is not None:
                played.upsert(*epoch)
                continue
            while (found := played.stream.trigger()) is not None:
                copy.write(found.drop_columns(["_weight"]))
        while (found := played.stream.trigger()) is not None:
            copy.write(found.drop_columns(["_weight"]))
        wanted = played.table(newest(first)) if any(epochs) else Counter()
        copied = table_in(second).scan().to_arrow() if any(epochs) else rows((0, "")).slice(1)
        assert Counter(tuples(copied)) == wanted

    play()
