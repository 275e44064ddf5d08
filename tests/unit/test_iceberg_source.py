"""The snapshots and files that a reader of an Iceberg table reads, and its starts."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from iceberg_life import IcebergLife
from iceberg_reading import Stream, batch, reader, rows_of
from iceberg_tables import (
    append,
    append_files,
    catalog,
    compact,
    delete_rows,
    expire,
    expire_as_java,
    make_table,
    newest,
    paths,
    table_in,
)
from pyiceberg.manifest import ManifestFile

from krishiv_spark.errors import DataLossError, OptionError
from krishiv_spark.iceberg import planning
from krishiv_spark.iceberg.catalogs import open_table
from krishiv_spark.sources.base import UNLIMITED
from krishiv_spark.sources.iceberg.planner import ChangedRowsError
from krishiv_spark.sources.iceberg.reader import IcebergOffset, IcebergSourceOptions

ID = pa.schema([("id", pa.int64())])
SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))])


def rows(*ids):
    return pa.table({"id": ids, "at": [1_000_000 * n for n in ids]}, schema=SCHEMA)


@pytest.fixture
def folder(tmp_path):
    make_table(tmp_path, SCHEMA)
    return tmp_path


def ids(table):
    return sorted(table["id"].to_pylist())


def committed(folder, snapshot_id):
    return table_in(folder).metadata.snapshot_by_id(snapshot_id).timestamp_ms


# --- batches


def test_a_batch_reads_the_newest_snapshot(folder):
    assert batch(folder).num_rows == 0
    append(folder, rows(1, 2))
    append(folder, rows(3))
    assert ids(batch(folder)) == [1, 2, 3]


def test_a_batch_travels_to_a_snapshot_a_time_or_a_tag(folder):
    first = append(folder, rows(1))
    second = append(folder, rows(2))
    table_in(folder).manage_snapshots().create_tag(first, "yesterday").commit()
    append(folder, rows(3))
    assert ids(batch(folder, snapshot_id=second)) == [1, 2]
    assert ids(batch(folder, as_of_timestamp=committed(folder, second))) == [1, 2]
    assert ids(batch(folder, as_of_timestamp="2999-01-01T00:00:00Z")) == [1, 2, 3]
    assert ids(batch(folder, tag="yesterday")) == [1]


def test_a_batch_reads_a_branch(folder):
    first = append(folder, rows(1))
    table_in(folder).manage_snapshots().create_branch(first, "trial").commit()
    append(folder, rows(2), branch="trial")
    append(folder, rows(3))
    assert ids(batch(folder, branch="trial")) == [1, 2]
    assert ids(batch(folder, branch="main")) == [1, 3]


def test_a_batch_reads_what_was_appended_between_two_snapshots(folder):
    first, second = append(folder, rows(1)), append(folder, rows(2))
    append(folder, rows(3))
    assert ids(batch(folder, start_snapshot_id=first)) == [2, 3]
    assert ids(batch(folder, start_snapshot_id=first, end_snapshot_id=second)) == [2]
    assert ids(batch(folder, start_snapshot_id=second, end_snapshot_id=second)) == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"snapshot_id": 7}, "names snapshot 7.* there are 1 snapshots, from .* of 20"),
        ({"as_of_timestamp": 7}, "no snapshot at or before 1970-01-01T00:00:00.007Z"),
        ({"tag": "main"}, "no tag 'main'; known: none"),
        ({"branch": "trail"}, "no branch 'trail'; known: main"),
        ({"start_snapshot_id": 7}, "'start-snapshot-id' names snapshot 7"),
        ({"as_of_timestamp": "2013-01-01"}, "a time with a zone"),
        ({"snapshot_id": 1, "tag": "x"}, "'snapshot-id' and 'tag' exclude each other"),
        ({"end_snapshot_id": 1}, "'end-snapshot-id' needs 'start-snapshot-id'"),
        ({"stream_from_timestamp": 1}, "'stream-from-timestamp' is for streams"),
        ({"startingOffsets": "latest"}, "'startingOffsets' is for streams"),
        ({"snapshotid": "x"}, "snapshot-id"),
        ({"columns": "idd"}, "did you mean 'id'"),
        ({"rowFilter": "idd = 3"}, "rowFilter.* the columns are id, at"),
        ({"rowFilter": "id = = 3"}, "rowFilter.* cannot be read at"),
        ({"rowFilter": "id = 'x'"}, "rowFilter"),
    ],
)
def test_options_that_cannot_be_followed(folder, options, said):
    append(folder, rows(1))
    with pytest.raises(OptionError, match=said):
        batch(folder, **options)


def test_a_batch_after_expiry_reads_what_is_left(folder):
    first = append(folder, rows(1))
    append(folder, rows(2))
    expire(folder, first)
    assert ids(batch(folder)) == [1, 2]


# --- where a stream begins


def test_a_stream_begins_with_all_rows_of_the_oldest_snapshot(folder):
    old = [append(folder, rows(n)) for n in (1, 2, 3)]
    expire(folder, *old[:2])
    append(folder, rows(4))
    assert Stream(folder, maxFilesPerTrigger=3).drain() == [[1, 2, 3], [4]]


def test_a_stream_may_begin_with_all_rows_of_the_newest_snapshot(folder):
    append(folder, rows(1))
    table_in(folder).delete("id = 1")
    append(folder, rows(2, 3))
    stream = Stream(folder, startingOffsets="current")
    assert stream.drain() == [[2, 3]]
    append(folder, rows(4))
    assert stream.drain() == [[4]]


def test_a_stream_may_begin_with_what_comes(folder):
    append(folder, rows(1))
    stream = Stream(folder, startingOffsets="latest")
    assert stream.trigger() == []
    append(folder, rows(2))
    assert stream.restart().drain() == [[2]]


def test_the_newest_start_of_an_empty_table_is_before_its_first_row(folder):
    stream = Stream(folder, startingOffsets="latest")
    assert stream.trigger() == []
    assert stream.trigger() is None
    append(folder, rows(1))
    append(folder, rows(2))
    assert stream.restart().drain() == [[1, 2]]


@pytest.mark.parametrize("start", ["earliest", "current"])
def test_an_empty_table_waits_for_rows(folder, start):
    stream = Stream(folder, startingOffsets=start)
    assert stream.trigger() is None
    append(folder, rows(1))
    assert stream.drain() == [[1]]


def test_a_stream_may_begin_at_a_snapshot(folder):
    append(folder, rows(1))
    second = append(folder, rows(2))
    append(folder, rows(3))
    assert Stream(folder, snapshot_id=second).drain() == [[1, 2, 3]]
    assert Stream(folder, snapshot_id=second, maxFilesPerTrigger=1).drain() == [[2], [1], [3]]
    assert Stream(folder, start_snapshot_id=second).drain() == [[3]]


def test_a_stream_may_begin_at_a_time(folder):
    append(folder, rows(1))
    second = append(folder, rows(2))
    append(folder, rows(3))
    assert Stream(folder, stream_from_timestamp=committed(folder, second)).drain() == [[2, 3]]
    assert Stream(folder, stream_from_timestamp=0).drain() == [[1, 2, 3]]


def test_a_time_that_has_not_come_is_waited_for(folder):
    first = append(folder, rows(1))
    stream = Stream(folder, stream_from_timestamp=committed(folder, first) + 1)
    assert stream.trigger() is None
    while committed(folder, append(folder, rows(2))) <= committed(folder, first):
        pass
    assert stream.trigger()[-1] == 2


def test_a_time_before_what_has_expired_is_an_error(folder):
    old = [append(folder, rows(n)) for n in (1, 2, 3)]
    expire(folder, *old[:2])
    with pytest.raises(DataLossError, match=r"snapshots between .* have expired.*'earliest'"):
        Stream(folder, stream_from_timestamp=0).trigger()


def test_a_snapshot_to_begin_at_that_has_expired_is_an_error(folder):
    old = [append(folder, rows(n)) for n in (1, 2, 3)]
    expire(folder, *old[:2])
    with pytest.raises(OptionError, match=f"names snapshot {old[0]}.* there are 1 snapshots"):
        Stream(folder, snapshot_id=old[0]).trigger()


BASE = 1_700_000_000_000


@pytest.fixture
def unordered(folder):
    """Return a table whose log is not in the order of its times, as with clocks that differ."""
    ordered = [append(folder, rows(number)) for number in (1, 2, 3)]
    times = dict(zip(ordered, (2000, 1000, 3000), strict=True))
    location = Path(table_in(folder).metadata_location.removeprefix("file://"))
    metadata = json.loads(location.read_text())
    for entry in metadata["snapshot-log"] + metadata["snapshots"]:
        entry["timestamp-ms"] = BASE + times[entry["snapshot-id"]]
    location.write_text(json.dumps(metadata))
    return folder


@pytest.mark.long
@pytest.mark.parametrize(
    ("moment", "expected"),
    [(1000, [1, 2]), (1500, [1, 2]), (2000, [1]), (2500, [1]), (3000, [1, 2, 3])],
)
@pytest.mark.parametrize("more", [{}, {"branch": "main"}])
def test_as_of_is_the_greatest_time_that_is_not_after(unordered, moment, expected, more):
    assert ids(batch(unordered, as_of_timestamp=BASE + moment, **more)) == expected
    with pytest.raises(OptionError, match="has no snapshot at or before"):
        batch(unordered, as_of_timestamp=BASE + 500, **more)


def test_of_snapshots_of_one_time_the_later_is_read(folder):
    for number in (1, 2):
        append(folder, rows(number))
    location = Path(table_in(folder).metadata_location.removeprefix("file://"))
    metadata = json.loads(location.read_text())
    for entry in metadata["snapshot-log"] + metadata["snapshots"]:
        entry["timestamp-ms"] = BASE
    location.write_text(json.dumps(metadata))
    assert ids(batch(folder, as_of_timestamp=BASE)) == [1, 2]


@pytest.mark.parametrize(
    ("moment", "expected"),
    [(500, [1, 2, 3]), (1500, [1, 2, 3]), (2000, [1, 2, 3]), (2500, [3]), (3000, [3]), (3500, [])],
)
def test_a_stream_from_a_time_leaves_out_no_snapshot_from_then_on(unordered, moment, expected):
    found = Stream(unordered, stream_from_timestamp=BASE + moment).drain()
    assert [number for numbers in found for number in numbers] == expected


@pytest.mark.parametrize("option", ["as_of_timestamp", "tag", "end_snapshot_id"])
def test_places_of_batches_are_refused_in_streams(folder, option):
    first = append(folder, rows(1))
    table_in(folder).manage_snapshots().create_tag(first, str(first)).commit()
    more = {"start_snapshot_id": first} if option == "end_snapshot_id" else {}
    with pytest.raises(OptionError, match="is for batch reads"):
        Stream(folder, **{option: first}, **more)


def test_a_stream_follows_a_branch(folder):
    first = append(folder, rows(1))
    table_in(folder).manage_snapshots().create_branch(first, "trial").commit()
    stream = Stream(folder, branch="trial")
    append(folder, rows(2), branch="trial")
    append(folder, rows(3))
    assert stream.drain() == [[1, 2]]


# --- batches of a stream


def test_limits_cut_between_files(folder):
    append_files(folder, rows(1, 2), rows(3), rows(4, 5, 6))
    append(folder, rows(7))
    append(folder, rows(8, 9))
    assert Stream(folder, maxRowsPerTrigger=3).drain() == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert Stream(folder, **{"streaming-max-files-per-micro-batch": 2}).drain() == [
        [1, 2, 3],
        [4, 5, 6, 7],
        [8, 9],
    ]


def test_every_batch_of_a_big_snapshot_is_replayed_alike(folder):
    append_files(folder, *(rows(n) for n in range(5)))
    append_files(folder, *(rows(n) for n in range(5, 10)))
    stream = Stream(folder, maxFilesPerTrigger=3)
    found = []
    while (batch_ids := stream.trigger()) is not None:
        found.append(batch_ids)
        append(folder, rows(99 + len(found)))
        stream = stream.restart()
        assert stream.replay() == batch_ids
        if len(found) == 4:
            break
    assert [n for batch_ids in found for n in batch_ids][:10] == list(range(10))


def test_a_restart_reads_the_same_though_options_changed(folder):
    append_files(folder, *(rows(n) for n in range(5)))
    stream = Stream(folder, maxFilesPerTrigger=2)
    assert stream.trigger() == [0, 1]
    other = stream.restart(maxFilesPerTrigger=4, rowFilter="id <> 3", startingOffsets="latest")
    assert other.replay() == [0, 1]
    assert other.drain() == [[2, 4]]


def test_a_filter_leaves_positions_alone(folder):
    append_files(folder, *(rows(n) for n in range(6)))
    stream = Stream(folder, maxFilesPerTrigger=4, rowFilter="id >= 3")
    assert stream.drain() == [[3], [4, 5]]
    assert (
        stream.at.to_dict()["spot"]
        == Stream(folder).source.latest(IcebergOffset(at="earliest"), UNLIMITED).to_dict()["spot"]
    )


def test_compaction_adds_no_rows(folder):
    stream = Stream(folder)
    append(folder, rows(1))
    append(folder, rows(2))
    assert stream.drain() == [[1, 2]]
    compact(folder)
    append(folder, rows(3))
    assert stream.drain() == [[3]]
    compact(folder)
    assert stream.drain() == [[]]
    assert stream.trigger() is None


def test_available_now_ends_at_what_was_there(folder):
    append_files(folder, *(rows(n) for n in range(3)))
    stream = Stream(folder, maxFilesPerTrigger=2)
    stream.source.freeze()
    append(folder, rows(9))
    assert stream.drain() == [[0, 1], [2]]
    assert stream.restart().drain() == [[9]]


def test_the_backlog_counts_what_waits(folder):
    append_files(folder, rows(1, 2), rows(3))
    last = append(folder, rows(4))
    stream = Stream(folder, maxFilesPerTrigger=1)
    stream.trigger()
    assert stream.source.backlog() == {
        "snapshots_waiting": 1,
        "files_waiting": 2,
        "rows_waiting": 2,
        "newest_snapshot": last,
        "newest_committed_ms": committed(folder, last),
    }


# --- snapshots that change rows


DELETES = {"streaming-skip-delete-snapshots": "true"}
OVERWRITES = {"streaming-skip-overwrite-snapshots": "true"}


def remove(folder):
    table_in(folder).delete("id = 1")


def replace(folder):  # PyIceberg's overwrite deletes first, and appends then
    table_in(folder).overwrite(rows(7), "id < 9")


def rewrite(folder):  # of a file that has other rows too
    table_in(folder).delete("id = 2")


def mark(folder):
    delete_rows(folder, {paths(folder)[0]: [0]})


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "kind", "skips", "then"),
    [
        (remove, "delete", DELETES, [[4]]),
        (replace, "delete", DELETES, [[4, 7]]),
        (rewrite, "overwrite", OVERWRITES, [[4]]),
        (mark, "overwrite", OVERWRITES, [[4]]),
    ],
)
def test_changed_rows_are_an_error_unless_they_are_skipped(folder, change, kind, skips, then):
    append_files(folder, rows(1), rows(2, 5))
    stream = Stream(folder)
    assert stream.trigger() == [1, 2, 5]
    append(folder, rows(3))
    change(folder)
    append(folder, rows(4))
    assert stream.trigger() == [3]  # what lies before it
    said = f"of kind '{kind}'.*'streaming-skip-{kind}-snapshots' = 'true'.*'current'"
    with pytest.raises(ChangedRowsError, match=said):
        stream.trigger()
    assert stream.restart(**skips).drain() == then


# --- expiry, rollback, another table


def test_a_position_whose_snapshot_has_expired_goes_on_while_nothing_is_missing(folder):
    stream = Stream(folder)
    first = append(folder, rows(1))
    assert stream.drain() == [[1]]
    append(folder, rows(2))
    append(folder, rows(3))
    expire(folder, first)
    assert stream.restart().drain() == [[2, 3]]


def test_it_goes_on_where_the_parent_is_still_named(folder):
    stream = Stream(folder)
    first = append(folder, rows(1))
    stream.drain()
    append(folder, rows(2))
    expire_as_java(folder, first)
    assert table_in(folder).current_snapshot().parent_snapshot_id == first
    assert stream.restart().drain() == [[2]]


def test_rows_that_have_expired_unread_are_an_error(folder):
    stream = Stream(folder)
    gone = [append(folder, rows(1))]
    assert stream.drain() == [[1]]
    gone.append(append(folder, rows(2)))
    last = append(folder, rows(3))
    expire(folder, *gone)
    said = f"snapshot {gone[0]}, .* has expired.*there are 1 snapshots, from {last} of .*'current'"
    with pytest.raises(DataLossError, match=said):
        stream.restart().trigger()


@pytest.mark.parametrize("options", [{"startingOffsets": "latest"}, {"stream_from_timestamp": 0}])
def test_a_compaction_is_not_taken_for_the_first_snapshot(folder, options):
    stream = Stream(folder, **options)
    stream.drain()
    first = append(folder, rows(1, 2))
    compact(folder)  # has all files of the table, as a first snapshot has
    expire(folder, first)
    append(folder, rows(3))
    with pytest.raises(DataLossError, match=r"have expired|has expired"):
        stream.drain()


def split(folder):
    """Move the older of two snapshots to a branch, to which PyIceberg cannot write."""
    location = Path(table_in(folder).metadata_location)
    metadata = json.loads(location.read_text())
    first, second = metadata["snapshots"]
    del second["parent-snapshot-id"]
    second["summary"]["total-data-files"] = "1"
    metadata["refs"]["audit"] = {"snapshot-id": first["snapshot-id"], "type": "branch"}
    location.write_text(json.dumps(metadata))


def test_a_first_snapshot_may_come_after_those_of_other_branches(folder):
    stream = Stream(folder, startingOffsets="latest")
    assert stream.drain() == [[]]
    append(folder, rows(1))
    append(folder, rows(2))
    split(folder)
    assert stream.drain() == [[2]]


def test_a_gap_in_the_middle_of_the_history_is_an_error(folder):
    stream = Stream(folder)
    append(folder, rows(1))
    assert stream.drain() == [[1]]
    middle = append(folder, rows(2))
    append(folder, rows(3))
    expire(folder, middle)
    with pytest.raises(DataLossError, match="no longer in the history"):
        stream.trigger()


def test_a_snapshot_that_expires_while_it_is_read_is_an_error(folder):
    first = append_files(folder, rows(1), rows(2))
    stream = Stream(folder, maxFilesPerTrigger=1)
    assert stream.trigger() == [1]
    append(folder, rows(3))
    expire(folder, first)
    with pytest.raises(DataLossError, match=f"snapshot {first} has expired.*while it was being"):
        stream.restart().trigger()


def test_a_replay_whose_snapshots_have_expired_is_an_error(folder):
    append(folder, rows(1))
    stream = Stream(folder)
    stream.trigger()
    second = append(folder, rows(2))
    assert stream.trigger() == [2]
    append(folder, rows(3))
    expire(folder, second)
    with pytest.raises(DataLossError, match=f"snapshot {second}, the end of a batch"):
        stream.restart().replay()


def test_a_rollback_is_an_error_also_when_the_sink_has_expired_what_tells_of_it(tmp_path):
    """The oldest snapshot has lost its parent's id, and the numbers have no gap."""
    life = IcebergLife(tmp_path, path="db.t", keepSnapshots="3")
    for epoch in range(3):
        life.epoch(epoch, rows(epoch))
    stream = Stream(tmp_path)
    while stream.trigger() is not None:
        pass
    _, second, _ = table_in(tmp_path).metadata.snapshots
    table_in(tmp_path).manage_snapshots().rollback_to_snapshot(second.snapshot_id).commit()
    for epoch in range(3, 6):
        life.epoch(epoch, rows(epoch))
    with pytest.raises(DataLossError, match="snapshots after it"):
        stream.trigger()


def test_a_rollback_behind_the_position_is_an_error(folder):
    first = append(folder, rows(1))
    stream = Stream(folder)
    append(folder, rows(2))
    assert stream.drain() == [[1, 2]]
    table_in(folder).manage_snapshots().rollback_to_snapshot(first).commit()
    append(folder, rows(3))
    with pytest.raises(DataLossError, match="rolled back"):
        stream.trigger()


def test_a_table_that_was_made_anew_is_an_error(folder):
    append(folder, rows(1))
    stream = Stream(folder)
    stream.drain()
    catalog(folder).drop_table("db.t")
    make_table(folder, SCHEMA)
    append(folder, rows(2))
    with pytest.raises(DataLossError, match="dropped and recreated"):
        stream.trigger()


# --- how much is read of the metadata


@pytest.fixture
def opened(monkeypatch):
    """Return a list that gets the paths of manifests as they are read."""
    found, fetch = [], ManifestFile.fetch_manifest_entry

    def counted(manifest, *given, **more):
        found.append(manifest.manifest_path)
        return fetch(manifest, *given, **more)

    monkeypatch.setattr(ManifestFile, "fetch_manifest_entry", counted)
    return found


@pytest.mark.long  # 4 s
def test_a_batch_of_many_snapshots_reads_each_manifest_once(folder, opened):
    for number in range(70):
        append(folder, rows(number))
    opened.clear()
    source = reader(folder, startingOffsets="earliest")
    start = source.initial()
    end = source.latest(start, UNLIMITED)
    assert sum(len(part.ranges) for part in source.plan(start, end)) == 70
    source.latest(end, UNLIMITED)
    assert len(opened) == len(set(opened)) == 70


@pytest.mark.long
def test_entries_of_many_manifests_are_in_memory_a_few_at_a_time(folder, monkeypatch):
    for number in range(9):
        append(folder, rows(number))
    whole = batch(folder)
    some = batch(folder, rowFilter="id > 3")
    planned, groups = [], planning._group_manifests

    def counted(manifests):
        for group in groups(manifests):
            planned.append(len(group))
            yield group

    monkeypatch.setattr(planning, "_group_manifests", counted)
    monkeypatch.setattr(planning, "_ENTRIES_AT_ONCE", 2)
    assert batch(folder).equals(whole)  # in the same order
    assert batch(folder, rowFilter="id > 3").equals(some)
    assert planned == [2, 2, 2, 2, 1] * 2


def test_deletes_count_whichever_manifest_is_read_first(folder, monkeypatch):
    monkeypatch.setattr(planning, "_ENTRIES_AT_ONCE", 1)
    for number in range(4):
        append(folder, rows(number, number + 10))
    delete_rows(folder, {path: [0] for path in paths(folder)})
    assert ids(batch(folder)) == [10, 11, 12, 13]


# --- event time


def test_the_watermark_comes_from_the_bounds_of_files(folder):
    append(folder, rows(5, 9))
    stream = Stream(folder, eventTime="at", watermarkDelay="2 s")
    stream.trigger()
    assert stream.at.watermark.ms == 7_000
    append(folder, rows(3))
    stream.trigger()
    assert stream.at.watermark.ms == 7_000


def test_a_file_without_bounds_holds_the_watermark(folder):
    append(folder, rows(5))
    stream = Stream(folder, eventTime="at")
    stream.trigger()
    with table_in(folder).transaction() as change:
        change.set_properties({"write.metadata.metrics.default": "none"})
    append(folder, rows(9))
    stream.trigger()
    assert stream.at.watermark.ms == 5_000
    assert "no bounds of at" in stream.at.watermark.held
    append(folder, pa.table({"id": [1], "at": [None]}, schema=SCHEMA))
    stream.trigger()
    assert stream.at.watermark.ms == 5_000


def test_a_row_that_was_deleted_does_not_move_the_watermark(folder):
    append(folder, rows(1, 32_503_680_000))
    delete_rows(folder, {paths(folder)[0]: [1]})
    stream = Stream(folder, eventTime="at", startingOffsets="current")
    assert stream.trigger() == [1]
    assert stream.at.watermark.ms == 1000  # that of the oldest row, which remains at least
    append(folder, rows(2))
    stream.trigger()
    assert stream.at.watermark.ms == 2000


def test_a_file_whose_rows_may_all_be_deleted_holds_the_watermark(folder):
    append(folder, rows(5, 6))
    delete_rows(folder, {paths(folder)[0]: [1]})
    delete_rows(folder, {paths(folder)[0]: [1]})  # two entries for one row, as others write them
    stream = Stream(folder, eventTime="at", startingOffsets="current")
    assert stream.trigger() == [5]
    assert stream.at.watermark.ms is None
    assert "all rows with a time may have been deleted" in stream.at.watermark.held


def test_batches_need_no_watermark(folder):
    append(folder, rows(5))
    source = reader(folder, streaming=False, eventTime="at")
    end = source.latest(source.initial(), UNLIMITED)
    assert end.watermark is None
    assert ids(rows_of(source, source.initial(), end)) == [5]
    assert newest(folder) == end.spot.snapshot


# --- tables that are not where they are looked for


def test_a_table_under_another_name_of_the_catalog_is_named(folder):
    with pytest.raises(OptionError, match="in catalog 'krishiv': give that as 'catalogName'"):
        batch(folder, ID, catalogName="other")
    with pytest.raises(OptionError, match=r"tables of other catalogs .*'krishiv'"):
        batch(folder, ID, catalogName="other", table="sales.deals")
    with pytest.raises(OptionError, match=r"no table sales.deals in catalog 'krishiv'$"):
        batch(folder, ID, table="sales.deals")


def test_a_table_that_is_named_by_its_files_is_refused_with_the_way_in(folder, tmp_path):
    append(folder, rows(1, 2))
    location = table_in(folder).metadata_location
    for path in (location, location.removeprefix("file://")):
        with pytest.raises(OptionError, match=r"is the metadata file of a table.*register_table"):
            IcebergSourceOptions.parse({"path": path}, "krishiv-iceberg")
    own = {"path": f"{folder}/db/t"}
    options = IcebergSourceOptions.parse(own, "krishiv-iceberg")
    with pytest.raises(OptionError, match=r"is the folder of one table.*register_table"):
        open_table(options)
    other = tmp_path / "register"
    other.mkdir()
    catalog(other).create_namespace("db")
    catalog(other).register_table("db.t", location)  # as docs/iceberg.md has it
    assert ids(batch(other)) == [1, 2]
