"""The suite for a source: inherit `SourceConformance`, say how to make the source, run pytest."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from krishiv_spark.testing.drivers.reading import SourceDriver
from krishiv_spark.testing.processes import read_roles
from krishiv_spark.testing.processes.seeds import run_under_seed
from krishiv_spark.testing.real_spark.driver import SparkDriver
from krishiv_spark.testing.rules import Rule, Violation
from krishiv_spark.testing.steps import Add, Crash, Expire, Trigger
from krishiv_spark.testing.subjects import SourceUnderTest
from krishiv_spark.testing.suites import source_judges as judges
from krishiv_spark.testing.suites import traps
from krishiv_spark.testing.suites.base import of_batches
from krishiv_spark.testing.suites.playing import SourcePlayer
from krishiv_spark.testing.suites.random_steps import read_at_random
from krishiv_spark.testing.suites.source_rows import MANY_ROWS, SourceRows
from krishiv_spark.testing.suites.source_sight import SourceSight

__all__ = ["SourceConformance"]

_MEANWHILE = 3
"""The row that is added between the freeze and the first trigger."""

_UNIT_LIMITS = {
    "maxFilesPerTrigger": "max_files_per_trigger",
    "maxBytesPerTrigger": "max_bytes_per_trigger",
}


class SourceConformance(SourceRows, SourceSight):
    """Every case is a promise to users of the source; its docstring is what a failure prints."""

    def source(self, folder: Path) -> SourceUnderTest:
        """Make the source over something new and empty. Override it.

        Args:
            folder: An empty folder for this source alone; its name is unique.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method source(self, folder)")

    def player(self, folder: Path, promise: str) -> SourcePlayer:
        """Plays the sequences of one case."""
        return SourcePlayer(self.source, folder, promise)

    # --- rows

    def test_every_row_is_read_once(self, play: SourcePlayer) -> None:
        """Rows are delivered once, whenever they are added."""
        play(Add(), Trigger(), Add(1), Add(2), Trigger(), Trigger(), Add())
        play(Trigger(), Trigger(), Add(), Trigger())
        play(Add(MANY_ROWS), Trigger("unlogged"), Add(MANY_ROWS))

    def test_queries_read_apart(self, play: SourcePlayer, declared: SourceUnderTest) -> None:
        """Two queries read one source, and each of them reads every row."""
        if not declared.several_queries:
            pytest.skip("declared: rows are for one query")
        source = play.source()
        with play.driver(source=source) as one, play.driver(source=source) as other:
            one.run([Add(), Trigger(), Add(), Trigger(), Add(), Trigger()])
            other.added = one.added
            other.run([Trigger(), Crash(), Trigger()])
            other.drain()
            one.drain()

    @of_batches
    def test_the_schema_is_that_of_the_rows(self, play: SourcePlayer) -> None:
        """Without ``.schema(...)`` a source finds its columns, or says that they must be given."""
        with play.driver() as driver:
            driver.run([Add()])
            driver.judged(lambda: judges.same_columns(driver))

    def test_reads_stop_at_the_end(self, play: SourcePlayer) -> None:
        """A task reads what was there when the end was chosen, not what came since."""
        play(Add(), Trigger(unread=2), Trigger(unread=1))

    def test_a_plan_does_not_depend_on_now(self, play: SourcePlayer) -> None:
        """A plan is a pure function of start and end: what is added meanwhile changes nothing."""
        play(Add(), Trigger(unplanned=2), Trigger(unplanned=1))
        play(Add(), Trigger("unread", unplanned=2), Add(), Trigger())

    def test_a_replay_has_the_same_rows(self, play: SourcePlayer) -> None:
        """After a crash the last batch is repeated, with the start and end of the first time."""
        play(Add(), Trigger("unlogged"), Add(), Trigger("unlogged"), Add())
        play(Add(), Trigger(), Add(), Trigger("unlogged"), Add(2), Trigger("unlogged"))

    def test_a_restart_at_each_point(self, play: SourcePlayer) -> None:
        """A driver may die anywhere; another one goes on from what Spark has logged."""
        play(Crash(), Add(), Crash(), Trigger("unread"), Trigger("unread"), Trigger(), Crash())
        play(Add(), Trigger(), Crash(), Trigger(), Add(), Crash(), Trigger("unlogged"), Crash())

    def test_commit_is_only_a_hint(self, play: SourcePlayer) -> None:
        """`commit` comes one batch late, and never for the last batch of a run."""
        play(Add(), Trigger(), Crash(), Add(), Trigger(), Add(), Trigger("unlogged"), Crash())

    def test_an_error_at_any_call(self, play: SourcePlayer) -> None:
        """Whatever fails fails the query; it is no end of the data, and loses none."""
        play.at_every_call(traps.errors)

    def test_an_error_at_a_moving_start(
        self, play: SourcePlayer, declared: SourceUnderTest
    ) -> None:
        """A start that could not be looked up is no beginning."""
        if declared.latest is None:
            pytest.skip("declared: no start that moves")
        play.at_every_call(traps.errors, declared.latest, 3)

    def test_death_at_any_call(self, play: SourcePlayer) -> None:
        """Any process may die at any call to the outside."""
        play.at_every_call(traps.deaths_before)

    # --- positions

    def test_the_start_is_constant(self, play: SourcePlayer) -> None:
        """Spark asks for the initial offset again after a crash: the answer must not have moved."""
        with play.driver() as driver:
            driver.judged(driver.start)
            for _ in range(2):
                driver.run([Add(), Crash()])
                driver.judged(driver.start)
        play(Add(), Trigger("unread"), Add(), Trigger("unread"), Add())

    def test_a_moving_start_is_pinned(self, play: SourcePlayer, declared: SourceUnderTest) -> None:
        """A start such as "latest" means one position, once and for all."""
        if declared.latest is None:
            pytest.skip("declared: no start that moves")
        for ends in ("well", "unread", "unlogged"):
            first = Trigger(ends)
            play(Add(), first, Add(), Trigger(), Add(), options=declared.latest, skipped=3)
            play(Add(), first, Crash(), Add(), Crash(), options=declared.latest, skipped=3)

    def test_an_idle_query_stands_still(self, play: SourcePlayer) -> None:
        """Spark compares offsets as text: without new rows it must be the same."""
        with play.driver() as driver:
            driver.run([Add(), Add(), Trigger()])
            driver.drain()
            ends = len(driver.ends)
            driver.run([Trigger(), Crash(), Trigger()])
            driver.judged(lambda: judges.stood_still(driver.ends[ends - 1 :]))

    def test_an_offset_has_one_text(self, play: SourcePlayer) -> None:
        """Offsets are the same text in every process, whatever its hash seed."""
        source = play.source()
        with play.driver(source=source) as driver:
            driver.run([Add(1) for _ in range(5)])
            load = read_roles.Load(source.source, source.options, source.schema)
            driver.judged(lambda: judges.one_text(_texts(load)))

    def test_what_expired_is_missed(self, play: SourcePlayer, declared: SourceUnderTest) -> None:
        """What is thrown away before it was read is an error that says so, not an empty batch."""
        if declared.expire is None:
            pytest.skip("declared: nothing expires")
        with play.driver() as unknown:
            unknown.run([Add(), Trigger(), Add(2), Expire(), Add(1), Trigger(), Trigger()])
            unknown.judged(lambda: judges.missed(unknown, range(3, 5), 1))
        with play.driver() as planned:
            planned.run([Add(), Trigger("unread"), Expire(), Add(1), Trigger(), Trigger()])
            planned.judged(lambda: judges.missed(planned, range(3), 0))

    # --- abilities

    def test_limits_are_honoured(self, play: SourcePlayer, declared: SourceUnderTest) -> None:
        """With a limit of two rows, a batch has one or two."""
        if declared.limit is None:
            pytest.skip("declared: no read limits")
        with play.driver(declared.limit) as driver:
            driver.run([*[Add(1)] * 5, Trigger(), Trigger("unlogged"), Add(1)])
            driver.drain()
            driver.judged(lambda: judges.within(driver, 2))
        play(Add(5), Trigger(), Add(3), options=declared.limit)  # a unit is never split
        for option in _unit_limits(declared):
            with play.driver({option: "1"}) as driver:
                driver.run([*[Add(2)] * 3, Trigger()])
                driver.drain()
                driver.judged(partial(judges.within, driver, 2))

    def test_available_now_ends(self, play: SourcePlayer, declared: SourceUnderTest) -> None:
        """With availableNow a query reads what is there, and ends though more is added."""
        with play.driver(declared.limit) as driver:
            driver.run([Add(1)] * 5)
            if not _frozen(driver):
                pytest.skip("the reader has no prepareForTriggerAvailableNow (PySpark 4.2)")
            driver.run([Add(1), Trigger()] * 7)
            ends = list(driver.ends)
            driver.run([Add(1), Trigger()])
            driver.judged(lambda: judges.ended(driver, 5, ends))
            driver.restart()
            driver.drain()
        with play.driver() as empty:
            _frozen(empty)
            empty.run([Add(), Trigger()])
            empty.judged(lambda: judges.ended(empty, 0, empty.ends))
        if declared.latest is not None:
            with play.driver(declared.latest) as late:
                late.run([Add()])
                _frozen(late)
                late.run([Add(1), Trigger(), Trigger(), Crash(), Add(), Trigger()])
                late.drain(skipped=_MEANWHILE if _was_read(late, _MEANWHILE) else _MEANWHILE + 1)

    def test_the_watermark_follows_the_rows(
        self, play: SourcePlayer, declared: SourceUnderTest
    ) -> None:
        """The watermark never moves back, never comes from a clock, and survives a restart."""
        if declared.event_time is None:
            pytest.skip("declared: no event time")
        options = {"eventTime": declared.event_time, **(declared.limit or {})}
        restarts = (Trigger("unlogged"), Trigger("unread"), Crash())
        play(*[Add(1)] * 8, Trigger(), *restarts, Add(), *restarts, options=options)

    # --- anything

    def test_random_sequences(self, play: SourcePlayer, declared: SourceUnderTest) -> None:
        """Whatever happens in whatever order, no row is lost and none is repeated."""
        read_at_random(play, declared, self.random_sequences)

    # --- on real Spark

    def test_spark_streams(self, spark_driver: SparkDriver, declared: SourceUnderTest) -> None:
        """On real Spark, rows are added while the driver is killed at random moments."""
        spark_driver.stream_from(declared)

    @of_batches
    def test_spark_batches(self, spark_driver: SparkDriver, declared: SourceUnderTest) -> None:
        """On real Spark, ``spark.read`` delivers every row once."""
        if not declared.has_batch:
            pytest.skip("declared: no batch reads")
        spark_driver.batch_from(declared)


def _frozen(driver: SourceDriver) -> bool:
    said: list[bool] = []
    driver.judged(lambda: said.append(driver.freeze()))
    return said[0]


def _unit_limits(source: SourceUnderTest) -> Iterator[str]:
    """The limits of ours that this source has, but for that on rows."""
    reader = getattr(source.source, "reader_type", None)
    if reader is not None and source.two_rows is None:
        yield from (o for o, f in _UNIT_LIMITS.items() if f not in reader.options_type.refuses)


def _was_read(driver: SourceDriver, row: int) -> bool:
    return any(row in batch for batch in driver.batches)


def _texts(load: read_roles.Load) -> set[str]:
    try:
        return {run_under_seed(seed, _first_end, load) for seed in (0, 1, 2)}
    except RuntimeError as error:
        raise Violation(Rule.WORKS, f"in a new interpreter: {error}") from error


def _first_end(load: read_roles.Load) -> str:
    is_told = read_roles.open_reader(load)
    initial = read_roles.initial()
    first = read_roles.choose(initial, is_told)
    return f"{initial} {read_roles.choose(first, is_told)}"
