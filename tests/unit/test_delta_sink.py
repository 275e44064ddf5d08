"""The Delta sink against real tables: marks, races, foreign writers, features, statistics."""

import datetime as dt
import json
from decimal import Decimal

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from delta_life import DeltaLife, ids, numbered, rows_of
from delta_reader import LogReader
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from krishiv_spark.errors import CommitRejected, CommitUnknown, Fenced, OptionError, SchemaError
from krishiv_spark.sinks.base import Epoch, OutputMode, Task
from krishiv_spark.sinks.delta.delta_route import DeltaRoute, StagedForDelta
from krishiv_spark.sinks.delta.epoch_commit import DeltaCommit

pytestmark = pytest.mark.own_process


def stats_of(folder):
    """The statistics of the live files, by the library's log."""
    found = []
    for commit in sorted((folder / "_delta_log").glob("*.json")):
        for line in commit.read_text().splitlines():
            ((kind, body),) = json.loads(line, parse_float=Decimal).items()
            if kind == "add":
                found.append(json.loads(body["stats"], parse_float=Decimal))
    return found


END = 253_402_300_799_999_999
"""The last microsecond of year 9999."""


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "a b#c%@" / "tablé"


# --- marks


def test_the_mark_is_deltas_own(folder):
    DeltaLife(folder).epoch(7, numbered(0))
    assert DeltaTable(str(folder)).transaction_version("query-1") == 7
    assert ids(folder) == [*range(10)]


def test_a_mark_of_another_writer_counts(folder):
    life = DeltaLife(folder)
    life.epoch(0, numbered(0))
    mark = CommitProperties(app_transactions=[Transaction("query-1", 3)])
    write_deltalake(str(folder), numbered(100, 1), mode="append", commit_properties=mark)
    committer = life.writer(numbered(0)).committer()
    assert (committer.last_committed("query-1").epoch, 3) == (3, 3)
    assert committer.last_committed("query-1").digest is None
    life.epoch(3, numbered(10))
    assert ids(folder) == [*range(10), 100]
    life.epoch(4, numbered(10))
    assert ids(folder) == [*range(20), 100]


def test_a_batch_job_leaves_no_mark(folder):
    DeltaLife(folder, query="batch-1", streaming=False).epoch(0, numbered(0))
    assert DeltaTable(str(folder)).transaction_version("batch-1") is None


def test_marks_outlive_the_retention_of_transactions(folder):
    kept = {"tableProperty.delta.setTransactionRetentionDuration": "interval 0 days"}
    life = DeltaLife(folder, **kept)
    life.epoch(0, numbered(0))
    DeltaTable(str(folder)).create_checkpoint()
    life.epoch(0, numbered(0))
    assert ids(folder) == [*range(10)]


# --- races


def race(monkeypatch, happens):
    """Let something happen once, after a commit has read the log and before it is sent."""
    real = DeltaCommit._commit_version

    def commit(self, table, version):
        monkeypatch.setattr(DeltaCommit, "_commit_version", real)
        happens()
        return real(self, table, version)

    monkeypatch.setattr(DeltaCommit, "_commit_version", commit)


def test_a_commit_that_loses_a_race_reads_the_log_and_commits(folder, monkeypatch):
    life = DeltaLife(folder)
    life.epoch(0, numbered(0))
    race(monkeypatch, lambda: write_deltalake(str(folder), numbered(100, 1), mode="append"))
    life.epoch(1, numbered(10))
    assert ids(folder) == [*range(20), 100]


def test_a_driver_that_another_has_overtaken_is_fenced_and_cleans_up(folder, monkeypatch):
    stale, fresh = DeltaLife(folder), DeltaLife(folder)
    staged = stale.stage(0, numbered(0))
    race(monkeypatch, lambda: fresh.epoch(0, numbered(0)))
    with pytest.raises(Fenced, match="has epoch 0"):
        stale.publish(0, staged, numbered(0))
    assert ids(folder) == [*range(10)]
    assert not LogReader(folder).leftovers()


def test_a_lost_answer_is_found_in_the_log(folder, monkeypatch):
    real, calls = DeltaCommit._commit_version, []

    def commit(self, table, version):
        real(self, table, version)
        calls.append(version)
        raise TimeoutError("no answer")

    monkeypatch.setattr(DeltaCommit, "_commit_version", commit)
    DeltaLife(folder).epoch(0, numbered(0))
    DeltaLife(folder, query="batch-1", streaming=False).epoch(0, numbered(100, 1))
    assert calls == [1, 2]
    assert ids(folder) == [*range(10), 100]


def test_a_log_that_cannot_be_read_after_the_commit_is_unknown(folder, monkeypatch):
    life = DeltaLife(folder, commitTimeout="50 ms")
    staged, log = life.stage(0, numbered(0)), folder / "_delta_log"

    def commit(self, table, version):
        del self, table, version
        log.rename(log.with_name("away"))
        log.touch()
        raise TimeoutError("no answer")

    monkeypatch.setattr(DeltaCommit, "_commit_version", commit)
    with pytest.raises(CommitUnknown, match="restart"):
        life.publish(0, staged, numbered(0))
    assert all((folder / file.path).exists() for item in staged for file in item.files)


def test_a_table_that_was_replaced_meanwhile_is_refused(folder):
    life = DeltaLife(folder)
    staged = life.stage(0, numbered(0))
    (folder / "_delta_log" / f"{0:020}.json").unlink()
    write_deltalake(str(folder), numbered(5, 1))
    with pytest.raises(CommitRejected, match="replaced"):
        life.publish(0, staged, numbered(0))
    assert ids(folder) == [5]


def test_columns_that_change_meanwhile_are_refused_or_filled(folder):
    life = DeltaLife(folder)
    staged = life.stage(0, numbered(0))
    more = pa.table({"id": [100], "text": ["x"]})
    write_deltalake(str(folder), more, mode="append", schema_mode="merge")
    life.publish(0, staged, numbered(0))
    assert ids(folder) == [*range(10), 100]
    staged = life.stage(1, numbered(0))
    write_deltalake(str(folder), pa.table({"id": ["x"]}), mode="overwrite", schema_mode="overwrite")
    with pytest.raises(CommitRejected, match=r"\(id, text\)"):
        life.publish(1, staged, numbered(0))


def test_nulls_are_refused_if_their_column_is_not_null_meanwhile(folder):
    life = DeltaLife(folder)
    life.epoch(0, pa.table({"id": [1], "text": ["a"]}))
    rows = pa.table({"id": [2], "text": pa.nulls(1, pa.string())})
    staged = life.stage(1, rows)
    first = json.loads(DeltaTable(str(folder)).schema().to_json())
    first["fields"][1]["nullable"] = False
    log = folder / "_delta_log"
    (before,) = (
        action["metaData"]
        for action in map(json.loads, (log / f"{0:020}.json").read_text().splitlines())
        if "metaData" in action
    )
    changed = {"metaData": {**before, "schemaString": json.dumps(first)}}
    (log / f"{2:020}.json").write_text(json.dumps(changed))
    with pytest.raises(CommitRejected, match=r"\(text is NOT NULL\)"):
        life.publish(1, staged, rows)
    assert ids(folder) == [1]
    life.epoch(1, pa.table({"id": [2], "text": ["b"]}))
    assert ids(folder) == [1, 2]


def test_an_intent_whose_files_were_deleted_is_not_committed(folder):
    rows = numbered(0)
    options = DeltaRoute.options_type.parse({"path": str(folder)}, "krishiv-delta")
    route = DeltaRoute(options, rows.schema, OutputMode.APPEND, streaming=True)
    route.check()
    staged = route.stage(iter(rows.to_batches()), Task("query-1", 0, 0, 0), route.plan(None))
    participant, epoch = route.participant(None), Epoch("query-1", 0)
    logged = participant.prepare(epoch, [staged], [])[0].model_dump_json()
    intent = [StagedForDelta.model_validate_json(logged)]
    file = folder / staged.staged.files[0].path
    content = file.read_bytes()
    file.unlink()
    with pytest.raises(CommitUnknown, match=r"1 staged files .* VACUUM .*--assume aborted"):
        participant.finish(epoch, intent)
    assert DeltaTable(str(folder)).version() == 0
    file.write_bytes(content)
    participant.finish(epoch, intent)
    assert ids(folder) == [*range(10)]
    file.unlink()
    participant.finish(epoch, intent)  # the table has it


def test_staged_files_that_were_deleted_are_no_epoch(folder):
    life = DeltaLife(folder)
    staged = life.stage(0, numbered(0), tasks=2)
    (folder / staged[1].files[0].path).unlink()
    with pytest.raises(CommitRejected, match=r"1 staged files .* are missing"):
        life.publish(0, staged, numbered(0))
    assert DeltaTable(str(folder)).version() == 0


def test_a_discard_keeps_files_that_a_version_has_named(folder):
    life = DeltaLife(folder)
    staged = life.stage(0, numbered(0))
    life.publish(0, staged, numbered(0))
    write_deltalake(str(folder), numbered(50, 1), mode="overwrite")
    life.writer(numbered(0)).committer().discard(staged)
    assert DeltaTable(str(folder), version=1).to_pyarrow_table().num_rows == 10


@pytest.mark.long
def test_a_discard_keeps_files_whose_paths_are_encoded_in_the_log(folder):
    life = DeltaLife(folder, partitionBy="text")
    rows = pa.table({"id": [1], "text": ["a/b=c d%é"]})
    staged = life.stage(0, rows)
    life.publish(0, staged, rows)
    other = DeltaLife(folder, query="other")
    for epoch in range(25):  # more than the commits that are read one by one
        other.epoch(epoch, rows)
    life.writer(rows).committer().discard(staged)
    assert rows_of(folder).num_rows == 26


def append_metadata(folder, **changes):
    """Add a version that changes the metadata, as another writer may."""
    log = sorted((folder / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for file in log for line in file.read_text().splitlines()]
    newest = [action["metaData"] for action in actions if "metaData" in action][-1]
    text = json.dumps({"metaData": {**newest, **changes}})
    (folder / "_delta_log" / f"{len(log):020}.json").write_text(text)


@pytest.mark.parametrize(
    ("does", "kept"),
    [
        (lambda table, _: table.restore(1), [0]),
        (lambda table, _: table.delete(), []),
        (lambda table, _: table.create_checkpoint(), [0, 1]),
        (lambda _, folder: write_deltalake(str(folder), numbered(9, 1), mode="overwrite"), [9]),
        (lambda _, folder: append_metadata(folder, configuration={"delta.appendOnly": "true"}),
         [0, 1]),
    ],
    ids=["restore", "delete", "checkpoint", "overwrite", "append-only"],
)  # fmt: skip
def test_a_staged_epoch_is_added_to_what_others_leave_once(folder, does, kept):
    life = DeltaLife(folder)
    life.epoch(0, numbered(0, 1))
    life.epoch(1, numbered(1, 1))
    staged = life.stage(2, numbered(10, 2))
    does(DeltaTable(str(folder)), folder)
    life.publish(2, staged, numbered(10, 2))
    life.epoch(2, numbered(10, 2))
    assert ids(folder) == [*kept, 10, 11]


def test_a_table_that_others_partition_by_all_columns_is_refused(folder):
    life = DeltaLife(folder)
    staged = life.stage(0, numbered(0, 1))
    append_metadata(folder, partitionColumns=["id"])
    with pytest.raises(CommitRejected, match="the partition columns"):
        life.publish(0, staged, numbered(0, 1))
    with pytest.raises(OptionError, match="partitioned by all of its columns"):
        life.epoch(0, numbered(0, 1))


# --- what an epoch does


def test_an_epoch_that_replaces_removes_all_rows(folder):
    DeltaLife(folder, query="other").epoch(0, numbered(0))
    life = DeltaLife(folder, output=OutputMode.REPLACE)
    life.epoch(0, numbered(5, 3))
    assert ids(folder) == [5, 6, 7]
    life.writer(numbered(0)).committer().publish(Epoch("query-1", 1), [])
    assert ids(folder) == []
    assert DeltaTable(str(folder)).transaction_version("query-1") == 1


def test_columns_are_added_by_the_policy(folder):
    DeltaLife(folder).epoch(0, numbered(0, 1))
    more = pa.table({"text": ["x"], "id": pa.array([1], pa.int64())})
    with pytest.raises(SchemaError, match="no column 'text'"):
        DeltaLife(folder).epoch(1, more)
    DeltaLife(folder, schemaEvolution="add").epoch(1, more)
    rows = sorted(rows_of(folder).to_pylist(), key=lambda row: row["id"])
    assert rows == [{"id": 0, "text": None}, {"id": 1, "text": "x"}]
    with pytest.raises(SchemaError, match="cast it"):
        DeltaLife(folder).epoch(2, pa.table({"id": ["x"]}))


def test_rows_are_partitioned_by_value(folder):
    times = [dt.datetime(2013, 1, 1, 5, 6, 7, 89000, dt.timezone.utc), None]
    rows = pa.table(
        {
            "id": pa.array([1, 2], pa.int64()),
            "ts": pa.array(times, pa.timestamp("us", "UTC")),
            "day": [dt.date(2013, 1, 1), None],
            "text": ["a/b=c d%é", None],
            "n": pa.array([Decimal("1.50"), None], pa.decimal128(5, 2)),
            "flag": [True, None],
        }
    )
    DeltaLife(folder, partitionBy="ts,day,text,n,flag").epoch(0, rows, tasks=2)
    found = rows_of(folder).select(rows.column_names).sort_by("id")
    assert found.to_pylist() == rows.to_pylist()
    log = LogReader(folder).named().values()
    assert {values["ts"] for values in log} == {"2013-01-01T05:06:07.089Z", None}
    with pytest.raises(OptionError, match="partitioned by ts"):
        DeltaLife(folder, partitionBy="day").epoch(1, rows)


# --- statistics


def test_statistics_have_valid_bounds(folder):
    long_text, last = "b" * 40, "c" * 32 + "\U0010ffff" * 2
    time = 1_356_998_400_123_456
    rows = pa.table(
        {
            "id": pa.array([3, None, -1], pa.int64()),
            "text": ["a", long_text, None],
            "last": ["a", last, None],
            "ts": pa.array([time] * 3, pa.timestamp("us", "UTC")),
            "ntz": pa.array([time] * 3, pa.timestamp("us")),
            "far": pa.array([2**62, 0, 0], pa.timestamp("us")),
            "n": pa.array([Decimal("-1.50"), Decimal("123456789012345678.25"), None]),
            "d": pa.array([0.5, float("nan"), 1.0]),
            "nested": [{"x": 1, "y": [1]}, None, {"x": None, "y": None}],
            "raw": [b"x", None, b"y"],
            "flag": [True, None, False],
            "end": pa.array([END, 0, None], pa.timestamp("us", "UTC")),
        }
    )
    DeltaLife(folder).epoch(0, rows)
    (stats,) = stats_of(folder)
    assert stats["numRecords"] == 3
    assert stats["minValues"] == {
        "id": -1,
        "text": "a",
        "last": "a",
        "ts": "2013-01-01T00:00:00.123Z",
        "ntz": "2013-01-01T00:00:00.123",
        "far": "1970-01-01T00:00:00.000",
        "n": Decimal("-1.50"),
        "nested": {"x": 1},
        "flag": False,
        "end": "1970-01-01T00:00:00.000Z",
    }
    assert stats["maxValues"] == {
        "id": 3,
        "text": "b" * 32 + "\U0010ffff",
        "last": last,
        "ts": "2013-01-01T00:00:00.124Z",
        "ntz": "2013-01-01T00:00:00.124",
        "n": Decimal("123456789012345678.25"),
        "nested": {"x": 1},
        "flag": True,
        "end": "9999-12-31T23:59:59.999999Z",
    }
    nulls = {"id": 1, "text": 1, "last": 1, "ts": 0, "ntz": 0, "far": 0, "n": 1, "d": 0}
    assert stats["nullCount"] == {
        **nulls,
        "nested": {"x": 2, "y": 2},
        "raw": 1,
        "flag": 1,
        "end": 1,
    }


@pytest.mark.long
@pytest.mark.parametrize(
    "values",
    [
        pa.array([True, False, None]),
        pa.array([127, -128, None], pa.int8()),
        pa.array([2**63 - 1, -(2**63), None], pa.int64()),
        pa.array([0.5, -1e300, None]),
        pa.array([Decimal("1.50"), Decimal("-2.25"), None], pa.decimal128(9, 2)),
        pa.array([Decimal("9" * 38), Decimal(1), None], pa.decimal128(38, 0)),
        pa.array(["", "b" * 40 + "\U0010ffff", None]),
        pa.array(["a", "c" * 32 + "\U0010ffff" * 2, None]),
        pa.array(["a", "c" * 31 + "\U0010ffff" * 2 + "d", None]),
        pa.array([b"", b"\xff" * 40, None]),
        pa.array([dt.date.min, dt.date.max, None]),
        pa.array([1_500, END, None], pa.timestamp("us")),
        pa.array([1_500, END, None], pa.timestamp("us", "UTC")),
        pa.array([END - 1_000, END - 999, None], pa.timestamp("us", "UTC")),
        pa.array([None] * 3, pa.bool_()),
    ],
    ids=lambda values: str(values.type),
)
def test_the_librarys_reader_finds_each_row_by_its_value(folder, values):
    life = DeltaLife(folder)
    life.epoch(
        0, pa.table({"id": range(3), "v": values, "s": pa.StructArray.from_arrays([values], ["v"])})
    )
    life.epoch(
        1,
        pa.table(
            {"id": [3], "v": values[:1], "s": pa.StructArray.from_arrays([values[:1]], ["v"])}
        ),
    )
    table = DeltaTable(str(folder)).to_pyarrow_dataset()
    for column in (ds.field("v"), ds.field("s", "v")):
        for row, value in enumerate(values):
            is_same = column == value if value.is_valid else column.is_null()
            assert row in table.to_table(filter=is_same)["id"].to_pylist()


def test_statistics_follow_the_properties_of_the_table(folder):
    rows = pa.table({name: [1] for name in "abcd"})
    one = folder.with_name("one")
    DeltaLife(one, **{"tableProperty.delta.dataSkippingNumIndexedCols": "2"}).epoch(0, rows)
    assert stats_of(one)[0]["minValues"] == {"a": 1, "b": 1}
    two = folder.with_name("two")
    DeltaLife(two, **{"tableProperty.delta.dataSkippingStatsColumns": "d,`b`"}).epoch(0, rows)
    assert stats_of(two)[0]["minValues"] == {"b": 1, "d": 1}


# --- what is refused before a row moves

CONSTRAINT = {"delta.constraints.c": "id > 0"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("settings", "fields", "text"),
    [
        (CONSTRAINT, {}, "CHECK constraint 'c'"),
        ({"delta.columnMapping.mode": "name"}, {}, "column mapping"),
        ({}, {"delta.invariants": "{}"}, "invariant"),
        ({}, {"delta.generationExpression": "1"}, "generated"),
        ({}, {"delta.identity.start": 1}, "identity"),
        ({}, {"CURRENT_DEFAULT": "1"}, "default value"),
        ({}, {"__CHAR_VARCHAR_TYPE_STRING": "varchar(5)"}, "'id', which has a declared length"),
    ],
)
def test_features_are_refused_by_name(folder, settings, fields, text):
    DeltaLife(folder).epoch(0, numbered(0, 1))
    first = folder / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in first.read_text().splitlines()]
    (metadata,) = (action["metaData"] for action in actions if "metaData" in action)
    metadata["configuration"] |= settings
    schema = json.loads(metadata["schemaString"])
    schema["fields"][0]["metadata"] |= fields
    metadata["schemaString"] = json.dumps(schema)
    first.write_text("\n".join(map(json.dumps, actions)))
    with pytest.raises(OptionError, match=text):
        DeltaLife(folder).epoch(1, numbered(0, 1))


@pytest.mark.parametrize("feature", ["rowTracking", "inCommitTimestamp", "icebergCompatV2", "xyz"])
def test_unknown_features_are_refused_by_name(folder, feature):
    DeltaLife(folder).epoch(0, numbered(0, 1))
    commit = folder / "_delta_log" / f"{2:020}.json"
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": [feature]}
    commit.write_text(json.dumps({"protocol": protocol}))
    with pytest.raises(OptionError, match=f"features '{feature}'"):
        DeltaLife(folder).epoch(1, numbered(0, 1))


def test_a_table_that_is_append_only_is_not_replaced(folder):
    DeltaLife(folder, **{"tableProperty.delta.appendOnly": "true"}).epoch(0, numbered(0, 1))
    with pytest.raises(OptionError, match="append-only"):
        DeltaLife(folder, output=OutputMode.REPLACE).epoch(1, numbered(0, 1))
    DeltaLife(folder).epoch(1, numbered(1, 1))
    assert ids(folder) == [0, 1]


@pytest.mark.long
@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"mode": "upsert"}, "upserts are not supported"),
        ({"path": "abfss://c@a.dfs.core.windows.net/t"}, "cannot commit"),
        ({"path": "s3://bucket"}, "whole bucket"),
        ({"path": "/tmp/a%20b"}, "another character"),
        ({"path": "/tmp/a[1]"}, "another character"),
        ({"createTable": "never"}, "'createTable' is 'never'"),
        ({"partitionBy": "ids"}, "did you mean 'id'"),
        ({"partitionBy": "id"}, "all columns"),
        ({"partitionBy": "id,id"}, "twice"),
        ({"compression": "zip"}, "compression"),
        ({"schemaEvolution": "widen"}, "schemaEvolution"),
        ({"txnAppId": "a"}, "belong together"),
        ({"commitTimeout": "5"}, "unit"),
        ({"mergeSchema": "true"}, "mergeSchema"),
    ],
)
def test_bad_options_are_refused(folder, given, text):
    with pytest.raises(OptionError, match=text):
        DeltaLife(folder, **given).epoch(0, numbered(0))
    assert not (folder / "_delta_log").exists()


def test_a_folder_with_other_files_is_refused(folder):
    folder.mkdir(parents=True)
    (folder / "x.parquet").touch()
    with pytest.raises(OptionError, match="CONVERT TO DELTA"):
        DeltaLife(folder).epoch(0, numbered(0))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.duration("us"), "an interval"),
        (pa.null(), "without a type"),
        (pa.time64("us"), "of type time64"),
        (pa.struct([]), "without fields"),
    ],
)
def test_types_that_delta_lacks_are_refused(folder, kind, text):
    rows = pa.table({"id": pa.nulls(1, kind)})
    with pytest.raises(SchemaError, match=text):
        DeltaLife(folder).epoch(0, rows)


def test_a_machine_without_the_folder_writes_nothing(folder):
    life = DeltaLife(folder)
    writer = life.writer(numbered(0))
    plan = writer.plan(None)
    (folder / "_delta_log").rename(folder / "away")
    with pytest.raises(OptionError, match="every worker shares"):
        writer.stage(iter(numbered(0).to_batches()), Task("query-1", 0, 0, 0), plan)
