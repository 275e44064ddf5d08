"""Correct sinks, one for each kind of outside."""

import contextlib
import json
import os
import pickle
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from keyed_rows import KEYED_ROWS
from pydantic import BaseModel
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, WriterCommitMessage

from krishiv_spark.datasource import KrishivDataSource
from krishiv_spark.errors import CommitRejected, CommitUnknown
from krishiv_spark.offsets import open_log
from krishiv_spark.sinks.base import (
    AtLeastOnceWriter,
    CommittedEpoch,
    Guarantee,
    OutputMode,
    TwoPhaseWriter,
    Writer,
)
from krishiv_spark.sinks.logged import LogCommitter, Participant
from krishiv_spark.sinks.numbered import NumberedJobOptions
from krishiv_spark.storage.paths import FileName
from krishiv_spark.testing import back_up_folder
from planted_sinks.outside import Place, make_format, read_rows, rows_of, write_rows

# ---------------------------------------------------------------- correct, in a database


TABLES = """
PRAGMA synchronous = OFF;
CREATE TABLE marks (query, epoch, digest, PRIMARY KEY (query, epoch));
"""


def connection(folder):
    return closing(sqlite3.connect(folder / "database", timeout=0.01, isolation_level=None))


@contextmanager
def transaction(folder):
    """All of it or nothing, and nobody else writes meanwhile."""
    with connection(folder) as db:
        db.cursor().execute("PRAGMA synchronous = OFF")
        db.execute("BEGIN IMMEDIATE")
        yield db
        db.execute("COMMIT")


def ask(folder, query, *values) -> list:
    with connection(folder) as db:
        return db.execute(query, values).fetchall()


def newest_epoch(folder, query) -> CommittedEpoch | None:
    newest = "SELECT epoch, digest FROM marks WHERE query = ? ORDER BY epoch DESC LIMIT 1"
    return next((CommittedEpoch(*found) for found in ask(folder, newest, query)), None)


def visible_rows(folder) -> Iterator[dict]:
    """Yield the rows that a reader sees, by the table's own columns."""
    with connection(folder) as db:
        if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'visible'").fetchall():
            found = db.execute("SELECT * FROM visible")
            names = [column for column, *_ in found.description]
            yield from (dict(zip(names, map(from_sqlite_value, row), strict=True)) for row in found)


def to_sqlite_value(value):
    """A value as SQLite keeps it: what it has no type for is pickled."""
    return value if isinstance(value, int | str | None) else pickle.dumps(value)


def from_sqlite_value(value):
    return pickle.loads(value) if isinstance(value, bytes) else value


@dataclass(frozen=True)
class Part:
    name: str
    rows: int


class DatabaseWriter(TwoPhaseWriter[Part]):
    """Correct: rows wait in a table of their own, and move with the mark in one transaction."""

    options_type = Place
    tables = TABLES

    @classmethod
    def outside(cls, folder):
        with connection(folder) as db:
            db.executescript(cls.tables)
        return {
            "oracle": lambda: visible_rows(folder),
            "expire": lambda: throw_away_staged(folder),
            "leftovers": lambda: [name for (name,) in ask(folder, "SELECT part FROM staged")],
        }

    @property
    def folder(self):
        return self.options.path

    @property
    def columns(self) -> str:
        return ", ".join(self.schema.names)

    def check(self):
        visible = f"CREATE TABLE IF NOT EXISTS visible ({self.columns})"
        staged = f"CREATE TABLE IF NOT EXISTS staged (part, query, epoch, {self.columns})"
        with connection(self.folder) as db:
            db.executescript(f"PRAGMA synchronous = OFF; BEGIN; {visible}; {staged}; COMMIT")

    def name(self, task) -> str:
        return f"{task.query}/{task.epoch}/{task.partition}/{task.nonce}"

    def stage(self, batches, task, plan):
        del plan
        rows = 0
        for batch in batches:
            self.keep(task, self.values(batch))
            rows += batch.num_rows
        return Part(self.name(task), rows) if rows else None

    def values(self, batch) -> list:
        return [[to_sqlite_value(value) for value in row.values()] for row in batch.to_pylist()]

    def keep(self, task, rows):
        """One statement for all of them: it holds no lock while the next ones are awaited."""
        place = (self.name(task), task.query, task.epoch)
        marks = ", ".join("?" * (len(place) + len(rows[0])))
        into = f"INSERT INTO staged (part, query, epoch, {self.columns})"
        with connection(self.folder) as db:
            values = ", ".join([f"({marks})"] * len(rows))
            db.execute(f"{into} VALUES {values}", [v for row in rows for v in (*place, *row)])

    def last_committed(self, query):
        return newest_epoch(self.folder, query)

    def publish(self, epoch, staged):
        with transaction(self.folder) as db:
            self.mark(db, epoch)
            self.clear(db)
            self.move(db, staged)
            self.sweep(db, epoch)

    def mark(self, db, epoch):
        mark = (epoch.query, epoch.number, epoch.digest)
        db.execute("INSERT INTO marks VALUES (?, ?, ?)", mark)

    def clear(self, db):
        if self.mode is OutputMode.REPLACE:
            db.execute("DELETE FROM visible")

    def move(self, db, staged):
        for part in staged:
            self.check_whole(db, part)
            self.show(db, part.name)

    def check_whole(self, db, part):
        found = db.execute("SELECT count(*) FROM staged WHERE part = ?", (part.name,)).fetchone()
        if found[0] < part.rows:
            raise CommitRejected(f"rows of {part.name} have expired")

    def show(self, db, name):
        rows = f"SELECT {self.columns} FROM staged WHERE part = ?"
        db.execute(f"INSERT INTO visible ({self.columns}) {rows}", (name,))

    def sweep(self, db, epoch):
        """Also what attempts have left that nobody heard of."""
        place = (epoch.query, epoch.number)
        db.execute("DELETE FROM staged WHERE query = ? AND epoch <= ?", place)

    def discard(self, staged):
        with transaction(self.folder) as db:
            for part in staged:
                db.execute("DELETE FROM staged WHERE part = ?", (part.name,))


def throw_away_staged(folder):
    """Housekeeping; it gives way to whoever writes."""
    with contextlib.suppress(sqlite3.OperationalError), transaction(folder) as db:
        db.execute("DELETE FROM staged")


class Database(KrishivDataSource):
    format_name = "planted"
    writer_type = DatabaseWriter


class UpsertsWriter(DatabaseWriter):
    """Correct: of the rows with one id, the one with the highest number stays, or its deletion."""

    @classmethod
    def outside(cls, folder):
        return {**super().outside(folder), **KEYED_ROWS}

    def move(self, db, staged):
        for part in staged:
            self.check_whole(db, part)
        self.replace(db, [part.name for part in staged])

    def replace(self, db, names):
        self.remove(db, names)
        self.add(db, names)

    def remove(self, db, names):
        ids = f"SELECT id FROM staged WHERE {of_parts(names)}"
        db.execute(f"DELETE FROM visible WHERE id IN ({ids})", names)

    def add(self, db, names, where="op = 'u'"):
        newest = f"SELECT id, max(number) AS number, op FROM staged WHERE {of_parts(names)}"
        rows = f"SELECT {self.columns} FROM ({newest} GROUP BY id) WHERE {where}"
        db.execute(f"INSERT INTO visible ({self.columns}) {rows}", names)


def of_parts(names):
    return f"part IN ({', '.join('?' * len(names))})"


class Upserts(KrishivDataSource):
    format_name = "planted"
    writer_type = UpsertsWriter


class NumberedPlace(Place, NumberedJobOptions):
    """Of a sink that takes numbered batches."""


class NumberedWriter(DatabaseWriter):
    """Correct: also for functions of ``foreachBatch``."""

    options_type = NumberedPlace

    @classmethod
    def outside(cls, folder):
        return {**super().outside(folder), "backup": partial(back_up_folder, folder)}


class Numbered(KrishivDataSource):
    format_name = "planted"
    writer_type = NumberedWriter


class JobsWriter(DatabaseWriter):
    """Correct, and declared to have batch jobs alone."""

    @classmethod
    def outside(cls, folder):
        return {**super().outside(folder), "stream": False}


class Jobs(KrishivDataSource):
    format_name = "planted"
    writer_type = JobsWriter


# ---------------------------------------------------------------- correct, on PySpark's classes


class TableFormat:
    """A folder of data files, and a log whose entries name those that count."""

    def __init__(self, folder):
        self.data, self.log, self.aside = (Path(folder) / n for n in ("data", "log", "aside"))

    def create(self):
        for folder in (self.data, self.log, self.aside):
            folder.mkdir()

    def entries(self) -> list:
        return [self.entry(name) for name in sorted(os.listdir(self.log))]

    def entry(self, name) -> dict:
        return json.loads((self.log / name).read_text())

    def add(self, number, entry):
        """A link appears whole, and fails if the number is taken."""
        file = self.aside / uuid.uuid4().hex
        file.write_text(json.dumps(entry))
        try:
            os.link(file, self.log / f"{number:06}")
        finally:
            file.unlink()

    def remove(self, files):
        for file in files:
            (self.data / file).unlink(missing_ok=True)

    def files(self) -> list:
        return [file for entry in self.entries() for file in entry["files"]]

    def unnamed(self) -> set:
        return {*os.listdir(self.aside), *os.listdir(self.data)} - {*self.files()}

    def rows(self) -> Iterator[list]:
        """Yield the rows that a reader sees; a deleted data file has none."""
        entries = self.entries()
        first = max((n for n, entry in enumerate(entries) if entry["replaces"]), default=0)
        for file in (file for entry in entries[first:] for file in entry["files"]):
            yield from read_rows(self.data / file) if (self.data / file).exists() else []


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    query: str
    file: str


class TableWriter(DataSourceStreamWriter):
    """Correct: an epoch looks for itself in the log, and takes the number after what it saw."""

    guarantee = Guarantee.EXACTLY_ONCE

    @classmethod
    def outside(cls, folder):
        table = TableFormat(folder)
        table.create()
        return {
            "oracle": table.rows,
            "any_value": ("text",),
            "leftovers": table.unnamed,
            "sweeps": False,  # who would know that nobody writes them any more?
            "guarantee": cls.guarantee,
        }

    def __init__(self, options, overwrite):
        self.options = options
        self.table = TableFormat(options["path"])
        self.overwrite = overwrite

    def write(self, iterator):
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId")
        file = self.name(context)
        write_rows(self.table.data / file, ([row["id"], row["text"]] for row in iterator))
        return Written(query, file)

    def name(self, context) -> str:
        del context
        return uuid.uuid4().hex

    def commit(self, messages, batchId):
        entry = self.entry_of(messages, batchId)
        while True:
            entries = self.table.entries()
            held = [
                file for other in entries if self.is_same(entry, other) for file in other["files"]
            ]
            if any(self.is_same(entry, other) for other in entries):
                self.table.remove({*entry["files"]} - {*held})
                break
            with contextlib.suppress(FileExistsError):  # somebody was faster: look again
                self.add(len(entries), entry)
                break

    def entry_of(self, messages, epoch) -> dict:
        files = [message.file for message in messages]
        query = messages[0].query
        return {"query": query, "epoch": epoch, "files": files, "replaces": self.overwrite}

    def is_same(self, entry, other) -> bool:
        return all(entry[key] == other[key] for key in ("query", "epoch"))

    def add(self, number, entry):
        self.table.add(number, entry)

    def abort(self, messages, batchId):
        del batchId
        if None in messages:  # otherwise it is the commit that failed, and may have happened
            self.table.remove(message.file for message in messages if message is not None)


class Table(DataSource):
    stream_writer = TableWriter

    def streamWriter(self, schema, overwrite):
        del schema
        return self.stream_writer(self.options, overwrite)


def make_pyspark_format(writer):
    """As `make_format`, for writers that are written on PySpark's own classes."""
    writer.__qualname__ = f"{writer.__name__}.stream_writer"
    return type(
        writer.__name__, (Table,), {"stream_writer": writer, "__module__": writer.__module__}
    )


# ---------------------------------------------------------------- correct, over an epoch log


class Piece(BaseModel):
    name: FileName


class FolderParticipant(Participant[Piece]):
    """Correct: staged files are renamed, one by one, into the folder that readers list."""

    staged_type = Piece

    def __init__(self, folder, mode):
        self.folder, self.mode = folder, mode
        self.staged, self.visible = folder / "staged", folder / "visible"

    def finish(self, epoch, staged):
        for piece in staged:
            self.show(piece.name)
        if self.mode is OutputMode.REPLACE:
            self.remove_older(epoch)
        self.abandon(epoch)

    def show(self, name):
        with contextlib.suppress(FileNotFoundError):  # it was shown before, maybe even replaced
            os.rename(self.staged / name, self.visible / name)

    def remove_older(self, epoch):
        for name in os.listdir(self.visible):
            if name < name_of(epoch.query, epoch.generation):
                (self.visible / name).unlink(missing_ok=True)

    def sweep(self, query, generation, *, clean):
        del clean
        self.remove_staged(query, before=generation)

    def abandon(self, epoch):
        self.remove_staged(epoch.query, before=epoch.generation + 1)

    def remove_staged(self, query, before):
        for name in os.listdir(self.staged):
            if name.startswith(query) and name < name_of(query, before):
                (self.staged / name).unlink(missing_ok=True)

    def is_finished(self, epoch):
        del epoch
        return False

    def discard(self, staged):
        for piece in staged:
            (self.staged / piece.name).unlink(missing_ok=True)


class RecordingParticipant(FolderParticipant):
    """Correct: the folder also has a file for each finished epoch, which records its digest."""

    def finish(self, epoch, staged):
        if not self.record(epoch).exists():
            self.check_there(epoch, staged)
        super().finish(epoch, staged)
        aside = self.folder / f"aside-{uuid.uuid4().hex}"
        aside.write_text(json.dumps([epoch.number, epoch.digest]))
        os.replace(aside, self.record(epoch))

    def check_there(self, epoch, staged):
        """Without its record, what is neither staged nor visible is in no copy of this age."""
        for name in (piece.name for piece in staged):
            if not ((self.staged / name).exists() or (self.visible / name).exists()):
                raise CommitUnknown(f"epoch {epoch.number}: {name} is gone: put the folder back")

    def record(self, epoch):
        return self.folder / f"record-{epoch.query}-{epoch.number:06}"

    def newest_epoch(self, query):
        return max(self.records_of(query), default=None, key=lambda mark: mark.epoch)

    def records_of(self, query):
        found = self.folder.glob(f"record-{query}-*")
        return [CommittedEpoch(*json.loads(file.read_text())) for file in found]


class FolderWriter(Writer[Piece]):
    options_type = Place
    guarantee = Guarantee.EXACTLY_ONCE
    participant_type = FolderParticipant

    @classmethod
    def outside(cls, folder):
        for name in ("staged", "visible"):
            (folder / name).mkdir()
        seen = folder / "visible"
        return {
            "oracle": lambda: [row for file in seen.iterdir() for row in read_rows(file)],
            "leftovers": lambda: os.listdir(folder / "staged"),
            "any_value": ("text",),
            "whole_epochs": False,
            "batch": False,
            "backup": partial(back_up_folder, folder),
        }

    def log(self, query):
        # Beside the folder, which readers own: a copy of the one is no copy of the other.
        return open_log(str(self.options.path.with_name(f"{self.options.path.name}-log") / query))

    def stage(self, batches, task, plan):
        del plan
        piece = Piece(name=f"{name_of(task.query, task.generation)}-{task.nonce}")
        file = self.options.path / "staged" / piece.name
        return piece if write_rows(file, rows_of(batches)) else None

    def committer(self):
        participant = self.participant_type(self.options.path, self.mode)
        return LogCommitter(self.log, participant, streaming=self.streaming)


def make_log_format(participant):
    """As `make_format`, for what takes part in the epoch log of a `FolderWriter`."""
    parts = {"participant_type": participant, "__module__": participant.__module__}
    return make_format(type(participant.__name__, (FolderWriter,), parts))


def name_of(query, generation) -> str:
    return f"{query}-{generation:06}"


class Folder(KrishivDataSource):
    format_name = "planted"
    writer_type = FolderWriter


class RecordingWriter(FolderWriter):
    participant_type = RecordingParticipant


class RecordingFolder(KrishivDataSource):
    format_name = "planted"
    writer_type = RecordingWriter


# ---------------------------------------------------------------- correct, at least once


class LinesWriter(AtLeastOnceWriter[list]):
    """Correct: the rows come to the driver, which adds them to a file."""

    options_type = Place

    @classmethod
    def outside(cls, folder):
        (folder / "lines").touch()
        return {
            "oracle": lambda: read_rows(folder / "lines"),
            "any_value": ("text",),
            "complete": False,
        }

    def stage(self, batches, task, plan):
        del task, plan
        return list(rows_of(batches))

    def publish(self, epoch, staged):
        del epoch
        with open(self.options.path / "lines", "a") as file:
            file.writelines(f"{json.dumps(row)}\n" for part in staged for row in part)


class Lines(KrishivDataSource):
    format_name = "planted"
    writer_type = LinesWriter
