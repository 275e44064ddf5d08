"""The behaviour of sinks with a copied checkpoint, and with a rewound one."""

import pickle

import pytest
from click.testing import CliRunner
from sink_life import Life, rows
from spark_starts import make_checkpoint
from tables import look

from krishiv_spark.cli import main
from krishiv_spark.lifecycle.epoch_write import StreamWrite
from krishiv_spark.lifecycle.plans import PlanningFailed
from krishiv_spark.sinks.base import OutputMode
from krishiv_spark.sinks.iceberg.writer import IcebergWriter
from krishiv_spark.sinks.parquet.writer import ParquetWriter
from krishiv_spark.spark.checkpoint import SparkCheckpoint


class Stream(Life):
    """A query on a checkpoint that is there, whose epochs have ten rows each."""

    def __init__(self, writer_type, checkpoint, **options):
        self.folder = checkpoint
        self._checkpoint = SparkCheckpoint(str(checkpoint))
        query = self._checkpoint.query_id()
        super().__init__(writer_type, options, query, OutputMode.APPEND)

    def plan(self):
        write = StreamWrite(self._make(), self._query, self._checkpoint)
        self._planned = pickle.loads(pickle.dumps(write))

    def run(self, number):
        """Run the steps of Spark for an epoch after its plan."""
        (self.folder / "offsets" / str(number)).write_text(f"v1\n{{}}\n{number}")
        self.epoch(number, rows(10 * number, 10))
        (self.folder / "commits" / str(number)).write_text("v1\n{}")


def command(*words):
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture
def old(tmp_path):
    return make_checkpoint(tmp_path / "old", -1)


def test_a_copy_goes_on_in_a_parquet_table_when_its_log_is_adopted(old, tmp_path):
    first = Stream(ParquetWriter, old, path=f"{tmp_path}/t")
    for epoch in range(3):
        first.run(epoch)
    new, other = tmp_path / "new", tmp_path / "other"
    said = command("checkpoint", "copy", old, new)
    copy = Stream(ParquetWriter, new, path=str(other))
    with pytest.raises(PlanningFailed, match=r"its epoch log .* is empty"):
        copy.run(3)
    assert f"log adopt --format parquet --checkpoint {new} -o path=" in said
    adopt = ("log", "adopt", "--format", "parquet", "--checkpoint", new, "-o", f"path={other}")
    (new / "offsets/3").unlink()  # of the start that was refused
    command(*adopt)
    copy.run(3)
    first.run(3)
    assert (look(other)[0], look(tmp_path / "t")[0]) == (10, 40)


def test_a_copy_goes_on_in_an_iceberg_table_as_it_is(old, tmp_path):
    where = {"warehouse": str(tmp_path / "w"), "table": "db.t"}
    first = Stream(IcebergWriter, old, **where)
    for epoch in range(3):
        first.run(epoch)
    command("checkpoint", "copy", old, tmp_path / "new", "--to", 1)
    Stream(IcebergWriter, tmp_path / "new", **where).run(2)
    assert sorted(ids_in(tmp_path / "w")) == sorted([*range(30), *range(20, 30)])


@pytest.mark.parametrize(
    ("writer", "options"),
    [(ParquetWriter, {"path": "{}/t"}), (IcebergWriter, {"warehouse": "{}/w", "table": "db.t"})],
)
def test_a_sink_that_holds_later_epochs_refuses_who_went_back(old, tmp_path, writer, options):
    stream = Stream(writer, old, **{k: text.format(tmp_path) for k, text in options.items()})
    for epoch in range(4):
        stream.run(epoch)
    command("checkpoint", "rewind", old, "--to", 1)
    with pytest.raises(PlanningFailed, match="CheckpointMismatch"):
        stream.run(2)


def ids_in(warehouse):
    from iceberg_tables import table_in

    return table_in(warehouse).scan().to_arrow()["id"].to_pylist()
