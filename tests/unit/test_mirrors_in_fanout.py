"""Several mirrors in one query: each epoch is in all tables, or in none."""

import json
import pickle

import pyarrow as pa
import pytest
from click.testing import CliRunner
from database_life import RECORDS
from debezium_events import wrap, write_event
from iceberg_life import table_of
from sink_life import Life

from krishiv_spark.cli import main
from krishiv_spark.errors import CommitUnknown
from krishiv_spark.lifecycle.epoch_write import StreamWrite
from krishiv_spark.lifecycle.plans import PlanningFailed
from krishiv_spark.offsets import open_log
from krishiv_spark.sinks.base import OutputMode
from krishiv_spark.sinks.fanout.writer import FanoutWriter
from krishiv_spark.sinks.iceberg.committer import IcebergCommitter
from krishiv_spark.spark.checkpoint import SparkCheckpoint

TABLES = ("customers", "orders")


class Mirrors(Life):
    """A query with a mirror for each topic, whose table has the columns of the events."""

    def __init__(self, place, tables=TABLES, first=0):
        self.place, self.checkpoint, self.next = place, place / "checkpoint", first
        self.tables = tables
        for name in ("offsets", "commits"):
            (self.checkpoint / name).mkdir(parents=True, exist_ok=True)
        (self.checkpoint / "metadata").write_text('{"id": "q1"}')
        self.given = given = {"checkpointLocation": str(self.checkpoint)}
        for table in tables:
            of = {
                "format": "krishiv-iceberg",
                "warehouse": str(place / "warehouse"),
                "table": f"shop.{table}",
                "mode": "upsert",
                "changeFormat": "debezium",
                "keyColumns": "id",
                "schemaEvolution": "add",
            }
            given |= {f"route.{table}.{name}": text for name, text in of.items()}
        options = FanoutWriter.options_type.parse(given, "krishiv-fanout")
        columns = pa.schema([(table, pa.struct(list(RECORDS))) for table in tables])
        super().__init__(FanoutWriter, {}, "q1", OutputMode.APPEND)
        self._columns = columns
        self._make = lambda: FanoutWriter(options, columns, OutputMode.APPEND)

    def plan(self):
        open_log.cache_clear()
        write = StreamWrite(self._make(), self._query, SparkCheckpoint(str(self.checkpoint)))
        self._planned = pickle.loads(pickle.dumps(write))

    def run(self, **events):
        """Run an epoch with some events by table; it is repeated if it has failed."""
        number = self.next
        (self.checkpoint / "offsets" / str(number)).write_text(f"v1\n{{}}\n{number}")
        count = sum(map(len, events.values()))
        routed = dict.fromkeys(self.tables, None)
        rows = [
            {**routed, table: dict(zip(RECORDS.names, (None, event, table, 0, n), strict=True))}
            for table, some in events.items()
            for n, event in enumerate(some, 1000 * number)
        ]
        assert len(rows) == count
        self.epoch(number, pa.RecordBatch.from_pylist(rows, self._columns))
        (self.checkpoint / "commits" / str(number)).write_text("v1\n{}")
        self.next += 1

    def rows(self, table):
        found = table_of(self.place / "warehouse", f"shop.{table}").scan().to_arrow().to_pylist()
        return sorted(tuple(row.values()) for row in found)


def event(row, lsn, op="c"):
    fields = [{"type": "int32" if name != "name" else "string", "field": name} for name in row]
    sides = [{"type": "struct", "field": side, "fields": fields} for side in ("before", "after")]
    more = [{"type": "struct", "field": "source", "fields": []}, {"type": "string", "field": "op"}]
    schema = {"type": "struct", "fields": sides + more}
    return wrap(schema, json.loads(write_event(op, None, row, lsn)))


def test_an_epoch_is_in_each_table_that_it_has_rows_of(tmp_path):
    mirrors = Mirrors(tmp_path)
    mirrors.run(customers=[event({"id": 1, "name": "a"}, 1)])
    mirrors.run(
        customers=[event({"id": 2, "name": "b"}, 2), event({"id": 1, "name": "c"}, 3, "u")],
        orders=[event({"id": 7, "customer": 1}, 4)],
    )
    mirrors.run(orders=[event({"id": 7, "customer": 2, "amount": 5}, 5, "u")])
    assert mirrors.rows("customers") == [(1, "c"), (2, "b")]
    assert mirrors.rows("orders") == [(7, 2, 5)]


@pytest.mark.long
@pytest.mark.parametrize("survivors", [0, 1])
def test_a_crash_between_two_tables_is_completed_by_the_next_start(
    tmp_path, monkeypatch, survivors
):
    mirrors = Mirrors(tmp_path)
    mirrors.run(customers=[event({"id": 1, "name": "a"}, 1)], orders=[event({"id": 7}, 2)])
    finish, finished = IcebergCommitter.finish, []

    def fail(committer, *given):
        if len(finished) == survivors:
            raise OSError("the store is away")
        finish(committer, *given)
        finished.append(given)

    events = {
        "customers": [event({"id": 1, "name": "b"}, 3, "u"), event({"id": 2, "name": "c"}, 4)],
        "orders": [event({"id": 7, "amount": 5}, 5, "u"), event({"id": 8, "amount": 6}, 6)],
    }
    with monkeypatch.context() as broken:
        broken.setattr(IcebergCommitter, "finish", fail)
        with pytest.raises(CommitUnknown):
            mirrors.run(**events)
    assert len(finished) == survivors
    mirrors.plan()  # the next start
    wanted = ([(1, "b"), (2, "c")], [(7, 5), (8, 6)])
    assert (mirrors.rows("customers"), mirrors.rows("orders")) == wanted
    mirrors.run(**events)  # Spark repeats the epoch
    assert (mirrors.rows("customers"), mirrors.rows("orders")) == wanted


def test_a_table_is_added_by_a_route_after_the_log_was_adopted(tmp_path):
    first = {"customers": [event({"id": 1, "name": "a"}, 1)], "orders": [event({"id": 7}, 2)]}
    Mirrors(tmp_path).run(**first)
    mirrors = Mirrors(tmp_path, (*TABLES, "lines"), 1)
    with pytest.raises(PlanningFailed, match="'krishiv-spark log adopt'"):
        mirrors.run(lines=[event({"id": 3}, 3)])
    pairs = [word for key, text in mirrors.given.items() for word in ("-o", f"{key}={text}")]
    where = ["--format", "fanout", "--checkpoint", str(mirrors.checkpoint), *pairs[2:]]
    open_log.cache_clear()
    found = CliRunner().invoke(main, ["log", "adopt", "--newest", "unpublished", *where])
    assert found.exit_code == 0, found.output
    mirrors.run(lines=[event({"id": 3}, 3)])
    assert mirrors.rows("lines") == [(3,)]
    assert (mirrors.rows("customers"), mirrors.rows("orders")) == ([(1, "a")], [(7,)])
