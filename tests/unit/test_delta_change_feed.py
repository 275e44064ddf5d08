"""The change data feed of the Delta source beside that of the library, on real tables."""

import datetime as dt
import json
import os
import random

import pyarrow as pa
import pytest
from delta_life import DeltaLife, numbered
from delta_reader import LogWriter
from deltalake import DeltaTable, write_deltalake

from krishiv_spark.errors import DataLossError, OffsetError, OptionError, SchemaError
from krishiv_spark.sinks.base import OutputMode
from krishiv_spark.sources.base import UNLIMITED, Limit
from krishiv_spark.sources.delta.chosen_versions import find_commit_time_ms
from krishiv_spark.sources.delta.reader import DeltaReader

pytestmark = pytest.mark.own_process

ENABLED = {"delta.enableChangeDataFeed": "true"}


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "a b#c%@" / "tablé"


def reader(folder, *, streaming=False, **given):
    given = {"path": str(folder), "readChangeFeed": "true", **given}
    options = DeltaReader.options_type.parse(given, "krishiv-delta")
    return DeltaReader(options, None, streaming=streaming)


def rows_between(one, start, end):
    batches = [batch for task in one.plan(start, end) for batch in one.read(task)]
    return [row for batch in batches for row in batch.to_pylist()]


def read(folder, **given):
    one = reader(folder, **given)
    start = one.initial()
    return rows_between(one, start, one.latest(start, UNLIMITED))


def follow(one, start=None, limit=UNLIMITED):
    """All changes of a stream, batch by batch, and its last offset."""
    start, batches = start or one.initial(), []
    while (end := one.latest(start, limit)) != start:
        batches.append(rows_between(one, start, end))
        start = end
    return batches, start


def changes(rows):
    """The rows without their times, sorted."""
    kept = ({k: v for k, v in row.items() if k != "_commit_timestamp"} for row in rows)
    return sorted(json.dumps(row, sort_keys=True, default=str) for row in kept)


def by_library(folder, first, last=None):
    found = DeltaTable(str(folder)).load_cdf(first, last, allow_out_of_range=True)
    return pa.table(found).to_pylist()


def make_table(folder, **settings):
    rows = pa.table({"id": pa.array(range(6), pa.int64()), "text": [f"t{n}" for n in range(6)]})
    write_deltalake(str(folder), rows.slice(0, 3), configuration={**ENABLED, **settings})
    write_deltalake(str(folder), rows.slice(3), mode="append")
    return DeltaTable(str(folder))


# --- versions


def test_inserts_updates_and_deletes_equal_those_of_the_library(folder):
    table = make_table(folder)
    table.update(updates={"text": "'new'"}, predicate="id = 1")
    table.delete("id = 4")
    table.optimize.compact()
    table.delete("id < 3")
    found = read(folder, startingVersion="0")
    assert changes(found) == changes(by_library(folder, 0))
    kinds = {(row["_commit_version"], row["_change_type"]) for row in found}
    assert kinds == {
        (0, "insert"), (1, "insert"), (2, "update_preimage"), (2, "update_postimage"),
        (3, "delete"), (5, "delete"),
    }  # fmt: skip
    assert changes(read(folder, startingVersion="2", endingVersion="3")) == changes(
        by_library(folder, 2, 3)
    )
    assert read(folder, startingVersion="4", endingVersion="4") == []
    columns = read(folder, startingVersion="0", columns="_change_type,id")
    assert {tuple(row) for row in columns} == {("_change_type", "id")}


def test_times_are_those_of_the_commits(folder):
    make_table(folder)
    times = {row["_commit_version"]: row["_commit_timestamp"] for row in read(
        folder, startingVersion="0")}  # fmt: skip
    log = folder / "_delta_log"
    for version, time in times.items():
        changed = (log / f"{version:020}.json").stat().st_mtime_ns // 1_000_000
        assert time == dt.datetime.fromtimestamp(0, dt.timezone.utc) + dt.timedelta(
            milliseconds=changed
        )


def test_versions_are_found_by_time(folder):
    make_table(folder)
    DeltaTable(str(folder)).delete("id = 5")
    log = folder / "_delta_log"
    for version in range(3):
        os.utime(log / f"{version:020}.json", (1000 + version, 1000 + version))
    given = DeltaReader.options_type.parse({"path": str(folder)}, "t")
    assert [find_commit_time_ms(given, v) for v in range(3)] == [1_000_000, 1_001_000, 1_002_000]

    def versions(**given):
        return sorted({row["_commit_version"] for row in read(folder, **given)})

    assert versions(startingTimestamp="0") == [0, 1, 2]
    assert versions(startingTimestamp="1001000") == [1, 2]
    assert versions(startingTimestamp="1001001") == [2]
    assert versions(startingTimestamp="1002001") == []
    assert versions(startingVersion="0", endingTimestamp="1001999") == [0, 1]
    assert versions(startingVersion="0", endingTimestamp="1") == []
    (batch,), _ = follow(reader(folder, streaming=True, startingTimestamp="1001000"))
    assert {row["_commit_version"] for row in batch} == {1, 2}


def test_partitions_are_in_changes_too(folder):
    rows = pa.table({"id": [1, 2, 3], "day": ["a_b", None, "x"]})
    write_deltalake(str(folder), rows, partition_by=["day"], configuration=ENABLED)
    table = DeltaTable(str(folder))
    table.update(updates={"id": "id + 10"}, predicate="id < 3")
    table.delete("day = 'x'")
    found = read(folder, startingVersion="0")
    assert changes(found) == changes(by_library(folder, 0))
    assert {row["day"] for row in found} == {"a_b", None, "x"}


def overwrite(folder, rows, **given):
    write_deltalake(str(folder), rows, mode="overwrite", schema_mode="overwrite", **given)


def test_removed_files_have_the_columns_of_the_version_before(folder):
    rows = pa.table({"id": [1], "p": ["x"]})
    write_deltalake(str(folder), rows, partition_by=["p"], configuration=ENABLED)
    overwrite(folder, pa.table({"id": [2], "p": [7]}), partition_by=["p"])
    found = read(folder, startingVersion="1", columns="id,_change_type")
    assert sorted((row["_change_type"], row["id"]) for row in found) == [
        ("delete", 1), ("insert", 2),
    ]  # fmt: skip


@pytest.mark.parametrize("end", [{"endingVersion": "1"}, {"endingTimestamp": "1001000"}], ids=str)
def test_changes_up_to_a_version_have_its_columns(folder, end):
    make_table(folder)
    overwrite(folder, pa.table({"id": [2], "other": [7]}))
    log = folder / "_delta_log"
    for version in range(3):
        os.utime(log / f"{version:020}.json", (1000 + version, 1000 + version))
    found = read(folder, startingVersion="0", **end)
    assert sorted((row["id"], row["text"]) for row in found) == [(n, f"t{n}") for n in range(6)]


def test_partitions_of_any_text_have_changes(folder):  # of which the library finds no files
    rows = pa.table({"id": [1, 2], "day": ["a/b c%", "é=#"]})
    write_deltalake(str(folder), rows, partition_by=["day"], configuration=ENABLED)
    DeltaTable(str(folder)).update(updates={"id": "id + 10"}, predicate="id = 1")
    found = read(folder, startingVersion="1")
    assert sorted((row["_change_type"], row["id"], row["day"]) for row in found) == [
        ("update_postimage", 11, "a/b c%"),
        ("update_preimage", 1, "a/b c%"),
    ]


def test_epochs_that_replace_delete_all_rows_before(folder):
    make_table(folder)
    DeltaLife(folder, output=OutputMode.REPLACE, query="other").epoch(
        0, pa.table({"id": [9], "text": ["n"]})
    )
    found = read(folder, startingVersion="2")
    kinds = sorted((row["_change_type"], row["id"]) for row in found)
    assert kinds == [*(("delete", n) for n in range(6)), ("insert", 9)]


@pytest.mark.parametrize("seed", range(3))
def test_random_lives_equal_the_library_and_their_changes_give_the_table(folder, seed):
    draw = random.Random(seed)
    table = make_table(folder)
    for step in range(8):
        keys = sorted(draw.sample(range(12), 3))
        rows = pa.table({"id": pa.array(keys, pa.int64()), "text": [f"s{step}"] * 3})
        listed = ", ".join(map(str, keys))
        does = draw.choice(["append", "merge", "update", "delete", "overwrite", "compact"])
        if does == "merge":
            merge = table.merge(rows, "s.id = t.id", source_alias="s", target_alias="t")
            merge.when_matched_update_all().when_not_matched_insert_all().execute()
        elif does == "update":
            table.update(updates={"text": f"'u{step}'"}, predicate=f"id IN ({listed})")
        elif does == "delete":
            table.delete(f"id IN ({listed})")
        elif does == "compact":
            table.optimize.compact()
        else:
            write_deltalake(str(folder), rows, mode=does)
        table.update_incremental()
    batches, end = follow(reader(folder, streaming=True, startingVersion="0"), limit=Limit(rows=1))
    found = [row for batch in batches for row in batch]
    assert changes(found) == changes(by_library(folder, 0))
    assert changes(found) == changes(read(folder, startingVersion="0"))
    assert changes(replayed(found)) == changes(table.to_pyarrow_table().to_pylist())
    assert end.spot.version == table.version()
    for batch in batches:  # the two rows of an update are never divided
        kinds = [row["_change_type"] for row in batch]
        assert kinds.count("update_preimage") == kinds.count("update_postimage")


def replayed(found):
    rows = []
    for row in sorted(found, key=lambda row: row["_commit_version"]):
        plain = {name: row[name] for name in ("id", "text")}
        rows.append((row["_commit_version"], row["_change_type"], plain))
    state = []
    for version in sorted({version for version, _, _ in rows}):
        of = [(kind, plain) for at, kind, plain in rows if at == version]
        for kind, plain in of:
            if kind in {"delete", "update_preimage"}:
                state.remove(plain)
        state += [plain for kind, plain in of if kind in {"insert", "update_postimage"}]
    return state


# --- streams


def test_a_stream_first_reads_the_table_and_then_its_changes(folder):
    table = make_table(folder)
    batches, end = follow(reader(folder, streaming=True))
    assert {row["_change_type"] for row in batches[0]} == {"insert"}
    assert {row["_commit_version"] for row in batches[0]} == {1}
    table.delete("id = 0")
    more, end = follow(reader(folder, streaming=True), end)
    assert [(row["_change_type"], row["id"]) for row in more[0]] == [("delete", 0)]
    assert follow(reader(folder, streaming=True), end) == ([], end)


def test_changes_without_change_data_are_an_error_that_names_the_version(folder):
    write_deltalake(str(folder), numbered(0, 4))
    DeltaLife(folder).epoch(0, numbered(4, 2))
    DeltaTable(str(folder)).delete("id = 1")  # rewrites a file, without a file of changes
    assert len(read(folder, startingVersion="0", endingVersion="1")) == 6
    with pytest.raises(OffsetError, match=r"version 2 .* without change data .*startingVersion"):
        read(folder, startingVersion="0")


def test_a_removal_without_sizes_is_found_in_the_version_before(folder):
    table = LogWriter(folder, pa.schema([("id", pa.int64()), ("p", pa.string())]), ["p"])
    add = table.write(pa.table({"id": pa.array([1, 2], pa.int64()), "p": ["x", "x"]}))
    table.commit({"add": add})
    table.commit({"remove": {"path": add["path"], "dataChange": True, "deletionTimestamp": 0}})
    found = read(folder, startingVersion="2")
    kinds = sorted((row["_change_type"], row["id"], row["p"]) for row in found)
    assert kinds == [("delete", 1, "x"), ("delete", 2, "x")]


def test_files_of_changes_that_were_deleted_are_a_loss(folder):
    table = make_table(folder)
    table.update(updates={"text": "'new'"}, predicate="id = 1")
    for file in (folder / "_change_data").rglob("*.parquet"):
        file.unlink()
    with pytest.raises(DataLossError, match="was deleted, as VACUUM does"):
        read(folder, startingVersion="0")


def test_a_column_of_the_table_with_one_of_the_names_is_refused(folder):
    write_deltalake(str(folder), pa.table({"_Change_Type": [1]}))
    with pytest.raises(SchemaError, match="'_change_type', which 'readChangeFeed' adds"):
        reader(folder).infer_schema()


@pytest.mark.long
@pytest.mark.parametrize(
    ("given", "streaming", "text"),
    [
        ({}, False, "needs 'startingVersion' or 'startingTimestamp'"),
        ({"versionAsOf": "1"}, False, "'versionAsOf' has no meaning with 'readChangeFeed'"),
        ({"startingVersion": "1", "startingTimestamp": "0"}, True, "exclude each other"),
        ({"startingVersion": "0", "endingVersion": "0", "endingTimestamp": "0"}, False, "exclude"),
        ({"startingVersion": "2", "endingVersion": "1"}, False, "is before 'startingVersion'"),
        ({"endingVersion": "1"}, True, "'endingVersion' is for batch reads"),
        ({"skipChangeCommits": "true"}, True, "has no meaning with 'readChangeFeed'"),
        ({"readChangeFeed": "false", "endingVersion": "1"}, False, "needs 'readChangeFeed'"),
        ({"readChangeFeed": "false", "startingVersion": "1"}, False, "or needs 'readChangeFeed'"),
        ({"startingVersion": "9"}, False, "is at version 1"),
        ({"startingVersion": "0", "failOnDataLoss": "false"}, True, "always an error"),
    ],
)
def test_bad_options_are_refused(folder, given, streaming, text):
    make_table(folder)
    with pytest.raises(OptionError, match=text):
        follow(reader(folder, streaming=streaming, **given))
