"""``krishiv-spark log resolve`` for a ``krishiv-fanout`` whose driver died behind an intent."""

import os
import pickle
import uuid

import pyarrow as pa
import pytest
from click.testing import CliRunner
from iceberg_tables import table_in
from sink_life import SCHEMA, Life, rows
from tables import look

from krishiv_spark.checkpoint import SparkCheckpoint
from krishiv_spark.cli import main
from krishiv_spark.errors import CommitUnknown
from krishiv_spark.lifecycle.streams import StreamWrite
from krishiv_spark.offsets import open_log
from krishiv_spark.sinks.base import OutputMode
from krishiv_spark.sinks.fanout.participant import FanoutParticipant
from krishiv_spark.sinks.fanout.writer import FanoutWriter

COLUMNS = pa.schema([(route, pa.struct(list(SCHEMA))) for route in "ab"])


class Fan(Life):
    """A query whose rows go to both routes, into targets below a folder."""

    def __init__(self, place, output=OutputMode.APPEND, query="q1", **route_b):
        self.place, self.checkpoint = place, place / "checkpoint"
        for name in ("offsets", "commits"):
            (self.checkpoint / name).mkdir(parents=True)
        (self.checkpoint / "metadata").write_text(f'{{"id": "{query}"}}')
        a = {"format": "krishiv-parquet", "path": str(place / "a")}
        routes = {f"route.{name}.{key}": text for name, of in (("a", a), ("b", route_b))
                  for key, text in of.items()}  # fmt: skip
        super().__init__(FanoutWriter, {}, query, output)
        self.routes = routes
        given = {**routes, "checkpointLocation": str(self.checkpoint)}
        options = FanoutWriter.options_type.parse(given, "krishiv-fanout")
        self._make = lambda: FanoutWriter(options, COLUMNS, output)

    def plan(self):
        write = StreamWrite(self._make(), self._query, SparkCheckpoint(str(self.checkpoint)))
        self._planned = pickle.loads(pickle.dumps(write))

    def run(self, number, first, count):
        """What Spark does for an epoch."""
        (self.checkpoint / "offsets" / str(number)).write_text(f"v1\n{{}}\n{first + count}")
        batch = rows(first, count).to_struct_array()
        self.epoch(number, pa.record_batch([batch, batch], schema=COLUMNS))
        (self.checkpoint / "commits" / str(number)).write_text("v1\n{}")

    def die_behind_the_intent(self, monkeypatch, number, first, count):
        def die(*_):
            raise KeyboardInterrupt

        with monkeypatch.context() as dying:
            dying.setattr(FanoutParticipant, "finish", die)
            with pytest.raises(KeyboardInterrupt):
                self.run(number, first, count)

    def resolve(self, fails=None, routes="ab", without=()):
        """The command, as often as somebody who does not trust it says it: a process each time."""
        named = tuple(f"route.{name}." for name in routes)
        left_out = {f"route.b.{key}" for key in without}
        given = [f"{key}={text}" for key, text in self.routes.items()
                 if key.startswith(named) and key not in left_out]  # fmt: skip
        where = ["--format", "fanout", "--checkpoint", str(self.checkpoint)]
        pairs = [word for text in given for word in ("-o", text)]
        for _ in range(2):
            open_log.cache_clear()
            result = CliRunner().invoke(main, ["log", "resolve", *where, *pairs])
            assert (result.exit_code != 0) == (fails is not None), result.output
            assert (fails or "done") in result.output
        open_log.cache_clear()


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


def iceberg(place, **options):
    return {"format": "krishiv-iceberg", "warehouse": str(place / "w"), "table": "db.t", **options}


def ids_in(place):
    return sorted(table_in(place / "w").scan().to_arrow()["id"].to_pylist())


def test_an_epoch_that_replaces_a_table_replaces_it_whoever_finishes_it(tmp_path, monkeypatch):
    """The command has no output mode: the intent says what the epoch does."""
    fan = Fan(tmp_path, OutputMode.REPLACE, **iceberg(tmp_path))
    fan.run(0, 0, 10)
    fan.die_behind_the_intent(monkeypatch, 1, 5, 20)
    fan.resolve()
    fan.run(1, 5, 20)
    assert (count(tmp_path / "a"), ids_in(tmp_path)) == (20, list(range(5, 25)))


@pytest.mark.parametrize("without", [(), ("mode", "keyColumns")])
def test_changes_of_rows_are_made_whoever_finishes_their_epoch(tmp_path, monkeypatch, without):
    fan = Fan(tmp_path, **iceberg(tmp_path, mode="upsert", keyColumns="id"))
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
        broken.setattr("krishiv_spark.sinks.iceberg.upserts.stage_snapshot", fail)
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


@pytest.mark.parametrize("options", [{}, {"mode": "upsert", "keyColumns": "id"}])
def test_a_vacuum_keeps_what_the_intent_of_a_query_names_that_is_down(
    tmp_path, monkeypatch, options
):
    query = str(uuid.uuid4())
    fan = Fan(tmp_path, query=query, **iceberg(tmp_path, **options))
    fan.run(0, 0, 10)
    fan.die_behind_the_intent(monkeypatch, 1, 10, 10)
    assert "files left of epochs that a query of krishiv-fanout" in vacuum(tmp_path)
    open_log.cache_clear()
    fan.run(1, 10, 10)
    assert (count(tmp_path / "a"), ids_in(tmp_path)) == (20, list(range(20)))
    assert "files left" not in vacuum(tmp_path)
    assert ids_in(tmp_path) == list(range(20))


def test_what_a_lost_attempt_staged_goes_once_its_epoch_is_there(tmp_path):
    fan = Fan(tmp_path, query=str(uuid.uuid4()), **iceberg(tmp_path))
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
