"""Bugs of rows and marks: what is written first, and how it is looked up."""

import contextlib
import json
import os
import sqlite3
import time
import uuid

from pydantic import BaseModel

from krishiv_spark.errors import CommitRejected
from krishiv_spark.offsets import open_log
from krishiv_spark.sinks.base import CommittedEpoch, Epoch
from planted_sinks.outside import make_format
from planted_sinks.twins import (
    TABLES,
    DatabaseWriter,
    FolderParticipant,
    FolderWriter,
    Part,
    RecordingParticipant,
    TableFormat,
    TableWriter,
    ask,
    connection,
    make_log_format,
    make_pyspark_format,
    name_of,
    transaction,
)

# ---------------------------------------------------------------- rows and mark


@make_format
class MarksFirst(DatabaseWriter):
    """The mark, then the rows, in two transactions."""

    def publish(self, epoch, staged):
        with transaction(self.folder) as db:
            self.mark(db, epoch)
        with transaction(self.folder) as db:
            self.clear(db)
            self.move(db, staged)


@make_format
class MarksLast(DatabaseWriter):
    """The rows, then the mark, in two transactions."""

    def publish(self, epoch, staged):
        with transaction(self.folder) as db:
            self.clear(db)
            self.move(db, staged)
        with transaction(self.folder) as db:
            self.mark(db, epoch)


@make_format
class MarksLaterEpochsLast(DatabaseWriter):
    """As `MarksLast`, but the first epoch is right: its mark is created, not moved."""

    def publish(self, epoch, staged):
        if self.last_committed(epoch.query) is None:
            super().publish(epoch, staged)
        else:
            MarksLast.writer_type.publish(self, epoch, staged)

    def sweep(self, db, epoch):
        """Keep data staged by another driver; otherwise the bug could not show."""
        del db, epoch


@make_format
class OrdersMarksByTheClock(DatabaseWriter):
    """The newest mark is the one with the latest time."""

    tables = TABLES + "CREATE TABLE times (query, epoch, at);"

    def mark(self, db, epoch):
        super().mark(db, epoch)
        db.execute("INSERT INTO times VALUES (?, ?, ?)", (epoch.query, epoch.number, time.time()))

    def last_committed(self, query):
        latest = (
            "SELECT epoch, digest FROM marks NATURAL JOIN times WHERE query = ? ORDER BY at DESC"
        )
        return next((CommittedEpoch(*found) for found in ask(self.folder, latest, query)), None)


@make_format
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


@make_format
class PublishesTaskByTask(DatabaseWriter):
    """Each task's rows in a transaction of their own, the mark with the first."""

    def publish(self, epoch, staged):
        for number, part in enumerate(staged):
            with transaction(self.folder) as db:
                if number == 0:
                    self.mark(db, epoch)
                    self.clear(db)
                self.move(db, [part])


@make_pyspark_format
class AsksTheFirstTask(TableWriter):
    """If the first task has no rows, the epoch has none."""

    def entry_of(self, messages, epoch):
        entry = super().entry_of(messages, epoch)
        has_rows = (self.table.data / messages[0].file).stat().st_size
        return entry if has_rows else {**entry, "files": []}


@make_format
class OneEpochLate(DatabaseWriter):
    """Publishes an epoch when the next one is committed."""

    def move(self, db, staged):
        super().move(db, [Part("ready", 0)])
        for part in staged:
            db.execute("UPDATE staged SET part = 'ready' WHERE part = ?", (part.name,))

    def sweep(self, db, epoch):
        del db, epoch


@make_format
class PublishesWithoutErrors(DatabaseWriter):
    """An epoch that could not be published is committed all the same."""

    def publish(self, epoch, staged):
        with contextlib.suppress(sqlite3.OperationalError):
            super().publish(epoch, staged)


@make_format
class LeavesALock(DatabaseWriter):
    """A sink that leaves a lock behind if it dies while publishing."""

    def publish(self, epoch, staged):
        lock = self.folder / "lock"
        os.close(os.open(lock, os.O_CREAT | os.O_EXCL))
        try:
            super().publish(epoch, staged)
        finally:
            os.unlink(lock)


# ---------------------------------------------------------------- the look-up


@make_format
class NeverLooks(DatabaseWriter):
    """Only the mark tells that an epoch was published, and it tells it as an error."""

    def last_committed(self, query):
        del query


@make_format
class KeepsNoDigest(DatabaseWriter):
    """An epoch is known by its number alone."""

    def mark(self, db, epoch):
        super().mark(db, Epoch(epoch.query, epoch.number))


@make_format
class LooksForAnyQuery(DatabaseWriter):
    """The newest epoch of whichever query."""

    def last_committed(self, query):
        del query
        newest = ask(self.folder, "SELECT max(epoch) FROM marks")[0][0]
        return None if newest is None else CommittedEpoch(newest)


@make_pyspark_format
class ComparesBatchIdsOnly(TableWriter):
    """An epoch of another query is taken for this one."""

    def is_same(self, entry, other):
        return entry["epoch"] == other["epoch"]


@make_format
class OneLogForAllQueries(FolderWriter):
    """All queries share an epoch log."""

    def log(self, query):
        del query
        return open_log(str(self.options.path / "log" / "all"))


@make_format
class ComparesEpochsAsText(DatabaseWriter):
    """Epoch 9 is newer than epoch 10."""

    tables = TABLES.replace("epoch,", "epoch TEXT,")

    def last_committed(self, query):
        newest = super().last_committed(query)
        return None if newest is None else CommittedEpoch(int(newest.epoch), newest.digest)


@make_format
class WantsNoGaps(DatabaseWriter):
    """Wants epochs to follow one another, but those without rows leave no mark."""

    def publish(self, epoch, staged):
        newest = self.last_committed(epoch.query)
        if epoch.number > 0 and (newest is None or newest.epoch != epoch.number - 1):
            raise CommitRejected(f"epoch {epoch.number} is out of order")
        super().publish(epoch, staged)


class SkippingFormat(TableFormat):
    def entry(self, name):
        with contextlib.suppress(OSError):
            return super().entry(name)
        return {"query": "", "epoch": -1, "files": [], "replaces": False}


@make_pyspark_format
class PassesOverWhatItCannotRead(TableWriter):
    """An entry that cannot be read just now is taken for one of somebody else."""

    def __init__(self, options, overwrite):
        super().__init__(options, overwrite)
        self.table = SkippingFormat(options["path"])


# ---------------------------------------------------------------- looking and writing in one step


@make_format
class WritesOverItsMark(DatabaseWriter):
    """A mark that is there already does not stop it."""

    def mark(self, db, epoch):
        mark = (epoch.query, epoch.number, epoch.digest)
        db.execute("INSERT OR REPLACE INTO marks VALUES (?, ?, ?)", mark)

    def sweep(self, db, epoch):
        """Keep data staged by another driver; otherwise the bug could not show."""
        del db, epoch


@make_format
class MarksAreNotUnique(DatabaseWriter):
    """Nothing stops two drivers that have looked at the same moment."""

    tables = TABLES.replace(", PRIMARY KEY (query, epoch)", "")

    def sweep(self, db, epoch):
        """As above."""
        del db, epoch


@make_format
class TrustsItsSweep(DatabaseWriter):
    """Only a sweep after the commit, which deletes the rows of others, stops a stale driver."""

    tables = TABLES.replace(", PRIMARY KEY (query, epoch)", "")

    def publish(self, epoch, staged):
        with transaction(self.folder) as db:
            self.mark(db, epoch)
            self.clear(db)
            self.move(db, staged)
        with transaction(self.folder) as db:
            self.sweep(db, epoch)


@make_pyspark_format
class TakesTheNextNumber(TableWriter):
    """If a number is taken it takes the next one, without a look at who was faster."""

    def add(self, number, entry):
        try:
            super().add(number, entry)
        except FileExistsError:
            self.add(number + 1, entry)


@make_pyspark_format
class TriesAgainBehind(TableWriter):
    """After an error it tries again at the end of the log, although it may be in it."""

    def add(self, number, entry):
        try:
            super().add(number, entry)
        except FileExistsError:
            raise
        except OSError:
            super().add(len(self.table.entries()), entry)


@make_pyspark_format
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


@make_pyspark_format
class WritesOverTheLog(TableWriter):
    """A log in a store that cannot create exclusively: the last writer wins."""

    def __init__(self, options, overwrite):
        super().__init__(options, overwrite)
        self.table = OverwritingFormat(options["path"])


# ---------------------------------------------------------------- over an epoch log


@make_log_format
class FinishesOnce(FolderParticipant):
    """Cannot go on with an epoch that somebody has begun to show."""

    def finish(self, epoch, staged):
        super().finish(epoch, staged)
        self.done(epoch).touch()

    def show(self, name):
        os.rename(self.staged / name, self.visible / name)

    def is_finished(self, epoch):
        return self.done(epoch).exists()

    def done(self, epoch):
        return self.folder / f"done-{name_of(epoch.query, epoch.generation)}"


@make_log_format
class IsAlwaysFinished(FolderParticipant):
    """Believes that an epoch with an intent is wholly visible."""

    def is_finished(self, epoch):
        del epoch
        return True


@make_log_format
class RemovesNewerToo(FolderParticipant):
    """In complete mode it removes what is not its own; somebody may have published since."""

    def remove_older(self, epoch):
        for name in os.listdir(self.visible):
            if not name.startswith(name_of(epoch.query, epoch.generation)):
                (self.visible / name).unlink(missing_ok=True)


class AnyPiece(BaseModel):
    name: str


@make_log_format
class BelievesNames(FolderParticipant):
    """A sink that joins a name from an intent to a path without a check of its author."""

    staged_type = AnyPiece


@make_log_format
class RecordsTheFirstEpoch(RecordingParticipant):
    """Its record never moves on: a log that is older than the target looks as new as that."""

    def newest_epoch(self, query):
        return min(self.records_of(query), default=None, key=lambda mark: mark.epoch)

    def contains(self, epoch, staged):
        del epoch, staged
        return True


@make_log_format
class NeverLacksAnEpoch(RecordingParticipant):
    """Does not compare its own record with an epoch that the log knows to be finished."""

    def contains(self, epoch, staged):
        del epoch, staged
        return True
