"""Bugs of abort and discard."""

import os
from pathlib import Path

from krishiv_spark.spark.checkpoint import SparkCheckpoint
from planted_sinks.outside import make_format
from planted_sinks.twins import (
    DatabaseWriter,
    FolderParticipant,
    Piece,
    TableWriter,
    connection,
    make_log_format,
    make_pyspark_format,
    transaction,
)


@make_pyspark_format
class DeletesOnAbort(TableWriter):
    """Aborts by deleting every file, also those of a commit that may have happened."""

    def abort(self, messages, batchId):
        del batchId
        self.table.remove(message.file for message in messages if message is not None)


@make_pyspark_format
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


@make_pyspark_format
class TripsOverNone(TableWriter):
    """Aborts as if every task had sent a message."""

    def abort(self, messages, batchId):
        del batchId
        if not all(messages):
            self.table.remove([message.file for message in messages])


@make_format
class DiscardsOnce(DatabaseWriter):
    """A sink that cannot discard deleted data a second time."""

    def discard(self, staged):
        with transaction(self.folder) as db:
            for part in staged:
                gone = db.execute("DELETE FROM staged WHERE part = ?", (part.name,)).rowcount == 0
                if gone:
                    raise LookupError(part.name)


@make_pyspark_format
class PublishesWhatIsThere(TableWriter):
    """Publishes every file that is in no entry yet: also those of failed attempts."""

    def entry_of(self, messages, epoch):
        files = sorted(set(os.listdir(self.table.data)) - set(self.table.files()))
        return {**super().entry_of(messages, epoch), "files": files}


@make_log_format
class ShowsWhatIsThere(FolderParticipant):
    """Shows every staged file, named by the intent or not."""

    def finish(self, epoch, staged):
        super().finish(epoch, [Piece(name=name) for name in os.listdir(self.staged)] or staged)


@make_pyspark_format
class SweepsWithoutAge(TableWriter):
    """After a commit it removes every file that is in no entry, whoever may still need it."""

    def add(self, number, entry):
        super().add(number, entry)
        self.table.remove(set(os.listdir(self.table.data)) - set(self.table.files()))


@make_pyspark_format
class RollsBack(TableWriter):
    """A sink whose next epoch takes back those that Spark has not logged as committed."""

    def __getstate__(self):
        checkpoint = self.options["checkpointlocation"]
        logged = os.listdir(Path(checkpoint) / "commits")
        for number, entry in enumerate(self.table.entries()):
            if (
                entry["query"] == SparkCheckpoint(checkpoint).query_id()
                and str(entry["epoch"]) not in logged
            ):
                os.unlink(self.table.log / f"{number:06}")
        return self.__dict__


@make_format
class MarksWhatExpired(DatabaseWriter):
    """Does not notice that staged rows are gone."""

    def check_whole(self, db, part):
        del db, part


@make_format
class LooksBeforeItPublishes(DatabaseWriter):
    """Looks whether all staged rows are there, and then moves them in another transaction."""

    def publish(self, epoch, staged):
        with connection(self.folder) as db:
            for part in staged:
                super().check_whole(db, part)
        super().publish(epoch, staged)

    def check_whole(self, db, part):
        del db, part
