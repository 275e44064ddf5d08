"""Sinks with one planted bug each, and correct ones beside them: the kit must tell them apart.

There are four kinds of outside: an SQLite database, a table in the manner of table formats (data
files and a log of numbered entries), a folder whose files readers see, and a file of lines.
"""

import contextlib
import functools
import json
import os
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, WriterCommitMessage

from krishiv_spark.checkpoint import query_id
from krishiv_spark.datasource import KrishivDataSource
from krishiv_spark.errors import CommitRejected
from krishiv_spark.offsets import open_log
from krishiv_spark.options import Options
from krishiv_spark.sinks.base import AtLeastOnceWriter, Guarantee, OutputMode, TwoPhaseWriter
from krishiv_spark.sinks.logged import LoggedWriter


class Place(Options):
    path: Path


def on_our_base(writer):
    """The format of a writer, in its place; the writer is found as the format's `writer_type`."""
    writer.__qualname__ = f"{writer.__name__}.writer_type"
    parts = {"format_name": "planted", "writer_type": writer, "__module__": __name__}
    return type(writer.__name__, (KrishivDataSource,), parts)


def rows_of(batches) -> Iterator[list]:
    for batch in batches:
        yield from ([row["id"], row["text"]] for row in batch.to_pylist())


def write_rows(file, rows) -> int:
    """One call to the outside for each row; returns how many there were."""
    count = 0
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        for count, row in enumerate(rows, 1):  # noqa: B007  the last count is the answer
            os.write(descriptor, f"{json.dumps(row)}\n".encode())
    finally:
        os.close(descriptor)
    return count


def read_rows(file) -> list:
    return [json.loads(line) for line in Path(file).read_text().splitlines()]


# ---------------------------------------------------------------- correct, in a database


TABLES = """
PRAGMA synchronous = OFF;
BEGIN;
CREATE TABLE visible (id, text);
CREATE TABLE staged (part, id, text);
CREATE TABLE marks (query, epoch, PRIMARY KEY (query, epoch));
COMMIT;
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
            "oracle": lambda: ask(folder, "SELECT id, text FROM visible"),
            "expire": lambda: throw_away_staged(folder),
        }

    @property
    def folder(self):
        return self.options.path

    def name(self, task) -> str:
        return f"{task.query}/{task.epoch}/{task.partition}/{task.nonce}"

    def stage(self, batches, task):
        rows = list(rows_of(batches))
        self.keep(self.name(task), rows)
        return Part(self.name(task), len(rows)) if rows else None

    def keep(self, name, rows):
        with transaction(self.folder) as db:
            db.executemany("INSERT INTO staged VALUES (?, ?, ?)", [(name, *row) for row in rows])

    def last_committed(self, query):
        return ask(self.folder, "SELECT max(epoch) FROM marks WHERE query = ?", query)[0][0]

    def publish(self, epoch, staged):
        with transaction(self.folder) as db:
            self.mark(db, epoch)
            self.clear(db)
            self.move(db, staged)

    def mark(self, db, epoch):
        db.execute("INSERT INTO marks VALUES (?, ?)", (epoch.query, epoch.number))

    def clear(self, db):
        if self.mode is OutputMode.REPLACE:
            db.execute("DELETE FROM visible")

    def move(self, db, staged):
        for part in staged:
            self.check_whole(db, part)
            self.show(db, part.name)
            db.execute("DELETE FROM staged WHERE part = ?", (part.name,))

    def check_whole(self, db, part):
        found = db.execute("SELECT count(*) FROM staged WHERE part = ?", (part.name,)).fetchone()
        if found[0] < part.rows:
            raise CommitRejected(f"rows of {part.name} have expired")

    def show(self, db, name):
        db.execute("INSERT INTO visible SELECT id, text FROM staged WHERE part = ?", (name,))

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
        os.link(file, self.log / f"{number:06}")

    def remove(self, files):
        for file in files:
            (self.data / file).unlink(missing_ok=True)

    def files(self) -> list:
        return [file for entry in self.entries() for file in entry["files"]]

    def rows(self) -> Iterator[list]:
        """What a reader sees; a data file that is gone has no rows."""
        entries = self.entries()
        first = max((n for n, entry in enumerate(entries) if entry["replaces"]), default=0)
        for file in (file for entry in entries[first:] for file in entry["files"]):
            yield from read_rows(self.data / file) if (self.data / file).exists() else []


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    query: str
    file: str


class TableWriter(DataSourceStreamWriter):
    """Correct: an epoch looks for itself in the log, and takes the number behind what it saw."""

    guarantee = Guarantee.EXACTLY_ONCE

    @classmethod
    def outside(cls, folder):
        TableFormat(folder).create()
        return {"oracle": TableFormat(folder).rows, "guarantee": cls.guarantee}

    def __init__(self, options, overwrite):
        self.options = options
        self.table = TableFormat(options["path"])
        self.overwrite = overwrite

    def write(self, iterator):
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId")
        file = self.name(context)
        write_rows(self.table.data / file, map(list, iterator))
        return Written(query, file)

    def name(self, context) -> str:
        del context
        return uuid.uuid4().hex

    def commit(self, messages, batchId):
        entry = self.entry_of(messages, batchId)
        while True:
            entries = self.table.entries()
            if any(self.is_same(entry, other) for other in entries):
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


def on_pyspark(writer):
    """As `on_our_base`, for writers that are written on PySpark's own classes."""
    writer.__qualname__ = f"{writer.__name__}.stream_writer"
    return type(writer.__name__, (Table,), {"stream_writer": writer, "__module__": __name__})


# ---------------------------------------------------------------- correct, over an epoch log


class Piece(BaseModel):
    name: str


class FolderWriter(LoggedWriter[Piece]):
    """Correct: staged files are renamed, one by one, into the folder that readers list."""

    options_type = Place
    staged_type = Piece

    @classmethod
    def outside(cls, folder):
        for name in ("staged", "visible"):
            (folder / name).mkdir()
        seen = folder / "visible"
        return {
            "oracle": lambda: [row for file in seen.iterdir() for row in read_rows(file)],
            "whole_epochs": False,
            "batch": False,
        }

    @property
    def staged(self):
        return self.options.path / "staged"

    @property
    def visible(self):
        return self.options.path / "visible"

    def log(self, query):
        return open_log(str(self.options.path / "log" / query))

    def stage(self, batches, task):
        piece = Piece(name=f"{name_of(task.query, task.generation)}-{task.nonce}")
        return piece if write_rows(self.staged / piece.name, rows_of(batches)) else None

    def finish(self, epoch, staged):
        for piece in staged:
            self.show(piece.name)
        if self.mode is OutputMode.REPLACE:
            self.remove_older(epoch)

    def show(self, name):
        with contextlib.suppress(FileNotFoundError):  # it was shown before, maybe even replaced
            os.rename(self.staged / name, self.visible / name)

    def remove_older(self, epoch):
        for name in os.listdir(self.visible):
            if name < name_of(epoch.query, epoch.generation):
                (self.visible / name).unlink(missing_ok=True)

    def finished(self, epoch):
        del epoch
        return False

    def discard(self, staged):
        for piece in staged:
            (self.staged / piece.name).unlink(missing_ok=True)


def name_of(query, generation) -> str:
    return f"{query}-{generation:06}"


class Folder(KrishivDataSource):
    format_name = "planted"
    writer_type = FolderWriter


# ---------------------------------------------------------------- correct, at least once


class LinesWriter(AtLeastOnceWriter[list]):
    """Correct: the rows come to the driver, which adds them to a file."""

    options_type = Place

    @classmethod
    def outside(cls, folder):
        (folder / "lines").touch()
        return {"oracle": lambda: read_rows(folder / "lines"), "complete": False}

    def stage(self, batches, task):
        del task
        return list(rows_of(batches))

    def publish(self, epoch, staged):
        del epoch
        with open(self.options.path / "lines", "a") as file:
            file.writelines(f"{json.dumps(row)}\n" for part in staged for row in part)


class Lines(KrishivDataSource):
    format_name = "planted"
    writer_type = LinesWriter


# ---------------------------------------------------------------- staging


@on_our_base
class StagesInSight(DatabaseWriter):
    """Rows are staged where readers look; the commit only marks them."""

    def keep(self, name, rows):
        del name
        with transaction(self.folder) as db:
            db.executemany("INSERT INTO visible VALUES (?, ?)", rows)

    def move(self, db, staged):
        del db, staged


@on_our_base
class AttemptsShareAName(DatabaseWriter):
    """What an attempt stages is named by its task."""

    def name(self, task):
        return f"{task.query}/{task.epoch}/{task.partition}"


@on_pyspark
class AttemptsShareAFile(TableWriter):
    """An attempt writes over the file of another one, which may be in the log already."""

    def name(self, context):
        keys = ("sql.streaming.queryId", "streaming.sql.batchId")
        return "-".join([*map(context.getLocalProperty, keys), str(context.partitionId())])


@on_pyspark
class AttemptsShareANumber(TableWriter):
    """The number of an attempt is unique in an application; the next one counts from 0 again."""

    def name(self, context):
        return f"{context.getLocalProperty('sql.streaming.queryId')}-{context.taskAttemptId()}"


@on_pyspark
class LastAttemptWins(TableWriter):
    """An attempt removes what others of its task have written; a straggler ends last."""

    def name(self, context):
        return f"{AttemptsShareAFile.stream_writer.name(self, context)}-{uuid.uuid4().hex}"

    def write(self, iterator):
        message = super().write(iterator)
        task, _, _ = message.file.rpartition("-")
        others = (file.name for file in self.table.data.glob(f"{task}-*"))
        self.table.remove(name for name in others if name != message.file)
        return message


@on_pyspark
class ReadsOnAfterAnError(TableWriter):
    """Writes again after an error, but has pulled some of the rows already."""

    def write(self, iterator):
        with contextlib.suppress(OSError):
            return super().write(iterator)
        return super().write(iterator)


@on_our_base
class StagesAgainAfterAnError(DatabaseWriter):
    """Stages once more, under the same name, what may have been staged the first time."""

    def keep(self, name, rows):
        with contextlib.suppress(sqlite3.OperationalError):
            return super().keep(name, rows)
        return super().keep(name, rows)


@on_our_base
class StagesWithoutErrors(DatabaseWriter):
    """A task that could not stage its rows has none."""

    def stage(self, batches, task):
        with contextlib.suppress(sqlite3.OperationalError):
            return super().stage(batches, task)


@on_our_base
class StagesARowForNone(DatabaseWriter):
    """An epoch without rows gets one that says so."""

    def stage(self, batches, task):
        rows = list(rows_of(batches)) or [[None, None]]
        self.keep(self.name(task), rows)
        return Part(self.name(task), len(rows))


# ---------------------------------------------------------------- what is remembered, and where


@on_pyspark
class KeepsFilesOnSelf(TableWriter):
    """`write` keeps on self what `commit` needs."""

    def __init__(self, options, overwrite):
        super().__init__(options, overwrite)
        self.files = []

    def write(self, iterator):
        message = super().write(iterator)
        self.files.append(message.file)
        return message

    def entry_of(self, messages, epoch):
        return {**super().entry_of(messages, epoch), "files": self.files}


@on_our_base
class KeepsItsRunOnSelf(DatabaseWriter):
    """The planner chooses where the tasks stage, and the committer knows nothing of it."""

    run = ""

    def check(self):
        self.run = uuid.uuid4().hex

    def name(self, task):
        return f"{self.run}/{super().name(task)}"

    def move(self, db, staged):
        super().move(db, [part for part in staged if part.name.startswith(f"{self.run}/")])


@functools.cache
def newest_mark(folder, query):
    return ask(folder, "SELECT max(epoch) FROM marks WHERE query = ?", query)[0][0]


@on_our_base
class RemembersItsFirstLook(DatabaseWriter):
    """What was committed last is looked up once in each process."""

    def last_committed(self, query):
        return newest_mark(self.folder, query)


_tried = set()


@on_our_base
class RemembersWhatItTried(DatabaseWriter):
    """An epoch that this process has tried to publish is believed to be published."""

    def publish(self, epoch, staged):
        if (epoch.query, epoch.number) not in _tried:
            _tried.add((epoch.query, epoch.number))
            super().publish(epoch, staged)


# ---------------------------------------------------------------- abort and discard


@on_pyspark
class DeletesOnAbort(TableWriter):
    """Aborts by deleting every file, also those of a commit that may have happened."""

    def abort(self, messages, batchId):
        del batchId
        self.table.remove(message.file for message in messages if message is not None)


@on_pyspark
class CleansUpAfterItsCommit(TableWriter):
    """A commit that fails deletes its files, although it may have happened."""

    def add(self, number, entry):
        try:
            super().add(number, entry)
        except FileExistsError:
            raise
        except OSError:
            self.table.remove(entry["files"])
            raise


@on_pyspark
class TripsOverNone(TableWriter):
    """Aborts as if every task had sent a message."""

    def abort(self, messages, batchId):
        del batchId
        if not all(messages):
            self.table.remove([message.file for message in messages])


@on_our_base
class DiscardsOnce(DatabaseWriter):
    """What is gone already cannot be discarded."""

    def discard(self, staged):
        with transaction(self.folder) as db:
            for part in staged:
                gone = db.execute("DELETE FROM staged WHERE part = ?", (part.name,)).rowcount == 0
                if gone:
                    raise LookupError(part.name)


@on_pyspark
class PublishesWhatIsThere(TableWriter):
    """Publishes every file that is in no entry yet: also those of failed attempts."""

    def entry_of(self, messages, epoch):
        files = sorted(set(os.listdir(self.table.data)) - set(self.table.files()))
        return {**super().entry_of(messages, epoch), "files": files}


@on_our_base
class ShowsWhatIsThere(FolderWriter):
    """Shows every staged file, named by the intent or not."""

    def finish(self, epoch, staged):
        super().finish(epoch, [Piece(name=name) for name in os.listdir(self.staged)] or staged)


@on_pyspark
class SweepsWithoutAge(TableWriter):
    """After a commit it removes every file that is in no entry, whoever may still need it."""

    def add(self, number, entry):
        super().add(number, entry)
        self.table.remove(set(os.listdir(self.table.data)) - set(self.table.files()))


@on_pyspark
class RollsBack(TableWriter):
    """Whoever begins an epoch takes back what Spark has not logged as committed."""

    def __getstate__(self):
        checkpoint = self.options["checkpointlocation"]
        logged = os.listdir(Path(checkpoint) / "commits")
        for number, entry in enumerate(self.table.entries()):
            if entry["query"] == query_id(checkpoint) and str(entry["epoch"]) not in logged:
                os.unlink(self.table.log / f"{number:06}")
        return self.__dict__


@on_our_base
class MarksWhatExpired(DatabaseWriter):
    """Does not notice that staged rows are gone."""

    def check_whole(self, db, part):
        del db, part


@on_our_base
class LooksBeforeItPublishes(DatabaseWriter):
    """Looks whether all staged rows are there, and then moves them in another transaction."""

    def publish(self, epoch, staged):
        with connection(self.folder) as db:
            for part in staged:
                super().check_whole(db, part)
        super().publish(epoch, staged)

    def check_whole(self, db, part):
        del db, part


# ---------------------------------------------------------------- rows and mark


@on_our_base
class MarksFirst(DatabaseWriter):
    """The mark, then the rows, in two transactions."""

    def publish(self, epoch, staged):
        with transaction(self.folder) as db:
            self.mark(db, epoch)
        with transaction(self.folder) as db:
            self.clear(db)
            self.move(db, staged)


@on_our_base
class MarksLast(DatabaseWriter):
    """The rows, then the mark, in two transactions."""

    def publish(self, epoch, staged):
        with transaction(self.folder) as db:
            self.clear(db)
            self.move(db, staged)
        with transaction(self.folder) as db:
            self.mark(db, epoch)


@on_our_base
class MarksLaterEpochsLast(DatabaseWriter):
    """As `MarksLast`, but the first epoch is right: its mark is created, not moved."""

    def publish(self, epoch, staged):
        if self.last_committed(epoch.query) is None:
            super().publish(epoch, staged)
        else:
            MarksLast.writer_type.publish(self, epoch, staged)


@on_our_base
class MarksFirstByCursor(DatabaseWriter):
    """As `MarksFirst`, but on one connection and by a cursor, as most people write it."""

    def publish(self, epoch, staged):
        with connection(self.folder) as db:
            cursor = db.cursor()
            self.mark(cursor, epoch)
            cursor.execute("BEGIN IMMEDIATE")
            self.clear(cursor)
            self.move(cursor, staged)
            cursor.execute("COMMIT")


@on_our_base
class PublishesTaskByTask(DatabaseWriter):
    """Each task's rows in a transaction of their own, the mark with the first."""

    def publish(self, epoch, staged):
        for number, part in enumerate(staged):
            with transaction(self.folder) as db:
                if number == 0:
                    self.mark(db, epoch)
                    self.clear(db)
                self.move(db, [part])


@on_pyspark
class AsksTheFirstTask(TableWriter):
    """If the first task has no rows, the epoch has none."""

    def entry_of(self, messages, epoch):
        entry = super().entry_of(messages, epoch)
        has_rows = (self.table.data / messages[0].file).stat().st_size
        return entry if has_rows else {**entry, "files": []}


@on_our_base
class OneEpochLate(DatabaseWriter):
    """Publishes an epoch when the next one is committed."""

    def move(self, db, staged):
        super().move(db, [Part("ready", 0)])
        for part in staged:
            db.execute("UPDATE staged SET part = 'ready' WHERE part = ?", (part.name,))


@on_our_base
class PublishesWithoutErrors(DatabaseWriter):
    """An epoch that could not be published is committed all the same."""

    def publish(self, epoch, staged):
        with contextlib.suppress(sqlite3.OperationalError):
            super().publish(epoch, staged)


@on_our_base
class LeavesALock(DatabaseWriter):
    """Whoever publishes holds a lock, also after his death."""

    def publish(self, epoch, staged):
        lock = self.folder / "lock"
        os.close(os.open(lock, os.O_CREAT | os.O_EXCL))
        try:
            super().publish(epoch, staged)
        finally:
            os.unlink(lock)


# ---------------------------------------------------------------- the look-up


@on_our_base
class NeverLooks(DatabaseWriter):
    """Only the mark tells that an epoch was published, and it tells it as an error."""

    def last_committed(self, query):
        del query


@on_our_base
class LooksForAnyQuery(DatabaseWriter):
    """The newest epoch of whichever query."""

    def last_committed(self, query):
        del query
        return ask(self.folder, "SELECT max(epoch) FROM marks")[0][0]


@on_pyspark
class ComparesBatchIdsOnly(TableWriter):
    """An epoch of another query is taken for this one."""

    def is_same(self, entry, other):
        return entry["epoch"] == other["epoch"]


@on_our_base
class OneLogForAllQueries(FolderWriter):
    """All queries share an epoch log."""

    def log(self, query):
        del query
        return open_log(str(self.options.path / "log" / "all"))


@on_our_base
class ComparesEpochsAsText(DatabaseWriter):
    """Epoch 9 is newer than epoch 10."""

    tables = TABLES.replace("epoch,", "epoch TEXT,")

    def last_committed(self, query):
        newest = super().last_committed(query)
        return None if newest is None else int(newest)


@on_our_base
class WantsNoGaps(DatabaseWriter):
    """Wants epochs to follow one another, but those without rows leave no mark."""

    def publish(self, epoch, staged):
        if epoch.number > 0 and self.last_committed(epoch.query) != epoch.number - 1:
            raise CommitRejected(f"epoch {epoch.number} is out of order")
        super().publish(epoch, staged)


class SkippingFormat(TableFormat):
    def entry(self, name):
        with contextlib.suppress(OSError):
            return super().entry(name)
        return {"query": "", "epoch": -1, "files": [], "replaces": False}


@on_pyspark
class PassesOverWhatItCannotRead(TableWriter):
    """An entry that cannot be read just now is taken for one of somebody else."""

    def __init__(self, options, overwrite):
        super().__init__(options, overwrite)
        self.table = SkippingFormat(options["path"])


# ---------------------------------------------------------------- looking and writing in one step


@on_our_base
class WritesOverItsMark(DatabaseWriter):
    """A mark that is there already does not stop it."""

    def mark(self, db, epoch):
        db.execute("INSERT OR REPLACE INTO marks VALUES (?, ?)", (epoch.query, epoch.number))


@on_our_base
class MarksAreNotUnique(DatabaseWriter):
    """Nothing stops two drivers that have looked at the same moment."""

    tables = TABLES.replace(", PRIMARY KEY (query, epoch)", "")


@on_pyspark
class TakesTheNextNumber(TableWriter):
    """If a number is taken it takes the next one, without a look at who was faster."""

    def add(self, number, entry):
        try:
            super().add(number, entry)
        except FileExistsError:
            self.add(number + 1, entry)


@on_pyspark
class TriesAgainBehind(TableWriter):
    """After an error it tries again at the end of the log, although it may be in it."""

    def add(self, number, entry):
        try:
            super().add(number, entry)
        except FileExistsError:
            raise
        except OSError:
            super().add(len(self.table.entries()), entry)


@on_pyspark
class TakesATakenNumberForItsOwn(TableWriter):
    """If its number is taken, its epoch must be there: but another query may have taken it."""

    def add(self, number, entry):
        with contextlib.suppress(FileExistsError):
            super().add(number, entry)


class OverwritingFormat(TableFormat):
    def add(self, number, entry):
        file = self.aside / uuid.uuid4().hex
        file.write_text(json.dumps(entry))
        os.replace(file, self.log / f"{number:06}")


@on_pyspark
class WritesOverTheLog(TableWriter):
    """A log in a store that cannot create exclusively: the last writer wins."""

    def __init__(self, options, overwrite):
        super().__init__(options, overwrite)
        self.table = OverwritingFormat(options["path"])


# ---------------------------------------------------------------- over an epoch log


@on_our_base
class FinishesOnce(FolderWriter):
    """Cannot go on with an epoch that somebody has begun to show."""

    def finish(self, epoch, staged):
        super().finish(epoch, staged)
        self.done(epoch).touch()

    def show(self, name):
        os.rename(self.staged / name, self.visible / name)

    def finished(self, epoch):
        return self.done(epoch).exists()

    def done(self, epoch):
        return self.options.path / f"done-{name_of(epoch.query, epoch.generation)}"


@on_our_base
class IsAlwaysFinished(FolderWriter):
    """Believes that an epoch with an intent is wholly visible."""

    def finished(self, epoch):
        del epoch
        return True


@on_our_base
class RemovesNewerToo(FolderWriter):
    """In complete mode it removes what is not its own; somebody may have published since."""

    def remove_older(self, epoch):
        for name in os.listdir(self.visible):
            if not name.startswith(name_of(epoch.query, epoch.generation)):
                (self.visible / name).unlink(missing_ok=True)


# ---------------------------------------------------------------- complete mode and batches


@on_our_base
class AddsInCompleteMode(DatabaseWriter):
    """Complete mode adds to what is there."""

    def clear(self, db):
        del db


@on_our_base
class EmptyResultsChangeNothing(DatabaseWriter):
    """A result without rows leaves the one before in its place."""

    def publish(self, epoch, staged):
        with transaction(self.folder) as db:
            self.mark(db, epoch)
            if staged:
                self.clear(db)
            self.move(db, staged)


@on_our_base
class ClearsFirst(DatabaseWriter):
    """The old result goes in a transaction of its own."""

    def publish(self, epoch, staged):
        with transaction(self.folder) as db:
            self.clear(db)
        with transaction(self.folder) as db:
            self.mark(db, epoch)
            self.move(db, staged)


@on_our_base
class AnyResultIsTheNewest(DatabaseWriter):
    """In complete mode the last writer wins: a result replaces whatever there is."""

    def mark(self, db, epoch):
        how = "OR REPLACE" if self.mode is OutputMode.REPLACE else ""
        db.execute(f"INSERT {how} INTO marks VALUES (?, ?)", (epoch.query, epoch.number))


@on_our_base
class ClearsWhilePlanning(DatabaseWriter):
    """A batch that overwrites removes the old rows before it has new ones."""

    def check(self):
        if not self.streaming:
            with transaction(self.folder) as db:
                self.clear(db)


@on_our_base
class ShowsBatchTasks(DatabaseWriter):
    """A batch shows the rows of each task when it is done."""

    def keep(self, name, rows):
        super().keep(name, rows)
        if not self.streaming:
            with transaction(self.folder) as db:
                self.move(db, [Part(name, len(rows))])

    def check_whole(self, db, part):
        if self.streaming:
            super().check_whole(db, part)


@on_our_base
class ClearsFirstInBatches(DatabaseWriter):
    """A batch that overwrites removes the old rows in a transaction of its own."""

    def publish(self, epoch, staged):
        if self.streaming:
            super().publish(epoch, staged)
        else:
            ClearsFirst.writer_type.publish(self, epoch, staged)


# ---------------------------------------------------------------- rows


@on_our_base
class KeepsEqualRowsOnce(DatabaseWriter):
    """Rows that are there already are left out: that makes a replay harmless, and loses rows."""

    def show(self, db, name):
        new = "INSERT INTO visible SELECT DISTINCT id, text FROM staged WHERE part = ?"
        db.execute(f"{new} EXCEPT SELECT id, text FROM visible", (name,))


# ---------------------------------------------------------------- at least once

_waiting = []


@on_our_base
class WritesEverySecondEpoch(LinesWriter):
    """Saves calls to the outside: two epochs are written together."""

    def publish(self, epoch, staged):
        _waiting.extend(staged)
        if epoch.number % 2:
            super().publish(epoch, _waiting)
            _waiting.clear()


@on_our_base
class WritesLinesWithoutErrors(LinesWriter):
    """An epoch that could not be written is committed all the same."""

    def publish(self, epoch, staged):
        with contextlib.suppress(OSError):
            super().publish(epoch, staged)


@on_our_base
class WritesAnEpochOnce(LinesWriter):
    """An epoch that this process has tried to write is believed to be written."""

    def publish(self, epoch, staged):
        if (epoch.query, epoch.number) not in _tried:
            _tried.add((epoch.query, epoch.number))
            super().publish(epoch, staged)


@on_our_base
class KeepsTheFirstResult(LinesWriter):
    """In complete mode the first result stays."""

    @classmethod
    def outside(cls, folder):
        return {**super().outside(folder), "complete": True}

    def publish(self, epoch, staged):
        file = self.options.path / "lines"
        if self.mode is OutputMode.APPEND or not file.read_text():
            super().publish(epoch, staged)
