"""The kit for sinks is tested here: it must find each planted bug, and pass the correct twins."""

import fcntl
import os
import re
import threading
from contextlib import contextmanager, nullcontext

import pytest
from planted_bugs import find_failure, open_player, parameters
from planted_sinks import BUGS, TWINS, twins
from planted_sinks.outside import make_format

from krishiv_spark.errors import OptionError
from krishiv_spark.testing import Broken, Resume, Rule, SinkConformance, SinkUnderTest
from krishiv_spark.testing.suites.base import (
    BEGIN,
    COMMIT,
    STAGED,
    trap_errors_and_deaths,
    trap_sleeps,
)
from krishiv_spark.testing.suites.random_steps import play_at_random


def writer_of(kind):
    return getattr(kind, "writer_type", None) or kind.stream_writer


class Suite(SinkConformance):
    """The author's part, for any of the planted sinks."""

    planted = twins.Database
    declares = {}  # noqa: RUF012  beside what the writer says

    def sink(self, folder):
        given = {**writer_of(self.planted).outside(folder), **self.declares}
        return SinkUnderTest(source=self.planted, options={"path": str(folder)}, **given)


@pytest.mark.long
class TestDatabase(Suite):
    pass


@pytest.mark.long
class TestJobs(Suite):
    planted = twins.Jobs


@pytest.mark.long
class TestUpserts(Suite):
    planted = twins.Upserts


@pytest.mark.variant  # the same database, under numbered batches too
class TestNumbered(Suite):
    planted = twins.Numbered


@pytest.mark.long
class TestTable(Suite):
    planted = twins.Table


@pytest.mark.variant  # the examples for authors are correct sinks that the whole kit passes
class TestFolder(Suite):
    planted = twins.Folder


@pytest.mark.long
class TestRecordingFolder(Suite):
    planted = twins.RecordingFolder


@pytest.mark.long
class TestLines(Suite):
    planted = twins.Lines


LAST = "the_last_epoch_is_visible_when_its_commit_returns"

FOUND = [
    # staging
    ("StagesInSight", "staged_rows_are_invisible", Rule.NOTHING_EARLY),
    ("AttemptsShareAName", "attempts_of_a_task_stage_apart", Rule.NO_ROW_TWICE),
    ("AttemptsShareAFile", "a_stop_in_mid_write", Rule.NO_ROW_TWICE),
    ("LastAttemptWins", "attempts_of_a_task_stage_apart", Rule.NO_ROW_LOST),
    ("StagesARowForNone", "epochs_without_rows", Rule.NOTHING_INVENTED),
    # what is remembered, and where
    ("KeepsFilesOnSelf", "a_commit_knows_only_what_the_messages_say", Rule.NO_ROW_LOST),
    ("KeepsItsRunOnSelf", "a_commit_knows_only_what_the_messages_say", Rule.WORKS),
    ("KeepsItsRunInAList", "a_commit_knows_only_what_the_messages_say", Rule.WORKS),
    ("KeepsPartsOnSelf", "a_commit_knows_only_what_the_messages_say", Rule.NO_ROW_LOST),
    ("RemembersItsFirstLook", "abort_after_a_failed_commit_touches_nothing", Rule.GOES_ON),
    ("LeavesALock", "death_at_any_call", Rule.GOES_ON),
    # abort and discard
    ("DeletesOnAbort", "abort_after_a_failed_commit_touches_nothing", Rule.NO_ROW_LOST),
    ("CleansUpAfterItsCommit", "an_unknown_outcome_is_looked_up", Rule.NO_ROW_LOST),
    ("TripsOverNone", "an_aborted_epoch_is_void", Rule.WORKS),
    ("DiscardsOnce", "discard_may_be_repeated", Rule.WORKS),
    ("PublishesWhatIsThere", "an_aborted_epoch_is_void", Rule.NO_ROW_TWICE),
    ("ShowsWhatIsThere", "attempts_of_a_task_stage_apart", Rule.NO_ROW_TWICE),
    ("SweepsWithoutAge", "queries_have_epochs_of_their_own", Rule.NO_ROW_LOST),
    ("RollsBack", "a_replayed_epoch_adds_nothing", Rule.NOTHING_TAKEN_BACK),
    ("MarksWhatExpired", "expired_staging_is_not_published", Rule.NO_ROW_LOST),
    # rows and mark
    ("MarksFirst", "death_at_any_call", Rule.NO_ROW_LOST),
    ("MarksFirst", "an_unknown_outcome_is_looked_up", Rule.NO_ROW_LOST),
    ("MarksLast", "an_unknown_outcome_is_looked_up", Rule.NO_ROW_TWICE),
    ("MarksLaterEpochsLast", "a_stale_driver_cannot_publish", Rule.NO_ROW_TWICE),
    ("PublishesTaskByTask", "death_at_any_call", Rule.WHOLE_EPOCHS),
    ("OneEpochLate", LAST, Rule.NO_ROW_LOST),
    ("PublishesWithoutErrors", "an_unknown_outcome_is_looked_up", Rule.NO_ROW_LOST),
    # the look-up
    ("NeverLooks", "a_replayed_epoch_adds_nothing", Rule.GOES_ON),
    ("KeepsNoDigest", "a_rolled_back_checkpoint_is_refused", Rule.NO_ROW_LOST),
    ("LooksForAnyQuery", "queries_have_epochs_of_their_own", Rule.NO_ROW_LOST),
    ("ComparesBatchIdsOnly", "queries_have_epochs_of_their_own", Rule.NO_ROW_LOST),
    ("OneLogForAllQueries", "queries_have_epochs_of_their_own", Rule.WORKS),
    ("OrdersMarksByTheClock", "a_wrong_clock_moves_no_row", Rule.GOES_ON),
    ("WantsNoGaps", "epochs_without_rows", Rule.WORKS),
    # looking and writing in one step
    ("WritesOverItsMark", "a_stale_driver_cannot_publish", Rule.NO_ROW_TWICE),
    ("MarksAreNotUnique", "a_stale_driver_cannot_publish", Rule.NO_ROW_TWICE),
    ("TrustsItsSweep", "a_stale_driver_finds_the_commit_of_a_dead_one", Rule.NO_ROW_TWICE),
    ("TakesTheNextNumber", "a_stale_driver_cannot_publish", Rule.NO_ROW_TWICE),
    ("TriesAgainBehind", "an_unknown_outcome_is_looked_up", Rule.NO_ROW_TWICE),
    # over an epoch log
    ("FinishesOnce", "death_at_any_call", Rule.GOES_ON),
    ("IsAlwaysFinished", "death_at_any_call", Rule.NO_ROW_LOST),
    ("RecordsTheFirstEpoch", "a_log_that_is_rolled_back_is_refused", Rule.NO_ROW_TWICE),
    ("NeverLacksAnEpoch", "a_target_that_is_rolled_back_is_refused", Rule.NO_ROW_LOST),
    # complete mode and batches
    ("AddsInCompleteMode", "complete_mode", Rule.NEWEST_EPOCH_ONLY),
    ("ClearsFirst", "complete_mode", Rule.NEWEST_EPOCH_ONLY),
    ("ClearsWhilePlanning", "batch_jobs_that_overwrite", Rule.NEWEST_EPOCH_ONLY),
    ("ShowsBatchTasks", "batch_jobs", Rule.NOTHING_EARLY),
    ("ClearsFirstInBatches", "batch_jobs_that_overwrite", Rule.NEWEST_EPOCH_ONLY),
    # at least once
    ("WritesEverySecondEpoch", LAST, Rule.NO_ROW_LOST),
    ("KeepsTheFirstResult", "complete_mode", Rule.NO_ROW_LOST),
    # errors that are swallowed
    ("ReadsOnAfterAnError", "an_unknown_outcome_is_looked_up", Rule.NO_ROW_LOST),
    ("StagesWithoutErrors", "an_unknown_outcome_is_looked_up", Rule.NO_ROW_LOST),
    ("StagesAgainAfterAnError", "an_unknown_outcome_is_looked_up", Rule.NO_ROW_TWICE),
    ("WritesLinesWithoutErrors", "an_unknown_outcome_is_looked_up", Rule.NO_ROW_LOST),
    ("AttemptsShareANumber", "attempts_of_a_task_stage_apart", Rule.NOTHING_EARLY),
    ("RemembersWhatItTried", "an_unknown_outcome_is_looked_up", Rule.NO_ROW_LOST),
    ("WritesAnEpochOnce", "an_unknown_outcome_is_looked_up", Rule.NO_ROW_LOST),
    ("MarksLaterEpochsLast", "death_at_any_call", Rule.NO_ROW_TWICE),
    ("EmptyResultsChangeNothing", "complete_mode", Rule.NEWEST_EPOCH_ONLY),
    ("AsksTheFirstTask", "epochs_without_rows", Rule.NO_ROW_LOST),
    ("ComparesEpochsAsText", "a_replayed_epoch_adds_nothing", Rule.GOES_ON),
    # found since the kit asks more
    ("PassesOverWhatItCannotRead", "an_unknown_outcome_is_looked_up", Rule.NO_ROW_TWICE),
    ("MarksFirstByCursor", "death_at_any_call", Rule.NO_ROW_LOST),
    ("WritesOverTheLog", "queries_have_epochs_of_their_own", Rule.NO_ROW_LOST),
    ("TakesATakenNumberForItsOwn", "queries_have_epochs_of_their_own", Rule.NO_ROW_LOST),
    ("LooksBeforeItPublishes", "expired_staging_is_not_published", Rule.NO_ROW_LOST),
    ("RemovesNewerToo", "complete_mode", Rule.NEWEST_EPOCH_ONLY),
    ("AnyResultIsTheNewest", "complete_mode", Rule.NEWEST_EPOCH_ONLY),
    ("KeepsEqualRowsOnce", "equal_rows_are_all_kept", Rule.NO_ROW_LOST),
    # values
    ("LeavesOutNulls", "values_are_kept", Rule.NO_ROW_LOST),
    ("NullsAsEmptyTexts", "values_are_kept", Rule.VALUES_KEPT),
    ("StripsTexts", "values_are_kept", Rule.VALUES_KEPT),
    ("CutsTimes", "values_are_kept", Rule.VALUES_KEPT),
    ("LocalTimes", "values_are_kept", Rule.VALUES_KEPT),
    ("DecimalsAsFloats", "values_are_kept", Rule.VALUES_KEPT),
    ("WritesByPosition", "columns_go_by_name", Rule.NOTHING_INVENTED),
    ("StagesTheFirstBatch", LAST, Rule.NO_ROW_LOST),
    # what is left
    ("HoldsATask", "memory_of_a_task_is_bounded", Rule.BOUNDED_MEMORY),
    ("NeverSweeps", "nothing_stays_staged", Rule.NOTHING_LEFT),
    ("DiscardsNothing", "nothing_stays_staged", Rule.NOTHING_LEFT),
    ("LeavesWhatWasLost", "lost_attempts_are_swept", Rule.NOTHING_LEFT),
    ("BelievesNames", "forged_log_entries_touch_nothing_outside", Rule.STAYS_INSIDE),
    # commits and marks
    ("PassesOverAnErrorOfCommit", "an_unknown_outcome_is_looked_up", Rule.NO_ROW_LOST),
    ("TakesAnErrorOfCommitForNo", "an_unknown_outcome_is_looked_up", Rule.NO_IS_NO),
    ("TakesAFailedLookForNo", "an_unknown_outcome_is_looked_up", Rule.NO_ROW_TWICE),
    ("TakesTheMarkAway", "a_replayed_epoch_adds_nothing", Rule.NO_ROW_TWICE),
    ("ForgetsOlderMarks", "a_stale_driver_cannot_publish", Rule.NO_ROW_TWICE),
    ("KeepsOneMark", "a_stale_driver_cannot_publish", Rule.NO_ROW_TWICE),
    ("OverwritesMarksToo", "an_overwrite_keeps_marks", Rule.NOTHING_COMES_BACK),
    ("IsNoWriter", LAST, Rule.WORKS),
    ("CommitsUnseen", "the_kit_sees_the_commit", Rule.SEEN),
    ("StagesUnseen", "the_kit_sees_the_tasks", Rule.SEEN),
    ("MarksFirstUnseen", "death_at_any_moment", Rule.NO_ROW_LOST),
    # numbered batches
    (
        "MarksBesideItsTarget",
        "a_target_that_went_back_is_refused_for_numbered_batches",
        Rule.GAP_IS_SAID,
    ),
    ("ForgetsWhoWrote", "a_name_that_another_query_uses_is_refused", Rule.NAMES_APART),
    # rows with keys
    ("AddsTheNewRow", LAST, Rule.NEWEST_OF_KEY),
    ("DeletesNothing", "a_commit_knows_only_what_the_messages_say", Rule.NEWEST_OF_KEY),
    ("TheLastTaskWins", "attempts_of_a_task_stage_apart", Rule.NEWEST_OF_KEY),
    ("RemovesInAnotherTransaction", "death_at_any_call", Rule.NEWEST_OF_KEY),
    ("MarksBeforeItUpserts", "death_at_any_call", Rule.NEWEST_OF_KEY),
    ("UpsertsAgain", "a_stale_driver_cannot_publish", Rule.NEWEST_OF_KEY),
    ("UpsertsTaskByTask", "an_unknown_outcome_is_looked_up", Rule.WHOLE_EPOCHS),
    # batch jobs alone
    ("JobsStageWithoutErrors", "an_unknown_outcome_is_looked_up", Rule.NO_ROW_LOST),
    ("JobsAttemptsShareAName", "attempts_of_a_task_stage_apart", Rule.NO_ROW_TWICE),
    ("JobsDiscardNothing", "nothing_stays_staged", Rule.NOTHING_LEFT),
    ("JobsCommitUnseen", "the_kit_sees_the_commit", Rule.SEEN),
    ("JobsShowHalfUnseen", "death_at_any_moment", Rule.WHOLE_EPOCHS),
]
"""The bug, the case that must find it, and the rule that it breaks."""

MISSED = []
"""Bugs that the case does not find yet, and why; who mends it moves the line up."""


OF_A_FIRST_SINK = {
    "MarksAreNotUnique": "a mark without a key",
    "MarksLast": "the mark in a second transaction, after the rows",
    "MarksFirst": "the mark in a transaction of its own, before the rows",
    "AttemptsShareAName": "a name of staging without the attempt",
    "NeverLooks": "last_committed is always None",
    "TakesTheMarkAway": "discard takes the newest mark away",
    "PassesOverAnErrorOfCommit": "an error of COMMIT is passed over",
    "TakesAnErrorOfCommitForNo": "an error of COMMIT is reported as certainly not",
    "StagesTheFirstBatch": "stage writes the first batch of a task only",
    "LeavesOutNulls": "rows with a null are left out",
    "WritesByPosition": "columns by position, into a table that has them in another order",
    "KeepsEqualRowsOnce": "equal rows are merged",
    "EmptyResultsChangeNothing": "complete mode: an epoch without rows leaves those before",
    "LooksForAnyQuery": "marks are not kept by query",
    "ForgetsOlderMarks": "older marks are removed",
    "KeepsOneMark": "one mark for a query, written over",
    "KeepsFilesOnSelf": "stage leaves on self what publish wants",
    "KeepsItsRunOnSelf": "check leaves on self what stage wants",
    "HoldsATask": "stage holds all rows of a task",
    "PublishesWhatIsThere": "publish takes whatever is staged",
    "ClearsFirst": "complete mode: the old rows go in a transaction of their own",
    "NeverSweeps": "what is staged is never removed",
    "CutsTimes": "times lose their microseconds",
    "DiscardsOnce": "discard fails for what is gone",
    "OverwritesMarksToo": "an overwrite takes the marks away",
}
"""Mistakes that somebody made who wrote a sink for the first time."""

NEEDS_MORE = {
    "a_name_that_another_query_uses_is_refused",
    "a_target_that_went_back_is_refused_for_numbered_batches",
    "death_at_any_moment",  # the same moment is another one on another day
    "discard_may_be_repeated",
    "forged_log_entries_touch_nothing_outside",
    "lost_attempts_are_swept",
    "memory_of_a_task_is_bounded",
    "nothing_stays_staged",
    "the_kit_sees_the_commit",
    "the_kit_sees_the_tasks",
}
"""Cases that do more than steps: the printed sequence alone is not all of it."""


def test_each_planted_bug_is_in_a_table():
    assert OF_A_FIRST_SINK.keys() <= {bug for bug, *_ in FOUND}
    assert {bug for bug, *_ in [*FOUND, *MISSED]} == BUGS.keys()


@make_format
class RefusesBatchJobs(twins.DatabaseWriter):
    def check(self):
        super().check()
        if not self.streaming:
            raise OptionError("streams only")


def test_steps_that_fail_by_themselves_are_tried_at_no_call_and_so_are_no_success(tmp_path):
    suite = Suite()
    suite.planted = RefusesBatchJobs
    with open_player(suite, tmp_path, "") as play, pytest.raises(Broken) as caught:
        play.at_every_call(BEGIN, trap_errors_and_deaths, writing="batch append")
    assert caught.value.rule is Rule.WORKS


def test_a_lock_on_the_writer_is_named_by_the_first_case_that_needs_the_step_after_it(tmp_path):
    """The commit is impossible there, since the planner has failed: that is what is shown."""
    suite = Suite()
    suite.planted = BUGS["KeepsItsRunOnSelf"]
    broken = find_failure(suite, "the_kit_sees_the_commit", tmp_path, None, again=False)
    assert broken.rule is Rule.WORKS
    assert "sets 'run' on itself, which no other process would see" in str(broken)
    assert "from plan()" in str(broken)


@make_format
class StagesALock(twins.DatabaseWriter):
    """A sink whose message to the committer contains a lock."""

    def stage(self, batches, task, plan):
        return {"parts": [super().stage(batches, task, plan), threading.Lock()]}


@make_format
class PlansALock(twins.DatabaseWriter):
    """A sink whose plan for the tasks contains a lock."""

    def plan(self, ownership):
        del ownership
        return {"lock": threading.Lock()}


@pytest.mark.parametrize(
    ("planted", "named"),
    [
        (StagesALock, (r"Staged\.payload\['parts'\]\[1\] cannot be pickled: it is of type 'lock'. "
         r"What stage\(\) returns travels to the committer: create it in publish\(\)")),
        (PlansALock, (r"Plan\.payload\['lock'\] cannot be pickled: it is of type 'lock'. "
         r"What plan\(\) .* travels to the tasks: create it in stage\(\)")),
    ],
)  # fmt: skip
def test_what_cannot_travel_is_named_with_where_to_create_it(planted, named, tmp_path):
    suite = Suite()
    suite.planted = planted
    broken = find_failure(suite, LAST, tmp_path, None)
    assert broken.rule is Rule.WORKS
    assert re.search(named, str(broken)), str(broken)


@make_format
class LocksItsFile(twins.DatabaseWriter):
    """Correct; but nobody reads while it writes."""

    @classmethod
    def outside(cls, folder):
        given = super().outside(folder)

        def rows():
            with locked(folder):
                return list(given["oracle"]())

        return {**given, "oracle": rows}

    def publish(self, epoch, staged):
        with locked(self.folder):
            super().publish(epoch, staged)


@contextmanager
def locked(folder):
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(lock)


@pytest.mark.parametrize("readable", [True, False])
def test_who_locks_its_file_says_so_and_is_not_read_meanwhile(readable, tmp_path):
    suite = Suite()
    suite.planted = LocksItsFile
    suite.declares = {"readable_while_writing": readable}
    fails = pytest.raises(Broken, match="READABLE") if readable else nullcontext()
    with open_player(suite, tmp_path, "") as play, fails:
        play.at_every_call(COMMIT, trap_sleeps, lambda _: (Resume(),), before=STAGED)


@pytest.mark.soak
@pytest.mark.parametrize("twin", TWINS)
def test_a_thousand_random_sequences(twin, tmp_path):
    suite = Suite()
    suite.planted = TWINS[twin]
    with open_player(suite, tmp_path, "") as play:
        play_at_random(play, play.new()[0], 1000)


SLOW = {
    "BelievesNames",
    "CommitsUnseen",
    "OverwritesMarksToo",
    "PublishesTaskByTask",
    "TakesAnErrorOfCommitForNo",
}
"""Bugs that take a second or more of processor time to find."""


@parameters(FOUND, MISSED, SLOW)
def test_a_planted_bug_is_found(bug, case, rule, tmp_path, pytestconfig):
    suite = Suite()
    suite.planted = BUGS[bug]
    config = pytestconfig if bug in OF_A_FIRST_SINK else None
    broken = find_failure(suite, case, tmp_path, config, again=case not in NEEDS_MORE)
    assert broken.rule is rule, str(broken)
