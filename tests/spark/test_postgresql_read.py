"""Batch reads of PostgreSQL by Spark, whose planner process ends before the tasks start."""

import pytest
from pg_server import open_killable
from postgres import require_programs
from pyspark.errors import PySparkException


@pytest.fixture(scope="module")
def database():
    with open_killable(require_programs()) as server:
        server.database.run("CREATE TABLE orders (id bigint, name text)")
        server.database.run(
            "INSERT INTO orders SELECT n, 'order ' || n FROM generate_series(1, 20000) n"
        )
        yield server.database


def load(spark, database, **options):
    given = database.options(table="orders", **options)
    return spark.read.format("krishiv-postgresql").options(**given).load()


def test_each_action_of_a_frame_reads_the_rows_of_its_plan(spark, database):
    frame = load(spark, database, numPartitions="6")
    assert frame.count() == 20_000
    database.run("UPDATE orders SET id = -id WHERE id % 2 = 0")
    found = frame.selectExpr("count(*)", "count(DISTINCT id)", "sum(id)").first()
    assert tuple(found) == (20_000, 20_000, 20_000 * 20_001 // 2)
    assert load(spark, database).where("id < 0").count() == 10_000
    database.run(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
        "WHERE application_name = 'krishiv-postgresql snapshot'"
    )
    with pytest.raises(PySparkException, match=r"run load\(\) again, with a longer"):
        frame.count()


def test_a_stream_states_that_only_batches_are_read(spark, database, tmp_path):
    given = database.options(table="orders")
    rows = spark.readStream.format("krishiv-postgresql").options(**given).load()
    writer = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    query = writer.start()
    with pytest.raises(PySparkException, match=r"krishiv-postgresql reads batches: use spark.read"):
        query.awaitTermination(60)
