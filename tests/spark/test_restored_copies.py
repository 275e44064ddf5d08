"""A checkpoint, or a target, that an operator restores from an older copy while a session lives."""

import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from iceberg_life import ids
from pyspark.errors import StreamingQueryException
from tables import look

import krishiv_spark


class Folders:
    """A stream over a folder of files, its checkpoint, and its targets."""

    def __init__(self, spark, folder):
        self.spark, self.folder = spark, folder
        (folder / "in").mkdir()

    def add(self, *numbers):
        pq.write_table(pa.table({"id": [*numbers]}), self.folder / f".{numbers[0]}")
        (self.folder / f".{numbers[0]}").rename(self.folder / "in" / f"{numbers[0]}.parquet")

    def run(self, writer):
        options = {"checkpointLocation": str(self.folder / "checkpoint"), **writer.options}
        stream = writer.rows(self.spark.readStream.format("krishiv-parquet").load(
            str(self.folder / "in")))  # fmt: skip
        query = stream.writeStream.format(writer.format).options(**options)
        query.trigger(availableNow=True).start().awaitTermination()

    def copy(self, name):
        shutil.copytree(self.folder / name, self.folder / f"copy-of-{name}")

    def put_back(self, name):
        shutil.rmtree(self.folder / name)
        shutil.copytree(self.folder / f"copy-of-{name}", self.folder / name)


class FanOut:
    format = "krishiv-fanout"

    def __init__(self, folder):
        self.options = {
            "route.good.format": "krishiv-parquet",
            "route.good.path": str(folder / "table"),
            "route.bad.format": "krishiv-iceberg",
            "route.bad.warehouse": str(folder / "warehouse"),
            "route.bad.table": "db.rows",
        }

    def rows(self, stream):
        return krishiv_spark.routed(stream, good="id % 2 = 0", bad="id % 2 = 1")


class LogElsewhere:
    format = "krishiv-parquet"

    def __init__(self, folder):
        self.options = {"path": str(folder / "table"), "epochLog": str(folder / "log")}

    def rows(self, stream):
        return stream


def test_a_checkpoint_under_a_fan_out_is_put_back(spark, tmp_path):
    folders, writer = Folders(spark, tmp_path), FanOut(tmp_path)
    folders.add(1, 2)
    folders.run(writer)
    folders.copy("checkpoint")
    folders.add(3, 4)
    folders.run(writer)
    folders.put_back("checkpoint")
    folders.add(5, 6)
    with pytest.raises(StreamingQueryException, match="the log was restored from an older copy"):
        folders.run(writer)
    assert look(tmp_path / "table")[:2] == (2, 2)
    assert ids(tmp_path / "warehouse") == [1, 3]


@pytest.mark.parametrize("kind", [FanOut, LogElsewhere])
def test_a_table_is_put_back(spark, tmp_path, kind):
    folders, writer = Folders(spark, tmp_path), kind(tmp_path)
    folders.add(2)
    folders.run(writer)
    folders.copy("table")
    folders.add(4)
    folders.run(writer)
    folders.put_back("table")
    folders.add(6)
    with pytest.raises(StreamingQueryException, match="lacks epoch 1 of query"):
        folders.run(writer)
    assert look(tmp_path / "table")[:2] == (1, 1)
