"""Cases of a sink about what is in the rows: values of each type, and columns by their names."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pyarrow as pa
import pytest

from krishiv_spark.testing.processes.serving import Answer
from krishiv_spark.testing.rules import Broken, Rule
from krishiv_spark.testing.steps import Begin, Commit, Reorder, Stage, Step
from krishiv_spark.testing.subjects import ROW_SCHEMA, SinkUnderTest
from krishiv_spark.testing.suites.base import ConnectorSuite, of_batches
from krishiv_spark.testing.suites.playing import GOOD_EPOCH, SinkPlayer
from krishiv_spark.testing.values import ZONES, rounds, typed_schema, types_but

__all__ = ["SinkValues"]


class SinkValues(ConnectorSuite[SinkUnderTest]):
    """What is written is what readers see, whatever it is."""

    @of_batches
    def test_values_are_kept(self, play: SinkPlayer, declared: SinkUnderTest) -> None:
        """Nulls, fractions of a second, zones, all digits are kept, or refused by a SchemaError."""
        by_type = declared.any_value is None and declared.schema.equals(ROW_SCHEMA)
        untried = _untried_types(play, declared) if by_type else None
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
        """A target has its columns in an order of its own, whatever that of the rows is."""
        play.well(*GOOD_EPOCH, Reorder(), *GOOD_EPOCH)


def _untried_types(play: SinkPlayer, sink: SinkUnderTest) -> str | None:
    """Try a column of each of Spark's types; why that is impossible, or None if it was not.

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
    return None if failed is None else _untried_one_by_one(play, types, failed)


def _untried_one_by_one(play: SinkPlayer, types: Collection[str], failed: Answer) -> str | None:
    failures = {name: _failure(play, (name,)) for name in types}
    held = tuple(name for name, failure in failures.items() if failure is None)
    if not held:
        return f"with other columns than id and text, the sink fails with {failed.error}"
    late = (n for n, failure in failures.items() if failure and "SchemaError" not in failure.kinds)
    for kinds in (held, *((name,) for name in late)):
        _play_values(play, typed_schema(kinds), types=kinds, zone=ZONES[0])
    return None


def _failure(play: SinkPlayer, types: Collection[str]) -> Answer | None:
    """What fails of an epoch with such columns; None if nothing does."""
    with play.driver(types=types, zone=ZONES[1]) as driver:
        answer = driver.try_steps(*_epoch(typed_schema(types)))
    return None if answer.outcome == "returned" else answer


def _play_values(play: SinkPlayer, schema: pa.Schema, **how: Any) -> None:
    play.well(*_epoch(schema), **how)


def _epoch(schema: pa.Schema) -> tuple[Step, ...]:
    """An epoch in which each column has each value."""
    return Begin(rounds(schema)), Stage(0), Stage(1), Commit()


def _oracle_names_columns(play: SinkPlayer) -> bool:
    with play.driver() as driver:
        driver.run(GOOD_EPOCH)
        found: Any = driver.sink.oracle()
        return isinstance(found, pa.Table) or isinstance(next(iter(found), None), Mapping)
