"""The states of files in the Parquet source, and the changes that are possible."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parquet_reading import NOON, put_bytes, reader

from krishiv_spark.offsets import Start
from krishiv_spark.sources.base import UNLIMITED
from krishiv_spark.sources.parquet.file_index import FileIndex, FileState, SkipReason
from krishiv_spark.sources.parquet.listing import FoundFile
from krishiv_spark.sources.parquet.offset import ParquetOffset
from krishiv_spark.sources.parquet.offset_store import OffsetStore, StateLocation
from krishiv_spark.sources.parquet.unread_files import ReadUnit, UnreadFiles
from krishiv_spark.storage import StoreUrl

UNREAD, WAITING, READ, SKIPPED = FileState
DEFERRED = [
    SkipReason.TOO_OLD,
    SkipReason.UNFINISHED,
    SkipReason.UNREADABLE,
    SkipReason.DAMAGED,
]
IMPOSSIBLE = {
    (UNREAD, UNREAD),
    (WAITING, WAITING),
    (READ, READ),
    (READ, WAITING),
    (READ, SKIPPED),
    (SKIPPED, READ),
}
PATHS = ["a.parquet", "b.parquet", "c.parquet"]


def new_index():
    store = OffsetStore(StateLocation(StoreUrl.parse("/never-written")), bounded=False)
    return FileIndex(ParquetOffset(), store, lambda _path, _read: False, UnreadFiles(), None)


def unit(path, size=1):
    return ReadUnit((FoundFile(path, size, NOON),))


def move(index, path, to):
    index.transition(path, to, SkipReason.DAMAGED if to is SKIPPED else None)


@pytest.mark.parametrize(("before", "after"), [*itertools.product(FileState, FileState)])
def test_a_file_changes_its_state_only_as_the_index_allows(before, after):
    index = new_index()
    if before is not UNREAD:
        move(index, "a.parquet", before)
    if (before, after) in IMPOSSIBLE:
        with pytest.raises(ValueError, match=f"from {before.name} to {after.name}"):
            move(index, "a.parquet", after)
        assert index.state("a.parquet") is before
    else:
        move(index, "a.parquet", after)
        assert index.state("a.parquet") is after
    assert ("a.parquet" in index.known) is (index.state("a.parquet") is not UNREAD)


@pytest.mark.parametrize("reason", [None, SkipReason.LOST, SkipReason.UNFINISHED_EPOCH])
def test_a_skipped_file_has_a_reason_for_which_it_is_checked_again(reason):
    with pytest.raises(ValueError, match="to SKIPPED"):
        new_index().transition("a.parquet", SKIPPED, reason)


steps = st.tuples(st.sampled_from(PATHS), st.sampled_from(["wait", "take", *DEFERRED, "delete"]))


@pytest.mark.long
@given(st.lists(steps, max_size=30))
def test_the_report_the_rechecks_and_the_states_agree(done):
    index, reasons = new_index(), {}
    for path, step in done:
        state = index.state(path)
        if step == "wait" and state in {UNREAD, SKIPPED}:
            index.wait(unit(path))
            reasons.pop(path, None)
        elif step == "take" and index.queue.peek() is not None:
            index.mark_read(ParquetOffset(), [index.queue.pop()])
        elif isinstance(step, SkipReason) and state in {UNREAD, SKIPPED}:
            index.skip(unit(path), step)
            reasons[path] = step
        elif step == "delete" and state in {SKIPPED, READ}:
            index.transition(path, UNREAD)
            reasons.pop(path, None)
    assert {path for path in PATHS if index.state(path) is SKIPPED} == reasons.keys()
    assert dict(index.skipped.next_to_recheck(10)) == reasons
    report = {key: sorted(found["first"]) for key, found in index.skipped.report().items()}
    assert report == {
        reason.value: sorted(path for path in reasons if reasons[path] is reason)
        for reason in set(reasons.values())
    }
    waiting = sum(index.state(path) is WAITING for path in PATHS)
    assert waiting == index.queue.files


def test_a_file_that_is_read_is_not_read_again_when_a_listing_shows_it():
    index = new_index()
    index.wait(unit("a.parquet"))
    index.mark_read(ParquetOffset(), [index.queue.pop()])
    assert index.add_listed(["b.parquet"]) == ["b.parquet"]
    with pytest.raises(ValueError, match="from READ to WAITING"):
        index.wait(unit("a.parquet"))


def test_skipped_files_are_checked_again_in_turn():
    index = new_index()
    for path in PATHS:
        index.skip(unit(path), SkipReason.DAMAGED)
    turns = [index.skipped.next_to_recheck(2) for _ in range(3)]
    assert [path for turn in turns for path, _ in turn] == [*PATHS, *PATHS]


def test_a_file_is_checked_again_once_at_a_trigger_however_often_it_was_skipped():
    index = new_index()
    for size in range(3):
        index.skip(unit("a.parquet", size), SkipReason.UNFINISHED)
        index.wait(unit("a.parquet", size))
        index.queue.pop()
    index.skip(unit("a.parquet"), SkipReason.UNFINISHED)
    assert index.skipped.next_to_recheck(10) == [("a.parquet", SkipReason.UNFINISHED)]


def test_a_damaged_file_is_logged_once_and_never_as_an_unfinished_one(tmp_path, caplog):
    put_bytes(tmp_path, "a.parquet", b"PAR1" + 20 * b"x" + b"\x08\x00\x00\x00PAR1")
    source = reader(tmp_path, badFiles="skip")
    position = source.latest(ParquetOffset(), UNLIMITED)
    for _ in range(3):
        assert source.latest(position, UNLIMITED) == position
    assert [line.partition(": files skipped in ")[2] for line in caplog.messages] == [
        f"{tmp_path}: 1 damaged (a.parquet)"
    ]


def test_a_start_at_the_latest_files_leaves_those_that_are_being_written(tmp_path):
    put_bytes(tmp_path, "a.parquet", b"PAR1", at=10**19)
    source = reader(tmp_path, startingOffsets="latest")
    position = source.resolve(Start(at="latest"))
    assert source.latest(position, UNLIMITED) == position
    assert source.backlog()["passed_over"]["unfinished"]["files"] == 1
