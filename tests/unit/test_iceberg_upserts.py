"""Upserts for months: as many manifests as appends have, and epochs of any size."""

import random
from pathlib import Path

import pyarrow as pa
import pytest
from iceberg_life import IcebergLife, at_next_commit, ids, table_of
from iceberg_tables import NAME, append, delete_equal, make_table, table_in
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.types import LongType

from krishiv_spark.errors import CommitRejected, CommitUnknown, SchemaError
from krishiv_spark.iceberg.planning import UnreadableError
from krishiv_spark.sinks.base import Epoch, OutputMode, Task
from krishiv_spark.sinks.iceberg.upserts import upsert_updates
from krishiv_spark.sinks.iceberg.upserts.epoch_changes import EpochChanges

CHANGES = {"mode": "upsert", "keyColumns": "id", "upsertMode": "copy-on-write"}
PAIR = pa.schema([("id", pa.int64()), ("text", pa.string())])


def manifests(folder):
    """Return the numbers of manifests that name live files, and of those that name only others."""
    table = table_of(folder)
    listed = table.current_snapshot().manifests(table.io)
    live = [one for one in listed if one.added_files_count or one.existing_files_count]
    return len(live), len(listed) - len(live)


def values(folder):
    rows = table_of(folder).scan().to_arrow()
    found = dict(zip(rows["id"].to_pylist(), rows["text"].to_pylist(), strict=True))
    assert len(found) == rows.num_rows
    return found


@pytest.mark.long  # 3 s
@pytest.mark.parametrize("given", [{}, {"partitionBy": "bucket(3, id)"}], ids=["plain", "buckets"])
def test_manifests_of_upserts_stay_few(tmp_path, given):
    life, expected, keys = IcebergLife(tmp_path, **CHANGES, **given), {}, random.Random(0)
    for epoch in range(40):
        changed = dict.fromkeys(keys.sample(range(60), 3), f"{epoch}")
        life.epoch(epoch, pa.table({"id": list(changed), "text": list(changed.values())}))
        expected |= changed
    live, dead = manifests(tmp_path)
    assert live <= 16
    assert dead <= 1
    assert values(tmp_path) == expected


def test_a_commit_that_comes_late_is_refused_if_columns_have_changed(tmp_path, monkeypatch):
    """Its answer is lost, it is tried again upon another schema, and comes before that."""
    life, tried, real = IcebergLife(tmp_path, **CHANGES), [], SqlCatalog.commit_table
    life.epoch(0, pa.table({"id": [1, 2], "text": ["a", "b"]}))

    def commit_table(*arguments):
        tried.append(arguments)
        if len(tried) == 1:
            with monkeypatch.context() as real_again:
                real_again.setattr(SqlCatalog, "commit_table", real)
                table_of(tmp_path).update_schema().add_column("more", LongType()).commit()
            raise ConnectionResetError("no answer")
        if len(tried) == 2:
            with pytest.raises(CommitFailedException, match="schema id has changed"):
                real(*tried[0])
        return real(*arguments)

    monkeypatch.setattr(SqlCatalog, "commit_table", commit_table)
    life.epoch(1, pa.table({"id": [2, 3], "text": ["B", "c"]}))
    assert values(tmp_path) == {1: "a", 2: "B", 3: "c"}


@pytest.mark.long
@pytest.mark.parametrize("timeout", ["5 s", "1 ms"])
@pytest.mark.parametrize("streaming", [True, False])
def test_files_of_a_commit_stay_that_was_told_to_have_failed_and_has_expired(
    tmp_path, monkeypatch, timeout, streaming
):
    """A proxy repeats the request, and gets the answer that somebody else was faster: itself."""
    other = IcebergLife(tmp_path, query="other", keepSnapshots="1", **CHANGES)
    other.epoch(0, pa.table({"id": [1, 2], "text": ["a", "b"]}))
    life = IcebergLife(
        tmp_path, query=f"{'' if streaming else 'batch-'}1", commitTimeout=timeout, **CHANGES
    )

    def commit_twice(commit):
        commit()
        other.epoch(1, pa.table({"id": [9], "text": ["other"]}))
        raise CommitFailedException("somebody else was faster")

    rows = pa.table({"id": [2, 3], "text": ["B", "c"]})
    life.plan(rows)  # its first commit is of no rows
    at_next_commit(monkeypatch, commit_twice)
    with pytest.raises(CommitUnknown, match="may or may not be in the table"):
        life.epoch(1, rows)
    assert values(tmp_path) == {1: "a", 2: "B", 3: "c", 9: "other"}
    life.epoch(1, rows)
    assert values(tmp_path) == {1: "a", 2: "B", 3: "c", 9: "other"}


KINDS = {"upsert": CHANGES, "complete": {"output": OutputMode.REPLACE}}


@pytest.fixture
def deleting(tmp_path):
    """A table, and what makes equality deletes in it, as Flink does."""
    make_table(tmp_path, PAIR)
    append(tmp_path, pa.table({"id": [1], "text": ["a"]}))
    return lambda: delete_equal(tmp_path, pa.table({"id": [1]}), [1])


@pytest.mark.long
@pytest.mark.parametrize("given", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("counted", [True, False])
def test_equality_deletes_are_refused_before_any_row(tmp_path, deleting, given, counted):
    deleting()
    if not counted:  # a summary must have nothing but its operation
        path = Path(table_in(tmp_path).metadata_location)
        path.write_text(path.read_text().replace('"total-equality-deletes"', '"unknown"'))
    life, rows = IcebergLife(tmp_path, path=NAME, **given), pa.table({"id": [2], "text": ["b"]})
    for refusing in (life.writer(rows).check_start, lambda: life.plan(rows)):
        with pytest.raises(UnreadableError, match=r"has equality deletes \(.*not supported"):
            refusing()
    IcebergLife(tmp_path, path=NAME).epoch(0, rows)  # which looks at no other row


@pytest.mark.parametrize("given", KINDS.values(), ids=KINDS)
def test_equality_deletes_that_come_while_an_epoch_is_written(tmp_path, deleting, given):
    life, rows = IcebergLife(tmp_path, path=NAME, **given), pa.table({"id": [2], "text": ["b"]})
    staged = life.stage(0, rows)
    deleting()
    there = set(tmp_path.glob("**/data/*"))
    with pytest.raises(CommitRejected, match=r"replaces cannot be determined: .* equality deletes"):
        life.publish(0, staged, rows)
    assert set(tmp_path.glob("**/data/*")) < there  # and nothing else is left
    assert len(set(tmp_path.glob("**/data/*"))) == 2


def test_manifests_of_complete_mode_stay_few(tmp_path):
    life = IcebergLife(tmp_path, output=OutputMode.REPLACE)
    for epoch in range(5):
        life.epoch(epoch, pa.table({"id": [epoch], "text": ["x"]}))
    assert manifests(tmp_path) == (1, 1)
    assert values(tmp_path) == {4: "x"}


def test_an_epoch_that_deletes_all_rows(tmp_path):
    life = IcebergLife(tmp_path, **CHANGES, opColumn="op")
    life.epoch(0, pa.table({"id": [1, 2], "text": ["a", "b"], "op": ["c", "c"]}))
    life.epoch(1, pa.table({"id": [1, 2], "text": ["a", "b"], "op": ["d", "d"]}))
    assert manifests(tmp_path) == (0, 1)
    life.epoch(2, pa.table({"id": [3], "text": ["c"], "op": ["c"]}))
    assert manifests(tmp_path) == (1, 0)
    assert values(tmp_path) == {3: "c"}


# --- memory


def publish(life, batches, epoch=0):
    """One epoch of one task, whose batches come one at a time; the peak of Arrow's memory in MB."""
    writer = life.writer(pa.table({"id": [0], "text": [""]}))
    task = Task("query-1", epoch, 0, epoch)
    staged = writer.stage(batches, task, writer.plan(None))
    whole = pa.default_memory_pool()
    measured = pa.proxy_memory_pool(whole)
    pa.set_memory_pool(measured)
    try:
        life.writer(PAIR.empty_table()).committer().publish(Epoch("query-1", epoch), [staged])
    finally:
        pa.set_memory_pool(whole)
    return measured.max_memory() >> 20


def texts(batches, rows, length):
    """Batches of rows with one text, which compresses to nothing."""
    text = pa.array(["x" * length]).take(pa.array([0] * rows))
    for number in range(batches):
        ids = range(number * rows, (number + 1) * rows)
        yield pa.record_batch([pa.array(ids), text], schema=PAIR)


@pytest.mark.long  # large files
def test_changes_and_rewritten_files_are_never_in_memory_as_a_whole(tmp_path):
    life = IcebergLife(tmp_path, **CHANGES)
    assert publish(life, texts(40, 100, 100_000)) < 250  # of 400 MB
    assert publish(life, texts(1, 1, 10), epoch=1) < 250
    assert table_of(tmp_path).current_snapshot().summary["total-records"] == "4000"


@pytest.mark.long
def test_an_epoch_with_more_than_two_gigabytes_of_text_commits(tmp_path):
    life = IcebergLife(tmp_path, **CHANGES, commitTimeout="600 s")
    assert publish(life, texts(22, 100, 1_000_000)) < 700
    assert publish(life, texts(1, 1, 10), epoch=1) < 700
    table = table_of(tmp_path)
    assert table.current_snapshot().summary["total-records"] == "2200"
    assert table.scan("id = 0").to_arrow()["text"].to_pylist() == ["x" * 10]


def test_keys_that_do_not_fit_into_memory_are_an_error_with_advice(tmp_path, monkeypatch):
    life = IcebergLife(tmp_path, **CHANGES)
    staged = life.stage(0, pa.table({"id": [1], "text": ["a"]}))

    def keys(_):
        raise pa.ArrowMemoryError("malloc of size 99 failed")

    monkeypatch.setattr(EpochChanges, "keys", property(keys))
    with pytest.raises(CommitRejected, match=r"epoch 0 of query query-1.*malloc.*keyColumns"):
        life.publish(0, staged, pa.table({"id": [1], "text": ["a"]}))
    assert not list(tmp_path.glob("**/*.changes"))


# --- what is refused, and with which advice


@pytest.mark.parametrize("op", ["\u0130", "\u0130nsert", "\uff49"])
def test_operations_are_compared_by_ascii_letters_alone(tmp_path, op):
    life = IcebergLife(tmp_path, mode="upsert", keyColumns="id", opColumn="op")
    with pytest.raises(SchemaError, match=f"column 'op' has '{op}'"):
        life.epoch(0, pa.table({"id": [1], "op": [op]}))
    life.epoch(0, pa.table({"id": [1], "op": ["INSERT"]}))
    assert ids(tmp_path) == [1]


def test_an_error_of_arrow_that_is_no_lack_of_memory_is_not_called_one(tmp_path):
    life = IcebergLife(tmp_path, mode="upsert", keyColumns="id")
    rows = pa.table({"id": [1, 2]})
    staged = life.stage(0, rows)
    (path,) = staged[0].changes
    Path(path.removeprefix("file://")).write_bytes(b"PAR1 of another program")
    with pytest.raises(CommitRejected, match="Memory is sufficient") as caught:
        life.publish(0, staged, rows)
    assert "give it more" not in str(caught.value)


OF_MEMORY = (MemoryError, pa.ArrowMemoryError, pa.ArrowCapacityError)


@pytest.mark.parametrize("kind", OF_MEMORY)
def test_a_lack_of_memory_is_called_one(kind):
    with (
        pytest.raises(CommitRejected, match="give it more, or use shorter keys"),
        upsert_updates._reject_arrow_errors(Epoch("q", 1)),
    ):
        raise kind("x")
