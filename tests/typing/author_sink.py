"""A sink as an author writes it: checked by the type checkers, never run."""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
from pydantic import BaseModel
from typing_extensions import assert_type

from krishiv_spark.datasource import KrishivDataSource
from krishiv_spark.errors import CommitRejected, KrishivError, SinkError
from krishiv_spark.offsets import EpochLog, State, open_log
from krishiv_spark.options import ByteSize, Duration, Names, Options, SecretStr
from krishiv_spark.sinks import (
    AtLeastOnceWriter,
    CommittedEpoch,
    Epoch,
    Guarantee,
    LogCommitter,
    OutputMode,
    Ownership,
    Participant,
    Publisher,
    SupportsGenerations,
    Task,
    TwoPhaseCommitter,
    TwoPhaseWriter,
    Writer,
)


class FolderOptions(Options):
    path: Path
    timeout: Duration = 30_000
    most: ByteSize | None = None
    columns: Names = ()
    password: SecretStr | None = None


@dataclass(frozen=True)
class Part:
    file: str


class FolderWriter(TwoPhaseWriter[Part]):
    options_type: ClassVar[type[Options]] = FolderOptions
    guarantee: ClassVar[Guarantee] = Guarantee.EXACTLY_ONCE
    options: FolderOptions

    def check(self) -> None:
        assert_type(self.options.path, Path)
        assert_type(self.options.timeout, int)
        assert_type(self.options.most, int | None)
        assert_type(self.options.columns, tuple[str, ...])
        assert_type(self.mode, OutputMode)
        assert_type(self.streaming, bool)

    def stage(self, batches: Iterator[pa.RecordBatch], task: Task, plan: None) -> Part | None:
        assert_type(task.generation, int | None)
        name = f"{task.query}-{task.epoch}-{task.partition}-{task.nonce}"
        lines = [json.dumps(batch.to_pylist()) for batch in batches]
        (self.options.path / name).write_text("\n".join(lines))
        return Part(name) if lines else None

    def last_committed(self, query: str) -> CommittedEpoch | None:
        mark = self.options.path / query
        return CommittedEpoch(int(mark.read_text()), "digest") if mark.exists() else None

    def publish(self, epoch: Epoch, staged: Sequence[Part]) -> None:
        for part in staged:
            assert_type(part, Part)
        try:
            os.link(self.options.path / "aside", self.options.path / str(epoch.number))
        except FileExistsError as error:
            raise CommitRejected(f"epoch {epoch.number} is there") from error

    def discard(self, staged: Sequence[Part]) -> None:
        for part in staged:
            (self.options.path / part.file).unlink(missing_ok=True)


class FencedWriter(FolderWriter):
    def begin(self, epoch: Epoch) -> Ownership[Part]:
        assert_type(epoch.digest, str | None)
        return Ownership(len(epoch.query))

    def find_own_generation(self, query: str, number: int) -> Epoch | None:
        return Epoch(query, number, 1)

    def check_owner(self, epoch: Epoch) -> None:
        assert_type(epoch.generation, int | None)


class Pieces(BaseModel):
    names: tuple[str, ...]


class OtherPieces(BaseModel):
    others: tuple[str, ...]


@dataclass(frozen=True)
class Planned:
    folder: Path
    done: Sequence[str]


class LoggedFolderWriter(Writer[Pieces, Planned]):
    options: FolderOptions

    def plan(self, ownership: Ownership[Pieces] | None) -> Planned:
        assert ownership is not None
        assert_type(ownership.generation, int)
        salvaged = ownership.salvaged
        done = () if salvaged is None else [name for item in salvaged.staged for name in item.names]
        return Planned(self.options.path, done)

    def stage(self, batches: Iterator[pa.RecordBatch], task: Task, plan: Planned) -> Pieces | None:
        assert_type(plan.folder, Path)
        return Pieces(names=(task.nonce,)) if any(batch.num_rows for batch in batches) else None

    def committer(self) -> LogCommitter[Pieces]:
        return LogCommitter(self.log, FolderParticipant(), streaming=self.streaming)

    def log(self, query: str) -> EpochLog:
        return open_log(f"/somewhere/{query}")


class FolderParticipant(Participant[Pieces]):
    staged_type = Pieces

    def finish(self, epoch: Epoch, staged: Sequence[Pieces]) -> None:
        assert_type(epoch.number, int)
        assert_type([item.names for item in staged], list[tuple[str, ...]])

    def is_finished(self, epoch: Epoch) -> bool:
        return epoch.number < 0

    def discard(self, staged: Sequence[Pieces]) -> None:
        del staged


class Bell(AtLeastOnceWriter[int]):
    def stage(self, batches: Iterator[pa.RecordBatch], task: Task, plan: None) -> int:
        assert_type(task.partition, int)
        return sum(batch.num_rows for batch in batches)

    def publish(self, epoch: Epoch, staged: Sequence[int]) -> None:
        print("\a" * sum(staged), epoch.number)


class FolderSource(KrishivDataSource):
    format_name = "folder"
    writer_type = FolderWriter


class BellSource(KrishivDataSource):
    format_name = "bell"
    writer_type = Bell


def uses_of_the_contract(writer: Writer[Part], log: EpochLog) -> None:
    committer = writer.committer()
    assert_type(committer, Publisher[Part])
    if isinstance(committer, TwoPhaseCommitter):
        assert_type(committer.last_committed("q"), CommittedEpoch | None)
    if isinstance(committer, SupportsGenerations):
        assert_type(committer.begin(Epoch("q", 0)).generation, int)
    generation = log.begin().owner
    assert_type(generation, int)
    state = log.intend(generation, 0, [{"any": "JSON"}])
    assert_type(state, State)
    assert_type(state.committed_epoch, int | None)
    assert_type(log.void(state), State)
    assert_type(FolderOptions.parse({"path": "/x"}, "folder"), FolderOptions)
    assert_type(FolderOptions.names(), list[str])
    assert_type(KrishivError.retriable, bool)
    error: Exception = SinkError("x")
    assert isinstance(error, KrishivError)


def mistakes_that_are_found(options: FolderOptions, schema: pa.Schema, task: Task) -> None:
    TwoPhaseWriter(options, schema, OutputMode.APPEND)  # type: ignore[abstract]  # pyright: ignore[reportAbstractUsage]
    FolderWriter(options, schema, "append")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    task.epoch = 1  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


class WrongPayload(TwoPhaseWriter[Part]):
    def stage(self, batches: Iterator[pa.RecordBatch], task: Task, plan: None) -> str:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        del batches
        return task.nonce

    def last_committed(self, query: str) -> str | None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        return query

    def publish(self, epoch: Epoch, staged: Sequence[Part]) -> None:
        del epoch, staged

    def discard(self, staged: Sequence[Part]) -> None: ...


class WrongPlan(LoggedFolderWriter):
    def stage(self, batches: Iterator[pa.RecordBatch], task: Task, plan: None) -> Pieces | None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        del batches, task
        return None


class WrongParticipant(LoggedFolderWriter):
    def committer(self) -> LogCommitter[OtherPieces]:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        raise NotImplementedError
