"""Queries that are replayed, without a JVM, and replays that are killed before each change."""

import json
import pickle
import shutil
from collections import Counter

import pyarrow.parquet as pq
from command_line import Command
from sink_life import Life, rows
from spark_starts import dies_before, start

from krishiv_spark.iceberg import catalogs
from krishiv_spark.lifecycle.epoch_write import StreamWrite
from krishiv_spark.offsets import open_log
from krishiv_spark.sinks.base import OutputMode
from krishiv_spark.spark.checkpoint import SparkCheckpoint

PLANNED_MS = 1_357_016_400_000
EPOCH_ROWS = 10


class Stream(Life):
    """A query on a checkpoint, which reads ten rows in an epoch; its rows have their numbers."""

    def __init__(self, writer_type, checkpoint, **options):
        self.folder = checkpoint
        self._checkpoint = SparkCheckpoint(str(checkpoint))
        self._given = options
        super().__init__(writer_type, options, self._checkpoint.query_id(), OutputMode.APPEND)

    def plan(self):
        self._planned = pickle.loads(
            pickle.dumps(StreamWrite(self._make(), self._query, self._checkpoint))
        )

    def run(self, number, end=None):
        """Run the steps of Spark for an epoch, from the end of the previous one."""
        self.run_to_commit(number, end)
        (self.folder / "commits" / str(number)).write_text("v1\n{}")

    def run_to_commit(self, number, end=None):
        begin = 0 if number == 0 else self._end_of(number - 1)
        end = begin + EPOCH_ROWS if end is None else end
        metadata = json.dumps({"batchTimestampMs": PLANNED_MS + 60_000 * number})
        entry = self.folder / "offsets" / str(number)
        entry.write_text(f"v1\n{metadata}\n{self.offset(number, end)}")
        self.epoch(number, self.rows(begin, end))

    def offset(self, number, end):
        """The text of the source's offset at the end of an epoch."""
        del number
        return str(end)

    def run_without_rows(self, number):
        """Run the steps of Spark for an epoch without rows, or whose rows are all dropped."""
        begin = 0 if number == 0 else self._end_of(number - 1)
        (self.folder / "offsets" / str(number)).write_text(f"v1\n{{}}\n{begin}")
        self.epoch(number, self.rows(begin, begin))
        (self.folder / "commits" / str(number)).write_text("v1\n{}")

    def rows(self, begin, end):
        return rows(begin, end - begin)

    def _end_of(self, number):
        return int((self.folder / "offsets" / str(number)).read_text().split("\n")[2])


_COMMAND = Command("replay")
run, said, refused = _COMMAND.run, _COMMAND.said, _COMMAND.refused


def table_rows(table):
    """The rows that a reader of the folder finds, as Spark's reader lists it."""
    found = [
        path
        for path in table.rglob("*.parquet")
        if not any(part[0] in "_." for part in path.relative_to(table).parts)
    ]
    return Counter(n for path in found for n in pq.read_table(path)["id"].to_pylist())


def count_range(end):
    return Counter(range(end))


def make_replay_work(*words):
    """Work that replays a query, as a process of its own does."""

    def work():
        done = run(*words)
        assert done.exit_code == 0, done.output

    return work


def kill_everywhere(place, words, check, stride=1, first=2):
    """Kill a replay before each change of the disk, and finish it.

    Args:
        place: The folder with all that the query has; its checkpoint is in `c`.
        words: Of the command, from the checkpoint on.
        check: Looks at the end, and runs further epochs.
        stride: How many changes are between two kills.
        first: The first epoch that is processed again.

    Returns:
        How many changes there were.
    """
    backup = place.parent / f"{place.name}-backup"
    shutil.copytree(place, backup)
    before, step, died, seen = start(place / "c"), 0, True, []
    while died:
        restore(backup, place)
        died = dies_before(step, make_replay_work(*words))
        forget()
        step += stride
        found = start(place / "c")
        seen.append(found[0])
        if found[0] == "refused":
            assert "'krishiv-spark replay' has taken back only a part" in found[1]
            assert (
                f"krishiv-spark replay {place}/c --from {first} " in f"{found[1].splitlines()[0]} "
            )
        else:
            assert found == before or found[:2] == ("next", first)
        if found[:2] != ("next", first):
            make_replay_work(*words)()
        assert start(place / "c")[:2] == ("next", first)
        check()
        forget()
    assert "refused" in seen
    return step


def restore(backup, place):
    shutil.rmtree(place)
    shutil.copytree(backup, place)
    forget()


def forget():
    """Have this process know no more than a new one does."""
    open_log.cache_clear()
    catalogs._CATALOGS.clear()
