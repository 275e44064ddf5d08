"""A mirror of a topic's events in PostgreSQL, without Spark."""

import pyarrow as pa
from database_life import COLUMNS, RECORDS, to_rows
from pg_onlooker import Onlooker

from krishiv_spark.sinks.base import Epoch, OutputMode, Task
from krishiv_spark.sinks.postgresql.options import PostgresqlSinkOptions
from krishiv_spark.sinks.postgresql.writer import PostgresqlWriter

QUERY = "8503b910-b624-45a4-85db-fcb79eac7740"
FORMAT = "krishiv-postgresql"


class Mirror:
    """A query that writes the events of a topic, epoch by epoch."""

    def __init__(self, database, folder, **options):
        self.onlooker = Onlooker.of(database, folder)
        usual = {"mode": "upsert", "changeFormat": "debezium", "keyColumns": "id"}
        if "tableSchema" not in options:
            usual["tableSchema"] = COLUMNS
        given = {**self.onlooker.options(), **usual, **options}
        self.given = {name: text for name, text in given.items() if text}
        self.next = self.first = 0

    def create(self, columns):
        self.onlooker.database.run(f"CREATE TABLE {self.onlooker.table} ({columns})")

    def writer(self):
        options = PostgresqlSinkOptions.parse(self.given, FORMAT)
        return PostgresqlWriter(options, RECORDS, OutputMode.APPEND)

    def apply(self, *records, partitions=(0,), tasks=1, batches=1):
        rows = to_rows(records, self.first)
        numbers = [partitions[n % len(partitions)] for n in range(len(records))]
        rows = rows.set_column(3, RECORDS.field(3), pa.array(numbers, pa.int32()))
        writer = self.writer()
        writer.check()
        plan, staged = writer.plan(None), []
        size = -(-len(records) // tasks)
        for task in range(tasks):
            own = rows.slice(task * size, size)
            some = own.to_batches(max_chunksize=-(-size // batches))
            staged.append(writer.stage(iter(some), Task(QUERY, self.next, task, 0), plan))
        epoch = Epoch(QUERY, self.next)
        writer.committer().publish(epoch, [each for each in staged if each is not None])
        self.next, self.first = self.next + 1, self.first + len(records)

    def rows(self, *names):
        names = names or ("id", "n", "text")
        return sorted((tuple(row[name] for name in names) for row in self.onlooker.rows()), key=str)

    def left(self):
        found = self.onlooker.database.run(
            "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind = 'r'",
            [self.onlooker.schema],
        )
        return sorted(name for (name,) in found)
