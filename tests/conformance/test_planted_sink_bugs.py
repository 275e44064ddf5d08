"""The kit for sinks is tested here: it must find each planted bug, and pass the correct twins."""

import inspect
import re

import planted_sinks as planted
import pytest

from krishiv_spark import testing
from krishiv_spark.testing import Broken, EpochDriver, Rule, SinkConformance, SinkUnderTest
from krishiv_spark.testing.playing import Player


def writer_of(kind):
    return getattr(kind, "writer_type", None) or kind.stream_writer


class Suite(SinkConformance):
    """The author's part, for any of the planted sinks."""

    planted = planted.Database

    def sink(self, folder):
        given = writer_of(self.planted).outside(folder)
        return SinkUnderTest(source=self.planted, options={"path": str(folder)}, **given)


class TestDatabase(Suite):
    random_sequences = 1000


class TestTable(Suite):
    planted = planted.Table


class TestFolder(Suite):
    planted = planted.Folder


class TestLines(Suite):
    planted = planted.Lines


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
    ("KeepsItsRunOnSelf", "a_commit_knows_only_what_the_messages_say", Rule.NO_ROW_LOST),
    ("RemembersItsFirstLook", "abort_after_a_failed_commit_touches_nothing", Rule.GOES_ON),
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
    ("MarksLast", "an_unknown_outcome_is_looked_up", Rule.NO_ROW_TWICE),
    ("MarksLaterEpochsLast", "a_stale_driver_cannot_publish", Rule.NO_ROW_TWICE),
    ("PublishesTaskByTask", "death_at_any_call", Rule.WHOLE_EPOCHS),
    ("OneEpochLate", LAST, Rule.NO_ROW_LOST),
    ("PublishesWithoutErrors", "an_unknown_outcome_is_looked_up", Rule.NO_ROW_LOST),
    # the look-up
    ("NeverLooks", "a_replayed_epoch_adds_nothing", Rule.GOES_ON),
    ("LooksForAnyQuery", "queries_have_epochs_of_their_own", Rule.NO_ROW_LOST),
    ("ComparesBatchIdsOnly", "queries_have_epochs_of_their_own", Rule.NO_ROW_LOST),
    ("OneLogForAllQueries", "queries_have_epochs_of_their_own", Rule.NO_ROW_LOST),
    ("WantsNoGaps", "epochs_without_rows", Rule.WORKS),
    # looking and writing in one step
    ("WritesOverItsMark", "a_stale_driver_cannot_publish", Rule.NO_ROW_TWICE),
    ("MarksAreNotUnique", "a_stale_driver_cannot_publish", Rule.NO_ROW_TWICE),
    ("TakesTheNextNumber", "a_stale_driver_cannot_publish", Rule.NO_ROW_TWICE),
    ("TriesAgainBehind", "an_unknown_outcome_is_looked_up", Rule.NO_ROW_TWICE),
    # over an epoch log
    ("FinishesOnce", "death_at_any_call", Rule.GOES_ON),
    ("IsAlwaysFinished", "death_at_any_call", Rule.NO_ROW_LOST),
    # complete mode and batches
    ("AddsInCompleteMode", "complete_mode", Rule.NEWEST_EPOCH_ONLY),
    ("ClearsFirst", "complete_mode", Rule.NEWEST_EPOCH_ONLY),
    ("ClearsWhilePlanning", "batch_jobs", Rule.NEWEST_EPOCH_ONLY),
    ("ShowsBatchTasks", "batch_jobs", Rule.NOTHING_EARLY),
    ("ClearsFirstInBatches", "batch_jobs", Rule.NEWEST_EPOCH_ONLY),
    # at least once
    ("WritesEverySecondEpoch", LAST, Rule.NO_ROW_LOST),
    ("KeepsTheFirstResult", "complete_mode", Rule.NO_ROW_LOST),
    # errors that are swallowed
    ("ReadsOnAfterAnError", "an_unknown_outcome_is_looked_up", Rule.NO_ROW_LOST),
    ("StagesWithoutErrors", "an_unknown_outcome_is_looked_up", Rule.NO_ROW_LOST),
    ("StagesAgainAfterAnError", "an_unknown_outcome_is_looked_up", Rule.NO_ROW_TWICE),
    ("WritesLinesWithoutErrors", "an_unknown_outcome_is_looked_up", Rule.NO_ROW_LOST),
    ("AttemptsShareANumber", "a_stop_in_mid_write", Rule.NO_ROW_TWICE),
    ("RemembersWhatItTried", "an_unknown_outcome_is_looked_up", Rule.NO_ROW_LOST),
    ("WritesAnEpochOnce", "an_unknown_outcome_is_looked_up", Rule.NO_ROW_LOST),
    ("MarksLaterEpochsLast", "death_at_any_call", Rule.NO_ROW_TWICE),
    ("EmptyResultsChangeNothing", "complete_mode", Rule.NEWEST_EPOCH_ONLY),
    ("AsksTheFirstTask", "epochs_without_rows", Rule.NO_ROW_LOST),
    ("ComparesEpochsAsText", "a_replayed_epoch_adds_nothing", Rule.GOES_ON),
]
"""The bug, the case that must find it, and the rule that it breaks."""

MISSED = [
    # Errors hit no replay.
    ("PassesOverWhatItCannotRead", "an_unknown_outcome_is_looked_up", Rule.NO_ROW_TWICE),
    # What a cursor does is not seen.
    ("MarksFirstByCursor", "death_at_any_call", Rule.NO_ROW_LOST),
    # While a commit sleeps, no other query commits, and nothing expires.
    ("WritesOverTheLog", "queries_have_epochs_of_their_own", Rule.NO_ROW_LOST),
    ("TakesATakenNumberForItsOwn", "queries_have_epochs_of_their_own", Rule.NO_ROW_LOST),
    ("LooksBeforeItPublishes", "expired_staging_is_not_published", Rule.NO_ROW_LOST),
    # In complete mode no commit sleeps.
    ("RemovesNewerToo", "complete_mode", Rule.NEWEST_EPOCH_ONLY),
    ("AnyResultIsTheNewest", "complete_mode", Rule.NEWEST_EPOCH_ONLY),
    # No two rows are equal.
    ("KeepsEqualRowsOnce", "the_last_epoch_is_visible_when_its_commit_returns", Rule.NO_ROW_LOST),
]
"""Bugs that the case does not find yet; who mends it moves the line up."""


@pytest.mark.parametrize(("bug", "case", "rule"), FOUND, ids=[bug for bug, *_ in FOUND])
def test_a_planted_bug_is_found(bug, case, rule, tmp_path):
    suite = Suite()
    suite.planted = getattr(planted, bug)
    method = getattr(suite, f"test_{case}")
    promise = " ".join(inspect.getdoc(method).split())
    broken = broken_by(suite, method, promise, tmp_path)
    assert broken.rule is rule, str(broken)
    sequence = printed(broken, promise)
    if "or keep it" in str(broken) and case != "discard_may_be_repeated":
        with pytest.raises(Broken):
            replay(suite, sequence, tmp_path / "again")


@pytest.mark.parametrize(("bug", "case", "rule"), MISSED, ids=[bug for bug, *_ in MISSED])
@pytest.mark.xfail(raises=pytest.fail.Exception, reason="the case does not look there")
def test_a_planted_bug_is_not_found_yet(bug, case, rule, tmp_path):
    test_a_planted_bug_is_found(bug, case, rule, tmp_path)


def broken_by(suite, method, promise, folder) -> Broken:
    """Run one case, as pytest would."""
    player = Player(suite.sink, folder / "sinks", promise)
    (folder / "declared").mkdir()
    given = {"play": player, "declared": suite.sink(folder / "declared")}
    wanted = inspect.signature(method).parameters
    try:
        with pytest.raises(Broken) as raised:
            method(**{name: given[name] for name in wanted})
    finally:
        player.close()
    return raised.value


def printed(broken, promise) -> testing.Sequence:
    """The sequence as a reader would copy it, from a message that says all the rest too."""
    text = str(broken)
    steps = re.search(r"^ +(?:or keep it|steps): .*?(Sequence\(.*\))\]?$", text, re.MULTILINE)[1]
    sequence = eval(steps, vars(testing))
    assert sequence == broken.again
    for part in (f"PROMISED\n    {promise}\n", broken.rule.value, "\nDONE\n", "\nSEEN\n    "):
        assert part in text
    return sequence


def replay(suite, sequence, folder):
    (folder / "target").mkdir(parents=True)
    with EpochDriver(suite.sink(folder / "target"), folder) as driver:
        driver.run(sequence)
        driver.settle()
