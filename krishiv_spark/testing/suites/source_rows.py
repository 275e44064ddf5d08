"""Cases of a source about what is in its rows, who reads them, and in how much memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pytest

from krishiv_spark.testing.drivers.reading import SourceDriver
from krishiv_spark.testing.rows import long_row
from krishiv_spark.testing.rules import Rule, Violation
from krishiv_spark.testing.steps import Add, Fault, TrapAt, Trigger
from krishiv_spark.testing.subjects import SourceUnderTest
from krishiv_spark.testing.suites import source_judges as judges
from krishiv_spark.testing.suites.base import ConnectorSuite, of_batches
from krishiv_spark.testing.suites.playing import SourcePlayer
from krishiv_spark.testing.values import ZONES, rounds

__all__ = ["MANY_ROWS", "SourceRows"]

MANY_ROWS = 3000
"""More than a page of most services has, and than most guesses at a limit."""

_BULK_UNITS, _BULK_ROWS = 40, 1000
_UNITS = 5

_ONE_TASK = (
    "{units} units were added, and {batch} reads all of them in one task: borders between tasks "
    "are not tried. Give small_tasks, options with which it is split; or small_tasks=None if a "
    "batch is always one task"
)


class SourceRows(ConnectorSuite[SourceUnderTest]):
    """What was added is what is read, whatever it is, and whoever reads it."""

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
                    driver.judged(partial(judges.all_once, driver))

    @of_batches
    def test_tasks_read_apart(self, play: SourcePlayer, declared: SourceUnderTest) -> None:
        """Tasks share no row and leave none out between them, wherever a batch is split."""
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
                batch.judged(partial(judges.all_once, batch))
                batch.judged(partial(_check_split, batch, "a batch"))

    @of_batches
    def test_a_batch_reads_everything(self, play: SourcePlayer, declared: SourceUnderTest) -> None:
        """``spark.read`` delivers every row once."""
        if not declared.has_batch:
            pytest.skip("declared: no batch reads")
        for options in ({}, declared.limit or {}):
            with play.driver(options) as driver:
                driver.judged(partial(judges.all_once, driver))
                driver.run([Add(), Add(1), Add()])
                driver.judged(partial(judges.all_once, driver))
                for at, trap in _every_fault(play, driver):
                    driver.judged(partial(judges.all_once, driver, trap, at))
                driver.run([Add(MANY_ROWS // _UNITS)] * _UNITS)
                driver.judged(partial(judges.all_once, driver))

    @of_batches
    def test_memory_is_bounded(self, play: SourcePlayer, declared: SourceUnderTest) -> None:
        """A task holds no more than half of the rows that it reads, or 8 MB."""
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
            driver.judged(lambda: judges.bounded(driver, few))


def _every_fault(play: SourcePlayer, driver: SourceDriver) -> Iterator[tuple[TrapAt, Fault]]:
    """Errors of a batch read, of its planner and of its last task, some or all of them."""
    roles: tuple[tuple[TrapAt, str], ...] = (("plan", "batch_partitions"), ("read", "rows"))
    counts: list[tuple[TrapAt, int]] = [(at, len(driver.calls[name])) for at, name in roles]
    for at, count in counts:
        faults = (Fault(n, lasting=lasting) for n in range(count) for lasting in (False, True))
        for trap in play.drawn(faults):
            yield at, trap


def _check_split(driver: SourceDriver, batch: str) -> None:
    if driver.most_tasks <= 1:
        raise Violation(Rule.SEEN, _ONE_TASK.format(units=_UNITS, batch=batch))
