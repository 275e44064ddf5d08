"""Checkpoints that have lost ``metadata``, under real Spark: no sink writes its rows again."""

import contextlib
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from available_now import run_to_end
from iceberg_life import ids
from pyspark.errors import PySparkException

import krishiv_spark
from krishiv_spark.errors import OptionError

VERIFY = "spark.sql.streaming.checkpoint.verifyMetadataExists.enabled"
KINDS = ["parquet", "iceberg", "memory", "console", "fanout", "each_batch", "upsert"]


@pytest.fixture(autouse=True)
def _spark_makes_new_ids(spark):
    """As before 4.3, which refuses such a checkpoint without the sink."""
    spark.conf.set(VERIFY, "false")
    yield
    spark.conf.unset(VERIFY)


class Query:
    """A stream of numbers from files, one a batch, into a sink."""

    def __init__(self, spark, folder: Path, kind: str) -> None:
        self._spark, self._folder, self._kind = spark, folder, kind
        self.checkpoint, self.out = folder / "checkpoint", folder / "out"
        self.name = f"{kind}-{folder.name}"

    def land(self, *numbers: int) -> None:
        (self._folder / "in").mkdir(exist_ok=True)
        for number in numbers:
            aside = self._folder / f"in/.{number}"
            pq.write_table(pa.table({"id": pa.array([number], pa.int64())}), aside)
            aside.rename(self._folder / f"in/{number:04}.parquet")

    def run(self) -> None:
        rows = self._spark.readStream.format("krishiv-parquet").schema("id BIGINT")
        rows = rows.option("maxFilesPerTrigger", 1).load(str(self._folder / "in"))
        run_to_end(self._into(rows).trigger(availableNow=True).start, self.checkpoint)

    def _into(self, rows):
        out, kind = str(self.out), self._kind
        if kind == "fanout":
            rows = krishiv_spark.routed(rows, a="id >= 0")
        writer = rows.writeStream.option("checkpointLocation", str(self.checkpoint))
        if kind == "each_batch":
            return writer.foreachBatch(
                krishiv_spark.each_batch(lambda b, w: w(b).format("krishiv-parquet").save(out))
            )
        if kind == "upsert":
            # A batch that is upserted twice is not seen in the rows: its number is.
            return writer.foreachBatch(krishiv_spark.upsert("db.t", "id", warehouse=out))
        options = {
            "parquet": {"path": out},
            "iceberg": {"path": "db.t", "warehouse": out},
            "memory": {"name": self.name},
            "fanout": {"route.a.format": "krishiv-parquet", "route.a.path": out},
        }
        return writer.format(f"krishiv-{kind}").options(**options.get(kind, {}))

    def rows(self) -> list[int]:
        if self._kind in {"iceberg", "upsert"}:
            return ids(self.out, "db.t")
        if self._kind == "memory":
            return sorted(krishiv_spark.memory_table(self.name).column("id").to_pylist())
        if self._kind == "console":
            return []
        return sorted(self._spark.read.schema("id BIGINT").parquet(str(self.out)).toPandas()["id"])

    def lose_metadata(self) -> str:
        """The last batch is planned, is in the sink, and Spark has not written that it is over."""
        query = json.loads((self.checkpoint / "metadata").read_text())["id"]
        last = max(int(p.name) for p in (self.checkpoint / "commits").iterdir() if p.name.isdigit())
        for name in (f"commits/{last}", f"commits/.{last}.crc", "metadata", ".metadata.crc"):
            (self.checkpoint / name).unlink(missing_ok=True)
        return query

    def restore_metadata(self, line: str) -> None:
        """As the message says it."""
        (self.checkpoint / "metadata").write_text(line)
        (self.checkpoint / ".metadata.crc").unlink(missing_ok=True)


@pytest.fixture
def query(spark, tmp_path, request):
    query = Query(spark, tmp_path, request.param)
    yield query
    if request.param == "memory":
        with contextlib.suppress(OptionError):  # the test made none
            krishiv_spark.memory_clear(query.name)


@pytest.mark.parametrize("query", KINDS, indirect=True)
@pytest.mark.parametrize("epochs", [1, 3])
def test_a_query_whose_metadata_was_lost_is_refused_and_goes_on_with_the_line_it_shows(
    query, epochs
):
    query.land(*range(epochs))
    query.run()
    before = query.rows()
    old = query.lose_metadata()
    query.land(epochs, epochs + 1)
    line = json.dumps({"id": old}, separators=(",", ":"))
    for _ in range(2):
        with pytest.raises(PySparkException, match=f"to query {old}.*one line is {line} "):
            query.run()
    assert query.rows() == before
    query.restore_metadata(line)
    query.run()
    assert query.rows() == ([] if query._kind == "console" else list(range(epochs + 2)))


@pytest.mark.parametrize("query", ["iceberg"], indirect=True)
def test_the_other_way_on_is_a_new_checkpoint_and_a_new_target(query, tmp_path):
    query.land(0, 1)
    query.run()
    query.lose_metadata()
    with pytest.raises(PySparkException, match="a new checkpoint and a new target"):
        query.run()
    query.checkpoint, query.out = tmp_path / "checkpoint-2", tmp_path / "out-2"
    query.run()
    assert query.rows() == [0, 1]
