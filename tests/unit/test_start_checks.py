"""The reasons to refuse a start because of its checkpoint, with real sinks and Spark's plans."""

import json
import os
import pickle
import shutil

import pyarrow as pa
import pytest
from click.testing import CliRunner
from iceberg_life import catalog_of, ids
from sink_life import SCHEMA, Life, rows
from tables import look

from krishiv_spark.cli import main
from krishiv_spark.errors import CheckpointMismatch, LogError
from krishiv_spark.lifecycle import resumption
from krishiv_spark.lifecycle.epoch_write import StreamWrite
from krishiv_spark.offsets import open_log
from krishiv_spark.runtime.caches import LruCache
from krishiv_spark.sinks.base import OutputMode
from krishiv_spark.sinks.fanout.writer import FanoutWriter
from krishiv_spark.sinks.iceberg.writer import IcebergWriter
from krishiv_spark.sinks.memory import MemoryWriter
from krishiv_spark.sinks.parquet.writer import ParquetWriter
from krishiv_spark.spark.checkpoint import SparkCheckpoint

KINDS = {"parquet": ParquetWriter, "iceberg": IcebergWriter, "memory": MemoryWriter}


class Stream(Life):
    """A query with a checkpoint; each is as one of a new process."""

    def __init__(self, place, kind="parquet", checkpoint="ck", **options):
        self.checkpoint = place / checkpoint
        for name in ("offsets", "commits"):
            (self.checkpoint / name).mkdir(parents=True, exist_ok=True)
        if not (self.checkpoint / "krishiv").exists():
            (self.checkpoint / "metadata").write_text('{"id": "q1"}')
        given = {"checkpointLocation": str(self.checkpoint), **options}
        super().__init__(KINDS[kind], given, "q1", OutputMode.APPEND)
        resumption._described = LruCache(64)
        open_log.cache_clear()

    def write(self):
        return StreamWrite(self._make(), checkpoint=SparkCheckpoint(str(self.checkpoint)))

    def check(self, **given):
        self.write().check_start(**given)

    def plan(self):
        self._planned = pickle.loads(pickle.dumps(self.write()))

    def run(self, number, first):
        """Run the steps of Spark for an epoch."""
        (self.checkpoint / "offsets" / str(number)).write_text(f"v1\n{{}}\n{first + 10}")
        self.epoch(number, rows(first, 10))
        (self.checkpoint / "commits" / str(number)).write_text("v1\n{}")

    def record(self):
        return json.loads((self.checkpoint / "krishiv" / "target.json").read_text())


def parquet(place, table="t", **given):
    return Stream(place, "parquet", path=str(place / table), **given)


def iceberg(place, table="db.t", warehouse="wh", **given):
    return Stream(place, "iceberg", warehouse=str(place / warehouse), table=table, **given)


MAKES = [parquet, iceberg]


def files(place):
    return {path: path.stat().st_mtime_ns for path in place.rglob("*") if path.is_file()}


# --- the target


@pytest.mark.parametrize("make", MAKES)
def test_a_start_into_another_target_is_refused_and_changes_nothing(tmp_path, make):
    make(tmp_path).check()
    make(tmp_path).run(0, 0)
    make(tmp_path).check()
    before = files(tmp_path)
    with pytest.raises(CheckpointMismatch, match=r"has written to .*t .*, and would now write to"):
        make(tmp_path, "other").check()
    assert files(tmp_path) == before


def test_another_table_of_iceberg_goes_on_with_a_warning_if_no_start_asks(tmp_path, caplog):
    """As with Spark's own start(); it is the target from then on."""
    iceberg(tmp_path).run(0, 0)
    with pytest.raises(CheckpointMismatch):
        iceberg(tmp_path, "db.z").check()
    iceberg(tmp_path, "db.z").check(new_target=True)
    iceberg(tmp_path, "db.z").run(1, 10)
    assert "has written to krishiv-iceberg db.t" in caplog.text
    iceberg(tmp_path, "db.z").check()
    assert ids(tmp_path / "wh", "db.z") == list(range(10, 20))
    with pytest.raises(CheckpointMismatch, match=r"written to krishiv-iceberg db\.z"):
        iceberg(tmp_path).check()


def test_a_table_that_was_dropped_or_made_anew_is_another_target(tmp_path):
    iceberg(tmp_path).run(0, 0)
    catalog_of(tmp_path / "wh").drop_table("db.t")
    with pytest.raises(CheckpointMismatch, match="which is not there, or is new"):
        iceberg(tmp_path).check()
    iceberg(tmp_path, checkpoint="other").run(0, 0)
    with pytest.raises(CheckpointMismatch, match="which is another target"):
        iceberg(tmp_path).check()


@pytest.mark.parametrize("how", ["moved", "linked", "copied", "relative"])
def test_a_folder_under_another_path_is_the_same_target(tmp_path, monkeypatch, how):
    parquet(tmp_path).run(0, 0)
    if how == "moved":
        os.rename(tmp_path / "t", tmp_path / "moved")
    elif how == "linked":
        os.symlink(tmp_path / "t", tmp_path / "linked")
    elif how == "copied":
        shutil.copytree(tmp_path / "t", tmp_path / "copied")
    else:
        monkeypatch.chdir(tmp_path)
    there = Stream(tmp_path, path="t") if how == "relative" else parquet(tmp_path, how)
    there.check()
    there.run(1, 10)
    assert look(tmp_path / ("t" if how == "relative" else how))[:2] == (20, 20)


def test_a_checkpoint_without_a_record_goes_on_and_gets_one(tmp_path):
    iceberg(tmp_path).run(0, 0)
    (tmp_path / "ck/krishiv/target.json").unlink()
    iceberg(tmp_path).check()
    iceberg(tmp_path).run(1, 10)
    assert iceberg(tmp_path).record()["target"] == "db.t"


def test_a_log_names_the_target_where_no_record_does(tmp_path):
    """As of an earlier version, with 'epochLog' elsewhere."""
    log = {"epochLog": str(tmp_path / "log")}
    parquet(tmp_path, **log).run(0, 0)
    parquet(tmp_path, "z", checkpoint="of-z").run(0, 0)
    (tmp_path / "ck/krishiv/target.json").unlink()
    with pytest.raises(
        LogError, match=r"were written to Parquet table .* would now be written to Parquet table"
    ):
        parquet(tmp_path, "z", **log).check()


def test_results_in_memory_are_known_by_their_name(tmp_path):
    Stream(tmp_path, "memory", name="a").run(0, 0)
    Stream(tmp_path, "memory", name="a", queryName="renamed").check()
    with pytest.raises(CheckpointMismatch, match="krishiv-memory b, which is another target"):
        Stream(tmp_path, "memory", name="b").check()


def test_a_new_name_of_a_query_in_memory_is_no_other_target(tmp_path):
    Stream(tmp_path, "memory", queryName="a").run(0, 0)
    Stream(tmp_path, "memory", queryName="b").check()


def test_a_fan_out_is_all_of_its_routes(tmp_path):
    def described(**paths):
        routes = {f"route.{name}.format": "krishiv-parquet" for name in paths}
        routes |= {f"route.{name}.path": str(tmp_path / path) for name, path in paths.items()}
        options = FanoutWriter.options_type.parse(routes, "krishiv-fanout")
        return FanoutWriter(options, SCHEMA, OutputMode.APPEND).describe_target()

    for table in ("x", "y", "z"):
        parquet(tmp_path, table, checkpoint=f"of-{table}").run(0, 0)
    before = described(a="x", b="y")
    os.rename(tmp_path / "x", tmp_path / "moved")
    assert before.is_same(described(a="moved", b="y"))
    assert not before.is_same(described(a="moved", b="z"))
    assert not before.is_same(described(a="moved"))


def test_log_adopt_accepts_another_target(tmp_path):
    parquet(tmp_path).run(0, 0)
    words = ["log", "adopt", "--format", "parquet", "--checkpoint", str(tmp_path / "ck")]
    done = CliRunner().invoke(main, [*words, "-o", f"path={tmp_path}/new"])
    assert done.exit_code == 0, done.output
    parquet(tmp_path, "new").check()
    parquet(tmp_path, "new").run(1, 10)
    assert look(tmp_path / "new")[:2] == (10, 10)


def test_a_copy_of_a_checkpoint_may_write_elsewhere(tmp_path):
    parquet(tmp_path).run(0, 0)
    words = ["checkpoint", "copy", str(tmp_path / "ck"), str(tmp_path / "copy")]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    assert SparkCheckpoint(str(tmp_path / "copy")).recorded_target() is None


def test_status_shows_the_target(tmp_path):
    iceberg(tmp_path).run(0, 0)
    done = CliRunner().invoke(main, ["status", str(tmp_path / "ck")])
    assert "writes to   krishiv-iceberg db.t (Iceberg table " in done.output
    done = CliRunner().invoke(main, ["status", str(tmp_path / "ck"), "--json"])
    assert json.loads(done.output)["targets"][""].startswith("krishiv-iceberg db.t (")


# --- a checkpoint whose folder is renamed, as for an output of a job with another name


class Fan(Stream):
    """Rows for a table of Parquet, with a pointer to the log in the checkpoint, and for Iceberg."""

    def __init__(self, place, checkpoint):
        super().__init__(place, checkpoint=checkpoint, path="unused")
        routes = {"a.format": "krishiv-parquet", "a.path": str(place / "a")}
        routes |= {"b.format": "krishiv-iceberg", "b.warehouse": str(place / "wh")}
        routes |= {"b.table": "db.b"}
        given = {f"route.{key}": text for key, text in routes.items()}
        given["checkpointLocation"] = str(self.checkpoint)
        options = FanoutWriter.options_type.parse(given, "krishiv-fanout")
        columns = pa.schema([(route, pa.struct(list(SCHEMA))) for route in "ab"])
        self._make = lambda: FanoutWriter(options, columns, OutputMode.APPEND)
        self._columns = columns

    def epoch(self, number, batch):
        found = batch.to_struct_array()
        super().epoch(number, pa.record_batch([found, found], schema=self._columns))


@pytest.mark.parametrize("make", ["parquet", "iceberg", "fan"])
def test_a_query_goes_on_in_its_renamed_checkpoint(tmp_path, make):
    def query(name):
        if make == "fan":
            return Fan(tmp_path, name)
        return {"parquet": parquet, "iceberg": iceberg}[make](tmp_path, checkpoint=name)

    query("orders").run(0, 0)
    os.rename(tmp_path / "orders", tmp_path / "order")
    query("order").check()
    query("order").run(1, 10)
    query("order").check()
    if make != "iceberg":
        assert look(tmp_path / ("a" if make == "fan" else "t"))[:2] == (20, 20)
    if make != "parquet":
        assert ids(tmp_path / "wh", "db.b" if make == "fan" else "db.t") == list(range(20))
    assert "orders" not in os.listdir(tmp_path)


# --- checkpoint, log and table


@pytest.mark.parametrize("make", MAKES)
def test_a_checkpoint_that_is_older_than_the_target_is_refused(tmp_path, make):
    make(tmp_path).run(0, 0)
    shutil.copytree(tmp_path / "ck", tmp_path / "old")
    make(tmp_path).run(1, 10)
    make(tmp_path).check()
    with pytest.raises(CheckpointMismatch, match="rolled back or restored from an older copy"):
        make(tmp_path, checkpoint="old").check()


def test_an_epoch_that_was_planned_and_not_written_is_no_reason(tmp_path):
    for make in MAKES:
        place = tmp_path / make.__name__
        make(place).run(0, 0)
        (place / "ck/offsets/1").write_text("v1\n{}\n20")
        make(place).check()
        make(place).run(1, 10)
        make(place).check()


def test_a_missing_log_is_refused(tmp_path):
    log = {"epochLog": str(tmp_path / "log")}
    parquet(tmp_path, **log).run(0, 0)
    shutil.rmtree(tmp_path / "log")
    with pytest.raises(LogError, match="is empty: the log was removed"):
        parquet(tmp_path, **log).check()


def test_a_lost_id_is_refused(tmp_path):
    parquet(tmp_path).run(0, 0)
    (tmp_path / "ck/metadata").unlink()
    with pytest.raises(CheckpointMismatch, match="its file 'metadata' is lost"):
        parquet(tmp_path).check()


def test_the_target_is_described_once_in_a_process(tmp_path, monkeypatch):
    stream, asked = iceberg(tmp_path), []
    describe = IcebergWriter.describe_target
    monkeypatch.setattr(
        IcebergWriter, "describe_target", lambda self: asked.append(1) or describe(self)
    )
    for number in range(3):
        stream.run(number, 10 * number)
    assert len(asked) == 1
