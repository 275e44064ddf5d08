"""The suite for a source: inherit `SourceConformance`, say how to make the source, run pytest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from krishiv_spark.testing import read_roles
from krishiv_spark.testing.elsewhere import run_elsewhere
from krishiv_spark.testing.outside import Call
from krishiv_spark.testing.processes import Pool
from krishiv_spark.testing.random_steps import read_at_random
from krishiv_spark.testing.reading import SourceDriver
from krishiv_spark.testing.rules import Rule, Violation
from krishiv_spark.testing.spark import SparkDriver
from krishiv_spark.testing.steps import Add, Crash, Fault, Sequence, Step, Trigger
from krishiv_spark.testing.subjects import Row, SourceUnderTest
from krishiv_spark.testing.suites import Suite

__all__ = ["SourceConformance", "SourcePlayer"]

_LONG_TEXT = "." * 1000
_BULK_UNITS, _BULK_ROWS = 32, 2000
_MANY_ROWS = 3000
_UNIT_LIMITS = ("maxFilesPerTrigger", "maxBytesPerTrigger")


class SourcePlayer:
    """Plays sequences for one case, each on a new source with a driver of its own.

    Args:
        make: The author's factory; it gets an empty folder.
        folder: Where those folders are made.
        promise: What the case is after.
    """

    def __init__(self, make: Callable[[Path], SourceUnderTest], folder: Path, promise: str) -> None:
        self._make, self._folder, self._promise = make, folder, promise
        self._numbers = count(1)
        self._pool: Pool | None = None

    def close(self) -> None:
        """End the processes that were kept for the next sequence."""
        if self._pool is not None:
            self._pool.close()

    def source(self) -> SourceUnderTest:
        """The source over something new and empty."""
        folder = self._folder / str(next(self._numbers))
        folder.mkdir(parents=True)
        return self._make(folder)

    def driver(
        self, options: Mapping[str, str] | None = None, source: SourceUnderTest | None = None
    ) -> SourceDriver:
        """A driver of a new source, or of the one given."""
        chosen = source or self.source()
        self._pool = self._pool or Pool(chosen.outside)
        return SourceDriver(chosen, options=options, promise=self._promise, pool=self._pool)

    def __call__(
        self, *steps: Step, options: Mapping[str, str] | None = None, skipped: int = 0
    ) -> None:
        """Some steps that may go wrong; then everything must have been read once."""
        with self.driver(options) as driver:
            driver.run(steps)
            driver.drain(skipped=skipped)

    def at_every_call(
        self,
        traps: Callable[[int, Call], tuple[Fault, ...]],
        options: Mapping[str, str] | None = None,
        skipped: int = 0,
    ) -> None:
        """A batch over and over, each time with a trap at another call to the outside."""
        with self.driver(options) as driver:
            driver.run([Add(), Trigger()])
            calls = {"latest": "choose", "plan": "partitions", "read": "rows"}
            found = {at: driver.calls.get(name, ()) for at, name in calls.items()}
        for at, made in found.items():
            for trap in (trap for number, call in enumerate(made) for trap in traps(number, call)):
                trapped = Trigger(at=at, trap=trap)  # type: ignore[arg-type]  # a literal
                self(Add(), trapped, Trigger(), Add(), trapped, options=options, skipped=skipped)


def _errors(number: int, call: Call) -> tuple[Fault, ...]:
    before, after = Fault(number, happened=False), Fault(number, happened=True)
    return (before,) if call.reads else (before, after)


def _deaths(number: int, call: Call) -> tuple[Fault, ...]:
    del call
    return (Fault(number, happened=False, reported=False),)


class SourceConformance(Suite):
    """Every case is a promise to users of the source; its docstring is what a failure prints.

    Attributes:
        random_sequences: How many random sequences are tried.
        sequences: Sequences that failed once; they are tried again every time.
    """

    random_sequences: ClassVar[int] = 50
    sequences: ClassVar[Iterable[Sequence]] = ()

    def source(self, folder: Path) -> SourceUnderTest:
        """Make the source over something new and empty. Override it.

        Args:
            folder: An empty folder for this source alone; its name is unique.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method source(self, folder)")

    @pytest.fixture
    def play(self, promise: str, tmp_path: Path) -> Iterator[SourcePlayer]:
        """Plays the sequences of one case."""
        player = SourcePlayer(self.source, tmp_path / "sources", promise)
        yield player
        player.close()

    @pytest.fixture
    def declared(self, tmp_path: Path) -> SourceUnderTest:
        """A source that nobody reads, to ask for its abilities."""
        (tmp_path / "declared").mkdir()
        return self.source(tmp_path / "declared")

    # --- rows

    def test_every_row_is_read_once(self, play: SourcePlayer) -> None:
        """Rows are delivered once, whenever they are added."""
        play(Add(), Trigger(), Add(1), Add(2), Trigger(), Trigger(), Add())
        play(Trigger(), Trigger(), Add(), Trigger())
        play(Add(_MANY_ROWS), Trigger("unlogged"), Add(_MANY_ROWS))

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

    def test_the_schema_is_that_of_the_rows(self, play: SourcePlayer) -> None:
        """Without ``.schema(...)`` a source finds its columns, or says that they must be given."""
        with play.driver() as driver:
            driver.run([Add()])
            driver.judged(lambda: _same_columns(driver))

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
        play.at_every_call(_errors)

    def test_an_error_at_a_moving_start(
        self, play: SourcePlayer, declared: SourceUnderTest
    ) -> None:
        """A start that could not be looked up is no beginning."""
        if declared.latest is None:
            pytest.skip("declared: no start that moves")
        play.at_every_call(_errors, declared.latest, 3)

    def test_death_at_any_call(self, play: SourcePlayer) -> None:
        """Any process may die at any call to the outside."""
        play.at_every_call(_deaths)

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
            driver.judged(lambda: _stood_still(driver.ends[ends - 1 :]))

    def test_an_offset_has_one_text(self, play: SourcePlayer) -> None:
        """Offsets are the same text in every process, whatever its hash seed."""
        source = play.source()
        with play.driver(source=source) as driver:
            driver.run([Add(1) for _ in range(5)])
            load = read_roles.Load(source.source, source.options, source.schema)
            texts = {run_elsewhere(_first_end, load, seed=seed) for seed in (0, 1, 2)}
            driver.judged(lambda: _one_text(texts))

    # --- abilities

    def test_limits_are_honoured(self, play: SourcePlayer, declared: SourceUnderTest) -> None:
        """With a limit of two rows, a batch has one or two."""
        if declared.limit is None:
            pytest.skip("declared: no read limits")
        with play.driver(declared.limit) as driver:
            driver.run([*[Add(1)] * 5, Trigger(), Trigger("unlogged"), Add(1)])
            driver.drain()
            driver.judged(lambda: _within(driver, 2))
        play(Add(5), Trigger(), Add(3), options=declared.limit)  # a unit is never split
        for option in _UNIT_LIMITS if _is_ours(declared) else ():
            with play.driver({option: "1"}) as driver:
                driver.run([*[Add(2)] * 3, Trigger()])
                driver.drain()
                driver.judged(partial(_within, driver, 2))

    def test_available_now_ends(self, play: SourcePlayer, declared: SourceUnderTest) -> None:
        """With availableNow a query reads what is there, and ends though more is added."""
        with play.driver(declared.limit) as driver:
            driver.run([Add(1)] * 5)
            if not driver.freeze():
                pytest.skip("the reader has no prepareForTriggerAvailableNow (PySpark 4.2)")
            driver.run([Add(1), Trigger()] * 7)
            ends = list(driver.ends)
            driver.run([Add(1), Trigger()])
            driver.judged(lambda: _ended(driver, 5, ends))
            driver.restart()
            driver.drain()
        with play.driver() as empty:
            empty.freeze()
            empty.run([Add(), Trigger()])
            empty.judged(lambda: _ended(empty, 0, empty.ends))

    def test_the_watermark_follows_the_rows(
        self, play: SourcePlayer, declared: SourceUnderTest
    ) -> None:
        """The watermark never moves back, never comes from a clock, and survives a restart."""
        if declared.event_time is None:
            pytest.skip("declared: no event time")
        options = {"eventTime": declared.event_time, **(declared.limit or {})}
        restarts = (Trigger("unlogged"), Trigger("unread"), Crash())
        source = play.source()
        shuffled = replace(source, row=lambda number: source.row(_back_and_forth(number)))
        with play.driver(options, shuffled) as driver:
            driver.run([*[Add(1)] * 8, Trigger(), *restarts, Add(), *restarts])
            driver.drain()

    def test_a_batch_reads_everything(self, play: SourcePlayer, declared: SourceUnderTest) -> None:
        """``spark.read`` delivers every row once."""
        if not declared.has_batch:
            pytest.skip("declared: no batch reads")
        for options in ({}, declared.limit or {}):
            with play.driver(options) as driver:
                driver.judged(partial(_all_once, driver))
                driver.run([Add(), Add(1), Add()])
                driver.judged(partial(_all_once, driver))
                for number in range(len(driver.calls["rows"])):
                    trap = Fault(number)
                    driver.judged(partial(_all_once, driver, trap))

    def test_memory_is_bounded(self, play: SourcePlayer, declared: SourceUnderTest) -> None:
        """A task that reads 64 MB does not hold them all."""
        if pa.string() not in declared.schema.types:
            pytest.skip("declared: no column of text that could be made long")
        source = play.source()
        with play.driver(source=replace(source, row=lambda n: _long(source.row(n)))) as driver:
            for _ in range(_BULK_UNITS):
                driver.do(Add(_BULK_ROWS))
            driver.judged(lambda: _bounded(driver))

    # --- anything

    def test_random_sequences(self, play: SourcePlayer) -> None:
        """Whatever happens in whatever order, no row is lost and none is repeated."""
        read_at_random(play, self.random_sequences)

    def test_sequences_that_failed_once(self, play: SourcePlayer) -> None:
        """What was found once stays mended."""
        for sequence in self.sequences:
            play(*sequence)

    # --- on real Spark

    def test_spark_streams(self, spark_driver: SparkDriver, declared: SourceUnderTest) -> None:
        """On real Spark, rows are added while the driver is killed at random moments."""
        spark_driver.stream_from(declared)

    def test_spark_batches(self, spark_driver: SparkDriver, declared: SourceUnderTest) -> None:
        """On real Spark, ``spark.read`` delivers every row once."""
        if not declared.has_batch:
            pytest.skip("declared: no batch reads")
        spark_driver.batch_from(declared)


def _is_ours(source: SourceUnderTest) -> bool:
    return getattr(source.source, "reader_type", None) is not None and source.two_rows is None


def _first_end(load: read_roles.Load) -> str:
    initial, is_told = read_roles.open_reader(load)
    first = read_roles.choose(initial, is_told)
    return f"{initial} {read_roles.choose(first, is_told)}"


def _one_text(texts: set[str]) -> None:
    if len(texts) > 1:
        raise Violation(Rule.ONE_TEXT, "\n".join(sorted(texts)))


def _stood_still(ends: list[str]) -> None:
    if len(ends) > 1:
        raise Violation(Rule.STANDS_STILL, f"it became a new batch: {ends}")


def _within(driver: SourceDriver, most: int) -> None:
    sizes = [sum(batch.values()) for batch in driver.batches]
    if max(sizes) > most or 0 in sizes[1:]:  # the first one may pin a start
        raise Violation(Rule.LIMITS, f"rows in the batches: {sizes}")


def _ended(driver: SourceDriver, before: int, ends: list[str]) -> None:
    read = sorted(row for batch in driver.batches for row in batch if isinstance(row, int))
    if read != list(range(before)):
        raise Violation(Rule.ENDS, f"{before} rows were there; read: {read}")
    if driver.ends != ends:
        raise Violation(Rule.ENDS, f"it goes on: {driver.ends[len(ends) - 1 :]}")


def _all_once(driver: SourceDriver, trap: Fault | None = None) -> None:
    found = driver.all_in_batch(trap)
    if found is not None and found != dict.fromkeys(range(driver.added), 1):
        raise Violation(Rule.EVERY_ROW_ONCE, f"{driver.added} rows were added; read: {found}")


def _same_columns(driver: SourceDriver) -> None:
    found, given = driver.inferred(), driver.source.schema
    if found is not None and dict(zip(found.names, found.types, strict=True)) != dict(
        zip(given.names, given.types, strict=True)
    ):
        raise Violation(Rule.WORKS, f"inferred: {found}; the rows have: {given}")


def _bounded(driver: SourceDriver) -> None:
    size, grown = driver.peak()
    if grown > size // 2:
        raise Violation(Rule.BOUNDED_MEMORY, f"rows: {size >> 20} MB; growth: {grown >> 20} MB")


def _back_and_forth(number: int) -> int:
    """Another order in which times go back now and then."""
    return number // 8 * 8 + (2, 3, 6, 7, 0, 1, 4, 5)[number % 8]


def _long(row: Row) -> Row:
    values: list[Any] = [v + _LONG_TEXT if isinstance(v, str) else v for v in row]
    return tuple(values)
