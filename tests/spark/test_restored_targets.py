"""``foreachBatch`` on Spark: restored targets, outputs that come and go, names of two queries."""

import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from available_now import run_to_end
from iceberg_tables import catalog
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as sql

import krishiv_spark

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


class Stream:
    """A stream of files, each start of which ends when it has read all."""

    def __init__(self, spark, folder):
        self.spark, self.folder = spark, folder
        (folder / "in").mkdir()
        self._files = 0

    def add(self, *numbers):
        path = self.folder / f"{self._files}.parquet"
        pq.write_table(pa.table({"id": pa.array(numbers, pa.int64())}), path)
        path.rename(self.folder / "in" / path.name)
        self._files += 1

    def run(self, function, checkpoint="checkpoint", change=lambda rows: rows):
        reader = self.spark.readStream.format("krishiv-parquet").option("maxFilesPerTrigger", 1)
        rows = reader.load(str(self.folder / "in"))
        writer = change(rows).writeStream.foreachBatch(function)
        writer = writer.option("checkpointLocation", str(self.folder / checkpoint))
        run_to_end(writer.trigger(availableNow=True).start, self.folder / checkpoint)

    def after(self, *numbers, **given):
        self.add(*numbers)
        self.run(**given)

    def parquet(self, name):
        return sorted(self.read(name)["id"].to_pylist())

    def read(self, name):
        return pa.concat_tables(map(pq.read_table, (self.folder / name).glob("*.parquet")))

    def iceberg(self, name, column="id"):
        table = catalog(self.folder / "warehouse").load_table(name)
        return sorted(table.scan().to_arrow()[column].to_pylist())

    def save(self, name, copy):
        shutil.copytree(self.folder / name, self.folder / copy)

    def restore(self, copy, name):
        """Put a copy back. Files are overwritten: SQLite is open in processes of the session."""
        target, old = self.folder / name, self.folder / copy
        for path in [path for path in target.rglob("*") if path.is_file()]:
            if not (old / path.relative_to(target)).exists():
                path.unlink()
        shutil.copytree(old, target, dirs_exist_ok=True)


@pytest.fixture
def stream(spark, tmp_path):
    return Stream(spark, tmp_path)


def to_parquet(folder, name="table", output="output"):
    return lambda batch, write: (
        write(batch, output).format("krishiv-parquet").save(str(folder / name))
    )


def refuses_an_older(stream, folder, write, ids):
    stream.after(2, function=write)
    stream.save(folder, "older")
    stream.after(4, function=write)
    stream.save(folder, "newest")
    stream.restore("older", folder)
    stream.add(6)
    with pytest.raises(StreamingQueryException, match=r"batch 1 .* was committed into this target"):
        stream.run(write)
    assert ids() == [2]
    stream.restore("newest", folder)
    stream.run(write)
    assert ids() == [2, 4, 6]


def test_a_table_of_each_batch_that_was_restored_from_an_older_copy_is_refused(stream):
    write = krishiv_spark.each_batch(to_parquet(stream.folder))
    refuses_an_older(stream, "table", write, lambda: stream.parquet("table"))


def test_a_table_of_upsert_that_was_restored_from_an_older_copy_is_refused(stream):
    write = krishiv_spark.upsert("db.t", "id", warehouse=str(stream.folder / "warehouse"))
    refuses_an_older(stream, "warehouse", write, lambda: stream.iceberg("db.t"))


def test_outputs_that_are_left_out_added_and_not_saved_are_no_gap(stream):
    """By a filter of the user's own, in one run and across starts."""
    numbers = {"batch": -1}

    def write_some(batch, write):
        numbers["batch"] += 1
        name = "odd" if numbers["batch"] % 2 else "even"
        to_parquet(stream.folder, name, name)(batch, write)
        unsaved = write(batch.where("id > 2"), "high").format("krishiv-parquet")
        if not batch.where("id > 2").isEmpty():
            unsaved.save(str(stream.folder / "high"))
        if numbers["batch"] > 2:
            to_parquet(stream.folder, "added", "added")(batch, write)

    for batches in (range(3), range(3, 5)):
        for number in batches:
            stream.add(number)
        stream.run(krishiv_spark.each_batch(write_some))
    found = {name: stream.parquet(name) for name in ("even", "odd", "high", "added")}
    assert found == {"even": [0, 2, 4], "odd": [1, 3], "high": [3, 4], "added": [3, 4]}


def test_a_batch_without_rows_and_one_that_a_driver_left_half_done_are_no_gap(stream):
    fails = [False]

    def write_two(batch, write):
        to_parquet(stream.folder, "one", "one")(batch.where("id % 2 = 0"), write)
        if fails[0]:
            raise RuntimeError("between two outputs")
        to_parquet(stream.folder, "other", "other")(batch, write)

    write = krishiv_spark.each_batch(write_two)
    stream.add(0)
    stream.after(1, function=write)
    fails[0] = True
    with pytest.raises(StreamingQueryException, match="between two outputs"):
        stream.after(2, function=write)
    fails[0] = False
    stream.run(write)
    stream.after(4, function=write)
    assert [stream.parquet(name) for name in ("one", "other")] == [[0, 2, 4], [0, 1, 2, 4]]


def test_a_name_of_each_batch_is_one_query_s_until_another_takes_its_place(stream):
    """The numbers go on, as in a copy of the checkpoint with an id of its own."""

    def write(**given):
        return krishiv_spark.each_batch(to_parquet(stream.folder), query="orders", **given)

    stream.after(0, function=write())
    stream.after(1, function=krishiv_spark.each_batch(lambda *_: None), checkpoint="second")
    stream.add(2)
    with pytest.raises(StreamingQueryException, match="of that name from query") as caught:
        stream.run(write(), checkpoint="second")
    before = str(caught.value).split("replaces='")[1].split("'")[0]
    assert before in (stream.folder / "checkpoint" / "metadata").read_text()
    stream.run(write(replaces=before), checkpoint="second")
    stream.after(3, function=write(), checkpoint="second")
    assert stream.parquet("table") == [0, 2, 3]
    with pytest.raises(StreamingQueryException, match="of that name from query"):
        stream.run(write(), checkpoint="checkpoint")


def test_a_view_is_not_changed_by_another_checkpoint_of_its_name(stream):
    def view(table):
        return krishiv_spark.aggregate(
            table,
            by="k",
            columns={"n": "count(*)", "id": "sum(id)"},
            warehouse=str(stream.folder / "warehouse"),
            query="totals",
        )

    def run(table, checkpoint):
        weighed = {"k": sql.lit("x"), "_weight": sql.lit(1)}
        stream.run(view(table), checkpoint, lambda rows: rows.withColumns(weighed))

    stream.add(1)
    run("db.a", "first")
    run("db.b", "second")
    stream.add(10)
    run("db.b", "second")
    stream.add(100)
    run("db.a", "first")
    assert stream.iceberg("db.a") == [111]
    with pytest.raises(StreamingQueryException, match="batch 2 of totals comes from query"):
        run("db.a", "second")
    assert stream.iceberg("db.a") == [111]
