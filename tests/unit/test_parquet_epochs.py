"""Epochs of our sink as our source reads them: whole, in their order, and none with files gone."""

import shutil

import pytest
from parquet_reading import (
    DAY_NS,
    FIRST,
    HOUR_NS,
    NOON,
    Forgetful,
    Publisher,
    batches,
    drain,
    names,
    put,
    reader,
    reload_offset,
    rows,
)
from sink_life import Job, Life, dies_at
from sink_life import rows as ids

from krishiv_spark.errors import DataLossError, LogError
from krishiv_spark.offsets import Start
from krishiv_spark.parquet.layout import META, DataFile, log_folder
from krishiv_spark.parquet.table_identity import Pointer, write_pointer
from krishiv_spark.sinks.base import OutputMode
from krishiv_spark.sinks.parquet.writer import ParquetWriter
from krishiv_spark.sources.base import UNLIMITED, Limit
from krishiv_spark.sources.parquet import sink_epochs
from krishiv_spark.sources.parquet.listing import FoundFile
from krishiv_spark.sources.parquet.offset import ReadFileIds
from krishiv_spark.sources.parquet.reader import ParquetOffset
from krishiv_spark.storage.disk import DiskFolder

APPEND = OutputMode.APPEND


@pytest.fixture(params=[False, True], ids=["names of today", "old names"])
def query(request, tmp_path):
    return Publisher(tmp_path, old_names=request.param)


def test_epochs_are_read_whole_in_order_and_only_when_visible(tmp_path, query):
    published = [query.publish(epoch, 2, "p={}", at=NOON - epoch).paths for epoch in range(2)]
    third = query.stage(2, 2, "p={}").intend().reveal()
    source = reader(tmp_path)
    first = source.latest(FIRST, Limit(files=1))
    assert names(first) == published[0]
    second = source.latest(first, UNLIMITED)
    assert names(second) == published[1]
    assert (second.epochs, second.seen) == ({query.tag: 1}, {})
    assert source.latest(second, UNLIMITED) == second
    third.finish()
    assert names(source.latest(second, UNLIMITED)) == third.paths
    assert names(reader(tmp_path).latest(second, UNLIMITED)) == third.paths


def test_a_log_that_was_to_be_elsewhere_at_first_is_looked_for_where_it_is(tmp_path):
    """An option that was taken back after a start that failed."""
    options = {"path": str(tmp_path / "table")}
    Life(ParquetWriter, {**options, "epochLog": str(tmp_path / "logs")}, "q", APPEND).plan()
    for epoch in range(2):
        Life(ParquetWriter, options, "q", APPEND).epoch(epoch, ids(10 * epoch, 10))
    assert len(batches(reader(tmp_path / "table"))) == 1


def test_an_epoch_that_was_staged_long_ago_is_not_too_old(tmp_path, query):
    query.stage(0).intend().reveal(at=NOON - 30 * DAY_NS)
    put(tmp_path, "a.parquet")
    end = reader(tmp_path).latest(FIRST, UNLIMITED)
    assert names(end) == ["a.parquet"]
    query.finish()
    assert batches(reader(tmp_path), end) == [query.paths]


def test_a_job_whose_files_are_too_old_is_passed_over_like_any_file(tmp_path):
    """Ids of old files are forgotten when they are gone: a folder that comes back was read."""
    put(tmp_path, "new.parquet", [7], at=NOON + 10 * HOUR_NS)
    source = reader(tmp_path, maxFileAge="1h")
    _, end = drain(source)
    Publisher(tmp_path, "batch-1").publish(0)
    assert source.latest(end, UNLIMITED) == end
    assert source.backlog()["passed_over"]["older_than_max_file_age"]["files"] == 1


def test_epochs_follow_one_another_however_many_wait(tmp_path, query):
    for epoch in range(5):
        query.publish(epoch, at=NOON + (epoch * 7) % 5)
    for newest_first in ("false", "true"):
        found = batches(reader(tmp_path, latestFirst=newest_first), limit=Limit(files=1))
        assert [int(paths[0].split("-")[1]) for paths in found] == [0, 1, 2, 3, 4]


def test_a_log_that_is_removed_makes_nothing_new(tmp_path, query):
    query.publish(0)
    source = reader(tmp_path)
    end = source.latest(FIRST, UNLIMITED)
    shutil.rmtree(tmp_path / "_krishiv")
    assert source.latest(end, UNLIMITED) == end
    assert reader(tmp_path).latest(end, UNLIMITED) == end


def test_files_that_were_copied_without_their_log_are_files_like_any_other(tmp_path, query):
    query.publish(0, 3, "p={}")
    copy = tmp_path / "copy"
    for path in query.paths[:2]:
        put(copy, path)
    found = batches(reader(copy), limit=Limit(files=1))
    assert found == [[path] for path in query.paths[:2]]


def test_a_query_that_begins_during_the_listing_waits(tmp_path, query, monkeypatch):
    """Epochs published between the reading of the tables and the listing are left for later."""
    listed = sink_epochs.SinkEpochs.add_tables

    def note(self, paths):
        if not (tmp_path / "_krishiv").exists():
            query.publish(0, 2)
            paths[:] = query.paths[:1]
        return listed(self, paths)

    source = reader(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(sink_epochs.SinkEpochs, "add_tables", note)
        assert source.latest(FIRST, UNLIMITED) == FIRST
    assert names(source.latest(FIRST, UNLIMITED)) == query.paths


def test_epochs_that_become_visible_during_the_listing_wait(tmp_path, query, monkeypatch):
    query.publish(0)
    first = query.paths
    noted = sink_epochs.SinkEpochs.add_tables

    def note(self, paths):
        query.publish(1)
        paths += query.paths
        monkeypatch.undo()
        return noted(self, paths)

    source = reader(tmp_path)
    monkeypatch.setattr(sink_epochs.SinkEpochs, "add_tables", note)
    assert names(source.latest(FIRST, UNLIMITED)) == first


def test_a_start_at_the_newest_epoch_waits_for_the_next(tmp_path, query):
    query.publish(0).publish(1).stage(2).intend().reveal()
    end = reader(tmp_path).resolve(Start(at="latest"))
    assert end.epochs == {query.tag: 1}
    query.finish()
    assert batches(reader(tmp_path), end) == [query.paths]


def test_batch_jobs_leave_nothing_in_the_map_of_epochs(tmp_path):
    """There may be a million of them; their files are remembered one by one."""
    job = Publisher(tmp_path, "batch-1")
    job.publish(0, 2)
    end = reader(tmp_path).latest(FIRST, Limit(files=1))
    assert (names(end), end.epochs, len(end.seen)) == (job.paths, {}, 1)
    shutil.rmtree(tmp_path / "_krishiv" / "batch-1")
    assert reader(tmp_path).latest(end, UNLIMITED) == end


# --- below a glob, and in a recursive read


WAYS = [("/*", {}), ("", {"recursiveFileLookup": "true"}), ("/{a,b}/*.parquet", {})]


@pytest.mark.parametrize(("pattern", "options"), WAYS)
def test_tables_are_known_below_a_glob_and_in_a_recursive_read(tmp_path, pattern, options):
    first, second = Publisher(tmp_path / "a"), Publisher(tmp_path / "b")
    first.publish(0, 3).stage(1, 3).intend().reveal(0)
    second.stage(0, 2).intend().reveal(0)
    source = reader(f"{tmp_path}{pattern}", **options)
    read, end = drain(source)
    assert read == [0, 1, 2]
    first.reveal(1, 2).finish()
    second.reveal(1).finish()
    assert drain(source, end)[0] == [0, 1, 100, 101, 102]
    assert drain(reader(f"{tmp_path}{pattern}", **options), end)[0] == [0, 1, 100, 101, 102]


def test_two_tables_with_one_query_are_followed_apart(tmp_path):
    """Such as a table and its copy."""
    Publisher(tmp_path / "a").publish(0).publish(1)
    source = reader(tmp_path / "*")
    read, end = drain(source)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert read == drain(source, end)[0] == drain(reader(tmp_path / "*"), end)[0] == [0, 100]


def test_a_part_of_a_table_is_read_by_whole_epochs_and_nothing_in_it_is_missed(tmp_path):
    query = Publisher(tmp_path)
    query.publish(0, 3, "p={}").stage(1, 3, "p={}").intend().reveal(0, 1)
    for path in (tmp_path / "p=1", tmp_path / "p=[12]", tmp_path / "p=1" / "*.parquet"):
        assert {row % 100 for row in drain(reader(path))[0]} <= {1, 2}
        assert all(row < 100 for row in drain(reader(path))[0]), path


# --- files that are gone


def lose(table, path):
    (table / path).unlink()


def test_a_file_of_an_epoch_that_is_gone_is_missed(tmp_path, query):
    query.publish(0, 2).publish(1, 3, "p={}").publish(2, 1)
    source = reader(tmp_path)
    read, end = drain(source, limit=Limit(files=1))[0], None
    assert read == [0, 1, 100, 101, 102, 200]
    Publisher(tmp_path, old_names=query._old_names).publish(3, 3, "p={}").publish(4)
    lose(tmp_path, next(tmp_path.rglob("part-0000000003-00001*")).relative_to(tmp_path))
    with pytest.raises(DataLossError, match=r"1 files of epoch 3 .*'failOnDataLoss' = 'false'"):
        drain(reader(tmp_path))
    source = reader(tmp_path, failOnDataLoss="false")
    read, end = drain(source)
    assert read == [0, 1, 100, 101, 102, 200, 300, 302, 400]
    assert source.backlog()["passed_over"]["lost"]["files"] == 1
    assert drain(reader(tmp_path), end)[0] == []


def test_a_batch_read_takes_what_is_there(tmp_path, query):
    """A user who removes old partitions must be able to read the rest."""
    query.publish(0, 2)
    lose(tmp_path, query.paths[0])
    source = reader(tmp_path, streaming=False)
    start = source.initial()
    assert rows(source, start, source.latest(start, UNLIMITED)) == [1]


def test_after_the_log_was_folded_names_tell_what_is_gone(tmp_path):
    query = Publisher(tmp_path)
    query.publish(0, 3)
    first = query.paths
    life = Life(ParquetWriter, {"path": str(tmp_path)}, "q", OutputMode.APPEND)
    for epoch in range(1, 140):  # a fold removes what the one before it covers
        life.epoch(epoch, ids(0, 0))
    assert b'"epoch":0' not in b"".join(
        path.read_bytes()
        for path in log_folder(tmp_path, "q").glob("*.json")
        if "snapshot" not in path.name
    )
    lose(tmp_path, first[1])
    with pytest.raises(DataLossError, match=r"1 files of epoch 0"):
        reader(tmp_path).latest(FIRST, UNLIMITED)


def test_an_epoch_that_is_gone_as_a_whole_is_missed_by_who_follows_the_query(tmp_path, query):
    query.publish(0)
    end = reader(tmp_path).latest(FIRST, UNLIMITED)
    query.publish(1, 2)
    for path in query.paths:
        lose(tmp_path, path)
    query.publish(2)
    with pytest.raises(DataLossError, match=r"2 files of epoch 1"):
        reader(tmp_path).latest(end, UNLIMITED)
    source = reader(tmp_path, failOnDataLoss="false")
    assert drain(source, end)[0] == [200]
    assert source.backlog()["passed_over"]["lost"]["files"] == 2
    assert drain(reader(tmp_path))[0] == [0, 200]  # a new query begins with what is there


def test_what_was_read_may_go(tmp_path, query):
    query.publish(0, 2).publish(1, 2)
    source = reader(tmp_path)
    _, end = drain(source)
    for path in tmp_path.glob("*.parquet"):
        path.unlink()
    query.publish(2)
    assert drain(source, end)[0] == drain(reader(tmp_path), end)[0] == [200]


def test_a_file_that_a_listing_passes_over_is_found_all_the_same(tmp_path, query, monkeypatch):
    """As NFS may do where a folder changes while it is read."""
    query.publish(0, 3)
    noted = sink_epochs.SinkEpochs.add_tables

    def note(self, paths):
        paths.remove(query.paths[1])
        monkeypatch.undo()
        return noted(self, paths)

    monkeypatch.setattr(sink_epochs.SinkEpochs, "add_tables", note)
    assert names(reader(tmp_path).latest(FIRST, UNLIMITED)) == query.paths


def test_an_epoch_that_an_earlier_version_has_read_in_part_is_read_to_its_end(tmp_path):
    """Below a glob it did not know the log, and took each file by itself."""
    query = Publisher(tmp_path / "a")
    query.publish(0, 3)
    seen = reader(tmp_path / "*").latest(FIRST, UNLIMITED)
    one = query.paths[1]
    part = reader(tmp_path / "*", recursiveFileLookup="true")
    standing = {"kind": "parquet", "v": 1, "seen": _seen(f"a/{one}"), "epochs": {}, "files": []}
    start = type(seen).from_dict(standing)
    assert drain(part, start)[0] == [0, 2]


def _seen(path):
    return ReadFileIds().union([FoundFile(path, 1, NOON)]).recent


def test_what_an_earlier_version_has_read_below_a_glob_is_not_read_again(tmp_path):
    """It took files by themselves there, and forgot old ones; where it knew the log, it did not."""
    below, here = Publisher(tmp_path / "x" / "a"), Publisher(tmp_path / "t")
    below.publish(0, 2, at=NOON - 9 * DAY_NS)
    here.publish(0, 2, at=NOON - 9 * DAY_NS)
    text = {"kind": "parquet", "v": 1, "floor": NOON, "seen": {}, "epochs": {}, "files": []}
    start = ParquetOffset.from_dict(text)
    pattern = tmp_path / "x" / "*"
    assert drain(reader(pattern), start)[0] == []
    assert drain(reader(tmp_path / "t"), start)[0] == [0, 1]
    below.publish(1)
    source = reader(pattern)
    read, end = drain(source, start)
    assert read == [100]
    below.publish(2)
    assert drain(source, end)[0] == drain(reader(pattern), end)[0] == [200]


def test_state_of_a_source_does_not_make_a_table_of_a_copy(tmp_path):
    query = Publisher(tmp_path / "table")
    query.publish(0, 4)
    for path in query.paths[:2]:
        put(tmp_path / "copy", path, [1])
    read, end = drain(reader(tmp_path / "copy", kind=Forgetful))
    assert read == [1, 1]
    assert (tmp_path / "copy" / "_krishiv_sources").exists()
    put(tmp_path / "copy", query.paths[2], [2])
    assert drain(reader(tmp_path / "copy", kind=Forgetful), end)[0] == [2]


# --- a glob that leads into a table


@pytest.fixture
def parts(tmp_path):
    """Two epochs in three partitions each; and a stream that has read one partition of them."""
    query = Publisher(tmp_path).publish(0, 3, "p={}").publish(1, 3, "p={}")
    read, end = drain(reader(tmp_path / "p=[1]"))
    assert read == [1, 101]
    return query, end


@pytest.mark.parametrize(
    ("wider", "more"),
    [
        ("p=*", [0, 2, 100, 102]),
        ("p=[12]", [2, 102]),
        ("p=?/*.parquet", [0, 2, 100, 102]),
        ("", [0, 2, 100, 102]),
    ],
)
def test_a_wider_glob_delivers_what_a_narrower_one_left_out(tmp_path, parts, wider, more):
    """As of plain files: only a part of each epoch was read."""
    query, end = parts
    read, end = drain(reader(tmp_path / wider), end)
    assert read == more
    query.publish(2, 2, "p={}")
    assert drain(reader(tmp_path / "p=[1]"), end)[0] == [201]
    read, end = drain(reader(tmp_path / wider), end)
    assert read == ([201] if wider == "p=[12]" else [200, 201])
    assert drain(reader(tmp_path), end)[0] == ([0, 100, 200] if wider == "p=[12]" else [])


@pytest.mark.usefixtures("parts")
def test_it_also_does_where_the_narrower_one_began_with_what_came_later(tmp_path):
    end = reader(tmp_path / "p=[1]").resolve(Start(at="latest"))
    assert drain(reader(tmp_path / "p=[1]"), end)[0] == []
    assert drain(reader(tmp_path / "p=*"), end)[0] == [0, 2, 100, 102]


def test_parts_of_epochs_are_read_in_their_order_however_old_they_are(tmp_path, parts):
    query, end = parts
    for epoch in range(2, 6):
        query.publish(epoch, 2, "p={}", at=NOON - 10 * epoch * DAY_NS)
    found = batches(reader(tmp_path / "p=[1]"), end, limit=Limit(files=1))
    assert [int(DataFile.parse(paths[0][4:]).epoch) for paths in found] == [2, 3, 4, 5]


def test_old_files_of_a_partition_that_comes_back_were_read(tmp_path, parts):
    query, end = parts
    folder = tmp_path / "p=1"
    folder.rename(tmp_path / "_away")
    query.publish(2, 2, "p={}", at=NOON + 10 * DAY_NS)
    source = reader(tmp_path / "p=[1]", kind=Forgetful)
    read, end = drain(source, end)
    assert read == [201]
    for path in (tmp_path / "_away").iterdir():
        path.rename(folder / path.name)
    assert drain(reader(tmp_path / "p=[1]", kind=Forgetful), end)[0] == []


def test_a_position_of_an_earlier_release_goes_on_after_its_epochs(tmp_path, parts):
    """Its key said that whole epochs were read, of which its glob had shown a part."""
    query, end = parts
    before = end.model_copy(update={"epochs": {query.tag: 1}, "seen": {}})
    query.publish(2, 3, "p={}")
    read, end = drain(reader(tmp_path / "p=[1]"), before)
    assert read == [201]
    assert drain(reader(tmp_path / "p=*"), end)[0] == [200, 202]


# --- a log that is elsewhere


def test_an_epoch_is_whole_by_its_names_where_the_log_is_elsewhere(tmp_path):
    table = tmp_path / "table"
    job = Publisher(table, "batch-1", elsewhere=tmp_path / "log")
    job.stage(0, 3).intend().reveal(0)
    source = reader(table)
    assert source.latest(FIRST, UNLIMITED) == FIRST
    assert source.backlog()["passed_over"] == {
        "of_unfinished_epochs": {"files": 1, "first": job.paths[:1]}
    }
    job.reveal(1, 2)
    assert drain(source)[0] == [0, 1, 2]


def test_a_log_elsewhere_on_the_same_disks_is_found_by_its_pointer(tmp_path):
    """By the names alone epoch 1 would be whole, and it may still replace others."""
    table, log = tmp_path / "table", tmp_path / "log"
    query = Publisher(table, elsewhere=log)
    query.publish(0, 2)
    write_pointer(DiskFolder(table / META / query.query), Pointer(str(log)))
    query.stage(1).intend().reveal()
    assert drain(reader(table))[0] == [0, 1]


def test_a_job_that_is_being_copied_waits_for_its_last_file(tmp_path):
    """All of its names are there before all of its bytes are."""
    table = tmp_path / "table"
    (table / "_krishiv").mkdir(parents=True)
    job = Publisher(tmp_path / "origin", "batch-1").publish(0, 2)
    for path in job.paths:
        shutil.copy(tmp_path / "origin" / path, table / path)
    whole = (table / job.paths[1]).read_bytes()
    (table / job.paths[1]).write_bytes(whole[:-10])
    source = reader(table)
    assert source.latest(FIRST, UNLIMITED) == FIRST
    assert source.backlog()["passed_over"]["of_unfinished_epochs"]["files"] == 2
    (table / job.paths[1]).write_bytes(whole)
    assert drain(source)[0] == [0, 1]


def test_of_a_query_whose_log_is_elsewhere_an_earlier_epoch_must_be_whole(tmp_path):
    table = tmp_path / "table"
    query = Publisher(table, elsewhere=tmp_path / "log")
    query.publish(0, 2).stage(1, 2).intend().reveal(0)
    lose(table, next(table.glob("part-0000000000-00000*")).name)
    with pytest.raises(DataLossError, match=r"1 files of epoch 0"):
        drain(reader(table))


def test_a_job_that_is_over_must_be_whole(tmp_path):
    job = Job(ParquetWriter, {"path": str(tmp_path)})
    job.epoch(0, ids(0, 3), ids(3, 3))
    next(tmp_path.glob("*.parquet")).unlink()
    with pytest.raises(DataLossError, match="1 files of epoch 0"):
        reader(tmp_path).latest(FIRST, UNLIMITED)


# --- replacing


def test_files_that_are_just_being_replaced_are_no_loss(tmp_path):
    query = Publisher(tmp_path)
    query.publish(0, 3)
    old = query.paths
    query.stage(1).intend(removes=old).reveal()
    lose(tmp_path, old[0])
    source = reader(tmp_path)
    assert source.latest(FIRST, UNLIMITED) == FIRST
    for path in old[1:]:
        lose(tmp_path, path)
    query.finish()
    assert drain(source)[0] == [100]


def test_a_batch_read_takes_what_is_left_of_what_is_just_being_replaced(tmp_path):
    query = Publisher(tmp_path)
    query.publish(0, 3)
    old = query.paths
    query.stage(1).intend(removes=old).reveal()
    for left in ([0, 1, 2], [1, 2]):
        source = reader(tmp_path, streaming=False)
        start = source.initial()
        assert rows(source, start, source.latest(start, UNLIMITED)) == left
        (tmp_path / old[0]).unlink(missing_ok=True)


def test_an_epoch_that_was_replaced_before_it_was_read_is_no_loss(tmp_path):
    whole = Life(ParquetWriter, {"path": str(tmp_path)}, "q", OutputMode.REPLACE)
    whole.epoch(0, ids(0, 3))
    schema = ids(0, 0).schema
    source = reader(tmp_path, schema=schema)
    end = source.latest(FIRST, UNLIMITED)
    for number in (1, 2, 3):
        whole.epoch(number, ids(0, 3), ids(3, 3))
    assert len(names(source.latest(end, UNLIMITED))) == 2


@pytest.mark.long  # tries every call
def test_every_call_of_a_sink_may_be_its_last(tmp_path):
    """A stream reads all visible rows of an epoch or none, and loses none."""
    schema = ids(0, 0).schema
    for step in range(1000):
        table = tmp_path / str(step)
        life = Life(ParquetWriter, {"path": str(table)}, "q", OutputMode.APPEND)
        life.epoch(0, ids(0, 2), ids(2, 2))
        died = dies_at(step, lambda one=life: one.epoch(1, ids(4, 2), ids(6, 2)), after=True)
        source = reader(table, schema=schema)
        read = sum(map(len, batches(source)))
        assert read in {2, 4}, step
        life.epoch(1, ids(4, 2), ids(6, 2))
        assert sum(map(len, batches(reader(table, schema=schema)))) == 4
        if not died:
            break
    assert step > 10


def test_the_text_of_many_epochs_does_not_grow_with_them(tmp_path):
    many = {f"{number:012x}": number for number in range(5000)}
    put(tmp_path, "a.parquet")
    source = reader(tmp_path)
    end = source.latest(FIRST.model_copy(update={"epochs": many}), UNLIMITED)
    assert (end.epochs, len(end.to_json()) < 2000) == ({}, True)
    put(tmp_path, "b.parquet")
    for again in (source, reader(tmp_path)):
        following = again.latest(reload_offset(end), UNLIMITED)
        assert again._store.epochs(following) == many


def test_an_intent_that_names_a_file_of_another_epoch_is_an_error(tmp_path):
    query = Publisher(tmp_path).publish(0)
    foreign = query.item
    query.stage(1)
    query.item = foreign
    query.intend().finish()
    with pytest.raises(LogError, match=r"of epoch 1 .* names .* not a file of"):
        batches(reader(tmp_path))
