"""Skipped files are counted and named, and are read when their reason no longer applies."""

import os
import time

import pytest
from parquet_reading import (
    DAY_NS,
    FIRST,
    HOUR_NS,
    NOON,
    batches,
    drain,
    names,
    put,
    put_bytes,
    reader,
    reload_offset,
)

from krishiv_spark.errors import OptionError
from krishiv_spark.offsets import Start
from krishiv_spark.sources.base import UNLIMITED, Limit
from krishiv_spark.sources.parquet import completeness, folder_stream
from krishiv_spark.sources.parquet.listing import SourcePath, find_files


def passed_over(source):
    return source.backlog().get("passed_over", {})


def one(name, count=1):
    return {"files": count, "first": [name]}


def test_files_that_are_too_old_are_counted_and_read_when_they_are_touched(tmp_path, caplog):
    put(tmp_path, "a.parquet")
    source = reader(tmp_path)
    end = source.latest(FIRST, UNLIMITED)
    for number in range(5):
        put(tmp_path, f"old-{number}.parquet", at=NOON - 8 * DAY_NS)
    for again in (source, reader(tmp_path)):
        assert again.latest(end, UNLIMITED) == end
        said = passed_over(again)["older_than_max_file_age"]
        assert said["files"] == 5
        assert set(said["first"]) < {f"old-{number}.parquet" for number in range(5)}
    assert [line.count("5 older than max file age") for line in caplog.messages] == [1, 1]
    os.utime(tmp_path / "old-3.parquet", ns=(NOON, NOON))
    assert names(source.latest(end, UNLIMITED)) == ["old-3.parquet"]
    assert passed_over(source)["older_than_max_file_age"]["files"] == 4
    assert len(caplog.messages) == 2


def test_a_greater_age_brings_back_what_was_passed_over(tmp_path):
    put(tmp_path, "a.parquet")
    end = reader(tmp_path).latest(FIRST, UNLIMITED)
    put(tmp_path, "old.parquet", [7], at=NOON - 8 * DAY_NS)
    assert reader(tmp_path).latest(end, UNLIMITED) == end
    assert drain(reader(tmp_path, maxFileAge="9d"), end)[0] == [7]


def test_a_file_that_was_read_is_not_counted_as_too_old(tmp_path):
    for day in range(20):
        put(tmp_path, f"{day}.parquet", at=NOON + day * DAY_NS)
    source = reader(tmp_path)
    _, end = drain(source)
    again = reader(tmp_path)
    assert again.latest(end, UNLIMITED) == end
    assert passed_over(source) == passed_over(again) == {}


def test_a_file_dated_in_the_future_hides_no_other(tmp_path):
    now = time.time_ns()
    put(tmp_path, "future.parquet", at=now + 30 * DAY_NS)
    source = reader(tmp_path, maxFileAge="1h")
    end = source.latest(FIRST, UNLIMITED)
    put(tmp_path, "real.parquet", at=now)
    for again in (source, reader(tmp_path, maxFileAge="1h")):
        assert names(again.latest(reload_offset(end), UNLIMITED)) == ["real.parquet"]
        assert passed_over(again) == {}


def test_a_touched_file_is_not_read_again_however_old_it_was(tmp_path):
    put(tmp_path, "a.parquet")
    source = reader(tmp_path, maxFileAge="1h")
    end = source.latest(FIRST, UNLIMITED)
    put(tmp_path, "b.parquet", at=NOON + 10 * HOUR_NS)
    end = source.latest(end, UNLIMITED)
    os.utime(tmp_path / "a.parquet", ns=(NOON + 10 * HOUR_NS, NOON + 10 * HOUR_NS))
    assert batches(source, end) == batches(reader(tmp_path, maxFileAge="1h"), end) == []


def test_what_was_there_at_the_start_is_never_read_however_it_is_touched(tmp_path):
    for day in (0, 400):
        put(tmp_path, f"{day}.parquet", at=NOON - day * DAY_NS)
    end = reader(tmp_path, startingOffsets="latest").resolve(Start(at="latest"))
    for day in (0, 400):
        os.utime(tmp_path / f"{day}.parquet", ns=(NOON + 1, NOON + 1))
    assert reader(tmp_path).latest(end, UNLIMITED) == end


def test_every_name_that_spark_takes_for_parquet_is_read(tmp_path):
    taken = ["a.parquet", "b.PARQUET", "c.parq", "d.pq", "000000_0", "e.parquet.snappy"]
    for number, name in enumerate([*taken, "_hidden.parquet", ".hidden"]):
        put(tmp_path, name, [number])
    assert drain(reader(tmp_path))[0] == list(range(6))
    assert sorted(file.path for file in find_files(SourcePath(str(tmp_path)))) == sorted(taken)


def test_other_names_are_counted_and_what_is_no_parquet_waits(tmp_path, caplog):
    put(tmp_path, "a.parquet.tmp")
    put_bytes(tmp_path, "README", b"what this is")
    put_bytes(tmp_path, "notes.txt", b"x")
    put_bytes(tmp_path, ".crc", b"x")
    source = reader(tmp_path)
    for _ in range(3):
        assert source.latest(FIRST, UNLIMITED) == FIRST
    said = passed_over(source)
    assert said.keys() == {"other_names", "unfinished"}
    assert said["unfinished"] == one("README")
    assert said["other_names"]["files"] == 2
    assert any("2 other names" in line for line in caplog.messages)
    (tmp_path / "a.parquet.tmp").rename(tmp_path / "a.parquet")
    assert names(source.latest(FIRST, UNLIMITED)) == ["a.parquet"]


def test_a_file_that_may_not_be_read_is_counted_and_read_when_it_may(tmp_path, monkeypatch):
    put(tmp_path, "a.parquet")
    put(tmp_path, "b.parquet")
    looked = completeness.read_end

    def look(path, files):
        if path.endswith("a.parquet"):
            raise PermissionError(13, "Permission denied", path)  # root may read anything
        return looked(path, files)

    source = reader(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(completeness, "read_end", look)
        end = source.latest(FIRST, UNLIMITED)
        assert names(end) == ["b.parquet"]
        assert passed_over(source) == {"may_not_be_read": one("a.parquet")}
    assert names(source.latest(end, UNLIMITED)) == ["a.parquet"]


def test_a_disk_that_fails_is_no_reason_to_pass_a_file_over(tmp_path, monkeypatch):
    taken = ["a.parquet", "b.parquet", "c.parquet"]
    for name in taken:
        put(tmp_path, name)
    looked = completeness.read_end

    def look(path, files):
        if path.endswith("b.parquet"):
            raise OSError(5, "Input/output error", path)
        return looked(path, files)

    source = reader(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(completeness, "read_end", look)
        with pytest.raises(OSError, match="Input/output"):
            source.latest(FIRST, UNLIMITED)
    assert names(source.latest(FIRST, UNLIMITED)) == taken


def test_many_files_that_are_put_aside_take_turns(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_stream, "_RECHECKS", 3)
    put(tmp_path, "z.parquet")
    source = reader(tmp_path)
    end = source.latest(FIRST, UNLIMITED)
    for number in range(10):
        put_bytes(tmp_path, f"{number}.parquet", b"half")
    source.latest(end, UNLIMITED)
    for number in range(10):
        put(tmp_path, f"{number}.parquet", [number])
    taken = []
    for _ in range(4):
        end = source.latest(end, UNLIMITED)
        taken.append(len(end.files))
    assert taken == [3, 3, 3, 1]


# --- links


def test_a_link_that_leads_back_is_refused_by_its_name(tmp_path):
    put(tmp_path, "s/1.parquet")
    (tmp_path / "s" / "up").symlink_to("..")
    (tmp_path / "k=1").mkdir()
    (tmp_path / "k=1" / "k=2").symlink_to(tmp_path / "k=1")
    with pytest.raises(OptionError, match="s/up is a link to a folder that contains it"):
        find_files(SourcePath(str(tmp_path / "s")), recursive=True)
    with pytest.raises(OptionError, match="k=2 is a link to a folder that contains it"):
        find_files(SourcePath(str(tmp_path)))


def test_other_links_are_followed(tmp_path):
    put(tmp_path, "data/1.parquet")
    (tmp_path / "k=1").symlink_to("data")
    (tmp_path / "2.parquet").symlink_to("data/1.parquet")
    assert sorted(file.path for file in find_files(SourcePath(str(tmp_path)))) == [
        "2.parquet",
        "k=1/1.parquet",
    ]


def test_what_is_no_file_is_none(tmp_path):
    os.mkfifo(tmp_path / "a.parquet")
    put(tmp_path, "b.parquet")
    assert batches(reader(tmp_path)) == [["b.parquet"]]


# --- what is remembered stays small


def test_while_a_batch_waits_the_folder_is_not_listed_each_time(tmp_path, monkeypatch):
    for number in range(9):
        put(tmp_path, f"{number}.parquet", at=NOON + number)
    scans, scan = [], folder_stream.scan
    monkeypatch.setattr(folder_stream, "scan", lambda *a, **k: scans.append(1) or scan(*a, **k))
    monkeypatch.setattr(folder_stream, "_SHARE", 10**9)
    source, end = reader(tmp_path), FIRST
    for turn in range(5):
        end = source.latest(end, Limit(files=2))
        assert len(scans) == (2 if turn == 4 else 1)


def test_names_of_files_that_were_removed_are_forgotten(tmp_path, monkeypatch):
    monkeypatch.setattr("krishiv_spark.sources.parquet.file_index._FEW", 10)
    source, end = reader(tmp_path), FIRST
    for turn in range(6):
        for number in range(20):
            put(tmp_path, f"{turn}-{number}.parquet", at=NOON + turn)
        end = source.latest(end, UNLIMITED)
        for path in tmp_path.glob("*.parquet"):
            path.unlink()
    assert len(source._stream._index.known) <= 40
    put(tmp_path, "0-0.parquet", at=NOON)
    assert source.latest(end, UNLIMITED) == end
