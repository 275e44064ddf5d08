"""The suite for a sink: inherit `SinkConformance`, say how to make the sink, run pytest."""

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
    Stage,
    Step,
    Stop,
    Straggler,
    Switch,
    TakeOver,
)
from krishiv_spark.testing.subjects import SinkUnderTest
from krishiv_spark.testing.suites import traps
from krishiv_spark.testing.suites.base import of_batches
from krishiv_spark.testing.suites.playing import (
    BEGIN,
    COMMIT,
    FAILED_EPOCH,
    GOOD_EPOCH,
    OVERTAKEN,
    STAGED,
    SinkPlayer,
)
from krishiv_spark.testing.suites.random_steps import play_at_random
from krishiv_spark.testing.suites.sink_copies import SinkCopies
from krishiv_spark.testing.suites.sink_forgeries import SinkForgeries
from krishiv_spark.testing.suites.sink_leftovers import SinkLeftovers
from krishiv_spark.testing.suites.sink_numbers import SinkNumbers
from krishiv_spark.testing.suites.sink_sight import SinkSight
from krishiv_spark.testing.suites.sink_values import SinkValues

__all__ = ["SinkConformance"]

_DAY_S = 24 * 60 * 60


class SinkConformance(SinkCopies, SinkForgeries, SinkLeftovers, SinkNumbers, SinkValues, SinkSight):
    """Every case is a promise to users of the sink; its docstring is what a failure prints.

    What is checked in each case follows from the declared `Guarantee`: exactly once, or no row
    lost, or only that nothing is invented and a query goes on.
    """

    def sink(self, folder: Path) -> SinkUnderTest:
        """Make the sink on a new, empty target. Override it.

        Args:
            folder: An empty folder for this target alone; its name is unique.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method sink(self, folder)")

    def player(self, folder: Path, promise: str) -> SinkPlayer:
        """Plays the sequences of one case."""
        return SinkPlayer(self.sink, folder, promise)

    # --- nothing goes wrong

    @of_batches
    def test_the_last_epoch_is_visible_when_its_commit_returns(self, play: SinkPlayer) -> None:
        """Spark tells a sink nothing after the last commit, so it may leave nothing for later."""
        play.well(*GOOD_EPOCH, Begin(rows=1, tasks=1), Stage(), Commit())

    @of_batches
    def test_a_commit_knows_only_what_the_messages_say(self, play: SinkPlayer) -> None:
        """Each process makes a writer of its own: only what plan and stage return travels."""
        play.well(*GOOD_EPOCH, *GOOD_EPOCH)

    @of_batches
    def test_staged_rows_are_invisible(self, play: SinkPlayer) -> None:
        """Readers see nothing of an epoch before it is committed."""
        play(*STAGED, Crash(), Begin(), Stage(0), Stop())

    @of_batches
    def test_equal_rows_are_all_kept(self, play: SinkPlayer) -> None:
        """Rows may be equal, within an epoch and across epochs: that makes none of them a copy."""
        play.well(*GOOD_EPOCH, *GOOD_EPOCH, equal_rows=True)

    @of_batches
    def test_epochs_without_rows(self, play: SinkPlayer) -> None:
        """An epoch without rows still runs a task and is committed; the next one works."""
        empty = (Begin(rows=0, tasks=1), Stage(), Commit())
        play.well(*empty, *GOOD_EPOCH, *empty, *empty, *GOOD_EPOCH)
        play.well(Begin(rows=1, tasks=3), Stage(0), Stage(1), Stage(2), Commit(), *GOOD_EPOCH)
        play(Begin(rows=0, tasks=2), Stage(0), Stage(1), Commit(Fault(happened=True)), *GOOD_EPOCH)

    def test_complete_mode(self, play: SinkPlayer, declared: SinkUnderTest) -> None:
        """In Spark's output mode "complete" each epoch takes the place of the one before."""
        if not declared.complete:
            pytest.skip("declared: no output mode complete")
        play.well(*GOOD_EPOCH, *GOOD_EPOCH, writing="complete")
        play.well(*GOOD_EPOCH, Begin(rows=0, tasks=1), Stage(), Commit(), writing="complete")
        lost = Commit(Fault(happened=True))
        play(*GOOD_EPOCH, *STAGED, lost, *GOOD_EPOCH, writing="complete")
        play(*GOOD_EPOCH, *FAILED_EPOCH, writing="complete")
        play(*GOOD_EPOCH, *STAGED, *OVERTAKEN, Commit(), writing="complete")
        staged = (*GOOD_EPOCH, *STAGED)
        play.at_every_call(COMMIT, traps.errors_and_deaths, before=staged, writing="complete")
        woken = (*OVERTAKEN, Resume())
        play.at_every_call(COMMIT, traps.sleeps, lambda _: woken, before=staged, writing="complete")

    # --- tasks go wrong

    @of_batches
    def test_an_aborted_epoch_is_void(self, play: SinkPlayer) -> None:
        """Nothing of an epoch whose tasks failed is published: not then, and not later."""
        play(*FAILED_EPOCH)
        play(*GOOD_EPOCH, *FAILED_EPOCH, *FAILED_EPOCH, *GOOD_EPOCH)
        play(Begin(), Stage(0), Stage(1, "dies"), Crash(), *GOOD_EPOCH)
        play(Begin(tasks=3), Stage(2), Abort(Fault(happened=True)), *GOOD_EPOCH)

    @of_batches
    def test_attempts_of_a_task_stage_apart(self, play: SinkPlayer) -> None:
        """Retries and speculative twins share nothing, and Spark never reports the losers."""
        play(Begin(), Stage(0, "lost"), Stage(0), Stage(0, "lost"), Stage(1), Commit())
        play(Begin(), Stage(0, "fails"), Stage(0), Stage(1, "dies"), Stage(1), Commit())
        play(*GOOD_EPOCH, Crash(), *GOOD_EPOCH)  # ids of attempts begin from 0 again
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

    # --- commits go wrong

    @of_batches
    def test_abort_after_a_failed_commit_touches_nothing(self, play: SinkPlayer) -> None:
        """A commit that failed may have happened. Spark aborts with every message: keep all."""
        play(*STAGED, Commit(Fault(happened=True)))
        play(*GOOD_EPOCH, *STAGED, Commit(Fault(happened=True)))

    def test_a_replayed_epoch_adds_nothing(self, play: SinkPlayer) -> None:
        """After a crash Spark repeats its last epoch: the same rows in other tasks."""
        died = Commit(Fault(happened=True, reported=False))
        play(*STAGED, died)
        play(*STAGED, died, *STAGED, died)  # once more: to find it held changes nothing
        play(*GOOD_EPOCH, *STAGED, died, Begin(tasks=1), Stage(), Commit())
        play(*GOOD_EPOCH * 10, *STAGED, died)  # epoch 10 comes after epoch 9

    @of_batches
    def test_an_unknown_outcome_is_looked_up(self, play: SinkPlayer) -> None:
        """Any call to the outside may report an error although it happened, or because not."""
        play.at_every_call(GOOD_EPOCH, traps.errors, lambda _: GOOD_EPOCH, whole=True)
        lost = (*STAGED, Commit(Fault(happened=True)))
        play.at_every_call(GOOD_EPOCH, traps.errors, before=lost)  # a replay

    @of_batches
    def test_death_at_any_call(self, play: SinkPlayer) -> None:
        """Any process may die before or after any call to the outside."""
        play.at_every_call(GOOD_EPOCH, traps.deaths, before=GOOD_EPOCH)

    def test_death_while_recovering(self, play: SinkPlayer) -> None:
        """A driver may die while it finishes what another one left when it died."""

        def second(number: int) -> tuple[Step, ...]:
            # The second death moves on faster than the first: many pairs of calls are met, not all.
            return (Begin(trap=Fault(3 * number % 29, happened=True, reported=False)),)

        play.at_every_call(GOOD_EPOCH, traps.late_deaths, second)

    def test_a_stale_driver_cannot_publish(self, play: SinkPlayer) -> None:
        """A driver that was believed dead wakes up, anywhere, after another has gone on."""
        play(*STAGED, TakeOver(), *GOOD_EPOCH, Switch(), Commit())
        play(*STAGED, *OVERTAKEN, Commit(), *GOOD_EPOCH)
        play(*STAGED, TakeOver(), *STAGED, Switch(), Commit(), Switch(), Commit(), *GOOD_EPOCH)
        play(Begin(), TakeOver(), *GOOD_EPOCH, Switch(), Stage(0), Stage(1), Commit())
        woken = (*OVERTAKEN, Resume(), Stage(0), Stage(1), Commit(), Begin())
        play.at_every_call(GOOD_EPOCH, traps.sleeps, lambda _: woken, whole=True)

    def test_expired_staging_is_not_published(
        self, play: SinkPlayer, declared: SinkUnderTest
    ) -> None:
        """What the external system threw away is missed: no mark without its rows."""
        if declared.expire is None:
            pytest.skip("declared: nothing expires what is staged")
        play(*STAGED, Expire(), Commit(), *GOOD_EPOCH)
        play(Begin(), Stage(0), Expire(), Stage(1), Commit())
        play.at_every_call(COMMIT, traps.sleeps, lambda _: (Expire(), Resume()), before=STAGED)

    def test_a_rolled_back_checkpoint_is_refused(
        self, play: SinkPlayer, declared: SinkUnderTest
    ) -> None:
        """An older copy of a checkpoint plans other rows for a number: to skip them loses some."""
        kind: type = getattr(declared.source, "writer_type", None) or object
        if not issubclass(kind, Writer) or kind.guarantee is not Guarantee.EXACTLY_ONCE:
            pytest.skip(f"{declared.source.__name__} has no committer of ours, which compares")
        play(*GOOD_EPOCH, *GOOD_EPOCH, RollBack(), *GOOD_EPOCH)
        play(*GOOD_EPOCH * 3, RollBack(2), *GOOD_EPOCH)
        play(*GOOD_EPOCH, *STAGED, Commit(Fault(happened=True)), RollBack(), *GOOD_EPOCH)
        play(*GOOD_EPOCH, *STAGED, RollBack(), *GOOD_EPOCH)  # what is not held may change

    def test_a_wrong_clock_moves_no_row(self, play: SinkPlayer) -> None:
        """The clock is a day ahead or behind for a while: no row is lost, repeated or removed."""
        died = Commit(Fault(happened=True, reported=False))
        for wrong in (SetClock(_DAY_S), SetClock(-_DAY_S)):
            # Epochs may fail meanwhile: Kafka takes no record that is dated an hour ahead.
            play(*GOOD_EPOCH, wrong, *GOOD_EPOCH, SetClock(), *GOOD_EPOCH, *GOOD_EPOCH)
            play(Begin(), Stage(0), wrong, Stage(1), Commit(), SetClock(), *GOOD_EPOCH)
            play(*STAGED, wrong, Commit(), SetClock(), *GOOD_EPOCH)
            play(*GOOD_EPOCH, wrong, *STAGED, died, SetClock(), *GOOD_EPOCH)  # it comes again
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
        play.at_every_call(COMMIT, traps.sleeps, lambda _: between, before=STAGED)

    def test_an_overwrite_keeps_marks(self, play: SinkPlayer) -> None:
        """A batch job that overwrites takes the rows of a query away, not what it has written."""
        with play.driver() as driver:
            if not driver.allows(Overwrite()):
                pytest.skip("declared: no batch job overwrites what a query has written")
        died = Commit(Fault(happened=True, reported=False))
        play(*GOOD_EPOCH, *STAGED, died, Overwrite(), *GOOD_EPOCH)  # the epoch comes again
        play(*GOOD_EPOCH, Begin(), Stage(0), Overwrite(), Stage(1), Commit())

    @of_batches
    def test_batch_jobs(self, play: SinkPlayer, declared: SinkUnderTest) -> None:
        """``df.write`` adds all rows or none, whatever dies."""
        if not declared.has_batch:
            pytest.skip("declared: no batch writes")
        play.well(*GOOD_EPOCH, *GOOD_EPOCH, writing="batch append")
        play(*FAILED_EPOCH, *GOOD_EPOCH, writing="batch append")
        play.at_every_call(BEGIN, traps.errors_and_deaths, writing="batch append")
        play.at_every_call(COMMIT, traps.errors_and_deaths, before=STAGED, writing="batch append")

    @of_batches
    def test_batch_jobs_that_overwrite(self, play: SinkPlayer, declared: SinkUnderTest) -> None:
        """``df.write`` in mode "overwrite" replaces all rows or none, whatever dies."""
        if not (declared.has_batch and declared.overwrite):
            pytest.skip("declared: no batch writes that overwrite")
        staged = (*GOOD_EPOCH, *STAGED)
        play.well(*GOOD_EPOCH, *GOOD_EPOCH, writing="batch overwrite")
        play.at_every_call(BEGIN, traps.late_deaths, before=GOOD_EPOCH, writing="batch overwrite")
        play.at_every_call(
            COMMIT, traps.errors_and_deaths, before=staged, writing="batch overwrite"
        )

    @of_batches
    def test_discard_may_be_repeated(self, play: SinkPlayer, declared: SinkUnderTest) -> None:
        """`discard` is called any number of times, also for what is gone already."""
        if not issubclass(getattr(declared.source, "writer_type", None) or object, Writer):
            pytest.skip(f"{declared.source.__name__} has no verb discard")
        with play.driver() as driver:
            driver.expect_well(*STAGED)
            driver.discard_again(2)
            driver.run([Crash()])
            driver.settle()

    # --- anything

    @of_batches
    def test_random_sequences(self, play: SinkPlayer, declared: SinkUnderTest) -> None:
        """Whatever happens in whatever order, no row is lost and none is repeated."""
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
