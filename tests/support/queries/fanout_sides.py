"""Sinks with two targets: rows go left, right or both ways, and who looks at both."""

import uuid
from collections import Counter
from functools import partial

import pyarrow as pa
from delta_kit import SEEN as DELTA
from delta_reader import LogReader
from iceberg_onlooker import Onlooker as OnlookerOfTables
from iceberg_onlooker import options as iceberg_options
from kafka_calls import REQUESTS
from kafka_topics import make_topic
from parquet_files import rows as rows_of_files
from parquet_files import staged as staged_files

from krishiv_spark.formats import FanoutDataSource
from krishiv_spark.testing import FILES, SQLITE, SinkUnderTest, back_up_folder

DELTA_CALLS = {name: call for name, call in DELTA.items() if name.startswith("deltalake")}
TEXT_ROW = pa.struct([("id", pa.int64()), ("text", pa.string())])
RECORD = pa.struct([("key", pa.string()), ("value", pa.binary())])


class Files:
    """A side whose rows are Parquet files."""

    kind, sweeps = TEXT_ROW, True

    def __init__(self, folder):
        self.folder = folder
        self.options = {"format": "krishiv-parquet", "path": str(folder)}

    @staticmethod  # it travels to other processes
    def row(number):
        return {"id": number, "text": f"rów {number}"}

    def seen(self):
        return [row["id"] for row in rows_of_files(self.folder)]

    def waiting(self):
        return staged_files(self.folder)

    def backup(self):
        return back_up_folder(self.folder)


class Table(Files):
    """A side whose rows are in an Iceberg table."""

    sweeps = False

    def __init__(self, folder):
        folder.mkdir(parents=True)
        self.onlooker = OnlookerOfTables(folder)
        self.options = {"format": "krishiv-iceberg", **iceberg_options(folder)}

    def seen(self):
        rows = self.onlooker.rows()
        return rows["id"].to_pylist() if rows else []

    def waiting(self):
        return ()


class DeltaSide(Files):
    """A side whose rows are in a Delta table."""

    sweeps = False

    def __init__(self, folder):
        self.folder, self.reader = folder, LogReader(folder / "t")
        self.options = {"format": "krishiv-delta", "path": str(folder / "t")}
        self.options["commitTimeout"] = "300 ms"

    def seen(self):
        rows = self.reader.rows()
        return rows["id"].to_pylist() if rows else []

    def waiting(self):
        return ()


class Topic:
    """A side whose rows are records."""

    kind, sweeps = RECORD, True

    def __init__(self, folder, cluster, onlooker, **options):
        del folder
        self.onlooker, self.topic = onlooker, f"t-{uuid.uuid4().hex}"
        make_topic(cluster.bootstrap, self.topic, partitions=2)
        servers = {"kafka.bootstrap.servers": cluster.bootstrap}
        self.options = {"format": "krishiv-kafka", "topic": self.topic, **servers, **options}

    @staticmethod
    def row(number):
        return {"key": f"k{number}", "value": b"%d" % number}

    def seen(self):
        return [int(record.value) for record in self.onlooker.committed(self.topic)]

    backup = None  # the files of brokers that run cannot be put back

    def waiting(self):
        return self.onlooker.waiting(self.topic)


def make_pair(makes, folder, outside=None):
    """A sink with two sides; an epoch may be on the first before it is on the second.

    Args:
        makes: What makes each side, of a folder.
        folder: New.
        outside: What the kit stops at.
    """
    left, right = (make(folder / name) for make, name in zip(makes, "lr", strict=True))
    given = {"left": left.options, "right": right.options}
    return SinkUnderTest(
        source=FanoutDataSource,
        options={
            f"route.{name}.{key}": text for name, own in given.items() for key, text in own.items()
        },
        schema=pa.schema([("left", left.kind), ("right", right.kind)]),
        row=partial(row_of, (left.row, right.row)),
        oracle=lambda: rows_of(left, right),
        backup=left.backup,  # of one of the two targets: then they disagree
        leftovers=lambda: [*left.waiting(), *right.waiting()],
        sweeps=left.sweeps and right.sweeps,
        most_held=2**26,
        whole_epochs=False,
        complete=False,  # between the two sides, one shows the epoch before: see test_fanout
        batch=False,
        outside=outside or {**FILES, **SQLITE, **REQUESTS, **DELTA_CALLS},
    )


def choose_sides(number):
    """Return whether a row goes left, and whether it goes right."""
    return number % 3 != 1, number % 3 != 2


def row_of(rows, number):
    wanted = zip(rows, choose_sides(number), strict=True)
    return tuple(row(number) if is_there else None for row, is_there in wanted)


def rows_of(left, right):
    """Rows that are wherever they go; one that is anywhere twice, or astray, is there twice."""
    seen = Counter(left.seen()), Counter(right.seen())
    for number in {*seen[0], *seen[1]}:
        pairs = [(found[number], choose_sides(number)[place]) for place, found in enumerate(seen)]
        astray = any(times and not wanted for times, wanted in pairs)
        if astray or all(times for times, wanted in pairs if wanted):
            for _ in range(2 if astray else max(times for times, _ in pairs)):
                yield row_of((left.row, right.row), number)
