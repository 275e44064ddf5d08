"""The suite for a sink: inherit `SinkConformance`, create the sink, run pytest."""

from __future__ import annotations

from pathlib import Path

import pytest

from krishiv_spark.sinks.base import Guarantee, Writer
from krishiv_spark.testing.real_spark.driver import SparkDriver
from krishiv_spark.testing.steps import (
    Abort,
    Begin,
    Commit,
    Crash,
    Expire,
    Fault,
    OtherQuery,
    Overwrite,
    Resume,
    RollBack,
    SetClock,
    Sleep,
    Stage,
    Step,
    Stop,
    Straggler,
    Switch,
    TakeOver,
)
from krishiv_spark.testing.subjects import SinkUnderTest
from krishiv_spark.testing.suites.base import (
    BEGIN,
    COMMIT,
    FAILED_EPOCH,
    GOOD_EPOCH,
    OVERTAKEN,
    STAGED,
    SinkPlayer,
    of_batches,
    trap_deaths,
    trap_errors,
    trap_errors_and_deaths,
    trap_late_deaths,
    trap_sleeps,
)
from krishiv_spark.testing.suites.random_steps import play_at_random
from krishiv_spark.testing.suites.sight import SinkSight
from krishiv_spark.testing.suites.sink_contents import SinkLeftovers, SinkValues
from krishiv_spark.testing.suites.sink_records import SinkCopies, SinkForgeries, SinkNumbers

__all__ = ["SinkConformance"]

_DAY_S = 24 * 60 * 60


class SinkConformance(SinkCopies, SinkForgeries, SinkLeftovers, SinkNumbers, SinkValues, SinkSight):
    """Every case is a promise to users of the sink; its docstring is what a failure prints.

    Each case checks the declared `Guarantee`: exactly once, or no row
    lost, or only that no row is invented and the query continues.
    """

    def sink(self, folder: Path) -> SinkUnderTest:
        """Make the sink on a new, empty target. Override it.

        Args:
            folder: An empty folder for this target alone; its name is unique.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method sink(self, folder)")

    def player(self, folder: Path, promise: str) -> SinkPlayer:
        """Return the player of one case."""
        return SinkPlayer(self.sink, folder, promise)

    # --- no faults

    @of_batches
    def test_the_last_epoch_is_visible_when_its_commit_returns(self, play: SinkPlayer) -> None:
        """Spark calls no method after the last commit, so a commit may leave no work for later."""
        play.well(*GOOD_EPOCH, Begin(rows=1, tasks=1), Stage(), Commit())

    @of_batches
    def test_a_commit_knows_only_what_the_messages_say(self, play: SinkPlayer) -> None:
        """Each process creates its own writer: only results of plan and stage reach the commit."""
        play.well(*GOOD_EPOCH, *GOOD_EPOCH)

    @of_batches
    def test_staged_rows_are_invisible(self, play: SinkPlayer) -> None:
        """Readers see no row of an epoch before it is committed."""
        play(*STAGED, Crash(), Begin(), Stage(0), Stop())

    @of_batches
    def test_equal_rows_are_all_kept(self, play: SinkPlayer, declared: SinkUnderTest) -> None:
        """Rows may be equal, within an epoch and across epochs: that makes none of them a copy."""
        if declared.key is not None or declared.result is not None:
            pytest.skip("declared: rows replace or change others")
        play.well(*GOOD_EPOCH, *GOOD_EPOCH, equal_rows=True)

    @of_batches
    def test_epochs_without_rows(self, play: SinkPlayer) -> None:
        """An epoch without rows still runs a task and is committed; the next one works."""
        empty = (Begin(rows=0, tasks=1), Stage(), Commit())
        play.well(*empty, *GOOD_EPOCH, *empty, *empty, *GOOD_EPOCH)
        play.well(Begin(rows=1, tasks=3), Stage(0), Stage(1), Stage(2), Commit(), *GOOD_EPOCH)
        play(Begin(rows=0, tasks=2), Stage(0), Stage(1), Commit(Fault(happened=True)), *GOOD_EPOCH)

    def test_complete_mode(self, play: SinkPlayer, declared: SinkUnderTest) -> None:
        """In Spark's output mode "complete" each epoch replaces the previous one."""
        if not declared.complete:
            pytest.skip("declared: no output mode complete")
        play.well(*GOOD_EPOCH, *GOOD_EPOCH, writing="complete")
        play.well(*GOOD_EPOCH, Begin(rows=0, tasks=1), Stage(), Commit(), writing="complete")
        lost = Commit(Fault(happened=True))
        play(*GOOD_EPOCH, *STAGED, lost, *GOOD_EPOCH, writing="complete")
        play(*GOOD_EPOCH, *FAILED_EPOCH, writing="complete")
        play(*GOOD_EPOCH, *STAGED, *OVERTAKEN, Commit(), writing="complete")
        staged = (*GOOD_EPOCH, *STAGED)
        play.at_every_call(COMMIT, trap_errors_and_deaths, before=staged, writing="complete")
        woken = (*OVERTAKEN, Resume())
        play.at_every_call(COMMIT, trap_sleeps, lambda _: woken, before=staged, writing="complete")

    # --- faults of tasks

    @of_batches
    def test_an_aborted_epoch_is_void(self, play: SinkPlayer) -> None:
        """No row of an epoch whose tasks failed is published, then or later."""
        play(*FAILED_EPOCH)
        play(*GOOD_EPOCH, *FAILED_EPOCH, *FAILED_EPOCH, *GOOD_EPOCH)
        play(Begin(), Stage(0), Stage(1, "dies"), Crash(), *GOOD_EPOCH)
        play(Begin(tasks=3), Stage(2), Abort(Fault(happened=True)), *GOOD_EPOCH)

    @of_batches
    def test_attempts_of_a_task_stage_apart(self, play: SinkPlayer) -> None:
        """Retries and speculative twins share nothing, and Spark never reports the losers."""
        play(Begin(), Stage(0, "lost"), Stage(0), Stage(0, "lost"), Stage(1), Commit())
        play(Begin(), Stage(0, "fails"), Stage(0), Stage(1, "dies"), Stage(1), Commit())
        play(*GOOD_EPOCH, Crash(), *GOOD_EPOCH)  # the ids of attempts begin from 0 again
        play(Begin(), Stage(0, "straggles"), Stage(0), Stage(1), Straggler(), Commit())
        play(Begin(), Stage(0, "straggles"), Stage(0), Straggler(), Stage(1), Commit())
        play(Begin(), Stage(0, "straggles"), Stage(0), Stage(1), Commit(), Straggler())

    @of_batches
    def test_a_stop_in_mid_write(self, play: SinkPlayer) -> None:
        """``query.stop()`` calls neither commit nor abort, and tasks may still be running."""
        play(Begin(), Stage(0), Stage(1, "straggles"), Stop(), *GOOD_EPOCH)
        begun = (Begin(), Stage(0), Stage(1, "straggles"), Stop(), Begin())
        play(*begun, Straggler(), Stage(0), Stage(1), Commit())
        play(*begun, Stage(0), Stage(1), Commit(), Straggler())
        others = (Begin(tasks=3), Stage(0), Stage(1), Stage(2))  # the same rows in other tasks
        play(*begun[:-1], *others, Straggler(), Commit())

    # --- faults of commits

    @of_batches
    def test_abort_after_a_failed_commit_touches_nothing(self, play: SinkPlayer) -> None:
        """A commit that failed may have taken effect. Spark aborts with every message: keep all."""
        play(*STAGED, Commit(Fault(happened=True)))
        play(*GOOD_EPOCH, *STAGED, Commit(Fault(happened=True)))

    def test_a_replayed_epoch_adds_nothing(self, play: SinkPlayer) -> None:
        """After a crash Spark repeats its last epoch: the same rows in other tasks."""
        died = Commit(Fault(happened=True, reported=False))
        play(*STAGED, died)
        play(*STAGED, died, *STAGED, died)  # once more: detecting a committed epoch changes nothing
        play(*GOOD_EPOCH, *STAGED, died, Begin(tasks=1), Stage(), Commit())
        play(*GOOD_EPOCH * 10, *STAGED, died)  # epoch 10 comes after epoch 9

    @of_batches
    def test_an_unknown_outcome_is_looked_up(self, play: SinkPlayer) -> None:
        """A call to the outside may report an error whether it took effect or not."""
        play.at_every_call(GOOD_EPOCH, trap_errors, lambda _: GOOD_EPOCH, whole=True)
        lost = (*STAGED, Commit(Fault(happened=True)))
        play.at_every_call(GOOD_EPOCH, trap_errors, before=lost)  # a replay

    @of_batches
    def test_death_at_any_call(self, play: SinkPlayer) -> None:
        """A process may die before or after any call to the outside."""
        play.at_every_call(GOOD_EPOCH, trap_deaths, before=GOOD_EPOCH)

    def test_death_while_recovering(self, play: SinkPlayer) -> None:
        """A driver may die while it finishes the epoch that a dead driver left."""

        def second(number: int) -> tuple[Step, ...]:
            # The second death moves faster than the first: many pairs of calls are tried, not all.
            return (Begin(trap=Fault(3 * number % 29, happened=True, reported=False)),)

        play.at_every_call(GOOD_EPOCH, trap_late_deaths, second)

    def test_a_stale_driver_cannot_publish(self, play: SinkPlayer) -> None:
        """A driver that was taken for dead wakes up, at any call, after another has continued."""
        play(*STAGED, TakeOver(), *GOOD_EPOCH, Switch(), Commit())
        play(*STAGED, *OVERTAKEN, Commit(), *GOOD_EPOCH)
        play(*STAGED, TakeOver(), *STAGED, Switch(), Commit(), Switch(), Commit(), *GOOD_EPOCH)
        play(Begin(), TakeOver(), *GOOD_EPOCH, Switch(), Stage(0), Stage(1), Commit())
        woken = (*OVERTAKEN, Resume(), Stage(0), Stage(1), Commit(), Begin())
        play.at_every_call(GOOD_EPOCH, trap_sleeps, lambda _: woken, whole=True)

    def test_a_stale_driver_finds_the_commit_of_a_dead_one(self, play: SinkPlayer) -> None:
        """A driver wakes in its commit after another committed the same epoch, and died there.

        A step after the rows are visible, such as a sweep, must not be the only one that stops
        another driver.
        """
        writes = [n for n, call in enumerate(play.calls((*STAGED, Commit()))) if not call.reads]
        if not writes:
            pytest.skip("a commit makes no call that writes")
        shown = play.find_call_that_shows_rows(STAGED, writes)
        died = Commit(Fault(shown, happened=True, reported=False))
        for asleep in play.drawn(n for n in writes if n <= shown):
            play(*STAGED, Commit(Sleep(asleep)), TakeOver(), *STAGED, died, Switch(), Resume())

    def test_expired_staging_is_not_published(
        self, play: SinkPlayer, declared: SinkUnderTest
    ) -> None:
        """Deleted staging is detected: no epoch is recorded as committed without its rows."""
        if declared.expire is None:
            pytest.skip("declared: nothing expires what is staged")
        play(*STAGED, Expire(), Commit(), *GOOD_EPOCH)
        play(Begin(), Stage(0), Expire(), Stage(1), Commit())
        play.at_every_call(COMMIT, trap_sleeps, lambda _: (Expire(), Resume()), before=STAGED)

    def test_a_rolled_back_checkpoint_is_refused(
        self, play: SinkPlayer, declared: SinkUnderTest
    ) -> None:
        """An older checkpoint plans other rows for a number: skipping them would lose some."""
        kind: type = getattr(declared.source, "writer_type", None) or object
        if not issubclass(kind, Writer) or kind.guarantee is not Guarantee.EXACTLY_ONCE:
            pytest.skip(f"{declared.source.__name__} has no committer of krishiv-spark's")
        play(*GOOD_EPOCH, *GOOD_EPOCH, RollBack(), *GOOD_EPOCH)
        play(*GOOD_EPOCH * 3, RollBack(2), *GOOD_EPOCH)
        play(*GOOD_EPOCH, *STAGED, Commit(Fault(happened=True)), RollBack(), *GOOD_EPOCH)
        # An epoch that is not committed may change.
        play(*GOOD_EPOCH, *STAGED, RollBack(), *GOOD_EPOCH)

    def test_a_wrong_clock_moves_no_row(self, play: SinkPlayer) -> None:
        """The clock is a day ahead or behind for a while: no row is lost, repeated or removed."""
        died = Commit(Fault(happened=True, reported=False))
        for wrong in (SetClock(_DAY_S), SetClock(-_DAY_S)):
            # Epochs may fail meanwhile: Kafka refuses records dated an hour ahead.
            play(*GOOD_EPOCH, wrong, *GOOD_EPOCH, SetClock(), *GOOD_EPOCH, *GOOD_EPOCH)
            play(Begin(), Stage(0), wrong, Stage(1), Commit(), SetClock(), *GOOD_EPOCH)
            play(*STAGED, wrong, Commit(), SetClock(), *GOOD_EPOCH)
            # The epoch is repeated.
            play(*GOOD_EPOCH, wrong, *STAGED, died, SetClock(), *GOOD_EPOCH)
            play(*GOOD_EPOCH, wrong, *GOOD_EPOCH, SetClock(), *STAGED, died, *GOOD_EPOCH)

    # --- more than one writer

    def test_queries_have_epochs_of_their_own(
        self, play: SinkPlayer, declared: SinkUnderTest
    ) -> None:
        """Two queries write into one target, with the same numbers."""
        if not declared.several_queries:
            pytest.skip("declared: one query for one target")
        play.well(*GOOD_EPOCH, OtherQuery(), *GOOD_EPOCH, OtherQuery(), *GOOD_EPOCH)
        play(Begin(), Stage(0), OtherQuery(), *GOOD_EPOCH, OtherQuery(), Stage(1), Commit())
        between = (OtherQuery(), *GOOD_EPOCH, OtherQuery(), Resume())
        play.at_every_call(COMMIT, trap_sleeps, lambda _: between, before=STAGED)

    def test_an_overwrite_keeps_marks(self, play: SinkPlayer) -> None:
        """A batch job that overwrites removes the rows of a query, not its record of epochs."""
        with play.driver() as driver:
            if not driver.allows(Overwrite()):
                pytest.skip("declared: no batch job overwrites what a query has written")
        died = Commit(Fault(happened=True, reported=False))
        play(*GOOD_EPOCH, *STAGED, died, Overwrite(), *GOOD_EPOCH)  # the epoch is repeated
        play(*GOOD_EPOCH, Begin(), Stage(0), Overwrite(), Stage(1), Commit())

    @of_batches
    def test_batch_jobs(self, play: SinkPlayer, declared: SinkUnderTest) -> None:
        """``df.write`` adds all rows or none, whichever process dies."""
        if not declared.has_batch:
            pytest.skip("declared: no batch writes")
        play.well(*GOOD_EPOCH, *GOOD_EPOCH, writing="batch append")
        play(*FAILED_EPOCH, *GOOD_EPOCH, writing="batch append")
        play.at_every_call(BEGIN, trap_errors_and_deaths, writing="batch append")
        play.at_every_call(COMMIT, trap_errors_and_deaths, before=STAGED, writing="batch append")

    @of_batches
    def test_batch_jobs_that_overwrite(self, play: SinkPlayer, declared: SinkUnderTest) -> None:
        """``df.write`` in mode "overwrite" replaces all rows or none, whichever process dies."""
        if not (declared.has_batch and declared.overwrite):
            pytest.skip("declared: no batch writes that overwrite")
        staged = (*GOOD_EPOCH, *STAGED)
        play.well(*GOOD_EPOCH, *GOOD_EPOCH, writing="batch overwrite")
        play.at_every_call(BEGIN, trap_late_deaths, before=GOOD_EPOCH, writing="batch overwrite")
        play.at_every_call(COMMIT, trap_errors_and_deaths, before=staged, writing="batch overwrite")

    @of_batches
    def test_discard_may_be_repeated(self, play: SinkPlayer, declared: SinkUnderTest) -> None:
        """`discard` may be called repeatedly, also for data that is deleted already."""
        if not issubclass(getattr(declared.source, "writer_type", None) or object, Writer):
            pytest.skip(f"{declared.source.__name__} has no verb discard")
        with play.driver() as driver:
            driver.expect_well(*STAGED)
            driver.discard_again(2)
            driver.run([Crash()])
            driver.settle()

    # --- random sequences

    @of_batches
    def test_random_sequences(self, play: SinkPlayer, declared: SinkUnderTest) -> None:
        """In any sequence of steps and faults, no row is lost and none is repeated."""
        play_at_random(play, declared, self.random_sequences)

    # --- on real Spark

    def test_spark_streams(self, spark_driver: SparkDriver, declared: SinkUnderTest) -> None:
        """On real Spark, tasks fail and the driver is killed at random moments."""
        spark_driver.stream_into(declared)

    def test_spark_streams_complete(
        self, spark_driver: SparkDriver, declared: SinkUnderTest
    ) -> None:
        """On real Spark, in output mode "complete"."""
        if not declared.complete:
            pytest.skip("declared: no output mode complete")
        spark_driver.stream_into(declared, complete=True)

    @of_batches
    def test_spark_batches(self, spark_driver: SparkDriver, declared: SinkUnderTest) -> None:
        """On real Spark, ``df.write`` appends and overwrites."""
        if not declared.has_batch:
            pytest.skip("declared: no batch writes")
        spark_driver.batch_into(declared)
