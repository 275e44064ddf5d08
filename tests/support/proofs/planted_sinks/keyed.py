"""Bugs of sinks that keep the newest row of each key."""

from planted_sinks.outside import make_format
from planted_sinks.twins import UpsertsWriter, transaction


@make_format
class AddsTheNewRow(UpsertsWriter):
    """The old row of a key stays beside the new one."""

    def remove(self, db, names):
        del db, names


@make_format
class DeletesNothing(UpsertsWriter):
    """A deletion is stored like any other row."""

    def add(self, db, names, where="true"):
        super().add(db, names, where)


@make_format
class RemovesInAnotherTransaction(UpsertsWriter):
    """The old rows are removed in a transaction of their own."""

    def publish(self, epoch, staged):
        with transaction(self.folder) as db:
            self.remove(db, [part.name for part in staged])
        super().publish(epoch, staged)


@make_format
class MarksBeforeItUpserts(UpsertsWriter):
    """The mark, then the rows, in two transactions."""

    def publish(self, epoch, staged):
        with transaction(self.folder) as db:
            self.mark(db, epoch)
        with transaction(self.folder) as db:
            self.move(db, staged)


@make_format
class UpsertsAgain(UpsertsWriter):
    """An epoch may be repeated, since it replaces its own rows, and then newer ones too."""

    def last_committed(self, query):
        del query

    def mark(self, db, epoch):
        mark = (epoch.query, epoch.number, epoch.digest)
        db.execute("INSERT OR REPLACE INTO marks VALUES (?, ?, ?)", mark)

    def sweep(self, db, epoch):
        """Keep data staged by another driver; otherwise the bug could not show."""
        del db, epoch


@make_format
class UpsertsTaskByTask(UpsertsWriter):
    """Each task's rows in a transaction of their own, the mark with the last."""

    def publish(self, epoch, staged):
        for part in staged[:-1]:
            with transaction(self.folder) as db:
                self.move(db, [part])
        super().publish(epoch, staged[-1:])


@make_format
class TheLastTaskWins(UpsertsWriter):
    """Of the rows of an epoch with one id, the one of the last task stays, not the newest."""

    def replace(self, db, names):
        for name in names[::-1]:
            super().replace(db, [name])
