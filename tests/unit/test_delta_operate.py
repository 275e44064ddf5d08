"""Commands of operators for queries that write to Delta: `status`, `log resolve`, dead letters."""

import json
import os

import pytest
from click.testing import CliRunner
from delta_life import DeltaLife, ids, numbered, rows_of
from deltalake import DeltaTable
from fan_life import Fan
from letter_life import LetterLife, mixed
from spark_starts import make_checkpoint
from tables import look

from krishiv_spark.cli import main
from krishiv_spark.lifecycle.plans import PlanningFailed
from krishiv_spark.offsets import open_log
from krishiv_spark.sinks.base import OutputMode
from krishiv_spark.spark.checkpoint import SparkCheckpoint

pytestmark = pytest.mark.own_process

QUERY = "0f-1"


def run(*words):
    return CliRunner().invoke(main, [str(word) for word in words]).output


def make_query(folder, *, over):
    """Return a checkpoint with epochs 0 and 1, and its target, a table with epoch 0."""
    checkpoint, table = make_checkpoint(folder / "checkpoint", 1, over=over), folder / "table"
    life = DeltaLife(table, query=QUERY)
    life.epoch(0, numbered(0))
    SparkCheckpoint(str(checkpoint)).record_target(life.writer(numbered(0)).describe_target())
    return checkpoint, table


# --- status


def test_the_status_has_the_epoch_of_the_table(tmp_path):
    checkpoint, table = make_query(tmp_path, over=0)
    said = run("status", checkpoint, "-o", f"path={table}")
    assert f"target      krishiv-delta {table}: committed: epochs up to 0\n" in said
    assert "runs epoch 1 again, with the same rows of its sources\n" in said
    DeltaLife(table, query=QUERY).epoch(1, numbered(10))
    said = run("status", checkpoint, "-o", f"path={table}")
    assert "completes epoch 1, which the table has committed; its rows are not staged" in said
    found = json.loads(run("status", checkpoint, "-o", f"path={table}", "--json"))
    assert (found["table"]["held"], found["table"]["format"]) == (1, "krishiv-delta")
    assert "-o path=…" in run("status", checkpoint)
    assert "epochs up to 1" in run("watch", checkpoint, "--once", "-o", f"path={table}")


def test_the_status_refuses_the_options_of_another_table(tmp_path):
    checkpoint, table = make_query(tmp_path, over=0)
    DeltaLife(tmp_path / "other", query=QUERY).epoch(7, numbered(0))
    said = run("status", checkpoint, "-o", f"path={tmp_path}/other")
    assert f"committed: not known: the query writes to krishiv-delta {table} (Delta" in said
    assert "epochs up to 7" not in said


def test_the_status_of_a_table_that_cannot_be_read_has_the_reason(tmp_path):
    checkpoint, table = make_query(tmp_path, over=0)
    (table / "_delta_log" / f"{1:020}.json").write_text("{")
    said = run("status", checkpoint, "-o", f"path={table}")
    assert "committed: not known: krishiv-delta: cannot read" in said
    assert "unless its target has the epoch already" in said


def test_a_position_of_deltas_own_source_is_refused_with_two_ways_on(tmp_path):
    checkpoint, _ = make_query(tmp_path, over=1)
    said = run("checkpoint", "import", "--from", "delta", checkpoint, "--to", tmp_path / "new")
    assert "keep that source" in said
    assert "'startingVersion'" in said


# --- a route of a fan-out whose driver died after the intent


def make_fan(place, output=OutputMode.APPEND):
    return Fan(place, output, format="krishiv-delta", path=str(place / "t"), commitTimeout="1 s")


def test_the_command_finishes_an_epoch_of_both_targets(tmp_path, monkeypatch):
    fan = make_fan(tmp_path)
    fan.run(0, 0, 10)
    fan.die_behind_the_intent(monkeypatch, 1, 10, 10)
    assert ids(tmp_path / "t") == [*range(10)]
    fan.resolve(routes="a", fails="b: Delta table")
    fan.resolve()
    fan.run(1, 10, 10)
    fan.run(2, 20, 10)
    assert (look(tmp_path / "a")[0], ids(tmp_path / "t")) == (30, [*range(30)])
    assert not [*(tmp_path / "t" / "_krishiv").iterdir()]


def test_an_epoch_that_replaces_a_table_replaces_it_whoever_finishes_it(tmp_path, monkeypatch):
    fan = make_fan(tmp_path, OutputMode.REPLACE)
    fan.run(0, 0, 10)
    fan.die_behind_the_intent(monkeypatch, 1, 5, 20)
    fan.resolve()
    fan.run(1, 5, 20)
    assert (look(tmp_path / "a")[0], ids(tmp_path / "t")) == (20, [*range(5, 25)])


def delete_staged(table):
    """Delete the files that no version names, as VACUUM with a retention of 0 hours."""
    DeltaTable(str(table)).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)


def test_an_intent_whose_files_vacuum_has_deleted_is_decided_by_the_operator(tmp_path, monkeypatch):
    fan = make_fan(tmp_path)
    fan.run(0, 0, 10)
    fan.die_behind_the_intent(monkeypatch, 1, 10, 10)
    assert [*(tmp_path / "t" / "_krishiv").iterdir()]
    delete_staged(tmp_path / "t")
    open_log.cache_clear()
    with pytest.raises(PlanningFailed, match="VACUUM ran with a retention"):
        fan.run(1, 10, 10)
    assert ids(tmp_path / "t") == [*range(10)]
    fan.resolve(fails="1 staged files")
    given = [word for key, text in fan.routes.items() for word in ("-o", f"{key}={text}")]
    where = ["--format", "fanout", "--checkpoint", fan.checkpoint]
    assert "done" in run("log", "resolve", "--assume", "aborted", *where, *given)
    open_log.cache_clear()
    fan.run(1, 10, 10)
    fan.run(2, 20, 10)
    assert (look(tmp_path / "a")[:2], ids(tmp_path / "t")) == ((30, 30), [*range(30)])


# --- dead letters


def test_good_rows_and_dead_letters_can_both_be_tables_of_delta(tmp_path):
    given = {"path": str(tmp_path / "good"), "deadLetters.format": "krishiv-delta"}
    given |= {"deadLetters.path": str(tmp_path / "dead"), "maxBadRecords": "50%"}
    life = LetterLife(tmp_path, "krishiv-delta", **given)
    life.run(0, mixed(0, 10, bad={3, 4}))
    life.run(1, mixed(10, 10), is_logged=False)
    life.run(1, mixed(10, 10))
    assert ids(tmp_path / "good") == [n for n in range(20) if n not in {3, 4}]
    dead = rows_of(tmp_path / "dead").sort_by("offset")
    assert dead["value"].to_pylist() == [b"value 3", b"value 4"]
    assert dead["rule"].to_pylist() == ["small", None]
    assert os.path.isdir(tmp_path / "dead" / "_delta_log")
