"""The suite for a source: inherit `SourceConformance`, create the source, run pytest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from krishiv_spark.testing.drivers.source_driver import SourceDriver
from krishiv_spark.testing.processes import read_roles
from krishiv_spark.testing.processes.interpreters import run_under_seed
from krishiv_spark.testing.real_spark.driver import SparkDriver
from krishiv_spark.testing.rows import ZONES, Row, long_row, ranges, refuse_strange, rounds
from krishiv_spark.testing.rules import Rule, Violation
from krishiv_spark.testing.steps import Add, Crash, Expire, Fault, TrapAt, Trigger
from krishiv_spark.testing.subjects import SourceUnderTest
from krishiv_spark.testing.suites.base import (
    ConnectorSuite,
    SourcePlayer,
    of_batches,
    trap_deaths_before,
    trap_errors,
)
from krishiv_spark.testing.suites.random_steps import read_at_random
from krishiv_spark.testing.suites.sight import SourceSight

__all__ = [
    "MANY_ROWS",
    "SourceConformance",
    "SourceRows",
    "check_all_once",
    "check_bounded_memory",
    "check_ended",
    "check_loss_reported",
    "check_one_text",
    "check_same_columns",
    "check_stood_still",
    "check_within_limit",
]

_NO_MATTER = 8 * 2**20
"""Allocators, and the imports of a task, take this many bytes."""


def check_one_text(texts: set[str]) -> None:
    """Check that an offset has one text in every process."""
    if len(texts) > 1:
        raise Violation(Rule.ONE_TEXT, "\n".join(sorted(texts)))


def check_stood_still(ends: list[str]) -> None:
    """Check that these ends are equal."""
    if len(ends) > 1:
        raise Violation(Rule.STANDS_STILL, f"it became a new batch: {ends}")


def check_within_limit(driver: SourceDriver, most: int) -> None:
    """Check that no batch has more rows than the limit, and only the first may have none."""
    sizes = [sum(batch.values()) for batch in driver.batches]
    if max(sizes) > most or 0 in sizes[1:]:  # the first one may pin a start
        raise Violation(Rule.LIMITS, f"rows in the batches: {sizes}")


def check_ended(driver: SourceDriver, before: int, ends: list[str]) -> None:
    """Check that the first rows were read, and then none."""
    read = sorted(row for batch in driver.batches for row in batch if isinstance(row, int))
    if read != list(range(before)):
        raise Violation(Rule.ENDS, f"{before} rows were there; read: {read}")
    if driver.ends != ends:
        raise Violation(Rule.ENDS, f"it goes on: {driver.ends[len(ends) - 1 :]}")


def check_all_once(driver: SourceDriver, trap: Fault | None = None, at: TrapAt = "all") -> None:
    """Check that a batch reads each row once, unless it fails at the trap."""
    found = driver.all_in_batch(trap, at)
    if found is None:
        return
    refuse_strange(found, driver.source.schema, driver.source.row, driver.added, "a batch read: ")
    wanted: Counter[int | Row] = Counter(range(driver.added))
    if found != wanted:
        lost, more = ranges(wanted - found) or "none", ranges(found - wanted) or "none"
        seen = f"{driver.added} rows were added; not read: {lost}; read too often: {more}"
        raise Violation(Rule.EVERY_ROW_ONCE, seen)


def check_loss_reported(driver: SourceDriver, gone: range, batches: int) -> None:
    """Check that after this many batches none has succeeded, unless these rows were read."""
    read = {row for batch in driver.batches for row in batch}
    lost = [row for row in gone if row not in read]
    if lost and len(driver.batches) > batches:
        raise Violation(Rule.LOSS_IS_SAID, f"the query goes on without rows {ranges(lost)}")


def check_same_columns(driver: SourceDriver) -> None:
    """Check that the inferred columns are those of the rows."""
    found, given = driver.inferred(), driver.source.schema
    if isinstance(found, str):
        pytest.skip(f"its schema is text, which only Spark's JVM can read: {found}")
    if found is not None and dict(zip(found.names, found.types, strict=True)) != dict(
        zip(given.names, given.types, strict=True)
    ):
        raise Violation(Rule.WORKS, f"inferred: {found}; the rows have: {given}")


def check_bounded_memory(driver: SourceDriver, few: Sequence[bytes] | None) -> None:
    """Check that reading grows a process by less than half of what its largest task reads."""
    size, grown = driver.peak(few)
    if grown > max(size // 2, _NO_MATTER):
        raise Violation(Rule.BOUNDED_MEMORY, f"rows: {size >> 20} MB; growth: {grown >> 20} MB")


MANY_ROWS = 3000
"""More than one page of most services, and more than most guesses at a limit."""

_BULK_UNITS, _BULK_ROWS = 40, 1000
_UNITS = 5

_ONE_TASK = (
    "{units} units were added, and {batch} reads all of them in one task: borders between tasks "
    "are not tried. Give small_tasks, options with which it is split; or small_tasks=None if a "
    "batch is always one task"
)


class SourceRows(ConnectorSuite[SourceUnderTest]):
    """Every added row is read, with any values, by any number of tasks."""

    @of_batches
    def test_values_are_kept(self, play: SourcePlayer, declared: SourceUnderTest) -> None:
        """Nulls, fractions of a second, zones and all digits are read as they were added."""
        odd = tuple(declared.odd_columns)
        if not odd:
            pytest.skip("declared: columns of its own, none of which is named in any_value")
        many = Add(rounds(pa.schema([declared.schema.field(name) for name in odd])))
        for zone in ZONES:
            if declared.has_stream:
                play(many, Trigger(), odd=odd, zone=zone)
            else:
                with play.driver(odd=odd, zone=zone) as driver:
                    driver.run([many])
                    driver.judged(partial(check_all_once, driver))

    @of_batches
    def test_tasks_read_apart(self, play: SourcePlayer, declared: SourceUnderTest) -> None:
        """Tasks share no row and omit none, wherever a batch is split."""
        if declared.small_tasks is None:
            pytest.skip("declared: a batch is always one task")
        if declared.has_stream:
            with play.driver(declared.small_tasks) as stream:
                stream.run([*[Add(2)] * _UNITS, Trigger("unlogged"), *[Add(1)] * 3])
                stream.drain()
                stream.judged(partial(_check_split, stream, "a stream"))
        if declared.has_batch:
            with play.driver(declared.small_tasks) as batch:
                batch.run([Add(2)] * _UNITS)
                batch.judged(partial(check_all_once, batch))
                batch.judged(partial(_check_split, batch, "a batch"))

    @of_batches
    def test_a_batch_reads_everything(self, play: SourcePlayer, declared: SourceUnderTest) -> None:
        """``spark.read`` delivers every row once."""
        if not declared.has_batch:
            pytest.skip("declared: no batch reads")
        for options in ({}, declared.limit or {}):
            with play.driver(options) as driver:
                driver.judged(partial(check_all_once, driver))
                driver.run([Add(), Add(1), Add()])
                driver.judged(partial(check_all_once, driver))
                for at, trap in _every_fault(play, driver):
                    driver.judged(partial(check_all_once, driver, trap, at))
                driver.run([Add(MANY_ROWS // _UNITS)] * _UNITS)
                driver.judged(partial(check_all_once, driver))

    @of_batches
    def test_memory_is_bounded(self, play: SourcePlayer, declared: SourceUnderTest) -> None:
        """A task uses memory for at most half of the rows that it reads, or 8 MB."""
        texts = [n for n, kind in enumerate(declared.schema.types) if pa.types.is_string(kind)]
        if not texts:
            pytest.skip("declared: no column of text that could be made long")
        source = play.source()
        row = source.row
        long = replace(source, row=lambda number: long_row(row(number), texts))
        with play.driver(source=long) as driver:
            driver.run([Add(_BULK_ROWS)])
            if declared.has_stream:
                driver.run([Trigger(), Trigger()])  # the first one may pin a start, without rows
            few = None if declared.has_stream else driver.parts_of_batch()
            driver.run([Add(_BULK_ROWS)] * _BULK_UNITS)
            driver.judged(lambda: check_bounded_memory(driver, few))


def _every_fault(play: SourcePlayer, driver: SourceDriver) -> Iterator[tuple[TrapAt, Fault]]:
    """Yield errors of a batch read, in its planner and its last task, some or all of them."""
    roles: tuple[tuple[TrapAt, str], ...] = (("plan", "batch_partitions"), ("read", "rows"))
    counts: list[tuple[TrapAt, int]] = [(at, len(driver.calls[name])) for at, name in roles]
    for at, count in counts:
        faults = (Fault(n, lasting=lasting) for n in range(count) for lasting in (False, True))
        for trap in play.drawn(faults):
            yield at, trap


def _check_split(driver: SourceDriver, batch: str) -> None:
    if driver.most_tasks <= 1:
        raise Violation(Rule.SEEN, _ONE_TASK.format(units=_UNITS, batch=batch))


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
        """Return the player of one case."""
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
        """Without ``.schema(...)`` a source infers its columns, or asks for a schema."""
        with play.driver() as driver:
            driver.run([Add()])
            driver.judged(lambda: check_same_columns(driver))

    def test_reads_stop_at_the_end(self, play: SourcePlayer) -> None:
        """A task reads the rows that existed when the end was chosen, and none added later."""
        play(Add(), Trigger(unread=2), Trigger(unread=1))

    def test_a_plan_does_not_depend_on_now(self, play: SourcePlayer) -> None:
        """A plan depends on start and end only: rows added meanwhile change nothing."""
        play(Add(), Trigger(unplanned=2), Trigger(unplanned=1))
        play(Add(), Trigger("unread", unplanned=2), Add(), Trigger())

    def test_a_replay_has_the_same_rows(self, play: SourcePlayer) -> None:
        """After a crash the last batch is repeated, with the start and end of the first time."""
        play(Add(), Trigger("unlogged"), Add(), Trigger("unlogged"), Add())
        play(Add(), Trigger(), Add(), Trigger("unlogged"), Add(2), Trigger("unlogged"))

    def test_a_restart_at_each_point(self, play: SourcePlayer) -> None:
        """A driver may die at any point; another one continues from Spark's log."""
        play(Crash(), Add(), Crash(), Trigger("unread"), Trigger("unread"), Trigger(), Crash())
        play(Add(), Trigger(), Crash(), Trigger(), Add(), Crash(), Trigger("unlogged"), Crash())

    def test_commit_is_only_a_hint(self, play: SourcePlayer) -> None:
        """`commit` comes one batch late, and never for the last batch of a run."""
        play(Add(), Trigger(), Crash(), Add(), Trigger(), Add(), Trigger("unlogged"), Crash())

    def test_an_error_at_any_call(self, play: SourcePlayer) -> None:
        """Any error fails the query; it is not taken for the end of the data, and loses no row."""
        play.at_every_call(trap_errors)

    def test_an_error_at_a_moving_start(
        self, play: SourcePlayer, declared: SourceUnderTest
    ) -> None:
        """If a moving start cannot be determined, the query fails."""
        if declared.latest is None:
            pytest.skip("declared: no start that moves")
        play.at_every_call(trap_errors, declared.latest, 3)

    def test_death_at_any_call(self, play: SourcePlayer) -> None:
        """A process may die at any call to the outside."""
        play.at_every_call(trap_deaths_before)

    # --- positions

    def test_the_start_is_constant(self, play: SourcePlayer) -> None:
        """Spark requests the initial offset again after a crash: it must not have moved."""
        with play.driver() as driver:
            driver.judged(driver.start)
            for _ in range(2):
                driver.run([Add(), Crash()])
                driver.judged(driver.start)
        play(Add(), Trigger("unread"), Add(), Trigger("unread"), Add())

    def test_a_moving_start_is_pinned(self, play: SourcePlayer, declared: SourceUnderTest) -> None:
        """A start such as "latest" means one permanent position."""
        if declared.latest is None:
            pytest.skip("declared: no start that moves")
        for ends in ("well", "unread", "unlogged"):
            first = Trigger(ends)
            play(Add(), first, Add(), Trigger(), Add(), options=declared.latest, skipped=3)
            play(Add(), first, Crash(), Add(), Crash(), options=declared.latest, skipped=3)

    def test_an_idle_query_stands_still(self, play: SourcePlayer) -> None:
        """Spark compares offsets as text: without new rows the text must not change."""
        with play.driver() as driver:
            driver.run([Add(), Add(), Trigger()])
            driver.drain()
            ends = len(driver.ends)
            driver.run([Trigger(), Crash(), Trigger()])
            driver.judged(lambda: check_stood_still(driver.ends[ends - 1 :]))

    def test_an_offset_has_one_text(self, play: SourcePlayer) -> None:
        """Offsets are the same text in every process, whatever its hash seed."""
        source = play.source()
        with play.driver(source=source) as driver:
            driver.run([Add(1) for _ in range(5)])
            load = read_roles.Load(source.source, source.options, source.schema)
            driver.judged(lambda: check_one_text(_texts(load)))

    def test_what_expired_is_missed(self, play: SourcePlayer, declared: SourceUnderTest) -> None:
        """Rows deleted before they were read are an error that reports it, not an empty batch."""
        if declared.expire is None:
            pytest.skip("declared: nothing expires")
        with play.driver() as unknown:
            unknown.run([Add(), Trigger(), Add(2), Expire(), Add(1), Trigger(), Trigger()])
            unknown.judged(lambda: check_loss_reported(unknown, range(3, 5), 1))
        with play.driver() as planned:
            planned.run([Add(), Trigger("unread"), Expire(), Add(1), Trigger(), Trigger()])
            planned.judged(lambda: check_loss_reported(planned, range(3), 0))

    # --- abilities

    def test_limits_are_honoured(self, play: SourcePlayer, declared: SourceUnderTest) -> None:
        """With a limit of two rows, a batch has one or two."""
        if declared.limit is None:
            pytest.skip("declared: no read limits")
        with play.driver(declared.limit) as driver:
            driver.run([*[Add(1)] * 5, Trigger(), Trigger("unlogged"), Add(1)])
            driver.drain()
            driver.judged(lambda: check_within_limit(driver, 2))
        play(Add(5), Trigger(), Add(3), options=declared.limit)  # a unit is never split
        for option in _unit_limits(declared):
            with play.driver({option: "1"}) as driver:
                driver.run([*[Add(2)] * 3, Trigger()])
                driver.drain()
                driver.judged(partial(check_within_limit, driver, 2))

    def test_available_now_ends(self, play: SourcePlayer, declared: SourceUnderTest) -> None:
        """With availableNow a query reads the existing rows, and ends though more are added."""
        with play.driver(declared.limit) as driver:
            driver.run([Add(1)] * 5)
            if not _frozen(driver):
                pytest.skip("the reader has no prepareForTriggerAvailableNow (PySpark 4.2)")
            driver.run([Add(1), Trigger()] * 7)
            ends = list(driver.ends)
            driver.run([Add(1), Trigger()])
            driver.judged(lambda: check_ended(driver, 5, ends))
            driver.restart()
            driver.drain()
        with play.driver() as empty:
            _frozen(empty)
            empty.run([Add(), Trigger()])
            empty.judged(lambda: check_ended(empty, 0, empty.ends))
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

    # --- random sequences

    def test_random_sequences(self, play: SourcePlayer, declared: SourceUnderTest) -> None:
        """In any sequence of steps and faults, no row is lost and none is repeated."""
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
    """Yield the limits of krishiv-spark that this source supports, except the limit of rows."""
    reader = getattr(source.source, "reader_type", None)
    if reader is not None and source.two_rows is None:
        yield from (o for o, f in _UNIT_LIMITS.items() if f not in reader.options_type.unsupported)


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
