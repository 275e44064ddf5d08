"""Bugs in complete mode and batches, of rows, and of sinks that promise at least once."""

import contextlib

from krishiv_spark.sinks.base import OutputMode
from planted_sinks.outside import make_format
from planted_sinks.staging import _tried
from planted_sinks.twins import DatabaseWriter, LinesWriter, transaction

# ---------------------------------------------------------------- complete mode and batches


@make_format
class AddsInCompleteMode(DatabaseWriter):
    """Complete mode adds to what is there."""

    def clear(self, db):
        del db


@make_format
class EmptyResultsChangeNothing(DatabaseWriter):
    """A result without rows leaves the one before in its place."""

    def publish(self, epoch, staged):
        with transaction(self.folder) as db:
            self.mark(db, epoch)
            if staged:
                self.clear(db)
            self.move(db, staged)


@make_format
class ClearsFirst(DatabaseWriter):
    """The old result goes in a transaction of its own."""

    def publish(self, epoch, staged):
        with transaction(self.folder) as db:
            self.clear(db)
        with transaction(self.folder) as db:
            self.mark(db, epoch)
            self.move(db, staged)


@make_format
class AnyResultIsTheNewest(DatabaseWriter):
    """In complete mode the last writer wins: a result replaces whatever there is."""

    def mark(self, db, epoch):
        how = "OR REPLACE" if self.mode is OutputMode.REPLACE else ""
        mark = (epoch.query, epoch.number, epoch.digest)
        db.execute(f"INSERT {how} INTO marks VALUES (?, ?, ?)", mark)

    def sweep(self, db, epoch):
        """Keep data staged by another driver; otherwise the bug could not show."""
        del db, epoch


@make_format
class ClearsWhilePlanning(DatabaseWriter):
    """A batch that overwrites removes the old rows before it has new ones."""

    def check(self):
        super().check()
        if not self.streaming:
            with transaction(self.folder) as db:
                self.clear(db)


@make_format
class ShowsBatchTasks(DatabaseWriter):
    """A batch shows the rows of each task when it is done."""

    def stage(self, batches, task, plan):
        part = super().stage(batches, task, plan)
        if part is not None and not self.streaming:
            with transaction(self.folder) as db:
                self.move(db, [part])
        return part

    def check_whole(self, db, part):
        if self.streaming:
            super().check_whole(db, part)


@make_format
class ClearsFirstInBatches(DatabaseWriter):
    """A batch that overwrites removes the old rows in a transaction of its own."""

    def publish(self, epoch, staged):
        if self.streaming:
            super().publish(epoch, staged)
        else:
            ClearsFirst.writer_type.publish(self, epoch, staged)


# ---------------------------------------------------------------- rows


@make_format
class KeepsEqualRowsOnce(DatabaseWriter):
    """Rows that are there already are left out: that makes a replay harmless, and loses rows."""

    def show(self, db, name):
        new = f"SELECT DISTINCT {self.columns} FROM staged WHERE part = ?"
        there = f"SELECT {self.columns} FROM visible"
        db.execute(f"INSERT INTO visible ({self.columns}) {new} EXCEPT {there}", (name,))


# ---------------------------------------------------------------- at least once

_waiting = []


@make_format
class WritesEverySecondEpoch(LinesWriter):
    """Saves calls to the outside: two epochs are written together."""

    def publish(self, epoch, staged):
        _waiting.extend(staged)
        if epoch.number % 2:
            super().publish(epoch, _waiting)
            _waiting.clear()


@make_format
class WritesLinesWithoutErrors(LinesWriter):
    """An epoch that could not be written is committed all the same."""

    def publish(self, epoch, staged):
        with contextlib.suppress(OSError):
            super().publish(epoch, staged)


@make_format
class WritesAnEpochOnce(LinesWriter):
    """An epoch that this process has tried to write is believed to be written."""

    def publish(self, epoch, staged):
        if (epoch.query, epoch.number) not in _tried:
            _tried.add((epoch.query, epoch.number))
            super().publish(epoch, staged)


@make_format
class KeepsTheFirstResult(LinesWriter):
    """In complete mode the first result stays."""

    @classmethod
    def outside(cls, folder):
        return {**super().outside(folder), "complete": True}

    def publish(self, epoch, staged):
        file = self.options.path / "lines"
        if self.mode is OutputMode.APPEND or not file.read_text():
            super().publish(epoch, staged)
