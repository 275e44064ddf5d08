"""Folders of Parquet files, and readers of them as Spark drives them."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from krishiv_spark.formats import ParquetDataSource
from krishiv_spark.offsets import open_log
from krishiv_spark.parquet.layout import DataFile, log_folder, query_tag, staged_folder
from krishiv_spark.sinks.parquet.staging import StagedFile, StagedFiles, add_counts
from krishiv_spark.sources.base import UNLIMITED
from krishiv_spark.sources.parquet.offset_store import OffsetLimits
from krishiv_spark.sources.parquet.reader import ParquetOffset, ParquetReader, ParquetSourceOptions

HOUR_NS = 3_600_000_000_000
DAY_NS = 24 * HOUR_NS
NOON = 1_700_000_000_000_000_000
SCHEMA = pa.schema([("n", pa.int64())])
FIRST = ParquetOffset()


def reader(path, *, schema=SCHEMA, streaming=True, kind=ParquetReader, **options):
    given = {"path": str(path), **{key: str(value) for key, value in options.items()}}
    parsed = ParquetSourceOptions.parse(given, "krishiv-parquet")
    return kind(parsed, schema, streaming=streaming)


def make_content(rows=(1,)):
    """The bytes of a file with some rows."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"n": pa.array(rows, pa.int64())}), sink)
    return bytes(sink.getvalue())


def put(folder, name, rows=(1,), *, at=NOON):
    return put_bytes(folder, name, make_content(rows), at=at)


def put_bytes(folder, name, data, *, at=NOON):
    path = Path(folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.utime(path, ns=(at, at))
    return path


def names(offset):
    return [file.path for file in offset.files]


def reload_offset(offset):
    """An offset as another process reads it from Spark's log."""
    return ParquetOffset.from_json(offset.to_json())


def rows(source, start, end):
    """The rows of a batch, sorted."""
    parts = source.plan(start, end)
    return sorted(
        n for part in parts for batch in source.read(part) for n in batch["n"].to_pylist()
    )


def batches(source, start=FIRST, limit=UNLIMITED):
    """File names of batch after batch, until nothing is left."""
    found = []
    while (end := source.latest(start, limit)) != start:
        found.append(names(end))
        start = reload_offset(end)
    return found


def drain(source, start=FIRST, limit=UNLIMITED):
    """The rows of all batches until nothing is left, and where the query stands then."""
    found = []
    while (end := source.latest(start, limit)) != start:
        found += rows(source, start, end)
        start = reload_offset(end)
    return sorted(found), start


class Publisher:
    """A query of our sink, publishing step by step into a real epoch log."""

    def __init__(self, table, query="q", *, old_names=False, elsewhere=None):
        self.table = Path(table)
        self.query = query
        self.tag = query_tag(query)
        self._old_names = old_names
        self._log = open_log(str(elsewhere or log_folder(self.table, query)))

    def stage(self, epoch, count=1, folder=""):
        """Begin a generation that will publish an epoch of so many files."""
        self.generation = self._log.begin().owner
        self.staged = staged_folder(self.table, self.query, self.generation)
        self.staged.mkdir(parents=True)
        files = tuple(
            StagedFile(
                name=str(DataFile(epoch, n, 0, self.tag, f"{epoch:06x}{n:06x}")),
                folder=folder.format(n),
                rows=1,
                size=1,
            )
            for n in range(count)
        )
        self.epoch, self.item = epoch, StagedFiles(folder="x", files=files)
        if not self._old_names:
            (self.item,) = add_counts([self.item])
        return self

    def intend(self, removes=()):
        items = [self.item, StagedFiles(removes=tuple(removes))]
        dumped = [item.model_dump(mode="json") for item in items]
        self._log.intend(self.generation, self.epoch, dumped)
        return self

    @property
    def paths(self):
        """The files of the epoch, relative to the table."""
        return [str(Path(file.folder, file.name)) for file in self.item.files]

    def reveal(self, *numbers, at=NOON):
        """Make some files visible, or all; each has one row: epoch * 100 + its number."""
        for n in numbers or range(len(self.paths)):
            put(self.table, self.paths[n], [self.epoch * 100 + n], at=at)
        return self

    def finish(self):
        self.staged.rmdir()
        return self

    def publish(self, epoch, count=1, folder="", *, at=NOON):
        """A whole epoch."""
        return self.stage(epoch, count, folder).intend().reveal(at=at).finish()


class Forgetful(ParquetReader):
    """A reader whose offsets hold nothing by themselves: all is in files of state."""

    limits = OffsetLimits(files=0, ids=0, epochs=2)

    def initial(self):
        """The id of its state is not random, so that its first offset has one text."""
        first = super().initial()
        return first.model_copy(update={"stream": "kit"}) if first == FIRST else first


class ForgetfulDataSource(ParquetDataSource):
    reader_type = Forgetful
