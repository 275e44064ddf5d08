"""The files that a stream reads, and their batches."""

import gc
import os
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parquet_reading import (
    DAY_NS,
    FIRST,
    NOON,
    batches,
    make_content,
    names,
    put,
    put_bytes,
    reader,
    reload_offset,
    rows,
)

from krishiv_spark.errors import OptionError
from krishiv_spark.offsets import Start
from krishiv_spark.sources.base import UNLIMITED, Limit
from krishiv_spark.sources.parquet.listing import FoundFile, SourcePath, find_files
from krishiv_spark.sources.parquet.offset_store import StreamState
from krishiv_spark.sources.parquet.reader import ParquetOffset
from krishiv_spark.sources.parquet.unread_files import Origin, ReadUnit, UnreadFiles

# --- what is read, and when


def test_oldest_files_come_first_and_equal_times_by_path(tmp_path):
    put(tmp_path, "c.parquet", at=NOON)
    put(tmp_path, "a.parquet", at=NOON)
    put(tmp_path, "z.parquet", at=NOON - 1)
    found = batches(reader(tmp_path), limit=Limit(files=2))
    assert found == [["z.parquet", "a.parquet"], ["c.parquet"]]


def test_newest_files_come_first_on_demand_whatever_their_age(tmp_path):
    for day in range(4):
        put(tmp_path, f"{day}.parquet", at=NOON - 100 * day * DAY_NS)
    found = batches(reader(tmp_path, latestFirst="true"), limit=Limit(files=3))
    assert found == [["0.parquet", "1.parquet", "2.parquet"], ["3.parquet"]]


def test_nothing_new_is_no_batch(tmp_path):
    put(tmp_path, "a.parquet")
    source = reader(tmp_path)
    end = source.latest(FIRST, UNLIMITED)
    assert source.latest(end, UNLIMITED).to_json() == end.to_json()
    assert source.plan(end, end) == []


@pytest.mark.long  # measures memory
def test_a_batch_that_puts_nothing_aside_leaves_nothing_in_memory(tmp_path):
    source, at = reader(tmp_path), FIRST
    before = _states()
    for number in range(20):
        put(tmp_path, f"{number}.parquet", at=NOON + number)
        at = reload_offset(source.latest(at, UNLIMITED))
    assert _states() - before <= 1


def _states():
    gc.collect()
    return sum(isinstance(each, StreamState) for each in gc.get_objects())


def test_a_replay_reads_the_same_rows_when_files_came_and_went(tmp_path):
    old, kept = put(tmp_path, "old.parquet", [1]), put(tmp_path, "kept.parquet", [2], at=NOON + 1)
    source = reader(tmp_path)
    first = source.latest(FIRST, UNLIMITED)
    second = source.latest(first, UNLIMITED)
    assert second == first
    put(tmp_path, "new.parquet", [3], at=NOON - 1)
    second = source.latest(first, UNLIMITED)
    put(tmp_path, "newer.parquet", [4])
    old.unlink()
    kept.unlink()
    again = reader(tmp_path)
    assert again.plan(first, second) == source.plan(first, second)
    assert rows(again, first, second) == [3]
    assert batches(reader(tmp_path), second) == [["newer.parquet"]]


def test_a_late_file_with_an_older_time_is_read_unless_it_is_too_old(tmp_path):
    put(tmp_path, "a.parquet")
    source = reader(tmp_path, maxFileAge="7d")
    end = source.latest(FIRST, UNLIMITED)
    put(tmp_path, "late.parquet", at=NOON - 7 * DAY_NS)
    put(tmp_path, "too-late.parquet", at=NOON - 7 * DAY_NS - 1)
    assert batches(source, end) == batches(reader(tmp_path), end) == [["late.parquet"]]


def test_a_backlog_is_never_too_old(tmp_path):
    for day in range(5):
        put(tmp_path, f"{day}.parquet", at=NOON + 100 * day * DAY_NS)
    found = batches(reader(tmp_path), limit=Limit(files=2))
    assert [name for batch in found for name in batch] == [f"{day}.parquet" for day in range(5)]


def test_a_file_that_was_read_is_never_read_again_however_old_it_is(tmp_path):
    source, end = reader(tmp_path, maxFileAge="1d"), FIRST
    for day in range(6):
        put(tmp_path, f"{day}.parquet", at=NOON + day * DAY_NS)
        end = source.latest(end, UNLIMITED)
        assert names(end) == [f"{day}.parquet"]
    os.utime(tmp_path / "0.parquet", ns=(NOON + 5 * DAY_NS, NOON + 5 * DAY_NS))
    assert source.latest(end, UNLIMITED) == end
    assert reader(tmp_path, maxFileAge="1d").latest(reload_offset(end), UNLIMITED) == end
    assert source.backlog().keys() == {"files_waiting", "bytes_waiting", "newest_modified_ms"}


def test_a_rewritten_file_is_not_read_again(tmp_path):
    put(tmp_path, "a.parquet")
    end = reader(tmp_path).latest(FIRST, UNLIMITED)
    put(tmp_path, "a.parquet", [7, 8], at=NOON + DAY_NS)
    assert reader(tmp_path).latest(end, UNLIMITED) == end


def test_an_empty_file_waits_until_it_is_written(tmp_path):
    (tmp_path / "a.parquet").touch()
    source = reader(tmp_path)
    assert source.latest(FIRST, UNLIMITED) == FIRST
    put(tmp_path, "a.parquet")
    assert names(source.latest(FIRST, UNLIMITED)) == ["a.parquet"]


def test_a_reader_can_be_asked_about_earlier_positions(tmp_path):
    source = reader(tmp_path)
    ends = [FIRST]
    for day in range(3):
        put(tmp_path, f"{day}.parquet", at=NOON + day)
        ends.append(source.latest(ends[-1], UNLIMITED))
    assert batches(source, ends[1]) == [["1.parquet", "2.parquet"]]
    assert batches(source, ends[3]) == []
    assert batches(source, FIRST, Limit(files=2)) == [["0.parquet", "1.parquet"], ["2.parquet"]]


WHOLE = make_content()


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 3)), min_size=1, max_size=12))
def test_every_file_is_read_exactly_once_however_late_it_comes(tmp_path_factory, arrivals):
    folder = tmp_path_factory.mktemp("arrivals")
    source, end, read = reader(folder, maxFileAge="40d"), FIRST, []
    for number, (day, limit) in enumerate(arrivals):
        put_bytes(folder, f"{number}.parquet", WHOLE, at=NOON + day * DAY_NS)
        if number % 3 == 1:
            source = reader(folder, maxFileAge="40d")
        end = ParquetOffset.from_json(source.latest(end, Limit(files=limit)).to_json())
        read += names(end)
    left = [name for batch in batches(source, end) for name in batch]
    seen = {f"{number}.parquet" for number in range(len(arrivals))}
    assert set(read) | set(left) == seen
    assert not set(read) & set(left)


# --- limits


def test_limits_on_bytes_and_rows_take_at_least_one_file(tmp_path):
    for number in range(4):
        path = put(tmp_path, f"{number}.parquet", range(10), at=NOON + number)
    size = path.stat().st_size
    pairs = [["0.parquet", "1.parquet"], ["2.parquet", "3.parquet"]]
    singles = [[f"{number}.parquet"] for number in range(4)]
    assert batches(reader(tmp_path), limit=Limit(bytes=2 * size)) == pairs
    assert batches(reader(tmp_path), limit=Limit(bytes=1)) == singles
    assert batches(reader(tmp_path), limit=Limit(rows=29)) == pairs
    assert batches(reader(tmp_path), limit=Limit(rows=1)) == singles
    assert batches(reader(tmp_path), limit=Limit(rows=100, files=3, bytes=2 * size)) == pairs


def test_options_become_limits_and_files_have_a_default(tmp_path):
    assert reader(tmp_path).options.limit() == Limit(files=10_000)
    source = reader(tmp_path, maxFilesPerTrigger=5, maxRowsPerTrigger=7, maxBytesPerTrigger="1k")
    assert source.options.limit() == Limit(rows=7, files=5, bytes=1024)


def test_a_batch_read_takes_everything(tmp_path):
    for day in range(3):
        put(tmp_path, f"{day}.parquet", [day], at=NOON + 50 * day * DAY_NS)
    source = reader(tmp_path, streaming=False, maxFilesPerTrigger=1)
    start = source.initial()
    assert rows(source, start, source.latest(start, UNLIMITED)) == [0, 1, 2]


# --- abilities


def test_a_start_at_the_newest_file_skips_what_is_there(tmp_path):
    put(tmp_path, "old.parquet", at=NOON - 30 * DAY_NS)
    put(tmp_path, "a.parquet")
    source = reader(tmp_path, startingOffsets="latest")
    assert source.initial() == Start(at="latest")
    end = source.resolve(source.initial())
    assert end.files == ()
    assert source.latest(end, UNLIMITED) == end
    put(tmp_path, "b.parquet", at=NOON - DAY_NS)
    assert batches(reader(tmp_path), end) == [["b.parquet"]]


def test_a_batch_read_cannot_start_at_the_newest_file(tmp_path):
    with pytest.raises(OptionError, match="startingOffsets"):
        reader(tmp_path, streaming=False, startingOffsets="latest").initial()


def test_a_frozen_reader_sees_nothing_newer(tmp_path):
    for number in range(3):
        put(tmp_path, f"{number}.parquet", at=NOON + number)
    source = reader(tmp_path)
    source.freeze()
    put(tmp_path, "later.parquet", at=NOON - 1)
    found = batches(source, limit=Limit(files=2))
    assert found == [["0.parquet", "1.parquet"], ["2.parquet"]]


def test_the_backlog_is_what_the_batch_leaves(tmp_path):
    for number in range(3):
        path = put(tmp_path, f"{number}.parquet", at=NOON + number * 1_000_000)
    source = reader(tmp_path)
    end = source.latest(FIRST, Limit(files=1))
    assert source.backlog() == {
        "files_waiting": 2,
        "bytes_waiting": 2 * path.stat().st_size,
        "newest_modified_ms": NOON // 1_000_000 + 2,
    }
    source.latest(end, UNLIMITED)
    assert source.backlog()["files_waiting"] == 0


def test_a_pickled_reader_carries_no_memory_of_files(tmp_path):
    source = reader(tmp_path)
    empty = len(pickle.dumps(source))
    for number in range(50):
        put(tmp_path, f"{number}.parquet")
    source.freeze()
    end = source.latest(FIRST, UNLIMITED)
    source.latest(end, UNLIMITED)
    assert len(pickle.dumps(source)) < empty + 200  # the backlog


# --- the order


epochs = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 5), st.integers(0, 9)),
    unique_by=lambda triple: triple[:2],
)


@given(epochs, st.booleans())
def test_epochs_keep_their_order_whatever_their_times(triples, newest_first):
    found = [
        ReadUnit((FoundFile(f"{tag}{epoch}", 1, at),), Origin(tag, epoch), tag)
        for tag, epoch, at in sorted(triples)
    ]
    waiting = UnreadFiles(newest_first=newest_first)
    for unit in found:
        waiting.add(unit)
    assert (waiting.files, waiting.bytes) == (len(found), len(found))
    ordered = [waiting.pop().origin for _ in found]
    assert (waiting.peek(), waiting.files, waiting.bytes) == (None, 0, 0)
    for tag in "ab":
        own = [epoch for name, epoch in ordered if name == tag]
        assert own == sorted(own)
    assert sorted(ordered) == sorted(unit.origin for unit in found)


# --- places


def listed(path, **options):
    place = SourcePath.parse(str(path))
    found = find_files(place, **options)
    assert all(os.path.isfile(place.absolute(file.path)) for file in found)
    return sorted(file.path for file in found)


def test_it_is_said_where_a_folder_has_files_that_spark_would_not_count(tmp_path, caplog):
    def said():
        return [text for text in caplog.messages if "written by Spark's own file sink" in text]

    put(tmp_path, "a.parquet")
    reader(tmp_path).latest(FIRST, UNLIMITED)
    put_bytes(tmp_path, "_spark_metadata/0", b"v1")
    for pattern in ("/*.parquet", "/a.parquet"):
        reader(f"{tmp_path}{pattern}").latest(FIRST, UNLIMITED)
    assert said() == []
    for _ in range(2):
        reader(tmp_path).latest(FIRST, UNLIMITED)
    assert len(said()) == 1


def test_hidden_names_and_other_extensions_are_left_out(tmp_path):
    for name in ("a.parquet", "_b.parquet", ".c.parquet", "d.txt", "_krishiv/x/e.parquet"):
        put(tmp_path, name)
    put(tmp_path, "_day=1/f.parquet")
    put(tmp_path, "day=1/_tmp/g.parquet")
    assert listed(tmp_path) == ["_day=1/f.parquet", "a.parquet"]


def test_folders_are_walked_when_they_are_partitions_or_on_demand(tmp_path):
    for name in ("a.parquet", "x=1/y=2/b.parquet", "sub/c.parquet", "x=1/sub/d.parquet"):
        put(tmp_path, name)
    assert listed(tmp_path) == ["a.parquet", "x=1/y=2/b.parquet"]
    everything = ["a.parquet", "sub/c.parquet", "x=1/sub/d.parquet", "x=1/y=2/b.parquet"]
    assert listed(tmp_path, recursive=True) == everything


def test_a_file_or_url_may_be_named(tmp_path):
    path = put(tmp_path, "a.data", [5])
    assert rows(reader(path), FIRST, reader(path).latest(FIRST, UNLIMITED)) == [5]
    assert (
        SourcePath.parse(f"file:{tmp_path}")
        == SourcePath.parse(f"file://{tmp_path}")
        == SourcePath(str(tmp_path))
    )


def test_globs_match_files_and_folders(tmp_path):
    for name in ("x1/a.parquet", "x2/day=3/b.parquet", "y1/c.parquet", "_x/d.parquet", "e.data"):
        put(tmp_path, name)
    assert listed(tmp_path / "x*") == ["x1/a.parquet", "x2/day=3/b.parquet"]
    assert listed(tmp_path / "{x1,y1}" / "*.parquet") == ["x1/a.parquet", "y1/c.parquet"]
    assert listed(tmp_path / "*") == ["x1/a.parquet", "x2/day=3/b.parquet", "y1/c.parquet"]
    assert listed(tmp_path / "*.data") == ["e.data"]
    assert listed(tmp_path / "[xy]?" / "?.parquet") == ["x1/a.parquet", "y1/c.parquet"]


def test_a_place_that_is_not_there_is_named(tmp_path):
    for path in (tmp_path / "nowhere", tmp_path / "nowhere" / "*.parquet"):
        with pytest.raises(OptionError, match="nowhere"):
            reader(path).latest(FIRST, UNLIMITED)


def test_a_store_that_is_not_known_is_refused():
    with pytest.raises(OptionError, match="'path' 'ftp://host/table' is on 'ftp'"):
        reader("ftp://host/table")


def test_a_folder_that_may_not_be_read_is_named(tmp_path, refuse_to_list):
    refuse_to_list(tmp_path)
    with pytest.raises(OptionError, match=tmp_path.name):
        reader(tmp_path).latest(FIRST, UNLIMITED)


@pytest.mark.parametrize("pattern", ["*/*.parquet", "{x1,x2}/*.parquet", "x[12]", "*/day=*/*"])
def test_a_folder_that_may_not_be_read_is_named_by_a_glob(tmp_path, refuse_to_list, pattern):
    put(tmp_path, "x1/a.parquet")
    put(tmp_path, "x2/day=3/b.parquet")
    refuse_to_list(tmp_path / "x2")
    with pytest.raises(OptionError, match="x2"):
        listed(tmp_path / pattern)


def test_a_glob_leaves_alone_what_it_does_not_lead_through(tmp_path, refuse_to_list):
    for name in ("x1/a.parquet", "_x/b.parquet", "y/c.parquet"):
        put(tmp_path, name)
    for name in ("_x", "y"):
        refuse_to_list(tmp_path / name)
    assert listed(tmp_path / "[x_]*" / "*.parquet") == ["x1/a.parquet"]
    assert listed(tmp_path / "[x_]*" / "a.parquet") == ["x1/a.parquet"]
    assert listed(tmp_path / "*" / "a.parquet" / "*") == []
    assert listed(tmp_path / "x?" / "{,a}" / "{day=3,}" / "*.parquet") == ["x1/a.parquet"]


def test_a_name_that_is_no_text_is_refused(tmp_path):
    (tmp_path / os.fsdecode(b"\xff.parquet")).write_bytes(b"x")
    with pytest.raises(OptionError, match="UTF-8"):
        reader(tmp_path).latest(FIRST, UNLIMITED)


def test_files_that_vanish_during_the_listing_are_left_out(tmp_path):
    put(tmp_path, "a.parquet")
    (tmp_path / "b.parquet").symlink_to(tmp_path / "nowhere")
    assert listed(tmp_path) == ["a.parquet"]
