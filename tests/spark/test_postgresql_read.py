"""Batch reads of PostgreSQL by Spark, whose planner process ends before the tasks start."""

import pyspark
import pytest
from pg_server import open_killable
from postgres import require_programs
from pyspark.errors import PySparkException

PLANS_ONCE = tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 1)
"""False in Spark 4.0, which plans a frame again for each of its actions."""
ROWS = 20_000


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
    assert frame.count() == ROWS
    database.run("UPDATE orders SET id = -id WHERE id % 2 = 0")
    found = frame.selectExpr("count(*)", "count(DISTINCT id)", "sum(id)").first()
    before, after = ROWS * (ROWS + 1) // 2, -ROWS // 2
    assert tuple(found) == (ROWS, ROWS, before if PLANS_ONCE else after)
    assert load(spark, database).where("id < 0").count() == ROWS // 2


@pytest.mark.skipif(not PLANS_ONCE, reason="Spark 4.0 plans each action of a frame again")
def test_an_action_after_the_end_of_its_snapshot_says_what_to_do(spark, database):
    frame = load(spark, database, numPartitions="6")
    assert frame.count() == ROWS
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
