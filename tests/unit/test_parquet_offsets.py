"""The content of an offset of the Parquet source, in itself or in files of state."""

import os
import string
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parquet_reading import (
    DAY_NS,
    FIRST,
    HOUR_NS,
    NOON,
    batches,
    drain,
    make_content,
    put,
    put_bytes,
    reader,
    reload_offset,
    rows,
)

from krishiv_spark.errors import OffsetError, OptionError
from krishiv_spark.offsets import Start
from krishiv_spark.sources.base import UNLIMITED, Limit
from krishiv_spark.sources.parquet.listing import FoundFile
from krishiv_spark.sources.parquet.offset import IdBlock, ReadFileIds, file_id
from krishiv_spark.sources.parquet.offset_store import StateLocation, StreamState
from krishiv_spark.sources.parquet.reader import ParquetOffset
from krishiv_spark.storage import StoreUrl

GOLDEN = Path(__file__).parents[1] / "golden" / "offsets"
MOST = 64 * 2**10
LONG = "part-{:07d}-0f3c2a9e-7a52-4bd9-8c65-3f7d5a2b1c00-c000.snappy.parquet"


def state_files(folder):
    return [path for path in folder.glob("_krishiv_sources/*/*") if path.is_file()]


def fill(folder, count, first=0, *, at=NOON):
    """Many names of one file of one row."""
    folder.mkdir(parents=True, exist_ok=True)
    origin = put(folder.parent, f".{folder.name}", [1], at=at)
    for number in range(first, first + count):
        os.link(origin, folder / LONG.format(number))
    origin.unlink()


# --- texts


def test_the_text_of_an_offset_never_changes():
    offset = ParquetOffset(
        files=(FoundFile("day=2013-01-01/a.parquet", 12, NOON),),
        seen=ReadFileIds().union([FoundFile("a.parquet", 1, NOON)]).recent,
        newest=NOON,
        epochs={"0123456789ab": 4},
    )
    assert offset.to_json() == (
        '{"epochs":{"0123456789ab":4},'
        '"files":[["day=2013-01-01/a.parquet",12,1700000000000000000]],"kind":"parquet",'
        '"newest":1700000000000000000,"seen":{"472222":"uFP8DOySkGs="},"seen_in":[],"v":2}'
    )
    assert ParquetOffset.from_json(offset.to_json()) == offset
    assert (
        FIRST.to_json() == '{"epochs":{},"files":[],"kind":"parquet","seen":{},"seen_in":[],"v":2}'
    )


found_files = st.builds(
    FoundFile,
    st.lists(st.text(string.ascii_letters + "=é", min_size=1), min_size=1, max_size=3).map(
        "/".join
    ),
    st.integers(0, 2**40),
    st.integers(-DAY_NS, 40 * DAY_NS),
)
some_names = st.none() | st.text("0123456789abcdef", min_size=32, max_size=32)


@given(
    st.lists(found_files),
    st.none() | st.integers(0, 2**62),
    st.dictionaries(st.text(), st.integers()),
    some_names,
)
def test_an_offset_survives_its_text(files, newest, epochs, name):
    offset = ParquetOffset(
        files=tuple(files),
        files_in=name,
        seen=ReadFileIds().union(files).recent,
        seen_in=() if name is None else (IdBlock(name, len(files)),),
        newest=newest,
        epochs=epochs,
        epochs_in=name,
        stream=name,
    )
    assert reload_offset(offset) == offset


@pytest.mark.long
def test_ids_do_not_depend_on_the_process():
    code = (
        "from krishiv_spark.sources.parquet.offset import *;print(file_id('day=1/\\u00e9.parquet'))"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert printed == {f"{file_id('day=1/é.parquet')}\n".encode()}


@pytest.mark.parametrize("text", ["AAAA", "not base64", "AAAAAAAAAAA"])
def test_a_damaged_set_is_named(text):
    with pytest.raises(OffsetError, match="seen"):
        ReadFileIds.load({"1": text}, (), None)


def test_the_text_does_not_depend_on_the_order_of_the_folder(tmp_path):
    for name in ("b", "c", "a"):
        put(tmp_path, f"{name}.parquet")
    one = reader(tmp_path).latest(FIRST, UNLIMITED)
    (tmp_path / "b.parquet").rename(tmp_path / "x.tmp")
    (tmp_path / "x.tmp").rename(tmp_path / "b.parquet")
    assert reader(tmp_path).latest(FIRST, UNLIMITED).to_json() == one.to_json()


# --- the set


rounds = st.lists(
    st.tuples(st.lists(found_files, max_size=8), st.booleans(), st.none() | st.integers(0, 41)),
    max_size=12,
)


@given(rounds)
def test_the_set_of_read_files_is_exact_wherever_it_is_kept(tmp_path_factory, steps):
    """Read files stay read; only those that are deleted and too old may be forgotten."""
    state = StreamState(StateLocation(StoreUrl.parse(str(tmp_path_factory.mktemp("state")))), "s")
    seen, everything, present = ReadFileIds(), {}, set()
    for files, is_stored, day in steps:
        seen = seen.union(files)
        everything |= {file.path: file.modified_ns for file in files}
        floor = None if day is None else day * DAY_NS
        if is_stored:
            present = set(sorted(everything)[::2])
            seen = seen.move_to_block(state, floor, lambda there=present: there)
            dropped = (
                set()
                if floor is None
                else {
                    path
                    for path, at in everything.items()
                    if path not in present and at // HOUR_NS * HOUR_NS + HOUR_NS <= floor
                }
            )
            kept = everything.keys() - dropped
            assert set(seen.filter_unread(sorted(everything))) <= dropped
            everything = {path: everything[path] for path in kept}
        again = ReadFileIds.load(seen.recent, seen.blocks, state)
        assert again.recent == seen.recent
        for one in (seen, again):
            assert one.filter_unread([*sorted(everything), "never"]) == ["never"]
    sizes = [block.size for block in seen.blocks]
    assert sizes == sorted(sizes, reverse=True)


# --- offsets stay small


@pytest.mark.long
@pytest.mark.parametrize("count", [200, 3000])
def test_a_batch_of_any_size_has_a_small_offset_and_is_replayed_as_it_was(tmp_path, count):
    fill(tmp_path / "in", count)
    source = reader(tmp_path / "in")
    end = source.latest(FIRST, UNLIMITED)
    assert len(end.to_json()) < MOST
    planned = source.plan(FIRST, end)
    for path in (tmp_path / "in").glob("*.parquet"):
        path.unlink()  # a replay lists nothing
    assert reader(tmp_path / "in").plan(FIRST, reload_offset(end)) == planned
    assert sum(len(part.ranges) for part in planned) == count


@pytest.mark.long
def test_offsets_stay_small_and_exact_over_thousands_of_files(tmp_path):
    folder = tmp_path / "in"
    source, end, read = reader(folder), FIRST, 0
    for turn in range(12):
        fill(folder, 700, turn * 700, at=NOON + turn * HOUR_NS)
        end = reload_offset(source.latest(start := end, UNLIMITED))
        read += sum(len(part.ranges) for part in source.plan(start, end))
        assert len(end.to_json()) < MOST
        if turn % 4 == 3:
            source = reader(folder)
            assert source.latest(end, UNLIMITED) == end
    assert read == 12 * 700
    assert len(end.seen_in) <= 4
    assert source.latest(end, UNLIMITED) == end


def test_ids_of_files_spread_over_many_hours_stay_small(tmp_path):
    whole = make_content()
    for number in range(760):
        put_bytes(tmp_path, f"{number}.parquet", whole, at=NOON + number * HOUR_NS)
    end = FIRST
    for _ in range(8):
        end = reader(tmp_path, maxFileAge="1000w").latest(end, Limit(files=95))
        assert len(end.to_json()) < MOST
    assert end.seen_in == ()


@pytest.mark.long
def test_what_is_gone_and_old_is_forgotten_in_time(tmp_path):
    """Of a folder whose files are removed after a day, the state does not grow for ever."""
    folder = tmp_path / "in"
    source, end = reader(folder, maxFileAge="1d"), FIRST
    for day in range(8):
        fill(folder, 800, day * 800, at=NOON + day * DAY_NS)
        end = source.latest(end, UNLIMITED)
        for number in range(max(0, day - 1) * 800, day * 800):
            (folder / LONG.format(number)).unlink(missing_ok=True)
    assert sum(block.size for block in end.seen_in) < 5 * 800
    assert batches(reader(folder, maxFileAge="1d"), end) == []


# --- state is exact, apart for each query, and swept


def spilled(tmp_path, **options):
    fill(tmp_path / "in", 1000)
    source = reader(tmp_path / "in", **options)
    return source, source.latest(FIRST, Limit(files=900))


def test_state_that_is_gone_or_damaged_is_an_error_and_no_reading_again(tmp_path):
    _, end = spilled(tmp_path)
    assert end.state_names == {path.name for path in state_files(tmp_path / "in")}
    for path in state_files(tmp_path / "in"):
        data = path.read_bytes()
        path.write_bytes(data[:-100] + bytes(100))
        with pytest.raises(OffsetError, match=rf"{path.name} is damaged.*stateLocation"):
            _everything_about(tmp_path / "in", end)
        path.unlink()
        with pytest.raises(OffsetError, match=rf"no {path.name} in .*restore it from a backup"):
            _everything_about(tmp_path / "in", end)
        path.write_bytes(data)
    assert len(batches(reader(tmp_path / "in"), end)) == 1


def _everything_about(folder, end):
    again = reader(folder)
    again.plan(FIRST, reload_offset(end))
    again.latest(reload_offset(end), UNLIMITED)


def test_two_queries_on_one_folder_do_not_touch_each_other(tmp_path):
    one, first = spilled(tmp_path)
    other = reader(tmp_path / "in")
    second = other.latest(FIRST, Limit(files=850))
    assert first.stream != second.stream
    for path in state_files(tmp_path / "in"):
        os.utime(path, (0, 0))
    first = one.latest(first, UNLIMITED)
    _everything_about(tmp_path / "in", second)
    _everything_about(tmp_path / "in", first)


def test_state_that_nobody_needs_is_swept_after_a_week(tmp_path):
    source, end = spilled(tmp_path)
    folder = tmp_path / "in" / "_krishiv_sources" / end.stream
    aside = folder / ".aside"
    aside.touch()
    fill(tmp_path / "in", 3000, 1000)
    later = source.latest(end, UNLIMITED)
    old = time.time() - 8 * 86_400
    for path in [*state_files(tmp_path / "in"), aside]:
        os.utime(path, (old, old))
    again = reader(tmp_path / "in")
    assert again.latest(later, UNLIMITED) == later
    assert {path.name for path in folder.iterdir()} == later.state_names
    assert min(path.stat().st_mtime for path in folder.iterdir()) > old + 1000


@pytest.mark.long
def test_a_checkpoint_that_is_rolled_back_finds_the_state_of_a_week(tmp_path):
    source, end = spilled(tmp_path)
    ends = [end]
    for turn in range(3):
        fill(tmp_path / "in", 900, 1000 + turn * 900)
        ends.append(source.latest(ends[-1], UNLIMITED))
    for end in ends:
        _everything_about(tmp_path / "in", end)


@pytest.mark.long
@pytest.mark.parametrize("where", ["aside", "here"])
def test_state_may_be_elsewhere_and_move_there_later(tmp_path, where):
    option = {"stateLocation": tmp_path / "state"} if where == "aside" else {}
    _, end = spilled(tmp_path, **option)
    assert bool(state_files(tmp_path / "in")) == (where == "here")
    _, end = drain(reader(tmp_path / "in", stateLocation=f"file://{tmp_path}/state"), end)
    fill(tmp_path / "in", 900, 1000)
    read, end = drain(reader(tmp_path / "in", stateLocation=tmp_path / "state"), end)
    assert len(read) == 900
    assert len(list((tmp_path / "state" / end.stream).iterdir())) >= 1


def test_state_that_stayed_behind_is_kept_as_long_as_it_is_needed(tmp_path):
    _, end = spilled(tmp_path)
    old = time.time() - 8 * 86_400
    for path in state_files(tmp_path / "in"):
        os.utime(path, (old, old))
    drain(reader(tmp_path / "in", stateLocation=tmp_path / "state"), end)
    needed = [path for path in state_files(tmp_path / "in") if path.name in end.state_names]
    assert needed
    assert min(path.stat().st_mtime for path in needed) > old + 1000


def test_a_state_location_on_another_file_system_is_refused(tmp_path):
    with pytest.raises(OptionError, match="'stateLocation' 'ftp://b/x' is on 'ftp'"):
        reader(tmp_path, stateLocation="ftp://b/x")


def test_a_state_location_that_cannot_be_written_is_refused_at_once(tmp_path, monkeypatch):
    put(tmp_path, "a.parquet")
    monkeypatch.setattr(StateLocation, "is_writable", lambda _: False)  # root may write anywhere
    with pytest.raises(OptionError, match="'stateLocation' /nowhere cannot be written"):
        reader(tmp_path, stateLocation="/nowhere").latest(FIRST, UNLIMITED)


def test_a_folder_without_much_in_it_gets_no_state(tmp_path):
    for turn in range(5):
        put(tmp_path, f"{turn}.parquet", at=NOON + turn)
    assert len(drain(reader(tmp_path))[0]) == 5
    assert not (tmp_path / "_krishiv_sources").exists()


def test_a_folder_that_cannot_be_written_is_read_in_small_batches(tmp_path):
    folder = tmp_path / "in"
    fill(folder, 500)
    folder.chmod(0o555)
    for above in folder.parents:
        if not os.stat(above).st_mode & 0o001:
            above.chmod(0o711)
    child = os.fork()
    if child == 0:
        try:
            os._exit(_reads_as_nobody(folder))
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42


def _reads_as_nobody(folder):
    if os.getuid() == 0:
        os.setuid(65534)  # root may write anywhere
    source, end, read, most = reader(folder), FIRST, 0, 0
    while (after := source.latest(end, UNLIMITED)) != end:
        read, most, end = (
            read + len(after.files),
            max(most, len(after.to_json())),
            reload_offset(after),
        )
    return 42 if read == 500 and most < MOST else 2


@pytest.mark.long
def test_what_is_too_much_for_an_offset_asks_for_a_place_and_loses_nothing(
    tmp_path, monkeypatch, caplog
):
    folder, place = tmp_path / "in", tmp_path / "state"
    fill(folder, 3200)
    source, ends = reader(folder), [FIRST]
    with monkeypatch.context() as patch:
        patch.setattr(StateLocation, "is_writable", lambda _: False)  # root may write anywhere
        with pytest.raises(OptionError, match=r"'stateLocation'.*nothing is lost"):
            reader(folder).resolve(Start(at="latest"))
        with pytest.raises(OptionError, match="'stateLocation'"):
            ends.extend(source.latest(ends[-1], UNLIMITED) for _ in range(100))
    assert "stateLocation" in caplog.messages[0]
    taken = sum(len(end.files) for end in ends)
    left, end = drain(reader(folder, stateLocation=place), ends[-1])
    assert taken > 1000
    assert taken + len(left) == 3200
    assert batches(reader(folder, stateLocation=place), end) == []


def test_a_batch_read_needs_no_state(tmp_path):
    fill(tmp_path / "in", 1000)
    source = reader(tmp_path / "in", streaming=False)
    start = source.initial()
    assert len(rows(source, start, source.latest(start, UNLIMITED))) == 1000
    assert state_files(tmp_path / "in") == []


# --- version 1


def test_offsets_of_version_1_go_on(tmp_path):
    """Their set is in the text, and what is older than its floor counts as read."""
    fill(tmp_path / "in", 1500, at=NOON)
    fill(tmp_path / "in", 50, 5000, at=NOON - 30 * DAY_NS)
    known = [FoundFile(LONG.format(number), 1, NOON) for number in range(1400)]
    old = {
        "epochs": {},
        "files": [list(file) for file in known[-3:]],
        "floor": NOON - 7 * DAY_NS,
        "kind": "parquet",
        "seen": ReadFileIds().union(known).recent,
        "v": 1,
    }
    start = ParquetOffset.from_dict(old)
    source = reader(tmp_path / "in")
    assert reader(tmp_path / "in").plan(FIRST, start) == source.plan(FIRST, start) != []
    end = source.latest(start, UNLIMITED)
    assert len(source.plan(start, end)[0].ranges) <= 100
    assert sum(len(part.ranges) for part in source.plan(start, end)) == 100
    assert (len(end.to_json()) < MOST, end.floor, end.newest) == (True, None, NOON)
    assert "passed_over" not in source.backlog()
    for number in (5000, 5049, 3):
        os.utime(tmp_path / "in" / LONG.format(number), ns=(NOON + 1, NOON + 1))
    assert batches(reader(tmp_path / "in"), end) == []
    put(tmp_path / "in", "late.parquet", at=NOON - 30 * DAY_NS)
    source = reader(tmp_path / "in")
    assert source.latest(end, UNLIMITED) == end
    assert source.backlog()["passed_over"]["older_than_max_file_age"]["first"] == ["late.parquet"]


def test_a_floor_in_the_future_is_not_taken_over_from_version_1(tmp_path):
    floor = time.time_ns() + 30 * DAY_NS
    start = ParquetOffset.from_dict(
        {"epochs": {}, "files": [], "floor": floor, "kind": "parquet", "seen": {}, "v": 1}
    )
    put(tmp_path, "old.parquet", [1], at=time.time_ns())
    source = reader(tmp_path)
    assert source.latest(start, UNLIMITED) == start
    put(tmp_path, "new.parquet", [2], at=time.time_ns())
    read, end = drain(source, start)
    assert read == [2]
    assert batches(reader(tmp_path), end) == []


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("parquet-*.json")), ids=lambda path: path.stem)
def test_every_golden_offset_can_be_gone_on_from(tmp_path, path):
    start = ParquetOffset.from_json(path.read_text())
    put(tmp_path, "brand-new.parquet", at=time.time_ns())
    if start.state_names:
        with pytest.raises(OffsetError, match="restore it from a backup"):
            reader(tmp_path).latest(start, UNLIMITED)
        return
    end = reader(tmp_path).latest(start, UNLIMITED)
    assert [file.path for file in end.files] == ["brand-new.parquet"]
