"""Correct sources, and the folder that they read."""

import json
import os
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import islice
from operator import add
from pathlib import Path
from typing import Literal

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    SimpleDataSourceStreamReader,
)

from krishiv_spark.datasource import KrishivDataSource
from krishiv_spark.offsets import Offset, Start, Watermark
from krishiv_spark.offsets.watermark import advance, epoch_ms
from krishiv_spark.sources.base import SourceOptions, StreamReader

SCHEMA = pa.schema(
    [("id", pa.int64()), ("text", pa.string()), ("at", pa.timestamp("us", tz="UTC"))]
)
A_SECOND = 1_700_000_000


# ---------------------------------------------------------------- the folder


def write_unit(folder, number, rows):
    """The other program. The file system knows times to the second only, as many do."""
    aside = folder / ".next"
    lines = (
        json.dumps([*row[:2], row[2] and row[2].isoformat()], ensure_ascii=False) for row in rows
    )
    aside.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    os.utime(aside, (A_SECOND, A_SECOND))
    os.rename(aside, file_of(folder, number))
    aside.write_text('[7, "half wri')


def file_of(folder, number) -> Path:
    return Path(folder) / f"{number}.jsonl"


def names_in(folder) -> list[str]:
    return [name for name in os.listdir(folder) if not name.startswith(".")]


def find_next_position(folder) -> int:
    """The number after the newest file, as positions are."""
    return max((int(Path(name).stem) + 1 for name in names_in(folder)), default=0)


def lines_in(file) -> Iterator[str]:
    with open(file, encoding="utf-8", newline="\n") as lines:
        yield from lines


def row_of(line) -> dict:
    number, text, at = json.loads(line)
    return {"id": number, "text": text, "at": at and datetime.fromisoformat(at)}


def rows_in(folder, numbers: Iterable[int]) -> Iterator[dict]:
    for number in numbers:
        yield from map(row_of, lines_in(file_of(folder, number)))


def batches_of(rows: Iterable[dict]) -> Iterator[pa.RecordBatch]:
    left = iter(rows)
    while chunk := list(islice(left, 500)):
        yield pa.RecordBatch.from_pylist(chunk, schema=SCHEMA)


# ---------------------------------------------------------------- correct, on our base


class FolderOptions(SourceOptions):
    path: str
    starting: Literal["earliest", "latest"] = "earliest"
    files_per_task: int = 1000


class FolderOffset(Offset):
    kind = "planted"
    next: int = 0
    note: int | None = None
    names: tuple[str, ...] | None = None


class FolderReader(StreamReader[FolderOffset, tuple[int, int]]):
    options_type = FolderOptions
    offset_type = FolderOffset
    options: FolderOptions

    def __init__(self, options, schema, *, streaming):
        super().__init__(options, schema, streaming=streaming)
        self.folder = options.path
        self.frozen = None

    def infer_schema(self):
        return SCHEMA

    def initial(self):
        return Start(at="latest") if self.options.starting == "latest" else FolderOffset()

    def resolve(self, start):
        del start
        return FolderOffset(next=find_next_position(self.folder))

    def latest(self, start, limit):
        end = self.limited(start.next, self.newest(), limit)
        if end == start.next:
            return start
        return FolderOffset(next=end, watermark=self.watermark(start, end))

    def limited(self, first, newest, limit) -> int:
        """The end of a batch; at least one file further if there is one."""
        taken = [0, 0, 0]
        for number in range(first, newest):
            taken = list(map(add, taken, self.size(number)))
            if number > first and exceeds(taken, limit):
                return number
        return max(first, newest)

    def size(self, number) -> tuple[int, int, int]:
        """Rows, files and bytes of a unit."""
        lengths = [len(line.encode()) for line in self.lines(number)]
        return len(lengths), 1, sum(lengths)

    def watermark(self, start, end) -> Watermark | None:
        if self.options.event_time is None:
            return None
        return advance(start.watermark, self.newest_ms(start.next, end), self.delay)

    @property
    def delay(self) -> int:
        return self.options.watermark_delay

    def newest_ms(self, first, end) -> int:
        return max(epoch_ms(pa.scalar(row["at"])) for row in self.rows(range(first, end)))

    def plan(self, start, end):
        step = self.options.files_per_task
        return [(n, min(n + step, end.next)) for n in range(start.next, end.next, step)]

    def read(self, partition):
        return batches_of(self.rows(range(*partition)))

    def rows(self, numbers) -> Iterator[dict]:
        for number in numbers:
            yield from map(row_of, self.lines(number))

    def lines(self, number) -> Iterator[str]:
        return lines_in(file_of(self.folder, number))

    def freeze(self):
        self.frozen = find_next_position(self.folder)

    def newest(self) -> int:
        return find_next_position(self.folder) if self.frozen is None else self.frozen


def exceeds(taken, limit) -> bool:
    rows, files, size = taken
    return not limit.admits(rows=rows, files=files, size=size)


class Folder(KrishivDataSource):
    format_name = "planted"
    reader_type = FolderReader


def make_format(reader):
    """The format of a reader, in its place; the reader is found as the format's `reader_type`."""
    reader.__qualname__ = f"{reader.__name__}.reader_type"
    parts = {"format_name": "planted", "reader_type": reader, "__module__": reader.__module__}
    return type(reader.__name__, (KrishivDataSource,), parts)


@make_format
class Queue(FolderReader):
    """Correct: what is done may be thrown away, and one is told as often as Spark likes."""

    def committed(self, end):
        for number in range(end.next):
            file_of(self.folder, number).unlink(missing_ok=True)


# ---------------------------------------------------------------- correct, on PySpark's classes


class PlainReader(DataSourceStreamReader):
    """With `latestOffset` as every version of PySpark knows it."""

    def __init__(self, options):
        self.folder = options["path"]

    def initialOffset(self):
        return {"next": 0}

    def latestOffset(self):
        return {"next": find_next_position(self.folder)}

    def partitions(self, start, end):
        return [InputPartition(number) for number in range(start["next"], end["next"])]

    def read(self, partition):
        return batches_of(rows_in(self.folder, [partition.value]))


class Plain(DataSource):
    stream_reader = PlainReader

    def streamReader(self, schema):
        del schema
        return self.stream_reader(self.options)


class SimpleReader(SimpleDataSourceStreamReader):
    def __init__(self, options):
        self.folder = options["path"]

    def initialOffset(self):
        return {"next": 0}

    def read(self, start):
        end = {"next": find_next_position(self.folder)}
        return self.readBetweenOffsets(start, end), end

    def readBetweenOffsets(self, start, end):
        return map(tuple_of, rows_in(self.folder, range(start["next"], end["next"])))


class Simple(DataSource):
    stream_reader = SimpleReader

    def simpleStreamReader(self, schema):
        del schema
        return self.stream_reader(self.options)


class JobsReader(DataSourceReader):
    """For batches alone."""

    def __init__(self, options):
        self.folder = options["path"]

    def partitions(self):
        return [InputPartition(Path(name).stem) for name in names_in(self.folder)]

    def read(self, partition):
        numbers = [] if partition is None or partition.value is None else [partition.value]
        return batches_of(self.rows(numbers))

    def rows(self, numbers):
        return rows_in(self.folder, numbers)


class Jobs(DataSource):
    stream_reader = JobsReader

    def reader(self, schema):
        del schema
        return self.stream_reader(self.options)


def make_pyspark_format(reader):
    """As `make_format`, for readers that are written on PySpark's own classes."""
    reader.__qualname__ = f"{reader.__name__}.stream_reader"
    base = next(b for b in (Simple, Plain, Jobs) if issubclass(reader, b.stream_reader))
    return type(
        reader.__name__, (base,), {"stream_reader": reader, "__module__": reader.__module__}
    )


def tuple_of(row) -> tuple:
    return tuple(row.values())
