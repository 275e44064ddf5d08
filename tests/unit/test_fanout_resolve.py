"""``krishiv-spark log resolve`` for a ``krishiv-fanout`` whose driver died behind an intent."""

import os
import uuid

import pyarrow as pa
import pytest
from click.testing import CliRunner
from fan_life import COLUMNS, Fan, ids_in, into_iceberg
from iceberg_tables import table_in
from numbered_jobs import make_job_options, run_job
from sink_life import rows
from tables import look

from krishiv_spark.cli import main
from krishiv_spark.errors import CommitUnknown
from krishiv_spark.formats import FanoutDataSource
from krishiv_spark.iceberg.property_keys import EPOCH_PREFIX
from krishiv_spark.lifecycle.plans import PlanningFailed
from krishiv_spark.offsets import open_log
from krishiv_spark.sinks.base import OutputMode
from krishiv_spark.sinks.fanout.participant import FanoutParticipant


def count(place):
    return look(place)[0]


def test_a_route_that_is_not_given_is_not_taken_for_finished(tmp_path, monkeypatch):
    fan = Fan(tmp_path, format="krishiv-parquet", path=str(tmp_path / "b"))
    fan.run(0, 0, 10)
    fan.die_behind_the_intent(monkeypatch, 1, 10, 10)
    fan.resolve(routes="a", fails="b: Parquet table")
    fan.resolve()
    fan.run(1, 10, 10)
    fan.run(2, 20, 10)
    assert (count(tmp_path / "a"), count(tmp_path / "b")) == (30, 30)


def test_an_epoch_that_replaces_a_table_replaces_it_whoever_finishes_it(tmp_path, monkeypatch):
    """The command has no output mode: the intent says what the epoch does."""
    fan = Fan(tmp_path, OutputMode.REPLACE, **into_iceberg(tmp_path))
    fan.run(0, 0, 10)
    fan.die_behind_the_intent(monkeypatch, 1, 5, 20)
    fan.resolve()
    fan.run(1, 5, 20)
    assert (count(tmp_path / "a"), ids_in(tmp_path)) == (20, list(range(5, 25)))


@pytest.mark.long
@pytest.mark.parametrize("without", [(), ("mode", "keyColumns")])
def test_changes_of_rows_are_made_whoever_finishes_their_epoch(tmp_path, monkeypatch, without):
    fan = Fan(tmp_path, **into_iceberg(tmp_path, mode="upsert", keyColumns="id"))
    fan.run(0, 0, 10)
    fan.die_behind_the_intent(monkeypatch, 1, 5, 10)
    fan.resolve(without=without)
    fan.run(1, 5, 10)
    assert ids_in(tmp_path) == list(range(15))


def test_staged_changes_stay_for_their_intent_and_what_its_attempt_wrote_goes(
    tmp_path, monkeypatch
):
    warehouse = tmp_path / "w"
    given = {"mode": "upsert", "keyColumns": "id", "orderColumn": "id"}
    fan = Fan(tmp_path, format="krishiv-iceberg", warehouse=str(warehouse), table="db.t", **given)
    fan.run(0, 0, 5)
    before = {*warehouse.rglob("*.parquet")}

    def fail(*_, **__):
        raise OSError("the store is away")

    with monkeypatch.context() as broken:
        broken.setattr("krishiv_spark.sinks.iceberg.committer.EpochCommit._stage_snapshot", fail)
        with pytest.raises(CommitUnknown, match="its intent is logged"):
            fan.run(1, 3, 5)
    assert len([*warehouse.rglob("*.changes")]) == 1
    assert {*warehouse.rglob("*.parquet")} == before
    fan.plan()  # the next driver finishes it
    assert [*warehouse.rglob("*.changes")] == []
    assert sorted(table_in(warehouse).scan().to_arrow()["id"].to_pylist()) == list(range(8))


def vacuum(place, *words):
    """As a timer runs it; what was left is older than any guard age."""
    for path in (place / "w").rglob("*.*"):
        os.utime(path, (0, 0))
    where = ["iceberg", "vacuum", "db.t", "--warehouse", str(place / "w")]
    done = CliRunner().invoke(main, [*where, *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize(
    ("query", "options"),
    [
        (str(uuid.uuid4()), {}),
        (str(uuid.uuid4()), {"mode": "upsert", "keyColumns": "id"}),
        ("orders", {}),  # the option 'queryId'
    ],
    ids=["appends", "upserts", "query with a name"],
)
def test_a_vacuum_keeps_what_the_intent_of_a_query_names_that_is_down(
    tmp_path, monkeypatch, query, options
):
    fan = Fan(tmp_path, query=query, **into_iceberg(tmp_path, **options))
    fan.run(0, 0, 10)
    fan.die_behind_the_intent(monkeypatch, 1, 10, 10)
    assert "files kept of epochs that a krishiv-fanout query" in vacuum(tmp_path)
    open_log.cache_clear()
    fan.run(1, 10, 10)
    assert (count(tmp_path / "a"), ids_in(tmp_path)) == (20, list(range(20)))
    assert "files kept" not in vacuum(tmp_path)
    assert ids_in(tmp_path) == list(range(20))


def test_a_vacuum_keeps_what_the_intent_of_a_numbered_batch_names(tmp_path, monkeypatch):
    routes = {f"route.b.{key}": text for key, text in into_iceberg(tmp_path).items()}
    given = {**routes, "epochLog": str(tmp_path / "log")}

    def run(number):
        open_log.cache_clear()
        job = make_job_options("orders", number, **given)
        columns = pa.schema([("b", pa.struct([("id", pa.int64())]))])
        ids = range(10 * number, 10 * number + 10)
        run_job(FanoutDataSource, job, ids, schema=columns, row=lambda n: ((n,),))

    run(0)
    with monkeypatch.context() as dying:
        dying.setattr(FanoutParticipant, "finish", _die)
        with pytest.raises(KeyboardInterrupt):
            run(1)
    assert "files kept of epochs that a krishiv-fanout query" in vacuum(tmp_path)
    run(1)
    assert ids_in(tmp_path) == list(range(20))
    assert "files kept" not in vacuum(tmp_path)
    assert ids_in(tmp_path) == list(range(20))


def _die(*_):
    raise KeyboardInterrupt


def test_a_vacuum_keeps_the_files_of_a_route_whose_epochs_a_tag_records(tmp_path, monkeypatch):
    """Of a catalog that keeps no properties."""
    fan = Fan(tmp_path, query=str(uuid.uuid4()), **into_iceberg(tmp_path))
    fan.run(0, 0, 10)
    with table_in(tmp_path / "w").transaction() as change:
        (name,) = (key for key in change.table_metadata.properties if key.startswith(EPOCH_PREFIX))
        change.remove_properties(name)
    table = table_in(tmp_path / "w")
    table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, name).commit()
    fan.die_behind_the_intent(monkeypatch, 1, 10, 10)
    assert "files kept of epochs that a krishiv-fanout query" in vacuum(tmp_path)
    open_log.cache_clear()
    fan.run(1, 10, 10)
    assert ids_in(tmp_path) == list(range(20))


@pytest.mark.parametrize("options", [{}, {"mode": "upsert", "keyColumns": "id"}])
def test_an_intent_whose_files_are_missing_is_not_committed(tmp_path, monkeypatch, options):
    """No reader could read the table after that."""
    fan = Fan(tmp_path, query="orders", **into_iceberg(tmp_path, **options))
    fan.run(0, 0, 10)
    before = {path: path.read_bytes() for path in (tmp_path / "w").rglob("*.*")}
    fan.die_behind_the_intent(monkeypatch, 1, 10, 10)
    staged = [
        path
        for path in (tmp_path / "w").rglob("*.*")
        if path not in before and path.suffix in {".parquet", ".changes"}
    ]
    content = staged[0].read_bytes()
    staged[0].unlink()
    open_log.cache_clear()
    with pytest.raises(PlanningFailed, match=r"CommitUnknown: .*, which the intent names"):
        fan.plan()
    assert table_in(tmp_path / "w").current_snapshot().summary["spark.sql.streaming.epochId"] == "0"
    assert ids_in(tmp_path) == list(range(10))
    staged[0].write_bytes(content)
    open_log.cache_clear()
    fan.run(1, 10, 10)
    assert ids_in(tmp_path) == list(range(20))


def test_what_a_lost_attempt_staged_goes_once_its_epoch_is_there(tmp_path):
    fan = Fan(tmp_path, query=str(uuid.uuid4()), **into_iceberg(tmp_path))
    fan.run(0, 0, 10)
    (fan.checkpoint / "offsets/1").write_text("v1\n{}\n20")
    fan.plan()
    batch = rows(10, 10).to_struct_array()
    fan.task(1, 0, pa.record_batch([batch, batch], schema=COLUMNS))
    assert vacuum(tmp_path, "--dry-run").startswith("0 files")
    assert "1 files, " in vacuum(tmp_path, "--dry-run", "--unfinished")
    fan.run(1, 10, 10)
    assert "1 files, " in vacuum(tmp_path)
    assert ids_in(tmp_path) == list(range(20))
