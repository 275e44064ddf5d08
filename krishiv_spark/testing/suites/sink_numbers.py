"""Cases of a sink that takes numbered batches, as functions of ``foreachBatch`` write them."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pytest

from krishiv_spark.sinks.base import Guarantee, Writer
from krishiv_spark.sinks.numbered import NumberedJobOptions
from krishiv_spark.testing.drivers.copies import PutBack
from krishiv_spark.testing.drivers.epochs import EpochDriver
from krishiv_spark.testing.processes.numbered_jobs import in_foreach_batch
from krishiv_spark.testing.processes.serving import Answer
from krishiv_spark.testing.rules import Rule, Violation
from krishiv_spark.testing.subjects import SinkUnderTest
from krishiv_spark.testing.suites.base import ConnectorSuite, of_batches
from krishiv_spark.testing.suites.playing import GOOD_EPOCH, STAGED, SinkPlayer

__all__ = ["SinkNumbers"]

_NAME = "orders"


class SinkNumbers(ConnectorSuite[SinkUnderTest]):
    """A batch that was skipped on purpose is no loss; one that the target has lost is an error."""

    @of_batches
    def test_a_target_that_went_back_is_refused_for_numbered_batches(
        self, play: SinkPlayer, declared: SinkUnderTest
    ) -> None:
        """A target that was restored from an older copy lacks batches: the next one is refused."""
        _skip_without_numbers(declared)
        if declared.backup is None:
            pytest.skip("declared: the kit cannot copy the target")
        for later in ((), STAGED):  # between two batches, and in the middle of one
            with _numbered(play) as driver:
                driver.expect_well(*GOOD_EPOCH)
                put_older_back = _back_up(driver)
                driver.expect_well(*GOOD_EPOCH, *GOOD_EPOCH, *later)
                put_newest_back = _back_up(driver)
                put_older_back()
                answer = driver.run_unread_epoch("the target is an older copy")
                driver.judged(partial(_refused, answer, Rule.GAP_IS_SAID))
                put_newest_back()
                driver.settle()

    @of_batches
    def test_a_name_that_another_query_uses_is_refused(
        self, play: SinkPlayer, declared: SinkUnderTest
    ) -> None:
        """A second query that has the name of another one, and its next number, adds no row."""
        _skip_without_numbers(declared)
        name = f"{_NAME}-{uuid.uuid4().hex[:8]}"  # brokers know the names of other tests
        with _numbered(play, name) as driver:
            driver.expect_well(*GOOD_EPOCH)
            sink = replace(driver.sink, source=in_foreach_batch(declared.source, name, ahead=1))
            folder = play.target.parent / "second"
            with EpochDriver(sink, folder, promise=play.promise, pool=play.pool(sink)) as second:
                answer = second.run_unread_epoch("another query uses the name")
                second.judged(partial(_refused, answer, Rule.NAMES_APART))
            driver.settle()


def _skip_without_numbers(declared: SinkUnderTest) -> None:
    made: type = getattr(declared.source, "writer_type", None) or object
    if not issubclass(made, Writer) or made.guarantee is not Guarantee.EXACTLY_ONCE:
        pytest.skip(f"{declared.source.__name__} has no committer of ours")
    if not issubclass(made.options_type, NumberedJobOptions) or not declared.has_batch:
        pytest.skip(f"{declared.source.__name__} takes no numbered batches")


@contextmanager
def _numbered(play: SinkPlayer, name: str | None = None) -> Iterator[EpochDriver]:
    """A driver on a new target, whose epochs are numbered batches."""
    made, folder = play.new()
    sink = replace(made, source=in_foreach_batch(made.source, name))
    with EpochDriver(sink, folder, promise=play.promise, pool=play.pool(made)) as driver:
        yield driver
    shutil.rmtree(folder, ignore_errors=True)


def _back_up(driver: EpochDriver) -> PutBack:
    assert driver.sink.backup is not None
    return driver.sink.backup()


def _refused(answer: Answer, rule: Rule) -> None:
    """Check that a refusal stopped an epoch.

    Raises:
        Violation: If another error did, or none.
    """
    refusals = {"CheckpointMismatch", "LogError"}  # the second of a sink whose log tells it first
    if answer.outcome != "raised" or refusals.isdisjoint(answer.kinds):
        seen = answer.error or answer.outcome
        raise Violation(rule, f"the batch {answer.outcome}: {seen}, and no CheckpointMismatch")
