"""Bugs in what becomes of rows, and in what is left of them."""

import datetime as dt
import itertools

from planted_sinks.outside import make_format
from planted_sinks.twins import DatabaseWriter, to_sqlite_value

# ---------------------------------------------------------------- values


class Changing(DatabaseWriter):
    """Values pass through `changed`."""

    def values(self, batch):
        rows = (row.values() for row in batch.to_pylist())
        return [[to_sqlite_value(self.changed(value)) for value in row] for row in rows]

    def changed(self, value):
        raise NotImplementedError


@make_format
class LeavesOutNulls(DatabaseWriter):
    """A row with a null is no row."""

    def stage(self, batches, task, plan):
        return super().stage(filter(len, (batch.drop_null() for batch in batches)), task, plan)


@make_format
class NullsAsEmptyTexts(DatabaseWriter):
    """As CSV knows them."""

    def values(self, batch):
        return [["" if value is None else value for value in row] for row in super().values(batch)]


@make_format
class StripsTexts(Changing):
    def changed(self, value):
        return value.strip() if isinstance(value, str) else value


@make_format
class CutsTimes(Changing):
    """A column for milliseconds."""

    def changed(self, value):
        if not isinstance(value, dt.datetime):
            return value
        return value.replace(microsecond=value.microsecond // 1000 * 1000)


@make_format
class LocalTimes(Changing):
    """A time without a zone is taken for one in the zone of the machine."""

    def changed(self, value):
        if not isinstance(value, dt.datetime) or value.tzinfo is not None or value.year > 2200:
            return value
        return value.astimezone(dt.timezone.utc).replace(tzinfo=None)


@make_format
class DecimalsAsFloats(Changing):
    def changed(self, value):
        return float(value) if type(value).__name__ == "Decimal" else value


@make_format
class WritesByPosition(DatabaseWriter):
    """The first column goes into the first column, whatever their names are."""

    def show(self, db, name):
        db.execute(f"INSERT INTO visible SELECT {self.columns} FROM staged WHERE part = ?", (name,))


@make_format
class StagesTheFirstBatch(DatabaseWriter):
    """A task may have more than one batch of rows."""

    def stage(self, batches, task, plan):
        return super().stage(itertools.islice(batches, 1), task, plan)


# ---------------------------------------------------------------- what is left


@make_format
class HoldsATask(DatabaseWriter):
    """All rows of a task are held before the first is staged."""

    def stage(self, batches, task, plan):
        return super().stage(iter(list(batches)), task, plan)


class SweepsItsOwn(DatabaseWriter):
    """Staged rows are moved, and nobody looks for others."""

    def show(self, db, name):
        super().show(db, name)
        db.execute("DELETE FROM staged WHERE part = ?", (name,))

    def sweep(self, db, epoch):
        del db, epoch


@make_format
class LeavesWhatWasLost(SweepsItsOwn):
    """A sink that deletes published and discarded data, but silently loses some attempts."""


@make_format
class DiscardsNothing(SweepsItsOwn):
    def discard(self, staged):
        del staged


@make_format
class NeverSweeps(DatabaseWriter):
    """Rows are copied into sight, and stay where they were."""

    def sweep(self, db, epoch):
        del db, epoch
