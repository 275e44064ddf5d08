"""Files that are not what they will be, or no longer what they were: none of their rows is lost."""

import json
import os
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from parquet_reading import (
    DAY_NS,
    FIRST,
    NOON,
    SCHEMA,
    batches,
    drain,
    make_content,
    names,
    put,
    put_bytes,
    reader,
    reload_offset,
    rows,
)

from krishiv_spark.cli import main
from krishiv_spark.errors import DataLossError
from krishiv_spark.offsets import Start
from krishiv_spark.parquet.footers import ChangedError
from krishiv_spark.sources.base import UNLIMITED, Limit
from krishiv_spark.sources.parquet.offset_store import SkippedRange, record_skipped_range
from krishiv_spark.sources.parquet.reader import ParquetOffset
from krishiv_spark.storage.disk import DiskFolder

MANY = list(range(1000))
WHOLE = make_content(MANY)
OTHER = WHOLE.replace(b"parquet-cpp-arrow", b"parquet-cpp-Arrow")  # of the same size
HALF = WHOLE[: len(WHOLE) // 2]
# Its tail is right, its footer is not.
DAMAGED = WHOLE[:-200] + b"\xff" * 192 + WHOLE[-8:]

OPTIONS = [{}, {"badFiles": "skip"}, {"failOnDataLoss": "false"}, {"maxRowsPerTrigger": 5}]


def read_parts(source, parts):
    return [n for part in parts for batch in source.read(part) for n in batch["n"].to_pylist()]


def passed_over(source):
    return source.backlog().get("passed_over", {})


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_file_that_is_being_copied_waits_until_it_is_whole(tmp_path, options):
    put_bytes(tmp_path, "a.parquet", HALF)
    source = reader(tmp_path, **options)
    limit = source.options.limit()
    assert source.latest(FIRST, limit) == FIRST
    assert passed_over(source) == {"unfinished": {"files": 1, "first": ["a.parquet"]}}
    put(tmp_path, "b.parquet", [7])
    read, end = drain(source, limit=limit)
    assert read == [7]
    with open(tmp_path / "a.parquet", "ab") as file:
        file.write(WHOLE[len(HALF) :])
    for again in (source, reader(tmp_path, **options)):
        assert drain(again, end, limit)[0] == MANY
    assert passed_over(source) == {}


def test_a_file_that_is_whole_only_when_an_old_time_is_given_to_it_is_read(tmp_path):
    """As ``cp -p`` and ``rsync`` do, right after the last byte."""
    put(tmp_path, "now.parquet", [7])
    put_bytes(tmp_path, "a.parquet", HALF)
    source = reader(tmp_path, maxFileAge="1d")
    end = source.latest(FIRST, UNLIMITED)
    put_bytes(tmp_path, "a.parquet", WHOLE, at=NOON - 30 * DAY_NS)
    assert names(source.latest(end, UNLIMITED)) == ["a.parquet"]


def test_a_batch_that_has_only_unfinished_files_is_none(tmp_path):
    for number in range(5):
        put_bytes(tmp_path, f"{number}.parquet", HALF if number % 2 else b"", at=NOON + number)
    source = reader(tmp_path)
    source.freeze()
    assert source.latest(FIRST, Limit(files=2)) == FIRST
    assert passed_over(source)["unfinished"]["files"] == 5


def test_a_file_that_stays_unfinished_is_logged_once(tmp_path, caplog):
    put_bytes(tmp_path, "a.parquet", HALF)
    source = reader(tmp_path)
    for _ in range(4):
        source.latest(FIRST, UNLIMITED)
    (line,) = caplog.messages
    assert "1 unfinished (a.parquet)" in line
    with open(tmp_path / "a.parquet", "ab") as file:
        file.write(b"x")
    source.latest(FIRST, UNLIMITED)
    assert len(caplog.messages) == 1


def test_what_is_being_written_when_a_query_begins_with_the_newest_is_read(tmp_path):
    now = time.time_ns()
    put(tmp_path, "old.parquet", [1], at=now - DAY_NS)
    put_bytes(tmp_path, "new.parquet", HALF, at=now)
    put_bytes(tmp_path, "broken.parquet", HALF, at=now - DAY_NS)
    end = reader(tmp_path, startingOffsets="latest").resolve(Start(at="latest"))
    source = reader(tmp_path)
    assert source.latest(end, UNLIMITED) == end
    put_bytes(tmp_path, "new.parquet", WHOLE, at=now)
    put_bytes(tmp_path, "broken.parquet", WHOLE, at=now)
    assert drain(source, end)[0] == drain(reader(tmp_path), end)[0] == MANY


def test_a_file_that_is_filled_from_its_end_is_read_when_its_beginning_is_there(tmp_path):
    put_bytes(tmp_path, "a.parquet", bytes(len(WHOLE) - 200) + WHOLE[-200:])
    source = reader(tmp_path)
    assert source.latest(FIRST, UNLIMITED) == FIRST
    assert passed_over(source) == {"unfinished": {"files": 1, "first": ["a.parquet"]}}
    put_bytes(tmp_path, "a.parquet", WHOLE)
    assert drain(source)[0] == MANY


@pytest.mark.long  # waits 7 s
@pytest.mark.parametrize("bad_files", ["fail", "skip"])
def test_a_file_whose_middle_is_written_last_is_waited_for(tmp_path, bad_files):
    """It begins and ends as a whole one, so that only its rows show that it is not."""
    hole = WHOLE[:4] + bytes(len(WHOLE) - 1004) + WHOLE[-1000:]
    path = put_bytes(tmp_path, "a.parquet", hole, at=time.time_ns())
    source = reader(tmp_path, badFiles=bad_files)
    end = source.latest(FIRST, UNLIMITED)
    (part,) = source.plan(FIRST, end)
    writer = threading.Timer(0.5, path.write_bytes, [WHOLE])
    writer.start()
    assert read_parts(source, [part]) == MANY
    writer.join()


# --- batches that were planned with such a file


def of_version_1(path: Path) -> ParquetOffset:
    """A batch of an earlier version, which took what was there."""
    status = path.stat()
    files = [[path.name, status.st_size, status.st_mtime_ns]]
    text = {"epochs": {}, "files": files, "floor": 0, "kind": "parquet", "seen": {}, "v": 1}
    return ParquetOffset.from_json(json.dumps(text))


def test_a_batch_of_an_earlier_version_with_half_a_file_heals(tmp_path):
    end = of_version_1(put_bytes(tmp_path, "a.parquet", HALF))
    with pytest.raises(DataLossError, match="cannot be read"):
        rows(reader(tmp_path), FIRST, end)
    put_bytes(tmp_path, "a.parquet", WHOLE[:-1])
    with pytest.raises(DataLossError, match="restart the query when the file is complete"):
        rows(reader(tmp_path, failOnDataLoss="false"), FIRST, end)
    put_bytes(tmp_path, "a.parquet", WHOLE, at=NOON + 1)
    assert rows(reader(tmp_path), FIRST, end) == MANY
    assert rows(reader(tmp_path, maxPartitionBytes=len(HALF) // 3), FIRST, end) == MANY


@pytest.mark.parametrize("tasks", [1, 4])
def test_a_file_whose_time_changes_after_it_was_chosen_is_read(tmp_path, tasks):
    """Programs that copy files set their times when the files are whole, as ``cp -p`` does."""
    path = put(tmp_path, "a.parquet", MANY)
    source = reader(tmp_path, maxPartitionBytes=-(-path.stat().st_size // tasks))
    end = source.latest(FIRST, UNLIMITED)
    parts = source.plan(FIRST, end)
    for at in (NOON + 5, NOON - DAY_NS):
        os.utime(path, ns=(at, at))
        assert read_parts(source, parts) == MANY
    assert rows(reader(tmp_path), FIRST, reload_offset(end)) == MANY


def test_a_file_of_the_same_size_and_another_end_is_refused_when_its_rows_are_read(tmp_path):
    put(tmp_path, "a.parquet", [1, 2])
    source = reader(tmp_path)
    (part,) = source.plan(FIRST, source.latest(FIRST, UNLIMITED))
    put(tmp_path, "a.parquet", [1, 3], at=NOON + 5)
    with pytest.raises(ChangedError, match="restart the query"):
        list(source.read(part))


@pytest.mark.parametrize("streaming", [False, True])
def test_parts_of_a_file_whose_end_no_look_has_shown_are_of_one_version(tmp_path, streaming):
    """As in a batch read, and in a batch that is planned again."""
    path = put(tmp_path, "a.parquet", MANY)
    options = {"maxPartitionBytes": path.stat().st_size // 4, "streaming": streaming}
    end = reader(tmp_path, **options).latest(FIRST, UNLIMITED)
    again = reader(tmp_path, **options)
    parts = again.plan(FIRST, reload_offset(end))
    os.utime(path, ns=(NOON + 1, NOON + 1))
    assert read_parts(again, parts) == MANY
    put_bytes(tmp_path, "a.parquet", OTHER, at=NOON + 2)
    assert path.stat().st_size == end.files[0].size
    for part in parts:
        with pytest.raises(ChangedError):
            list(again.read(part))


def test_a_file_that_was_rewritten_after_it_was_chosen_is_an_error_or_read_as_it_is(tmp_path):
    put(tmp_path, "a.parquet", [1])
    end = reader(tmp_path).latest(FIRST, UNLIMITED)
    put(tmp_path, "a.parquet", MANY)
    with pytest.raises(DataLossError, match=r"rows were replaced.*'failOnDataLoss' = 'false'"):
        reader(tmp_path).plan(FIRST, reload_offset(end))
    assert rows(reader(tmp_path, failOnDataLoss="false"), FIRST, reload_offset(end)) == MANY


def test_tasks_never_read_two_versions_of_a_file(tmp_path):
    path = put(tmp_path, "a.parquet", MANY)
    source = reader(tmp_path, maxPartitionBytes=path.stat().st_size // 4, failOnDataLoss="false")
    parts = source.plan(FIRST, source.latest(FIRST, UNLIMITED))
    put_bytes(tmp_path, "a.parquet", OTHER, at=NOON + 1)
    for part in parts:
        with pytest.raises(ChangedError):
            list(source.read(part))


# --- damaged files


def test_a_damaged_file_is_left_until_it_is_mended(tmp_path):
    put_bytes(tmp_path, "a.parquet", DAMAGED)
    put(tmp_path, "b.parquet", [7])
    source = reader(tmp_path, badFiles="skip")
    read, end = drain(source)
    assert read == [7]
    assert passed_over(source) == {"damaged": {"files": 1, "first": ["a.parquet"]}}
    put_bytes(tmp_path, "a.parquet", WHOLE)
    for again in (source, reader(tmp_path, badFiles="skip")):
        assert drain(again, end)[0] == MANY


def test_a_damaged_file_that_was_mended_is_read_as_the_error_says(tmp_path):
    put_bytes(tmp_path, "a.parquet", DAMAGED)
    source = reader(tmp_path)
    end = source.latest(FIRST, UNLIMITED)
    with pytest.raises(
        DataLossError, match=r"(?s)Repair it, and start.*'failOnDataLoss' = 'false'"
    ):
        rows(source, FIRST, end)
    put_bytes(tmp_path, "a.parquet", WHOLE)
    os.utime(tmp_path / "a.parquet", ns=(NOON + 1, NOON + 1))
    assert rows(reader(tmp_path, failOnDataLoss="false"), FIRST, end) == MANY


def test_what_a_task_has_skipped_is_shown_with_what_it_had_delivered(tmp_path):
    path = put(tmp_path, "a.parquet", MANY)
    source = reader(tmp_path, badFiles="skip")
    end = source.latest(FIRST, UNLIMITED)
    data = bytearray(path.read_bytes())
    data[20:100] = b"\xff" * 80
    status = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(status.st_mtime_ns, status.st_mtime_ns))
    assert rows(source, FIRST, end) == []
    assert source.latest(end, UNLIMITED) == end
    shown = {"skipped_while_read": {"files": 1, "first": [str(path)]}}
    assert passed_over(source) == shown
    again = reader(tmp_path, badFiles="skip")
    assert again.latest(end, UNLIMITED) == end
    assert passed_over(again) == shown
    (note,) = tmp_path.glob("_krishiv_sources/*/skipped/*.json")
    noted = json.loads(note.read_text())
    assert (noted["path"], noted["rows"]) == (str(path), 0)
    for state in ([], ["--state", f"{tmp_path}/_krishiv_sources"]):
        listed = CliRunner().invoke(main, ["parquet", "skipped", str(tmp_path), *state])
        assert f"{path}, bytes 0 to" in listed.output
        assert "after 0 rows: " in listed.output
    nothing = CliRunner().invoke(main, ["parquet", "skipped", str(tmp_path / "_krishiv_sources")])
    assert "no skipped data is recorded" in nothing.output
    put(tmp_path, "mended.parquet", MANY)
    assert drain(source, end)[0] == MANY


def test_a_file_that_was_gone_is_skipped_and_shown(tmp_path):
    put(tmp_path, "a.parquet", [1]).rename(tmp_path / "b.parquet")
    put(tmp_path, "c.parquet", [2])
    source = reader(tmp_path, failOnDataLoss="false")
    end = source.latest(FIRST, UNLIMITED)
    (tmp_path / "b.parquet").unlink()
    assert rows(source, FIRST, end) == [2]
    source.latest(end, UNLIMITED)
    assert passed_over(source)["skipped_while_read"]["files"] == 1


def test_a_folder_for_notes_that_cannot_be_written_is_no_reason_to_fail(tmp_path, caplog):
    (tmp_path / "file").touch()
    record_skipped_range(DiskFolder(tmp_path / "file"), SkippedRange("a", 0, 1, 0, "why"))
    assert "could not be recorded" in caplog.text


def test_files_that_go_before_they_are_chosen_are_counted(tmp_path):
    for number in range(3):
        put(tmp_path, f"{number}.parquet", at=NOON + number)
    source = reader(tmp_path)
    end = source.latest(FIRST, Limit(files=1))
    (tmp_path / "1.parquet").unlink()
    source._stream._lists_next_s = time.monotonic() + 1000
    assert names(source.latest(end, Limit(files=1))) == ["2.parquet"]
    assert passed_over(source) == {
        "gone_before_they_were_read": {"files": 1, "first": ["1.parquet"]}
    }


# --- real programs


def test_a_thousand_looks_at_a_folder_that_cp_writes_into(tmp_path):
    """At any moment of a listing, complete files are read once, and nothing else."""
    folder, origin = tmp_path / "in", tmp_path / "a.parquet"
    folder.mkdir()
    origin.write_bytes(make_content(range(200_000)))
    command = "; ".join(f"cp -p {origin} {folder}/{number}.parquet" for number in range(20))
    child = os.spawnlp(os.P_NOWAIT, "sh", "sh", "-c", command)
    source, end, read, done = reader(folder, schema=SCHEMA), FIRST, [], False
    while True:
        end = source.latest(start := end, UNLIMITED)
        read += names(end) if end != start else []
        assert all(file.size == origin.stat().st_size for file in end.files)
        if done and end == start:
            break
        done = done or os.waitpid(child, os.WNOHANG)[0] == child
    assert sorted(read) == sorted(f"{number}.parquet" for number in range(20))
    assert batches(reader(folder, schema=SCHEMA), end) == []
