"""Checkpoints that are rolled back under real Spark: refused, and exact once they are put back."""

import shutil
from pathlib import Path

import pytest
from patience import PATIENCE
from pyspark.errors import PySparkException
from tables import look

VERSION = "spark.sql.streaming.offsetLog.formatVersion"
RETAIN = "spark.sql.streaming.minBatchesToRetain"


class Query:
    """A stream from files into a table, run until nothing is left."""

    def __init__(self, spark, folder: Path, **options: str) -> None:
        self.spark, self.folder, self.options = spark, folder, options
        self.checkpoint, self.table = folder / "checkpoint", folder / "table"
        self.added = 0

    def add(self, rows: int) -> None:
        frame = self.spark.range(self.added, self.added + rows)
        frame.coalesce(1).write.mode("append").parquet(str(self.folder / "input"))
        self.added += rows

    def run(self) -> None:
        rows = self.spark.readStream.schema("id long").option("maxFilesPerTrigger", 1)
        rows = rows.parquet(str(self.folder / "input"))
        writer = rows.writeStream.format("krishiv-parquet").options(**self.options)
        query = (
            writer.option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start(str(self.table))
        )
        assert query.awaitTermination(PATIENCE)

    def refused(self, why: str) -> None:
        before = look(self.table)
        with pytest.raises(PySparkException, match=why):
            self.run()
        assert look(self.table) == before

    def forget(self, epoch: int) -> None:
        """Delete a damaged offset log, as users do."""
        for name in ("offsets", "commits"):
            for path in (self.checkpoint / name).glob(f"*{epoch}*"):
                path.unlink()

    def exact(self) -> bool:
        return look(self.table)[:2] == (self.added, self.added)


@pytest.fixture(params=["1", "2"])
def query(request, spark, tmp_path):
    if request.param == "2":
        if spark.version < "4.2":
            pytest.skip("PySpark before 4.2 knows the first version of its offset log only")
        spark.conf.set(VERSION, "2")
    query = Query(spark, tmp_path)
    for _ in range(2):
        query.add(100)
        query.run()
    assert query.exact()
    yield query
    spark.conf.unset(VERSION)


def test_a_checkpoint_without_its_newest_epoch(query):
    shutil.copytree(query.checkpoint, query.folder / "whole")
    query.forget(1)
    query.add(100)
    query.refused("CheckpointMismatch: epoch 1 of query")
    shutil.rmtree(query.checkpoint)
    shutil.copytree(query.folder / "whole", query.checkpoint)
    query.run()
    assert query.exact()


def test_a_checkpoint_without_offsets_and_commits(query):
    for name in ("offsets", "commits", "sources"):
        shutil.rmtree(query.checkpoint / name)
    query.add(100)
    query.refused("CheckpointMismatch: query .* is at epoch 0, but the sink has epoch 1")


def test_the_least_that_spark_can_keep_is_enough_for_every_start(query):
    """The sink needs the previous epoch, and so does Spark, which keeps it with each setting."""
    query.spark.conf.set(RETAIN, "1")
    try:
        for _ in range(3):
            for _ in range(3):
                query.add(10)
            query.run()
            assert query.exact()
            kept = sorted(int(path.name) for path in (query.checkpoint / "offsets").glob("[0-9]*"))
            assert kept[-1] - kept[0] <= 2
    finally:
        query.spark.conf.unset(RETAIN)
