"""``foreachBatch`` with several outputs, each exactly once, whatever dies between them."""

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as sql
from tables import look, make_input
from three_targets import kill_again_and_again

import krishiv_spark

FILES, ROWS = 6, 10
TOTAL = FILES * ROWS


class Copy:
    """A stream into two tables, whose function can be disturbed."""

    def __init__(self, spark, folder):
        make_input(folder / "in", FILES, ROWS)
        self._spark, self._folder = spark, folder
        self.between, self.seen = [], sql.col("id")

    def run(self):
        rows = self._spark.readStream.format("krishiv-parquet").option("maxFilesPerTrigger", 2)
        writer = rows.load(str(self._folder / "in")).writeStream
        writer = writer.option("checkpointLocation", str(self._folder / "checkpoint"))
        query = writer.foreachBatch(krishiv_spark.each_batch(self._write)).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    def _write(self, batch, write):
        batch = batch.withColumn("id", self.seen)
        write(batch, "one").format("krishiv-parquet").save(str(self._folder / "one"))
        if self.between:
            self.between.pop()()
        write(batch, "other").format("krishiv-parquet").save(str(self._folder / "other"))

    def held(self):
        return [look(self._folder / name)[:2] for name in ("one", "other")]


@pytest.fixture
def copy(spark, tmp_path):
    return Copy(spark, tmp_path)


def fail():
    raise RuntimeError("between two outputs")


def test_a_batch_that_failed_between_its_outputs_is_completed(copy):
    copy.between = [fail, lambda: None]  # from the end: in the second batch
    with pytest.raises(StreamingQueryException, match="between two outputs"):
        copy.run()
    assert copy.held() == [(40, 40), (20, 20)]
    copy.run()
    assert copy.held() == [(TOTAL, TOTAL)] * 2


def test_a_batch_that_comes_again_with_other_rows_is_no_mixture(copy):
    copy.between = [fail]
    with pytest.raises(StreamingQueryException, match="between two outputs"):
        copy.run()
    copy.seen = sql.col("id") + 1000
    with pytest.raises(StreamingQueryException, match=r"batch 0 .*-one was repeated with othe"):
        copy.run()
    assert copy.held() == [(20, 20), (0, 0)]


def test_two_outputs_of_one_name_are_refused(copy):
    def write_twice(batch, write):
        for name in ("one", "other"):
            write(batch).format("krishiv-parquet").save(str(copy._folder / name))

    copy._write = write_twice
    with pytest.raises(StreamingQueryException, match="two outputs of a batch are called 'output'"):
        copy.run()


# --- kills


@pytest.mark.crash
@pytest.mark.once
@pytest.mark.long  # two minutes; what dies without Spark is in tests/kit
@pytest.mark.timeout(2400)
def test_kills_lose_and_repeat_no_row_of_three_outputs(two_topics, tmp_path):
    kill_again_and_again("each_batch_copy.py", two_topics.bootstrap, tmp_path, 800, 4)


@pytest.mark.crash
@pytest.mark.soak
@pytest.mark.timeout(5400)
def test_tens_of_kills_lose_and_repeat_no_row_of_three_outputs(two_topics, tmp_path):
    kill_again_and_again("each_batch_copy.py", two_topics.bootstrap, tmp_path, 4000, 30)
