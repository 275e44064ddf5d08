"""A sink that writes JSON lines into another program's folder, exactly once, by an epoch log.

That program takes files away as they appear: no mark can stay in the folder, and no two files
appear in one step. So an intent in the log is the linearization point; `finish` repeats renames.
"""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from pyarrow import RecordBatch, types
from pydantic import BaseModel

from krishiv_spark import datasource, durable, errors, options
from krishiv_spark.sinks import (
    Epoch,
    FileName,
    LoggedWriter,
    LogView,
    OutputMode,
    Participant,
    Task,
)

_HELD = types.is_boolean, types.is_integer, types.is_string


class _Options(options.Options):
    path: Path  # of the folder, shared by executors and driver

    def beside(
        self, query: str, name: object
    ) -> Path:  # the log, and a staging folder for each generation
        return self.path.with_name(f"{self.path.name}.krishiv") / query / str(name)


class _File(BaseModel):
    name: FileName  # not a path: a user who can write the log could name any file


class _Inbox(Participant[_File]):  # driver
    staged_type = _File

    def __init__(self, given: _Options) -> None:
        self._given = given

    def prepare(
        self, epoch: Epoch, staged: Sequence[_File], salvaged: Sequence[_File]
    ) -> Sequence[_File]:  # committer, directly before the intent; nothing is refused later
        folder = self._given.beside(epoch.query, epoch.generation)
        there = os.listdir(folder) if durable.exists(folder) else []
        if any(file.name not in there for file in staged):
            raise errors.CommitRejected(f"epoch {epoch.number}: staged files are gone")
        durable.sync_folder(folder)
        return staged

    def finish(self, epoch: Epoch, staged: Sequence[_File]) -> None:  # any number of times
        folder = self._given.beside(epoch.query, epoch.generation)
        for file in staged:
            with suppress(FileNotFoundError):  # it is visible already
                os.rename(folder / file.name, self._given.path / file.name)
        durable.sync_folder(self._given.path)
        shutil.rmtree(folder, ignore_errors=True)

    def is_finished(self, epoch: Epoch) -> bool:  # the folder is removed last
        return not durable.exists(self._given.beside(epoch.query, epoch.generation))

    def sweep(self, query: str, generation: int, *, clean: bool) -> None:  # planner
        own = self._given.beside(query, generation)
        durable.make_folder(own)
        for name in os.listdir(own.parent):
            if name.isdecimal() and int(name) < generation:
                shutil.rmtree(own.parent / name, ignore_errors=True)

    def discard(self, staged: Sequence[_File]) -> None:
        """Do nothing: files that no intent names are removed with their generation's folder."""


class _Writer(LoggedWriter[_File]):
    options_type = _Options
    options: _Options

    def check(self) -> None:  # planner
        if self.mode is OutputMode.REPLACE or not self.streaming:
            raise errors.OptionError("inbox: only for streams, in output mode 'append'")
        for field in self.schema:
            if not any(holds(field.type) for holds in _HELD):
                raise errors.SchemaError(f"column {field.name!r}: no {field.type} in an inbox")

    def stage(self, batches: Iterator[RecordBatch], task: Task, plan: None) -> _File | None:
        file = _File(name=f"{task.query}-{task.epoch}-{task.partition}-{task.nonce}.jsonl")
        place, rows = self.options.beside(task.query, task.generation) / file.name, 0
        with open(place, "x", encoding="utf-8") as lines:  # executor
            for batch in batches:
                lines.writelines(f"{json.dumps(row)}\n" for row in batch.to_pylist())
                rows += batch.num_rows
        durable.sync_file(place)
        return file if rows else None

    def participant(self, view: LogView) -> _Inbox:
        del view  # for participants that check whether they still own the query
        return _Inbox(self.options)

    def log_location(self, query: str) -> str:
        return str(self.options.beside(query, "log"))


class InboxDataSource(datasource.KrishivDataSource):
    """Register it with ``spark.dataSource.register``, then write ``.format("inbox")``."""

    format_name, writer_type = "inbox", _Writer
