"""Changes of an Iceberg table under Spark: upserts, and a view and a copy that are kept by them."""

import random
from collections import Counter

import pyarrow as pa
import pytest
from iceberg_tables import catalog, compact

import krishiv_spark

# PySpark 4.0 leaves the socket of a `collect` to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

ROUNDS, CHANGES = 2, 25
SCHEMA = pa.schema(
    [("id", pa.int64()), ("carrier", pa.string()), ("delay", pa.int64()), ("op", pa.string())]
)


class Queries:
    """Changes from memory -> table; its changes -> a view of sums, and a copy of the table."""

    def __init__(self, spark, folder):
        self.spark, self.folder = spark, folder
        self.flights = krishiv_spark.memory_source(str(folder))
        self.view: dict[str, tuple[int, int]] = {}

    def run(self):
        """Run each query with a new driver on its old checkpoint, until no batch is left."""
        flights = self.spark.readStream.format("krishiv-memory").load(str(self.folder))
        self.upsert(flights.coalesce(1), "db.t", "op")
        reader = self.spark.readStream.format("krishiv-iceberg").option("readChanges", "true")
        changes = reader.option("warehouse", str(self.folder)).load("db.t")
        self.upsert(changes.drop("_weight"), "db.copy", "_op")
        weighted = changes.selectExpr("carrier", "_weight", "_weight * delay AS delay")
        sums = weighted.groupBy("carrier").sum("_weight", "delay").writeStream
        self.finish(sums.outputMode("update").foreachBatch(self.keep), "view")

    def upsert(self, frame, table, op):
        writer = frame.writeStream.format("krishiv-iceberg").option("path", table)
        writer = writer.options(mode="upsert", keyColumns="id", opColumn=op)
        self.finish(writer.option("warehouse", str(self.folder)), table)

    def finish(self, writer, name):
        query = writer.option("checkpointLocation", str(self.folder / "checkpoints" / name)).start()
        query.processAllAvailable()
        query.stop()

    def keep(self, batch, _):
        self.view |= {carrier: sums for carrier, *sums in batch.collect()}

    def table(self, name):
        return catalog(self.folder).load_table(name).scan().to_arrow().to_pylist()


def some_flights(chance):
    """Return upserts and deletes of few flights, most of which are in the table."""
    changes = [
        (chance.randrange(20), chance.choice("ABC"), chance.randrange(90), chance.choice("uuud"))
        for _ in range(CHANGES)
    ]
    return pa.table([list(column) for column in zip(*changes, strict=True)], schema=SCHEMA)


def sums(rows):
    flights = Counter(row["carrier"] for row in rows)
    delays = Counter()
    for row in rows:
        delays[row["carrier"]] += row["delay"]
    return {carrier: [count, delays[carrier]] for carrier, count in flights.items()}


@pytest.mark.long  # each half is in test_views.py and tests/unit
def test_a_view_and_a_copy_are_kept_by_changes(spark, tmp_path):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance, queries = random.Random(seed), Queries(spark, tmp_path)
    for number in range(ROUNDS):
        queries.flights.add(some_flights(chance))
        queries.run()
        table = queries.table("db.t")
        assert {name: found for name, found in queries.view.items() if found[0]} == sums(table)
        assert sorted(map(repr, queries.table("db.copy"))) == sorted(map(repr, table))
        if number == 0:
            compact(tmp_path)
