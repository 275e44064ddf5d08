"""Cases about the stored contents of a sink: values, columns, leftovers, and memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from krishiv_spark.sinks.base import Guarantee
from krishiv_spark.testing.drivers.sink_driver import EpochDriver
from krishiv_spark.testing.processes.serving import Answer
from krishiv_spark.testing.rows import ZONES, rounds, typed_schema, types_but
from krishiv_spark.testing.rules import Broken, Rule, Violation
from krishiv_spark.testing.steps import (
    Abort,
    Begin,
    Commit,
    Crash,
    Fault,
    Reorder,
    Stage,
    Step,
    Stop,
)
from krishiv_spark.testing.subjects import ROW_SCHEMA, SinkUnderTest
from krishiv_spark.testing.suites.base import (
    GOOD_EPOCH,
    STAGED,
    ConnectorSuite,
    SinkPlayer,
    of_batches,
)

__all__ = ["SinkLeftovers", "SinkValues"]


class SinkValues(ConnectorSuite[SinkUnderTest]):
    """Readers see exactly the values that were written."""

    @of_batches
    def test_values_are_kept(self, play: SinkPlayer, declared: SinkUnderTest) -> None:
        """Nulls, fractions of a second, zones, all digits are kept, or refused by a SchemaError."""
        by_type = declared.any_value is None and declared.schema.equals(ROW_SCHEMA)
        untried = _try_types(play, declared) if by_type else None
        if by_type and untried is None:
            return
        odd = ("text",) if by_type else declared.any_value
        if not odd:
            pytest.skip("declared: columns of its own, none of which is named in any_value")
        columns = pa.schema([declared.schema.field(name) for name in odd])
        for zone in ZONES:
            _play_values(play, columns, odd=odd, zone=zone)
        if untried is not None:
            pytest.skip(f"types other than text are not tried: {untried}")

    @of_batches
    def test_columns_go_by_name(self, play: SinkPlayer) -> None:
        """A target has its own order of columns, whatever the order in the rows."""
        play.well(*GOOD_EPOCH, Reorder(), *GOOD_EPOCH)


def _try_types(play: SinkPlayer, sink: SinkUnderTest) -> str | None:
    """Try a column of each of Spark's types; return why that is impossible, or None.

    Raises:
        Broken: If a value has changed, or a type that is not refused makes the sink fail.
    """
    types = types_but(sink.cannot_hold)
    if not _oracle_names_columns(play):
        return "the oracle gives tuples; let it give all columns, by name"
    try:
        failed = _failure(play, types)
    except Broken as broken:
        if broken.rule is Rule.READABLE:
            return str(broken.seen)
        raise
    return None if failed is None else _try_one_by_one(play, types, failed)


def _try_one_by_one(play: SinkPlayer, types: Collection[str], failed: Answer) -> str | None:
    failures = {name: _failure(play, (name,)) for name in types}
    held = tuple(name for name, failure in failures.items() if failure is None)
    if not held:
        return f"with other columns than id and text, the sink fails with {failed.error}"
    late = (n for n, failure in failures.items() if failure and "SchemaError" not in failure.kinds)
    for kinds in (held, *((name,) for name in late)):
        _play_values(play, typed_schema(kinds), types=kinds, zone=ZONES[0])
    return None


def _failure(play: SinkPlayer, types: Collection[str]) -> Answer | None:
    """Return the failed answer of an epoch with such columns; None if it succeeds."""
    with play.driver(types=types, zone=ZONES[1]) as driver:
        answer = driver.try_steps(*_epoch(typed_schema(types)))
    return None if answer.outcome == "returned" else answer


def _play_values(play: SinkPlayer, schema: pa.Schema, **how: Any) -> None:
    play.well(*_epoch(schema), **how)


def _epoch(schema: pa.Schema) -> tuple[Step, ...]:
    """Return an epoch in which each column has each value."""
    return Begin(rounds(schema)), Stage(0), Stage(1), Commit()


def _oracle_names_columns(play: SinkPlayer) -> bool:
    with play.driver() as driver:
        driver.run(GOOD_EPOCH)
        found: Any = driver.sink.oracle()
        return isinstance(found, pa.Table) or isinstance(next(iter(found), None), Mapping)


_TOLD_IN_JOBS = (*GOOD_EPOCH, Begin(), Stage(0), Abort())

_TOLD = (
    *_TOLD_IN_JOBS,
    *(*STAGED, Commit(Fault(happened=True)), *GOOD_EPOCH),  # a replay of a committed epoch
)
"""Steps after which Spark reports the outcome of everything staged; for jobs and streams."""

_UNTOLD = (
    *(Begin(), Stage(0, "lost"), Stage(0), Stage(1, "dies"), Stage(1), Commit()),
    *(Begin(), Stage(0, "fails"), Stage(0), Crash(), Begin(), Stage(0), Stop()),
    *GOOD_EPOCH,
)
"""Steps in which the outcome of some attempts, or of the query, is never reported."""

_NO_FILES = (
    "the folder of the target is empty, so the kit does not see what is staged: give SinkUnderTest "
    "a function leftovers that lists it, or lambda: [] if rows wait in messages to the driver"
)

# The first rounds also create permanent files, such as a log: the last two are compared.
_ROUNDS = 3
_SHOWN = 8


class SinkLeftovers(ConnectorSuite[SinkUnderTest]):
    """A sink that runs for years fills neither the disk nor the memory."""

    @of_batches
    def test_nothing_stays_staged(self, play: SinkPlayer, declared: SinkUnderTest) -> None:
        """Staged data is deleted when its epoch is published, aborted, or found to be committed."""
        _skip_without_promise(declared)
        _look_for_litter(play, _TOLD if declared.has_stream else _TOLD_IN_JOBS)

    def test_lost_attempts_are_swept(self, play: SinkPlayer, declared: SinkUnderTest) -> None:
        """Later epochs delete data staged by attempts that died, or whose message was lost."""
        _skip_without_promise(declared)
        if not declared.sweeps:
            pytest.skip("declared: something else sweeps what lost attempts have staged")
        _look_for_litter(play, _UNTOLD)

    @of_batches
    def test_memory_of_a_task_is_bounded(self, play: SinkPlayer, declared: SinkUnderTest) -> None:
        """A task writes more rows than fit into its memory: `stage` does not keep them all."""
        _skip_without_promise(declared)
        kinds = {declared.schema.field(name).type for name in declared.odd_columns}
        if not kinds & {pa.string(), pa.binary()}:
            pytest.skip("declared: no column of any_value that could be made long")
        with play.driver(long_rows=True) as driver:
            driver.expect_well(Begin())
            size, grown = driver.growth_of_a_task()
            if grown > size // 2:
                seen = f"while {size >> 20} MB of rows were staged, it grew by {grown >> 20} MB"
                driver.judged(lambda: _violate(Rule.BOUNDED_MEMORY, seen))


def _skip_without_promise(declared: SinkUnderTest) -> None:
    if declared.promised is not Guarantee.EXACTLY_ONCE:
        pytest.skip("not exactly once: it need not stage anything")


def _look_for_litter(play: SinkPlayer, steps: tuple[Step, ...]) -> None:
    """Repeat some steps: the leftovers must not grow, or must not exist at all."""
    with play.driver() as driver:
        counts = []
        for _ in range(_ROUNDS):
            driver.run(steps)
            driver.settle()
            counts.append(_list_leftovers(driver, play.target))
        driver.judged(lambda: _check_left(driver, counts))


def _list_leftovers(driver: EpochDriver, target: Path) -> list[str]:
    listed = driver.sink.leftovers
    found: Iterable[object] = target.rglob("*") if listed is None else listed()
    return sorted(map(str, found))


def _check_left(driver: EpochDriver, rounds: list[list[str]]) -> None:
    before, after = (set(found) for found in rounds[-2:])
    if driver.sink.leftovers is None and not after:
        _violate(Rule.SEEN, _NO_FILES)
    if driver.sink.leftovers is not None:
        if after:
            _violate(Rule.NOTHING_LEFT, f"staged, when nothing is being written: {_some(after)}")
    elif len(after) > len(before):
        seen = (
            f"after {_ROUNDS - 1} rounds there were {len(before)} files in the folder of the "
            f"target, after one more {len(after)}: {_some(after - before)}. If readers see these, "
            "give SinkUnderTest a function leftovers that lists what is staged"
        )
        _violate(Rule.NOTHING_LEFT, seen)


def _some(names: set[str]) -> str:
    shown = sorted(names)[:_SHOWN]
    return ", ".join(shown + ["..."] * (len(names) > _SHOWN))


def _violate(rule: Rule, seen: str) -> None:
    raise Violation(rule, seen)
