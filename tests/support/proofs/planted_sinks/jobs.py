"""Bugs of sinks that have batch jobs alone: each is one of a stream too, in another file."""

import sqlite3
import time
from contextlib import suppress

from planted_sinks.committing import transaction_in_c
from planted_sinks.outside import make_format
from planted_sinks.twins import JobsWriter


@make_format
class JobsStageWithoutErrors(JobsWriter):
    """As `StagesWithoutErrors`."""

    def stage(self, batches, task, plan):
        with suppress(sqlite3.OperationalError):
            return super().stage(batches, task, plan)


@make_format
class JobsAttemptsShareAName(JobsWriter):
    """As `AttemptsShareAName`."""

    def name(self, task):
        return f"{task.query}/{task.partition}"


@make_format
class JobsDiscardNothing(JobsWriter):
    """As `DiscardsNothing`."""

    def discard(self, staged):
        del staged


@make_format
class JobsCommitUnseen(JobsWriter):
    """As `CommitsUnseen`."""

    def publish(self, epoch, staged):
        with transaction_in_c(self.folder) as db:
            self.mark(db, epoch)
            self.move(db, staged)
            self.sweep(db, epoch)


@make_format
class JobsShowHalfUnseen(JobsWriter):
    """One transaction for each task, where no call can be counted."""

    @classmethod
    def outside(cls, folder):
        return {**super().outside(folder), "unseen": True}

    def publish(self, epoch, staged):
        del epoch
        for part in staged:
            with transaction_in_c(self.folder) as db:
                self.move(db, [part])
            time.sleep(0.3)
