"""A query of ``krishiv-fanout`` without Spark, into targets below a folder."""

import pickle

import pyarrow as pa
import pytest
from click.testing import CliRunner
from iceberg_tables import table_in
from sink_life import SCHEMA, Life, rows

from krishiv_spark.cli import main
from krishiv_spark.lifecycle.epoch_write import StreamWrite
from krishiv_spark.offsets import open_log
from krishiv_spark.sinks.base import OutputMode
from krishiv_spark.sinks.fanout.participant import FanoutParticipant
from krishiv_spark.sinks.fanout.writer import FanoutWriter
from krishiv_spark.spark.checkpoint import SparkCheckpoint

COLUMNS = pa.schema([(route, pa.struct(list(SCHEMA))) for route in "ab"])


class Fan(Life):
    """A query whose rows go to both routes, into targets below a folder."""

    def __init__(self, place, output=OutputMode.APPEND, query="q1", **route_b):
        self.place, self.checkpoint = place, place / "checkpoint"
        for name in ("offsets", "commits"):
            (self.checkpoint / name).mkdir(parents=True, exist_ok=True)
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
        """Run the steps of Spark for an epoch."""
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


def into_iceberg(place, **options):
    return {"format": "krishiv-iceberg", "warehouse": str(place / "w"), "table": "db.t", **options}


def ids_in(place):
    return sorted(table_in(place / "w").scan().to_arrow()["id"].to_pylist())
