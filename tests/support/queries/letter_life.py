"""A query with dead letters without Spark: rows into a folder, dead letters into another."""

import pickle

import duckdb
import pyarrow as pa
from sink_life import Life

from krishiv_spark.formats import find_format
from krishiv_spark.lifecycle.epoch_write import StreamWrite
from krishiv_spark.offsets import open_log
from krishiv_spark.sinks.base import OutputMode
from krishiv_spark.spark.checkpoint import SparkCheckpoint

POSITION = pa.struct([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])
COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("_raw", pa.binary()),
        ("_error", pa.string()),
        ("_rule", pa.string()),
        ("_source", POSITION),
    ]
)


def mixed(first, count, bad=()):
    """Rows by number; those in `bad` are dead letters, with every third by a rule."""
    ids = range(first, first + count)
    return pa.record_batch(
        [
            [None if n in bad else n for n in ids],
            [b"value %d" % n if n in bad else None for n in ids],
            [f"is wrong at {n}" if n in bad else None for n in ids],
            ["small" if n in bad and n % 3 == 0 else None for n in ids],
            pa.array([{"topic": "t", "partition": 1, "offset": n} for n in ids], POSITION),
        ],
        schema=COLUMNS,
    )


class LetterLife(Life):
    """A query of `format_name` whose epochs have the checkpoint of Spark."""

    def __init__(self, place, format_name="krishiv-parquet", columns=COLUMNS, **options):
        self.checkpoint = place / "checkpoint"
        for name in ("offsets", "commits"):
            (self.checkpoint / name).mkdir(parents=True, exist_ok=True)
        (self.checkpoint / "metadata").write_text('{"id": "q1"}')
        self.options = {**options, "checkpointLocation": str(self.checkpoint)}
        self._query, self._planned = "q1", None

        def make():
            kind, parsed = find_format(format_name).open_sink(self.options)
            return kind(parsed, columns, OutputMode.APPEND, streaming=True)

        self._make = make

    def check_start(self):
        write = StreamWrite(self._make(), checkpoint=SparkCheckpoint(str(self.checkpoint)))
        write.check_start()

    def plan(self):
        write = StreamWrite(self._make(), checkpoint=SparkCheckpoint(str(self.checkpoint)))
        self._planned = pickle.loads(pickle.dumps(write))

    def commit(self, epoch, messages):
        write = StreamWrite(self._make(), checkpoint=SparkCheckpoint(str(self.checkpoint)))
        write.commit(list(messages), epoch)

    def run(self, number, *batches, is_logged=True):
        """Run the steps of Spark for an epoch, in processes that know nothing."""
        open_log.cache_clear()
        (self.checkpoint / "offsets" / str(number)).write_text(f"v1\n{{}}\n{number}")
        self.epoch(number, *batches)
        if is_logged:
            (self.checkpoint / "commits" / str(number)).write_text("v1\n{}")


def into_folders(place, **more):
    return {
        "path": str(place / "rows"),
        "deadLetters.format": "krishiv-parquet",
        "deadLetters.path": str(place / "dead"),
        **more,
    }


def column_of(folder, name):
    found = duckdb.sql(f"SELECT {name} FROM read_parquet('{folder}/*.parquet') ORDER BY {name}")
    return [value for (value,) in found.fetchall()]
