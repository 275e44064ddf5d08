"""The Iceberg sink against a real catalog: who races, what fails, what others do meanwhile."""

import datetime as dt
import json
import sqlite3
import threading
import uuid
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from iceberg_life import (
    STREAM,
    TABLE,
    IcebergLife,
    at_next_commit,
    catalog_of,
    ids,
    numbered,
    race_of_three,
    table_of,
)
from numbered_jobs import make_job_options as numbered_job
from numbered_jobs import run_job
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType, StructType, UUIDType

from krishiv_spark.cli import main
from krishiv_spark.errors import (
    CommitRejected,
    CommitUnknown,
    Fenced,
    OptionError,
    SchemaError,
)
from krishiv_spark.formats import IcebergDataSource
from krishiv_spark.iceberg.catalogs import CatalogFailedError
from krishiv_spark.iceberg.options import IcebergOptions
from krishiv_spark.sinks.base import Epoch, OutputMode

PASSWORD = "hunter2-very-secret"


def data_files(folder):
    return {str(path) for path in folder.glob("db/rows/data/**/*.parquet")}


def named_files(folder):
    return {task.file.file_path for task in table_of(folder).scan().plan_files()}


# --- one query and its mark


def test_the_mark_is_in_the_snapshot_and_in_the_table(tmp_path):
    IcebergLife(tmp_path).epoch(7, numbered(0))
    table = table_of(tmp_path)
    summary = table.current_snapshot().summary
    assert summary["spark.sql.streaming.queryId"] == "query-1"
    assert summary["spark.sql.streaming.epochId"] == "7"
    assert table.properties["krishiv.epoch.query-1"] == "7"


def test_a_batch_job_leaves_no_property(tmp_path):
    IcebergLife(tmp_path, query="batch-1", streaming=False).epoch(0, numbered(0))
    assert not [key for key in table_of(tmp_path).properties if key.startswith("krishiv.epoch.")]


def test_a_replayed_epoch_adds_nothing_after_every_snapshot_has_expired(tmp_path):
    life = IcebergLife(tmp_path)
    life.epoch(0, numbered(0))
    catalog = catalog_of(tmp_path)
    catalog.load_table(TABLE).append(numbered(100))
    catalog.load_table(TABLE).maintenance.expire_snapshots().older_than(
        dt.datetime.now(tz=dt.timezone.utc) + dt.timedelta(1)
    ).commit()
    assert len(table_of(tmp_path).snapshots()) == 1
    assert life.plan(numbered(0))[1] == 0
    life.epoch(0, numbered(0))
    assert ids(tmp_path) == [*range(10), *range(1000, 1010)]


def test_a_driver_that_was_taken_over_from_is_fenced_and_cleans_up(tmp_path):
    stale, fresh = IcebergLife(tmp_path), IcebergLife(tmp_path)
    staged = stale.stage(0, numbered(0))
    committer = stale.writer(numbered(0)).committer()
    assert committer.last_committed("query-1") is None
    fresh.epoch(0, numbered(0))
    with pytest.raises(Fenced, match="two drivers run on one checkpoint"):
        committer.publish(Epoch("query-1", 0), staged)
    assert ids(tmp_path) == list(range(10))
    assert data_files(tmp_path) == named_files(tmp_path)


@pytest.mark.long  # 5 s; test_iceberg_crash.py kills real drivers
@pytest.mark.once
def test_three_drivers_race_on_one_query(tmp_path):
    race_of_three(tmp_path, 8, 40)
    assert ids(tmp_path) == list(range(320))


# --- others who write meanwhile


def test_a_foreign_commit_between_stage_and_publish(tmp_path):
    life = IcebergLife(tmp_path)
    life.epoch(0, numbered(0))
    staged = life.stage(1, numbered(1))
    table_of(tmp_path).append(numbered(50))
    life.publish(1, staged, numbered(1))
    assert ids(tmp_path) == [*range(20), *range(500, 510)]


def test_a_foreign_column_between_stage_and_publish(tmp_path):
    life = IcebergLife(tmp_path)
    staged = life.stage(0, numbered(0))
    with table_of(tmp_path).update_schema() as update:
        update.add_column("more", LongType())
        update.rename_column("text", "words")
    life.publish(0, staged, numbered(0))
    rows = table_of(tmp_path).scan().to_arrow()
    assert rows.column_names == ["id", "words", "more"]
    assert rows["words"].to_pylist() == numbered(0)["text"].to_pylist()


MISFITS = {
    "made again": (
        lambda update: update.delete_column("text"),
        lambda update: update.add_column("text", StringType()),
        r"column 'text' was dropped \(or dropped and recreated\) while its epoch was written",
    ),
    "required": (
        lambda update: update._set_column_requirement("text", required=True),
        lambda update: update.add_column("more", LongType()),
        "column 'text' was made required while its epoch was written",
    ),
    "required and new": (
        lambda update: update.add_column("more", LongType(), required=True),
        lambda update: update.rename_column("text", "words"),
        "column 'more' was made required while its epoch was written",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("output", list(OutputMode))
@pytest.mark.parametrize(("first", "then", "said"), MISFITS.values(), ids=MISFITS)
def test_columns_that_staged_files_do_not_have(tmp_path, output, first, then, said):
    life = IcebergLife(tmp_path, output=output)
    life.epoch(0, numbered(0))
    rows = pa.table({"id": [7, 8]})
    staged = life.stage(1, rows)
    for change in (first, then):
        with table_of(tmp_path).update_schema(allow_incompatible_changes=True) as update:
            change(update)
    with pytest.raises(CommitRejected, match=said):
        life.publish(1, staged, rows)
    assert len(table_of(tmp_path).snapshots()) == 1
    assert data_files(tmp_path) == named_files(tmp_path)


@pytest.mark.parametrize("given", [{}, {"mode": "upsert", "keyColumns": "id"}])
def test_columns_that_change_between_the_comparison_and_the_commit(tmp_path, monkeypatch, given):
    life = IcebergLife(tmp_path, **given)
    life.epoch(0, numbered(0))

    def change_first(commit):
        for change in MISFITS["made again"][:2]:
            with table_of(tmp_path).update_schema() as update:
                change(update)
        return commit()

    staged = life.stage(1, numbered(1))
    at_next_commit(monkeypatch, change_first)
    with pytest.raises(CommitRejected, match="dropped"):
        life.publish(1, staged, numbered(1))
    assert ids(tmp_path) == list(range(10))


def test_a_new_column_with_a_required_one_inside_is_no_hindrance(tmp_path):
    life = IcebergLife(tmp_path)
    staged = life.stage(0, numbered(0))
    inside = NestedField(1, "must", LongType(), required=True)
    with table_of(tmp_path).update_schema() as update:
        update.add_column("more", StructType(inside))
    life.publish(0, staged, numbered(0))
    assert table_of(tmp_path).scan().to_arrow()["more"].null_count == 10


def test_files_that_a_task_wrote_on_another_machine_are_not_committed(tmp_path):
    life = IcebergLife(tmp_path)
    rows = numbered(0)
    staged = life.stage(0, rows, tasks=2)
    (only_there,) = staged[1].files
    Path(only_there.file_path.removeprefix("file://")).unlink()
    with pytest.raises(CommitRejected, match="must be a folder that all machines share"):
        life.publish(0, staged, rows)
    assert ids(tmp_path) == []


def test_foreign_partitions_between_stage_and_publish(tmp_path):
    life = IcebergLife(tmp_path)
    staged = life.stage(0, numbered(0))
    with table_of(tmp_path).update_spec() as update:
        update.add_identity("text")
    with pytest.raises(CommitRejected, match="partitions were changed"):
        life.publish(0, staged, numbered(0))
    assert data_files(tmp_path) == set()
    life.epoch(0, numbered(0))  # the restarted query
    assert ids(tmp_path) == list(range(10))
    assert table_of(tmp_path).scan("text = '3'").to_arrow()["id"].to_pylist() == [3]


def test_a_table_that_was_made_anew_between_stage_and_publish(tmp_path):
    life = IcebergLife(tmp_path)
    staged = life.stage(0, numbered(0))
    catalog = catalog_of(tmp_path)
    catalog.drop_table(TABLE)
    catalog.create_table(TABLE, numbered(0).schema)
    with pytest.raises(CommitRejected, match="was recreated"):
        life.publish(0, staged, numbered(0))
    life.epoch(0, numbered(0))
    assert ids(tmp_path) == list(range(10))


def test_complete_mode_replaces_what_a_foreign_writer_adds_meanwhile(tmp_path):
    life = IcebergLife(tmp_path, output=OutputMode.REPLACE)
    life.epoch(0, numbered(0))
    staged = life.stage(1, numbered(1))
    table_of(tmp_path).append(numbered(50))
    life.publish(1, staged, numbered(1))
    assert ids(tmp_path) == list(range(10, 20))
    assert len(table_of(tmp_path).snapshots()) == 3


# --- a catalog that fails


class Faulty:
    """Puts faults around the real commits of a catalog."""

    def __init__(self, monkeypatch, *faults):
        self.faults, self.real = list(faults), SqlCatalog.commit_table
        monkeypatch.setattr(SqlCatalog, "commit_table", self._wrapped())

    def _wrapped(self):
        def commit_table(catalog, table, requirements, updates):
            fault = self.faults.pop(0) if self.faults else None
            if fault == "refused":
                raise ConnectionRefusedError(f"no answer from {PASSWORD}")
            made = self.real(catalog, table, requirements, updates)
            if fault == "lost answer":
                raise ConnectionResetError("the answer is lost")
            return made

        return commit_table


@pytest.mark.long
@pytest.mark.parametrize("faults", [["refused"] * 3, ["lost answer"], ["refused", "lost answer"]])
def test_an_unknown_outcome_is_looked_up(tmp_path, monkeypatch, faults):
    life = IcebergLife(tmp_path)
    life.epoch(0, numbered(0))
    Faulty(monkeypatch, *faults)
    life.epoch(1, numbered(1))
    assert ids(tmp_path) == list(range(20))
    assert len(table_of(tmp_path).snapshots()) == 2


def test_a_catalog_that_never_answers_leaves_what_was_staged(tmp_path, monkeypatch):
    secret = {"catalog.token": PASSWORD}
    life = IcebergLife(tmp_path, commitTimeout="300 ms", **secret)
    life.epoch(0, numbered(0))
    with monkeypatch.context() as patch:
        Faulty(patch, *["refused"] * 1000)
        with pytest.raises(CommitUnknown, match="may or may not") as caught:
            life.epoch(1, numbered(1))
    assert PASSWORD not in str(caught.value)
    assert len(data_files(tmp_path)) == 2
    life.epoch(1, numbered(1))
    assert ids(tmp_path) == list(range(20))


def test_a_locked_catalog_is_waited_for(tmp_path):
    given = {
        "catalog.type": "sql",
        "catalog.uri": f"sqlite:///{tmp_path}/catalog.db?timeout=0.05",
    }
    life = IcebergLife(tmp_path, commitTimeout="30 s", **given)
    staged = life.stage(0, numbered(0))
    lock = sqlite3.connect(tmp_path / "catalog.db", isolation_level=None, check_same_thread=False)
    lock.execute("BEGIN IMMEDIATE")  # others can read, and not write
    timer = threading.Timer(0.5, lock.execute, ["ROLLBACK"])
    timer.start()
    life.publish(0, staged, numbered(0))
    timer.join()
    lock.close()
    assert ids(tmp_path) == list(range(10))


def test_a_refused_connection_is_a_clear_error_without_credentials():
    given = {"catalog.uri": "http://127.0.0.1:1", "catalog.token": PASSWORD}
    life = IcebergLife("unused", **given)
    with pytest.raises(CatalogFailedError, match="cannot open the catalog") as caught:
        life.plan(numbered(0))
    assert PASSWORD not in str(caught.value)
    assert PASSWORD not in repr(life.writer(numbered(0)).options)


BAD_URIS = {
    "at": ("http://us:{}@{}@127.0.0.1:1", ("first-part", "other-part")),
    "slash": ("http://us:{}/{}@127.0.0.1:1", ("first-part", "other-part")),
    "hash": ("http://us:{}#{}@127.0.0.1:1", ("first-part", "other-part")),
    "database": ("postgresql+psycopg2://us:{}@{}@127.0.0.1:1/db", ("first-part", "other-part")),
    "no client": ("postgresql+pg8000://us:{}@127.0.0.1:1/db?sslpassword={}", ("first", "other")),
}


@pytest.mark.parametrize(("uri", "parts"), BAD_URIS.values(), ids=BAD_URIS)
def test_a_password_that_a_uri_cannot_have_is_shown_nowhere(tmp_path, uri, parts):
    kind = "sql" if uri.startswith("postgresql") else "rest"
    life = IcebergLife(tmp_path, **{"catalog.type": kind, "catalog.uri": uri.format(*parts)})
    with pytest.raises(
        (CatalogFailedError, OptionError), match="cannot open the catalog"
    ) as caught:
        life.plan(numbered(0))
    assert not [part for part in parts if part in str(caught.value)]


def test_passwords_of_a_uri_are_known_in_every_form():
    uri = "postgresql://us:a%20b%2Fc@host/db?password=d%20e"
    given = {"table": "rows", "catalog.uri": uri, "catalog.prefix": "a b"}
    options = IcebergOptions.parse(
        {**given, "storage.s3.secretAccessKey": "f g"}, "krishiv-iceberg"
    )
    told = "a%20b%2Fc, a b/c, d e, d%20e, f g"
    assert options.redact(told) == "***, ***, ***, ***, ***"


# --- tables


def test_a_table_is_made_with_partitions_order_place_and_properties(tmp_path):
    given = {
        "partitionBy": "bucket(4, id), truncate(2, text)",
        "sortBy": "text desc",
        "location": f"{tmp_path}/elsewhere",
        "tableProperty.write.parquet.compression-codec": "gzip",
    }
    IcebergLife(tmp_path, **given).epoch(0, numbered(0))
    table = table_of(tmp_path)
    assert [str(field.transform) for field in table.spec().fields] == ["bucket[4]", "truncate[2]"]
    assert table.location() == f"{tmp_path}/elsewhere"
    assert table.properties["write.parquet.compression-codec"] == "gzip"
    assert ids(tmp_path) == list(range(10))
    for task in table.scan().plan_files():
        rows = pq.ParquetFile(task.file.file_path)
        assert rows.metadata.row_group(0).column(0).compression == "GZIP"
        texts = rows.read()["text"].to_pylist()
        assert texts == sorted(texts, reverse=True)


@pytest.mark.long
def test_many_partitions_are_written_with_few_open_files(tmp_path):
    rows = pa.table({"id": range(1000), "part": [n % 200 for n in range(1000)]})
    IcebergLife(tmp_path, partitionBy="part").epoch(0, rows, tasks=2)
    table = table_of(tmp_path)
    assert table.scan().to_arrow().num_rows == 1000
    assert len(named_files(tmp_path)) == 400
    assert sorted(table.scan("part = 7").to_arrow()["id"].to_pylist()) == list(range(7, 1000, 200))


@pytest.mark.long
def test_files_are_closed_at_their_target_size(tmp_path):
    life = IcebergLife(tmp_path, targetFileSize="1k")
    rows = pa.table({"id": range(2**21), "text": ["x"] * 2**21})
    life.epoch(0, rows)
    assert len(named_files(tmp_path)) == 2  # a row group is written whole
    assert table_of(tmp_path).scan().count() == 2**21


def test_rows_are_matched_by_name(tmp_path):
    life = IcebergLife(tmp_path)
    life.epoch(0, numbered(0))
    life.epoch(1, numbered(1).select(["text", "id"]))
    life.epoch(2, numbered(2).select(["id"]))
    assert ids(tmp_path) == list(range(30))
    assert table_of(tmp_path).scan("id >= 20").to_arrow()["text"].null_count == 10


def test_housekeeping_comes_with_the_commit(tmp_path):
    life = IcebergLife(tmp_path, keepSnapshots="3", keepMetadataFiles="4")
    for epoch in range(12):
        life.epoch(epoch, numbered(epoch))
    table = table_of(tmp_path)
    assert len(table.snapshots()) == 3
    assert len(list(tmp_path.glob("db/rows/metadata/*.metadata.json"))) <= 6
    assert len(table.current_snapshot().manifests(table.io)) <= 8
    assert ids(tmp_path) == list(range(120))


def test_snapshots_with_a_name_stay(tmp_path):
    life = IcebergLife(tmp_path, keepSnapshots="1")
    life.epoch(0, numbered(0))
    table = table_of(tmp_path)
    first = table.current_snapshot().snapshot_id
    table.manage_snapshots().create_tag(first, "first").commit()
    for epoch in range(1, 4):
        life.epoch(epoch, numbered(epoch))
    assert {snapshot.snapshot_id for snapshot in table_of(tmp_path).snapshots()} > {first}
    assert len(table_of(tmp_path).snapshots()) == 2


def test_only_old_snapshots_expire(tmp_path):
    life = IcebergLife(tmp_path, keepSnapshots="1", expireOlderThan="1h")
    for epoch in range(3):
        life.epoch(epoch, numbered(epoch))
    assert len(table_of(tmp_path).snapshots()) == 3


def test_tables_of_version_1(tmp_path):
    given = {"tableProperty.format-version": "1", "partitionBy": "bucket(2, id)"}
    life = IcebergLife(tmp_path, **given)
    for epoch in range(10):
        life.epoch(epoch, numbered(epoch))
    assert table_of(tmp_path).format_version == 1
    assert ids(tmp_path) == list(range(100))


def test_a_commit_that_cannot_win_is_rejected_and_leaves_nothing(tmp_path, monkeypatch):
    life = IcebergLife(tmp_path, commitTimeout="200 ms")
    life.epoch(0, numbered(0))
    before = {*tmp_path.glob("db/rows/**/*")}

    def commit_table(*_):
        raise CommitFailedException("somebody else was faster")

    monkeypatch.setattr(SqlCatalog, "commit_table", commit_table)
    with pytest.raises(CommitRejected, match="is not in the table after"):
        life.epoch(1, numbered(1))
    assert {*tmp_path.glob("db/rows/**/*")} == before


# --- bad input, before the first row


def planned(tmp_path, rows, **given):
    IcebergLife(tmp_path, **given).plan(rows)


def test_an_unknown_table_is_refused(tmp_path):
    with pytest.raises(OptionError, match="there is no catalog"):
        planned(tmp_path, numbered(0), createTable="never")
    IcebergLife(tmp_path).epoch(0, numbered(0))
    with pytest.raises(OptionError, match=r"no table db\.row .*did you mean 'db\.rows'"):
        planned(tmp_path, numbered(0), path="db.row", createTable="never")


def test_the_folder_of_a_table_is_no_warehouse_also_where_tables_are_created(tmp_path):
    IcebergLife(tmp_path).epoch(0, numbered(0))
    folder = tmp_path / "db" / "rows"
    for create in ("never", "ifMissing"):
        with pytest.raises(OptionError, match=r"rows is the folder of one table, .*register_table"):
            planned(folder, numbered(0), path=str(folder), table=TABLE, createTable=create)
    assert not (folder / "catalog.db").exists()


def test_a_table_of_version_3_is_refused(tmp_path):
    catalog = catalog_of(tmp_path)
    catalog.create_namespace("db")
    catalog.create_table(TABLE, numbered(0).schema)
    (file,) = tmp_path.glob("db/rows/metadata/*.metadata.json")
    newer = {**json.loads(file.read_text()), "format-version": 3, "next-row-id": 0}
    file.write_text(json.dumps(newer))
    with pytest.raises(OptionError, match="has format version 3"):
        planned(tmp_path, numbered(0))
    with pytest.raises(OptionError, match="format version 1 and 2 only"):
        planned(tmp_path, numbered(0), **{"tableProperty.format-version": "3"})


WRONG = {
    "unknown column": ({"id": [1], "txt": ["x"]}, "no column 'txt'; did you mean 'text'"),
    "narrower": ({"id": [1.5]}, "column 'id' is double, but int64 in the table: cast it"),
    "binary as a string": ({"text": [b"x"]}, "column 'text' is binary, but string"),
}


@pytest.mark.parametrize(("rows", "reason"), WRONG.values(), ids=WRONG)
def test_rows_that_do_not_fit_are_refused(tmp_path, rows, reason):
    planned(tmp_path, numbered(0))
    with pytest.raises(SchemaError, match=reason):
        planned(tmp_path, pa.table(rows), schemaEvolution="none")


def test_another_scale_of_a_decimal_is_refused_even_when_types_may_widen(tmp_path):
    planned(tmp_path, pa.table({"d": pa.array([1], pa.decimal128(10, 1))}))
    wide = pa.table({"d": pa.array([1], pa.decimal128(12, 2))})
    with pytest.raises(SchemaError, match="column 'd'"):
        planned(tmp_path, wide, schemaEvolution="widen")


def test_columns_are_added_and_widened_when_asked(tmp_path):
    struct = pa.struct([("x", pa.int32())])
    old = pa.table({"id": pa.array([1], pa.int32()), "s": pa.array([{"x": 1}], struct)})
    IcebergLife(tmp_path).epoch(0, old)
    new = pa.table({"id": [2**40], "s": [{"x": 2**40, "y": "new"}], "more": ["z"]})
    with pytest.raises(SchemaError, match="'schemaEvolution' = widen"):
        planned(tmp_path, new, schemaEvolution="add")
    IcebergLife(tmp_path, schemaEvolution="widen").epoch(1, new)
    rows = table_of(tmp_path).scan().to_arrow().sort_by("id")
    assert rows["id"].to_pylist() == [1, 2**40]
    assert rows["s"].to_pylist() == [{"x": 1, "y": None}, {"x": 2**40, "y": "new"}]
    assert rows["more"].to_pylist() == [None, "z"]


@pytest.mark.parametrize(
    "rows",
    [{"ID": [1], "s": [{"x": 1}]}, {"id": [1], "s": [{"x": 1, "X": 2}]}],
    ids=["outer", "inner"],
)
def test_a_column_is_not_added_beside_one_that_differs_by_case_alone(tmp_path, rows):
    IcebergLife(tmp_path).epoch(0, pa.table({"id": [1], "s": [{"x": 1}]}))
    with pytest.raises(SchemaError, match="in the table: rename it in the rows"):
        planned(tmp_path, pa.table(rows), schemaEvolution="widen")


def test_a_required_column_must_be_there_and_have_no_nulls(tmp_path):
    catalog = catalog_of(tmp_path)
    catalog.create_namespace("db")
    columns = [pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())]
    catalog.create_table(TABLE, pa.schema(columns))
    with pytest.raises(SchemaError, match="required column 'id' is missing"):
        planned(tmp_path, pa.table({"text": ["x"]}))
    with pytest.raises(SchemaError, match="column 'id' has nulls"):
        IcebergLife(tmp_path).epoch(0, pa.table({"id": pa.array([None], pa.int64())}))
    assert data_files(tmp_path) == set()


def test_values_that_cannot_be_partitions_are_refused(tmp_path):
    rows = pa.table({"f": [1.0, float("nan")]})
    with pytest.raises(SchemaError, match="'f' has NaN"):
        IcebergLife(tmp_path, partitionBy="f").epoch(0, rows)


def test_a_partition_whose_folder_no_file_system_takes_has_none(tmp_path):
    text = "日本語" * 10  # 270 bytes as Iceberg escapes them
    rows = pa.table({"id": [1, 2], "s": [text, "a"]})
    IcebergLife(tmp_path, partitionBy="s").epoch(0, rows)
    assert table_of(tmp_path).scan(f"s = '{text}'").to_arrow().to_pylist() == [{"id": 1, "s": text}]
    folders = {path.parent.name for path in tmp_path.rglob("data/**/*.parquet")}
    assert folders == {"data", "s=a"}


def test_a_decimal_that_truncating_makes_too_long_is_refused_before_the_commit(tmp_path):
    lowest = pa.array([Decimal("-99999999.99")], pa.decimal128(10, 2))
    job = IcebergLife(tmp_path, partitionBy="truncate(7, price)")
    with pytest.raises(SchemaError, match=r"column 'price' .* not a decimal\(10, 2\): filter"):
        job.stage(0, pa.table({"id": [1], "price": lowest}))


def test_geometry_is_refused(tmp_path):
    wkb = pa.field("wkb", pa.binary(), nullable=False, metadata={"geometry": "true"})
    kind = pa.list_(pa.struct([pa.field("srid", pa.int32(), nullable=False), wkb]))
    rows = pa.table({"id": [1], "g": pa.array([None], kind)})
    with pytest.raises(SchemaError, match=r"column 'g.element' is a geometry, .*st_asbinary"):
        IcebergLife(tmp_path).plan(rows)


@pytest.mark.parametrize("spec", ["", "ts", "days(ts)"])
def test_years_that_cannot_be_written_are_refused(tmp_path, spec):
    rows = pa.table({"ts": pa.array([2**60], pa.timestamp("us", "UTC"))})
    with pytest.raises(SchemaError, match=r"after year 9999 .* columns ts"):
        IcebergLife(tmp_path, partitionBy=spec).epoch(0, rows)
    assert data_files(tmp_path) == set()


BAD_SPECS = {
    "days(id)": "column 'id' is long",
    "weeks(id)": "there is no transform 'weeks'",
    "bucket(id)": r"write bucket\(column\) or, with a width",
    "days(id": "between commas",
    "nothing": "there is no column 'nothing'; known: id, text",
    "id, id": "two columns or transforms have the name 'id'",
}


@pytest.mark.parametrize(("spec", "reason"), BAD_SPECS.items(), ids=BAD_SPECS)
def test_partitions_that_cannot_be_are_refused(tmp_path, spec, reason):
    with pytest.raises(OptionError, match=reason):
        planned(tmp_path, numbered(0), partitionBy=spec)


@pytest.mark.parametrize("kind", ["in-memory"])
def test_a_catalog_that_cannot_commit_is_refused(tmp_path, kind):
    with pytest.raises(OptionError, match="cannot access a catalog in memory"):
        planned(tmp_path, numbered(0), **{"catalog.type": kind})


@pytest.mark.parametrize("kind", [pa.duration("us"), pa.null()])
def test_types_that_iceberg_lacks_are_refused(tmp_path, kind):
    with pytest.raises(SchemaError, match="which Iceberg does not support"):
        planned(tmp_path, pa.table({"x": pa.nulls(1, kind)}))


def test_names_that_parquet_files_write_otherwise(tmp_path):
    rows = pa.table({"a b": [1], "1x": [{"p q": 1}], "id": [5]})
    IcebergLife(tmp_path, partitionBy="bucket(2, `a b`)").epoch(0, rows)
    assert table_of(tmp_path).scan().to_arrow().to_pylist() == rows.to_pylist()


# --- upserts

CHANGES = {"mode": "upsert", "keyColumns": "id"}
REWRITES = {**CHANGES, "upsertMode": "copy-on-write"}


@pytest.fixture(params=["merge-on-read", "copy-on-write"])
def both(request):
    """Upserts by a key, in each mode."""
    return {**CHANGES, "upsertMode": request.param}


def as_dict(folder, value="text"):
    rows = table_of(folder).scan().to_arrow()
    found = dict(zip(rows["id"].to_pylist(), rows[value].to_pylist(), strict=True))
    assert len(found) == rows.num_rows
    return found


def changes(*triples):
    ids, texts, ops = zip(*triples, strict=True)
    columns = {"id": ids, "text": pa.array(texts, pa.string()), "op": pa.array(ops, pa.string())}
    return pa.table(columns)


@pytest.mark.parametrize("spec", ["", "bucket(3, id)", "truncate(1, text)"])
def test_upserts_take_the_place_of_rows_with_their_key(tmp_path, spec, both):
    life = IcebergLife(tmp_path, **both, opColumn="op", partitionBy=spec)
    life.epoch(0, changes((1, "a", None), (2, "b", "c"), (3, "c", "i"), (2, "b2", "u")), tasks=2)
    assert as_dict(tmp_path) == {1: "a", 2: "b2", 3: "c"}
    life.epoch(1, changes((1, None, "d"), (3, "c2", "u"), (4, "d", "r"), (9, None, "delete")))
    assert as_dict(tmp_path) == {2: "b2", 3: "c2", 4: "d"}
    life.epoch(2, changes((2, "x", "-"), (2, "back", "+"), (4, "y", "u"), (4, None, "D")))
    assert as_dict(tmp_path) == {2: "back", 3: "c2"}
    assert len(table_of(tmp_path).snapshots()) == 3
    assert data_files(tmp_path) >= named_files(tmp_path)
    assert not list(tmp_path.glob("**/*.changes"))


def stored(folder):
    """All rows as they are in files: PyIceberg's reader shows some nulls as empty lists."""
    return [
        row
        for path in sorted(named_files(folder))
        for row in pq.ParquetFile(path).read().to_pylist()
    ]


def test_an_upsert_leaves_other_rows_as_they_are(tmp_path):
    inner = pa.struct([("x", pa.int64())])
    kinds = {
        "list": pa.list_(inner),
        "map": pa.map_(pa.string(), inner),
        "both": pa.struct([("n", pa.int64()), ("list", pa.list_(inner))]),
    }
    values = {
        "list": [None, [], [{"x": None}], [None]],
        "map": [None, [], [("k", {"x": 1})], [("k", None)]],
        "both": [None, {"n": 1, "list": None}, {"n": None, "list": []}, {"n": 2, "list": [None]}],
    }
    others = {name: pa.array(found, kinds[name]) for name, found in values.items()}
    IcebergLife(tmp_path).epoch(0, pa.table({"id": [0, 1, 2, 3], **others}))
    before = stored(tmp_path)
    life = IcebergLife(tmp_path, query="query-2", **REWRITES)
    life.epoch(0, pa.table({"id": [4]}))
    life.epoch(1, pa.table({"id": [0, 4]}))
    after = {row["id"]: row for row in stored(tmp_path)}
    assert [after[number] for number in (1, 2, 3)] == before[1:]
    assert sorted(after) == [0, 1, 2, 3, 4]


@pytest.mark.long
@pytest.mark.parametrize("kind", [pa.int32(), pa.int64()])
def test_the_lowest_number_is_a_key_as_others_are(tmp_path, kind, both):
    lowest = -(2 ** (kind.bit_width - 1))
    life = IcebergLife(tmp_path, **both, partitionBy="truncate(10, id)")
    life.epoch(0, pa.table({"id": pa.array([lowest, 5], kind), "text": ["a", "b"]}))
    life.epoch(1, pa.table({"id": pa.array([lowest], kind), "text": ["c"]}))
    assert as_dict(tmp_path) == {lowest: "c", 5: "b"}


def test_an_upsert_keeps_uuids(tmp_path):
    kinds = Schema(
        NestedField(1, "id", LongType()),
        NestedField(2, "u", UUIDType()),
        NestedField(3, "s", StructType(NestedField(4, "u", UUIDType()))),
    )
    made = catalog_of(tmp_path)
    made.create_namespace("db")
    table = made.create_table(TABLE, kinds)
    raw = pa.array([uuid.UUID(int=5).bytes, uuid.UUID(int=6).bytes, None], pa.binary(16))
    uuids = pa.ExtensionArray.from_storage(pa.uuid(), raw)
    inside = pa.StructArray.from_arrays([uuids], ["u"])
    table.append(pa.table({"id": pa.array([1, 2, 3]), "u": uuids, "s": inside}))
    before = stored(tmp_path)
    IcebergLife(tmp_path, **REWRITES).epoch(0, pa.table({"id": [2, 4]}))
    after = {row["id"]: row for row in stored(tmp_path)}
    assert (after[1], after[3]) == (before[0], before[2])
    assert after[2] == {"id": 2, "u": None, "s": None}


def test_columns_that_are_renamed_between_stage_and_publish_of_an_upsert(tmp_path):
    life = IcebergLife(tmp_path, **CHANGES)
    life.epoch(0, pa.table({"id": [1], "text": ["a"]}))
    staged = life.stage(1, pa.table({"id": [2], "text": ["b"]}))
    with table_of(tmp_path).update_schema() as update:
        update.add_column("more", LongType())
    life.publish(1, staged, pa.table({"id": [2], "text": ["b"]}))
    assert as_dict(tmp_path) == {1: "a", 2: "b"}
    staged = life.stage(2, pa.table({"id": [3], "text": ["c"]}))
    with table_of(tmp_path).update_schema() as update:
        update.rename_column("text", "label")
    with pytest.raises(CommitRejected, match="were renamed or dropped"):
        life.publish(2, staged, pa.table({"id": [3], "text": ["c"]}))
    assert as_dict(tmp_path, "label") == {1: "a", 2: "b"}
    assert not list(tmp_path.glob("**/*.changes"))


def test_the_highest_order_wins_within_an_epoch(tmp_path):
    life = IcebergLife(tmp_path, **CHANGES, orderColumn="at")
    rows = pa.table({"id": [1, 1, 1, 2, 2], "text": list("abcde"), "at": [5, 9, 7, None, 3]})
    life.epoch(0, rows, tasks=2)
    assert as_dict(tmp_path) == {1: "b", 2: "e"}


def test_upserts_by_two_columns(tmp_path):
    life = IcebergLife(tmp_path, mode="upsert", keyColumns="id, part")
    life.epoch(0, pa.table({"id": [1, 1, 2], "part": ["x", "y", "x"], "n": [1, 2, 3]}))
    life.epoch(1, pa.table({"id": [1, 2], "part": ["y", "y"], "n": [20, 4]}))
    rows = (
        table_of(tmp_path).scan().to_arrow().sort_by([("id", "ascending"), ("part", "ascending")])
    )
    assert rows["n"].to_pylist() == [1, 20, 3, 4]


def test_a_replayed_epoch_of_upserts_changes_nothing(tmp_path):
    life = IcebergLife(tmp_path, **CHANGES, opColumn="op")
    for epoch in (0, 1, 1):
        life.epoch(epoch, changes((epoch, "x", "u")))
    life.epoch(2, changes((7, None, "d")))  # nothing to delete, but the epoch is marked
    assert as_dict(tmp_path) == {0: "x", 1: "x"}
    assert life.plan(changes((0, "x", "u")))[1] == 2


@pytest.mark.long
def test_an_upsert_is_planned_again_when_others_commit(tmp_path, monkeypatch, both):
    life = IcebergLife(tmp_path, **both)
    life.epoch(0, numbered(0))
    real, foreign = SqlCatalog.commit_table, []

    def commit_table(catalog, table, requirements, updates):
        if not foreign:
            foreign.append(1)
            others = catalog_of(tmp_path).load_table(TABLE)
            monkeypatch.setattr(SqlCatalog, "commit_table", real)
            others.append(pa.table({"id": [5, 77], "text": ["foreign", "foreign"]}))
            monkeypatch.setattr(SqlCatalog, "commit_table", commit_table)
        return real(catalog, table, requirements, updates)

    monkeypatch.setattr(SqlCatalog, "commit_table", commit_table)
    life.epoch(1, pa.table({"id": [5], "text": ["ours"]}))
    assert as_dict(tmp_path) | {5: "ours", 77: "foreign"} == as_dict(tmp_path)
    assert len(as_dict(tmp_path)) == 11


@pytest.mark.parametrize("fault", ["refused", "lost answer"])
def test_an_unknown_outcome_of_an_upsert_is_looked_up(tmp_path, monkeypatch, fault, both):
    life = IcebergLife(tmp_path, **both)
    life.epoch(0, numbered(0))
    Faulty(monkeypatch, fault)
    life.epoch(1, pa.table({"id": [5, 11], "text": ["ours", "ours"]}))
    assert as_dict(tmp_path)[5] == "ours"
    assert len(as_dict(tmp_path)) == 11


BAD_CHANGES = {
    "no key": ({"id": [1]}, {"mode": "upsert"}, "needs the option 'keyColumns'"),
    "key missing": ({"x": [1]}, CHANGES, "'keyColumns' names 'id', but the columns are x"),
    "key null": (
        {"id": pa.array([7, None], pa.int64()), "text": ["a", "b" * 99]},
        CHANGES,
        rf"key column 'id' has nulls, in 1 of 2 rows; .* with text = '{'b' * 60}'\. .*filter such",
    ),
    "key nested": ({"id": [[1]]}, CHANGES, "cannot be a key"),
    "op unknown": (
        {"id": [1, 2, 3], "op": ["c", "t", "D "]},
        {**CHANGES, "opColumn": "op"},
        r"column 'op' has 't', 'D ', in 2 rows; the first is .* id = '2'\. .*Debezium's t",
    ),
    "op missing": ({"id": [1]}, {**CHANGES, "opColumn": "op"}, "'opColumn' names 'op'"),
    "order missing": ({"id": [1]}, {**CHANGES, "orderColumn": "at"}, "'orderColumn' names 'at'"),
    "not for append": ({"id": [1]}, {"keyColumns": "id"}, "require 'mode' = 'upsert'"),
}


@pytest.mark.parametrize(("rows", "given", "reason"), BAD_CHANGES.values(), ids=BAD_CHANGES)
def test_changes_that_cannot_be_are_refused(tmp_path, rows, given, reason):
    with pytest.raises((OptionError, SchemaError), match=reason):
        IcebergLife(tmp_path, **given).epoch(0, pa.table(rows))


def test_the_name_of_a_numbered_batch_may_be_any(tmp_path):
    job = {"path": TABLE, "warehouse": str(tmp_path), **numbered_job("batch-orders", 1)}
    for _ in range(2):
        run_job(IcebergDataSource, job, range(10))
        IcebergLife(tmp_path, keepSnapshots="1").epoch(1, numbered(1))
    assert ids(tmp_path) == list(range(20))


def test_a_job_whose_snapshot_may_have_come_and_gone_is_not_repeated(tmp_path, monkeypatch):
    other = IcebergLife(tmp_path, keepSnapshots="1")
    other.epoch(0, numbered(0))
    job = IcebergLife(tmp_path, query="batch-1", streaming=False)
    staged = job.stage(0, numbered(1))

    def lose_the_answer(commit):
        commit()
        other.epoch(1, numbered(2))  # expires the job's snapshot
        raise ConnectionResetError("the answer is lost")

    at_next_commit(monkeypatch, lose_the_answer)
    with pytest.raises(CommitUnknown, match="may or may not"):
        job.publish(0, staged, numbered(1))
    assert ids(tmp_path) == list(range(30))


@pytest.mark.long
@pytest.mark.parametrize("name", ["job#1", "a?b", "team/orders", "a b%2F", "größe"])
def test_names_of_batches_do_not_make_two_files_one(tmp_path, name):
    place = {"location": f"file://{tmp_path}/db/rows"}  # as in object stores, it is read as a URL
    for version, rows in enumerate((range(10), range(1))):
        given = {"path": TABLE, "warehouse": str(tmp_path), **place, **CHANGES}
        run_job(IcebergDataSource, {**given, **numbered_job(name, version)}, rows)
    assert ids(tmp_path) == list(range(10))


def test_a_location_whose_files_would_be_one_is_refused(tmp_path):
    with pytest.raises(OptionError, match="must not contain"):
        IcebergLife(tmp_path, location=f"file://{tmp_path}/db/rows#1").plan(numbered(0))


# --- what failed attempts leave


def vacuum(folder, *more):
    done = CliRunner().invoke(
        main,
        ["iceberg", "vacuum", TABLE, "--warehouse", str(folder), *more],
        catch_exceptions=False,
    )
    assert done.exit_code == 0, done.output
    return done.output


def test_vacuum_removes_what_no_snapshot_names_and_nothing_else(tmp_path):
    life = IcebergLife(tmp_path, query=STREAM, **CHANGES)
    life.epoch(0, numbered(0))
    life.epoch(1, numbered(0))  # rewrites what the older snapshot still names
    IcebergLife(tmp_path, query=STREAM, allowMixedKeys="true").stage(2, numbered(2))
    life.stage(2, numbered(2))
    before = data_files(tmp_path)
    assert vacuum(tmp_path).endswith("0 files, 0 bytes removed\n")  # they are young
    shown = vacuum(tmp_path, "--older-than", "0 s", "--dry-run")
    assert "2 files" in shown
    assert "would be removed" in shown
    assert data_files(tmp_path) == before
    vacuum(tmp_path, "--older-than", "0 s")
    assert len(data_files(tmp_path)) == len(before) - 1
    assert not list(tmp_path.glob("**/*.changes"))
    first = table_of(tmp_path).snapshots()[0].snapshot_id
    assert table_of(tmp_path).scan(snapshot_id=first).to_arrow().num_rows == 10
    assert ids(tmp_path) == list(range(10))
    assert vacuum(tmp_path, "--older-than", "0 s").startswith("0 files")


def test_vacuum_refuses_a_folder_that_another_table_uses(tmp_path):
    IcebergLife(tmp_path).epoch(0, numbered(0))
    catalog_of(tmp_path).rename_table(TABLE, "db.old")
    IcebergLife(tmp_path).epoch(1, numbered(1))  # a new table of the old name, in the same place
    vacuumed = ["iceberg", "vacuum", TABLE, "--warehouse", str(tmp_path), "--older-than", "0 s"]
    done = CliRunner().invoke(main, vacuumed)
    assert done.exit_code != 0
    assert "belongs to another table" in done.output
    assert ids(tmp_path, "db.old") == list(range(10))


def test_vacuum_removes_older_metadata_of_the_table_itself(tmp_path):
    compressed = {"tableProperty.write.metadata.compression-codec": "gzip"}
    life = IcebergLife(tmp_path, keepMetadataFiles="1", **compressed)
    for epoch in range(3):
        life.epoch(epoch, numbered(epoch))
    older = table_of(tmp_path).metadata_location.replace("00004-", "00009-")
    Path(older).write_bytes(Path(table_of(tmp_path).metadata_location).read_bytes())
    Path(older.replace("00009-", "00010-")).write_bytes(b"")  # its writer died
    assert "2 files" in vacuum(tmp_path, "--older-than", "0 s")
    assert ids(tmp_path) == list(range(30))
