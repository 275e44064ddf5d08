"""A source that reads the files ``*.jsonl`` of a folder, and new ones, each once, in any order."""

import json
import os
from collections.abc import Iterator, Sequence

from pyarrow import RecordBatch, Schema

from krishiv_spark import datasource, errors, offsets
from krishiv_spark.sources import Limit, SourceOptions, StreamReader


class _Options(SourceOptions):
    path: str  # of a folder that the executors share with the driver


class _Offset(offsets.Offset):
    """The files that were read. A batch is the files of its end that are not in its start."""

    kind = "json-lines"
    files: tuple[str, ...] = ()  # in the order of batches; grows, so it is for some thousand files


class _Reader(StreamReader[_Offset, str]):
    options_type, offset_type = _Options, _Offset
    options: _Options  # for type checkers, which cannot follow `options_type`
    frozen: set[str] | None = None

    def infer_schema(self) -> Schema:
        raise errors.OptionError("json-lines: give the columns with .schema(...)")

    def initial(self) -> _Offset:
        return _Offset()

    def latest(self, start: _Offset, limit: Limit) -> _Offset:
        there = set(os.listdir(self.options.path)) if self.frozen is None else self.frozen
        new, rows, size = list[str](), 0, 0
        for name in sorted(n for n in there - set(start.files) if n.endswith(".jsonl")):
            with open(f"{self.options.path}/{name}", "rb") as lines:
                rows, size = rows + sum(1 for _ in lines), size + lines.tell()
            if new and not limit.admits(rows=rows, files=len(new) + 1, size=size):
                break
            new.append(name)
        return _Offset(files=(*start.files, *new))

    def plan(self, start: _Offset, end: _Offset) -> Sequence[str]:
        """Use the two positions only, so that later changes of the folder change nothing."""
        return end.files[len(start.files) :]

    def read(self, partition: str) -> Iterator[RecordBatch]:
        with open(f"{self.options.path}/{partition}", "rb") as file:
            while lines := file.readlines(2**20):  # at most about this many bytes in memory
                yield RecordBatch.from_pylist([json.loads(line) for line in lines], self.schema)

    def freeze(self) -> None:
        self.frozen = set(os.listdir(self.options.path))


class JsonSource(datasource.KrishivDataSource):
    """Condition: files are complete when they appear, never change, and have unique names."""

    format_name, reader_type = "json-lines", _Reader
