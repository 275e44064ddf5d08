"""Bugs of a COMMIT and of the marks around it, and of calls that nobody sees."""

import _sqlite3
import contextlib
import sqlite3
import time
from contextlib import closing

from krishiv_spark.errors import CommitRejected
from krishiv_spark.sinks.base import OutputMode
from planted_sinks.outside import make_format
from planted_sinks.twins import DatabaseWriter, Table, connection, transaction


class ByHand(DatabaseWriter):
    """Correct: BEGIN and COMMIT are written down."""

    def publish(self, epoch, staged):
        with connection(self.folder) as db:
            db.execute("BEGIN IMMEDIATE")
            self.mark(db, epoch)
            self.clear(db)
            self.move(db, staged)
            self.sweep(db, epoch)
            self.end(db)

    def end(self, db):
        db.execute("COMMIT")


@make_format
class PassesOverAnErrorOfCommit(ByHand):
    def end(self, db):
        with contextlib.suppress(sqlite3.OperationalError):
            super().end(db)


@make_format
class TakesAnErrorOfCommitForNo(ByHand):
    """ "Certainly not" is said of what may have happened."""

    def end(self, db):
        try:
            super().end(db)
        except sqlite3.OperationalError as error:
            raise CommitRejected(str(error)) from error


@make_format
class TakesAFailedLookForNo(ByHand):
    """After an error it looks whether the epoch is there; a look that fails is taken for "no"."""

    def publish(self, epoch, staged):
        try:
            super().publish(epoch, staged)
        except sqlite3.OperationalError:
            if not self.is_already_committed(epoch):
                super().publish(epoch, staged)

    def is_already_committed(self, epoch):
        with contextlib.suppress(sqlite3.OperationalError):
            held = self.last_committed(epoch.query)
            return held is not None and held.epoch == epoch.number
        return False

    def mark(self, db, epoch):
        mark = (epoch.query, epoch.number, epoch.digest)
        db.execute("INSERT OR REPLACE INTO marks VALUES (?, ?, ?)", mark)

    def sweep(self, db, epoch):
        del db, epoch


# ---------------------------------------------------------------- marks that go


@make_format
class TakesTheMarkAway(DatabaseWriter):
    """A sink whose discard also removes the newest mark."""

    def discard(self, staged):
        super().discard(staged)
        with transaction(self.folder) as db:
            db.execute("DELETE FROM marks WHERE rowid = (SELECT max(rowid) FROM marks)")


@make_format
class ForgetsOlderMarks(DatabaseWriter):
    """Only the newest is needed, or so it seems; a driver that is two epochs late finds none."""

    def sweep(self, db, epoch):
        place = (epoch.query, epoch.number)
        db.execute("DELETE FROM marks WHERE query = ? AND epoch < ?", place)


@make_format
class KeepsOneMark(DatabaseWriter):
    """One row for a query, which each epoch writes over."""

    def mark(self, db, epoch):
        db.execute("DELETE FROM marks WHERE query = ?", (epoch.query,))
        super().mark(db, epoch)

    def sweep(self, db, epoch):
        del db, epoch


@make_format
class OverwritesMarksToo(DatabaseWriter):
    """A sink that starts again when all rows are replaced."""

    def mark(self, db, epoch):
        if self.mode is OutputMode.REPLACE:
            db.execute("DELETE FROM marks")
        super().mark(db, epoch)


# ---------------------------------------------------------------- calls that nobody sees


@contextlib.contextmanager
def transaction_in_c(folder):
    """As `transaction`, by a client that is written in C."""
    with closing(_sqlite3.connect(str(folder / "database"), isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        yield db
        db.execute("COMMIT")


@make_format
class CommitsUnseen(DatabaseWriter):
    """Nothing is wrong with it but that nobody could tell."""

    def publish(self, epoch, staged):
        with transaction_in_c(self.folder) as db:
            self.mark(db, epoch)
            self.clear(db)
            self.move(db, staged)
            self.sweep(db, epoch)


@make_format
class StagesUnseen(DatabaseWriter):
    """Likewise, of its tasks: an error of theirs could be passed over."""

    def keep(self, task, rows):
        with transaction_in_c(self.folder) as db:
            into = f"INSERT INTO staged (part, query, epoch, {self.columns})"
            place = (self.name(task), task.query, task.epoch)
            marks = ", ".join("?" * (len(place) + len(rows[0])))
            db.executemany(f"{into} VALUES ({marks})", [(*place, *row) for row in rows])


@make_format
class MarksFirstUnseen(DatabaseWriter):
    """As `MarksFirst`, where no call can be counted."""

    @classmethod
    def outside(cls, folder):
        return {**super().outside(folder), "unseen": True}

    def publish(self, epoch, staged):
        with transaction_in_c(self.folder) as db:
            self.mark(db, epoch)
        time.sleep(0.3)
        with transaction_in_c(self.folder) as db:
            self.clear(db)
            self.move(db, staged)


# ---------------------------------------------------------------- what Spark refuses


class LooksLikeAWriter:
    def __init__(self, writer):
        self.write, self.commit, self.abort = writer.write, writer.commit, writer.abort


class IsNoWriter(Table):
    """It has the methods, but Spark goes by the class."""

    def streamWriter(self, schema, overwrite):
        return LooksLikeAWriter(super().streamWriter(schema, overwrite))
