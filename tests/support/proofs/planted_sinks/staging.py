"""Bugs in what is staged, and in what is remembered where."""

import contextlib
import functools
import sqlite3
import uuid

from planted_sinks.outside import make_format
from planted_sinks.twins import (
    DatabaseWriter,
    Part,
    TableWriter,
    make_pyspark_format,
    newest_epoch,
    transaction,
)

# ---------------------------------------------------------------- staging


@make_format
class StagesInSight(DatabaseWriter):
    """Rows are staged where readers look; the commit only marks them."""

    def keep(self, task, rows):
        del task
        with transaction(self.folder) as db:
            db.executemany(f"INSERT INTO visible ({self.columns}) VALUES (?, ?)", rows)

    def move(self, db, staged):
        del db, staged


@make_format
class AttemptsShareAName(DatabaseWriter):
    """A sink whose attempts of a task stage under the same name."""

    def name(self, task):
        return f"{task.query}/{task.epoch}/{task.partition}"


@make_pyspark_format
class AttemptsShareAFile(TableWriter):
    """An attempt writes over the file of another one, which may be in the log already."""

    def name(self, context):
        keys = ("sql.streaming.queryId", "streaming.sql.batchId")
        return "-".join([*map(context.getLocalProperty, keys), str(context.partitionId())])


@make_pyspark_format
class AttemptsShareANumber(TableWriter):
    """The number of an attempt is unique in an application; the next one counts from 0 again."""

    def name(self, context):
        return f"{context.getLocalProperty('sql.streaming.queryId')}-{context.taskAttemptId()}"


@make_pyspark_format
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


@make_pyspark_format
class ReadsOnAfterAnError(TableWriter):
    """Writes again after an error, but has pulled some of the rows already."""

    def write(self, iterator):
        with contextlib.suppress(OSError):
            return super().write(iterator)
        return super().write(iterator)


@make_format
class StagesAgainAfterAnError(DatabaseWriter):
    """Stages once more, under the same name, what may have been staged the first time."""

    def keep(self, task, rows):
        with contextlib.suppress(sqlite3.OperationalError):
            return super().keep(task, rows)
        return super().keep(task, rows)


@make_format
class StagesWithoutErrors(DatabaseWriter):
    """A task that could not stage its rows has none."""

    def stage(self, batches, task, plan):
        with contextlib.suppress(sqlite3.OperationalError):
            return super().stage(batches, task, plan)


@make_format
class StagesARowForNone(DatabaseWriter):
    """An epoch without rows gets one that says so."""

    def stage(self, batches, task, plan):
        part = super().stage(batches, task, plan)
        if part is None:
            self.keep(task, [[None, None]])
        return part or Part(self.name(task), 1)


# ---------------------------------------------------------------- what is remembered, and where


@make_pyspark_format
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


@make_format
class KeepsItsRunOnSelf(DatabaseWriter):
    """The planner chooses where the tasks stage, and sets it on self instead of returning it."""

    run = ""

    def check(self):
        super().check()
        self.run = uuid.uuid4().hex

    def name(self, task):
        return f"{self.run}/{super().name(task)}"


@make_format
class KeepsPartsOnSelf(DatabaseWriter):
    """`stage` keeps in a list on self what `publish` needs."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.parts = []

    def stage(self, batches, task, plan):
        part = super().stage(batches, task, plan)
        self.parts.append(part)
        return part

    def move(self, db, staged):
        super().move(db, [part for part in staged if part in self.parts])


@make_format
class KeepsItsRunInAList(DatabaseWriter):
    """As `KeepsItsRunOnSelf`, past the error; the tasks do not see it."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.runs = []

    def check(self):
        super().check()
        self.runs.append(uuid.uuid4().hex)

    def name(self, task):
        return f"{self.runs[0]}/{super().name(task)}"


remembered_mark = functools.cache(newest_epoch)


@make_format
class RemembersItsFirstLook(DatabaseWriter):
    """A sink that reads the last commit only once per process."""

    def last_committed(self, query):
        return remembered_mark(self.folder, query)


_tried = set()


@make_format
class RemembersWhatItTried(DatabaseWriter):
    """An epoch that this process has tried to publish is believed to be published."""

    def publish(self, epoch, staged):
        if (epoch.query, epoch.number) not in _tried:
            _tried.add((epoch.query, epoch.number))
            super().publish(epoch, staged)
