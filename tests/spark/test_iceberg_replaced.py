"""One session of Spark, and a warehouse that is restored, removed or moved while it lives."""

import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from iceberg_tables import catalog

import krishiv_spark

# PySpark 4.0 leaves the socket of a `collect` to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


class Copy:
    """A stream of files into ``db.t``, of which each start takes all that is there."""

    def __init__(self, spark, folder):
        self.spark, self.folder = spark, folder
        (folder / "in").mkdir()

    def put(self, name, *ids):
        path = self.folder / "in" / f"{name}.parquet"
        pq.write_table(pa.table({"id": list(ids)}), path.with_suffix(".part"))
        path.with_suffix(".part").rename(path)

    def start(self, warehouse="wh", checkpoint="ck", **given):
        source = self.spark.readStream.format("krishiv-parquet").load(str(self.folder / "in"))
        writer = source.writeStream.format("krishiv-iceberg").options(**given)
        writer = writer.option("checkpointLocation", str(self.folder / checkpoint))
        writer = writer.option("warehouse", str(self.folder / warehouse))
        writer.trigger(availableNow=True).start("db.t").awaitTermination()

    def count(self):
        """Keep a view of the rows beside them."""
        source = self.spark.readStream.format("krishiv-iceberg").option("readChanges", "true")
        rows = source.option("warehouse", str(self.folder / "wh")).load("db.t")
        keeper = krishiv_spark.aggregate(
            "db.v", by="id", columns={"n": "count(*)"}, warehouse=str(self.folder / "wh")
        )
        writer = rows.writeStream.foreachBatch(keeper).trigger(availableNow=True)
        writer.option("checkpointLocation", str(self.folder / "ckv")).start().awaitTermination()

    def ids(self, warehouse="wh", table="db.t"):
        rows = catalog(self.folder / warehouse).load_table(table).scan().to_arrow()
        return sorted(rows["id"].to_pylist())

    def restore(self, *names):
        for name in names:
            shutil.rmtree(self.folder / name)
            shutil.copytree(self.folder / "backup" / name, self.folder / name)


@pytest.fixture
def copy(spark, tmp_path):
    return Copy(spark, tmp_path)


def test_a_warehouse_and_a_checkpoint_of_one_backup_go_on_in_a_live_session(copy):
    copy.put("a", 1)
    copy.start()
    for name in ("wh", "ck"):
        shutil.copytree(copy.folder / name, copy.folder / "backup" / name)
    copy.put("b", 2)
    copy.start()
    copy.restore("wh", "ck")
    copy.start()
    assert copy.ids() == [1, 2]
    copy.put("c", 3)
    copy.start()
    assert copy.ids() == [1, 2, 3]


def test_a_warehouse_that_is_removed_and_made_anew_works_at_the_first_start(copy):
    copy.put("a", 1)
    copy.start()
    copy.count()
    for name in ("wh", "ck", "ckv", "in"):
        shutil.rmtree(copy.folder / name)
    (copy.folder / "in").mkdir()
    copy.put("b", 2)
    copy.start()
    copy.count()
    assert (copy.ids(), copy.ids(table="db.v")) == ([2], [2])
