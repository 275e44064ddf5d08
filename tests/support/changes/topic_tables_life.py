"""A query with a table for each topic, without Spark."""

import json
import pickle

import pyarrow as pa
from database_life import RECORDS
from debezium_events import wrap, write_event
from iceberg_life import catalog_of, table_of
from sink_life import Life

from krishiv_spark.formats import find_format
from krishiv_spark.lifecycle.epoch_write import StreamWrite
from krishiv_spark.offsets import open_log
from krishiv_spark.sinks.base import OutputMode
from krishiv_spark.spark.checkpoint import SparkCheckpoint

DEBEZIUM = {"mode": "upsert", "changeFormat": "debezium", "schemaEvolution": "add"}


class TopicLife(Life):
    """One driver of the query; its epochs have rows by topic."""

    def __init__(self, place, schema=RECORDS, first=0, **options):
        self.place, self.checkpoint, self.next = place, place / "checkpoint", first
        for name in ("offsets", "commits"):
            (self.checkpoint / name).mkdir(parents=True, exist_ok=True)
        (self.checkpoint / "metadata").write_text('{"id": "q1"}')
        self.given = {
            "checkpointLocation": str(self.checkpoint),
            "warehouse": str(place / "warehouse"),
            "table": "lake.${topic.last}",
            **(DEBEZIUM if schema is RECORDS else {}),
            **options,
        }
        self._schema, self._query = schema, "q1"
        kind, parsed = find_format("krishiv-iceberg").open_sink(self.given)
        self._make = lambda: kind(parsed, schema, OutputMode.APPEND)

    def plan(self):
        open_log.cache_clear()
        write = StreamWrite(self._make(), self._query, SparkCheckpoint(str(self.checkpoint)))
        self._planned = pickle.loads(pickle.dumps(write))

    def commit(self, epoch, messages):
        open_log.cache_clear()
        super().commit(epoch, messages)

    def batches(self, number, rows):
        """A batch for each topic, so that each has its own task."""
        if self._schema is not RECORDS:
            for topic, some in rows.items():
                yield pa.RecordBatch.from_pylist(
                    [{**row, "topic": topic} for row in some], self._schema
                )
            return
        for topic, events in rows.items():
            records = [(*event, topic, 0, n) for n, event in enumerate(events, 1000 * number)]
            yield pa.RecordBatch.from_pylist(
                [dict(zip(RECORDS.names, record, strict=True)) for record in records], RECORDS
            )

    def start(self):
        """Plan the next epoch, as Spark does after it has written its offsets."""
        (self.checkpoint / "offsets" / str(self.next)).write_text(f"v1\n{{}}\n{self.next}")
        self.plan()

    def run(self, *, together=False, **rows):
        """Run an epoch with rows by topic (``__`` is a dot); it is repeated if it has failed."""
        number = self.next
        batches = [*self.batches(number, {t.replace("__", "."): r for t, r in rows.items()})]
        if together:
            batches = [pa.Table.from_batches(batches).combine_chunks().to_batches()[0]]
        self.start()
        self.commit(number, [self.task(number, n, batch) for n, batch in enumerate(batches)])
        (self.checkpoint / "commits" / str(number)).write_text("v1\n{}")
        self.next += 1

    def table(self, name):
        return table_of(self.place / "warehouse", name)

    def rows(self, name):
        found = self.table(name).scan().to_arrow().to_pylist()
        return sorted(tuple(row.values()) for row in found)

    def names(self):
        """The tables of the catalog."""
        catalog = catalog_of(self.place / "warehouse")
        spaces = catalog.list_namespaces()
        return sorted(".".join(name) for space in spaces for name in catalog.list_tables(space))


def event(row, lsn, op="c", keys=("id",)):
    """An event with its schema, and the record's key."""
    fields = [{"type": "int32" if name != "name" else "string", "field": name} for name in row]
    sides = [{"type": "struct", "field": side, "fields": fields} for side in ("before", "after")]
    more = [{"type": "struct", "field": "source", "fields": []}, {"type": "string", "field": "op"}]
    schema = {"type": "struct", "fields": sides + more}
    key = {name: row[name] for name in keys}
    before, after = (row, None) if op == "d" else (None, row)
    value = wrap(schema, json.loads(write_event(op, before, after, lsn)))
    return json.dumps(key).encode(), value
