"""Cases about records of epochs: forged log entries, older copies, numbered batches."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from krishiv_spark.sinks.base import Guarantee, Writer
from krishiv_spark.sinks.logged_writer import LoggedWriter
from krishiv_spark.sinks.numbered import NumberedJobOptions
from krishiv_spark.sinks.participant import Participant
from krishiv_spark.testing.drivers.queries import RestoreCopy
from krishiv_spark.testing.drivers.sink_driver import EpochDriver
from krishiv_spark.testing.processes.serving import Answer
from krishiv_spark.testing.processes.write_roles import in_foreach_batch
from krishiv_spark.testing.rules import Rule, Violation
from krishiv_spark.testing.steps import BackUp, Commit, Fault, PutBack
from krishiv_spark.testing.subjects import SinkUnderTest
from krishiv_spark.testing.suites.base import (
    GOOD_EPOCH,
    STAGED,
    ConnectorSuite,
    SinkPlayer,
    of_batches,
)

__all__ = ["SinkCopies", "SinkForgeries", "SinkNumbers", "skip_without_log"]

_LINK = "krishiv-elsewhere"
_FILE = "precious"
_UP = "../" * 40
"""More than the depth of any path: the root of the disk is its own parent."""


class SinkForgeries(ConnectorSuite[SinkUnderTest]):
    """A sink trusts an epoch log that others may write only within its target."""

    def test_forged_log_entries_touch_nothing_outside(
        self, play: SinkPlayer, declared: SinkUnderTest
    ) -> None:
        """An intent that names files elsewhere is refused, and no file elsewhere is touched."""
        skip_without_log(declared)
        with play.driver() as driver:
            driver.expect_well(*STAGED)
            locations = driver.locate_texts()
        cases = [(place, name) for place in locations for name in _hostile(Path("/"))]
        for location, name in play.drawn(cases):
            with play.driver() as driver:
                driver.expect_well(*GOOD_EPOCH, *STAGED)
                elsewhere = _Elsewhere(play.target)
                driver.forge(location, _hostile(elsewhere.folder)[name])
                _judge(driver, elsewhere)


def skip_without_log(declared: SinkUnderTest) -> None:
    """Skip the case for a sink that has no epoch log of krishiv-spark's."""
    made = getattr(declared.source, "writer_type", None)
    if not isinstance(made, type) or not _has_log(made):
        pytest.skip(f"{declared.source.__name__} has no epoch log of krishiv-spark's")


def _has_log(writer: type) -> bool:
    kinds = getattr(writer, "participant_type", None)
    is_ours = isinstance(kinds, type) and issubclass(kinds, Participant)
    return issubclass(writer, LoggedWriter) or is_ours


def _hostile(elsewhere: Path) -> dict[str, str]:
    """Return texts that lead out of any folder to which they are joined, by their description."""
    file = f"{elsewhere}/{_FILE}"
    return {
        "a path up to a file": _UP + file.lstrip("/"),
        "a path up to a folder": _UP + str(elsewhere).lstrip("/"),
        "an absolute path": file,
        "the folder above": "..",
        "a text with NUL": f"{_FILE}\0",
        "a file behind a link": f"{_LINK}/{_FILE}",
        "a link": _LINK,
        "nothing": "",
    }


class _Elsewhere:
    """Files beside the target, with a link to them in each of its folders.

    Each link has its own files, so that a file moved from the target of one link to that of
    another is noticed.
    """

    def __init__(self, target: Path) -> None:
        self.folder = target.parent / "elsewhere"
        self.folder.mkdir()
        (self.folder / _FILE).write_text(_FILE)
        folders = [target, *(path for path in target.rglob("*") if path.is_dir())]
        for number, path in enumerate(folders):
            own = self.folder / str(number)
            own.mkdir()
            (own / _FILE).write_text(f"{_FILE} {number}")
            (path / _LINK).symlink_to(own)
        self._before = dict(self._contents())

    def changes(self) -> list[str]:
        """Return the names of added, removed and changed files."""
        now = dict(self._contents())
        names = {*now, *self._before}
        return sorted(name for name in names if now.get(name) != self._before.get(name))

    def _contents(self) -> Iterator[tuple[str, tuple[object, ...]]]:
        for path in self.folder.rglob("*"):
            status = path.lstat()
            text = path.read_bytes() if path.is_file() else b""
            yield str(path), (text, status.st_mode, status.st_mtime_ns)


def _judge(driver: EpochDriver, elsewhere: _Elsewhere) -> None:
    answer = driver.run_forged_epoch()
    if changed := elsewhere.changes():
        seen = f"changed outside of the target: {', '.join(changed)}"
        driver.judged(lambda: _violate(seen))
    if answer.outcome != "returned" and "KrishivError" not in answer.kinds:
        seen = (
            f"the next driver {answer.outcome}: {answer.error}, which is no KrishivError. Give the "
            "fields of what is staged the types krishiv_spark.sinks.FileName or NameWithin"
            f"\n{answer.trace}"
        )
        driver.judged(lambda: _violate(seen))


def _violate(seen: str) -> None:
    raise Violation(Rule.STAYS_INSIDE, seen)


_LOST_ANSWER = Commit(Fault(happened=True))


class SinkCopies(ConnectorSuite[SinkUnderTest]):
    """An operator restores one of two things that belong together."""

    def test_a_log_that_is_rolled_back_is_refused(
        self, play: SinkPlayer, declared: SinkUnderTest
    ) -> None:
        """An older checkpoint and its older epoch log agree; the target's own record is newer.

        For a sink over an epoch log whose target records epochs (`Participant.newest_epoch`,
        `Participant.newest_generation`). Without a record, epochs are written a second time.
        """
        _skip_without_record(play, declared)
        copy, old = BackUp("log"), PutBack("log")
        play(*GOOD_EPOCH, copy, *GOOD_EPOCH, old, *GOOD_EPOCH)
        play(*GOOD_EPOCH, copy, *GOOD_EPOCH * 2, old, *GOOD_EPOCH, *GOOD_EPOCH)
        play(*GOOD_EPOCH, copy, *STAGED, _LOST_ANSWER, old, *GOOD_EPOCH)
        play(*GOOD_EPOCH, copy, *STAGED, old, *GOOD_EPOCH)  # invisible rows may change

    def test_a_target_that_is_rolled_back_is_refused(
        self, play: SinkPlayer, declared: SinkUnderTest
    ) -> None:
        """A target restored from an older copy lacks epochs: continuing would lose their rows.

        For a sink over an epoch log whose target records epochs, and of which
        `SinkUnderTest.backup` can copy the target.
        """
        if declared.backup is None:
            pytest.skip("declared: the kit cannot copy the target")
        _skip_without_record(play, declared)
        copy, old = BackUp("target"), PutBack("target")
        play(*GOOD_EPOCH, copy, *GOOD_EPOCH, old, *GOOD_EPOCH)
        play(*GOOD_EPOCH, copy, *GOOD_EPOCH * 2, old, *GOOD_EPOCH)
        play(*GOOD_EPOCH, copy, *STAGED, _LOST_ANSWER, old, *GOOD_EPOCH)


def _skip_without_record(play: SinkPlayer, declared: SinkUnderTest) -> None:
    skip_without_log(declared)
    with play.driver(writing="append") as driver:
        driver.expect_well(*GOOD_EPOCH)
        if not driver.has_target_record():
            pytest.skip("the target records no epoch: Participant.newest_epoch")


_NAME = "orders"


class SinkNumbers(ConnectorSuite[SinkUnderTest]):
    """A batch skipped on purpose is no loss; a batch that the target has lost is an error."""

    @of_batches
    def test_a_target_that_went_back_is_refused_for_numbered_batches(
        self, play: SinkPlayer, declared: SinkUnderTest
    ) -> None:
        """A target restored from an older copy lacks batches: the next one is refused."""
        _skip_without_numbers(declared)
        if declared.backup is None:
            pytest.skip("declared: the kit cannot copy the target")
        for later in ((), STAGED):  # between two batches, and in the middle of one
            with _open_numbered_driver(play) as driver:
                driver.expect_well(*GOOD_EPOCH)
                put_older_back = _back_up(driver)
                driver.expect_well(*GOOD_EPOCH, *GOOD_EPOCH, *later)
                put_newest_back = _back_up(driver)
                put_older_back()
                answer = driver.run_unread_epoch("the target is an older copy")
                driver.judged(partial(_check_refused, answer, Rule.GAP_IS_SAID))
                put_newest_back()
                driver.settle()

    @of_batches
    def test_a_name_that_another_query_uses_is_refused(
        self, play: SinkPlayer, declared: SinkUnderTest
    ) -> None:
        """A second query with the name of another one, and its next number, adds no row."""
        _skip_without_numbers(declared)
        name = f"{_NAME}-{uuid.uuid4().hex[:8]}"  # brokers remember the names of other tests
        with _open_numbered_driver(play, name) as driver:
            driver.expect_well(*GOOD_EPOCH)
            sink = replace(driver.sink, source=in_foreach_batch(declared.source, name, ahead=1))
            folder = play.target.parent / "second"
            with EpochDriver(sink, folder, promise=play.promise, pool=play.pool(sink)) as second:
                answer = second.run_unread_epoch("another query uses the name")
                second.judged(partial(_check_refused, answer, Rule.NAMES_APART))
            driver.settle()


def _skip_without_numbers(declared: SinkUnderTest) -> None:
    made: type = getattr(declared.source, "writer_type", None) or object
    if not issubclass(made, Writer) or made.guarantee is not Guarantee.EXACTLY_ONCE:
        pytest.skip(f"{declared.source.__name__} has no committer of krishiv-spark's")
    if not issubclass(made.options_type, NumberedJobOptions) or not declared.has_batch:
        pytest.skip(f"{declared.source.__name__} takes no numbered batches")


@contextmanager
def _open_numbered_driver(play: SinkPlayer, name: str | None = None) -> Iterator[EpochDriver]:
    """Create a driver on a new target, whose epochs are numbered batches."""
    made, folder = play.new()
    sink = replace(made, source=in_foreach_batch(made.source, name))
    with EpochDriver(sink, folder, promise=play.promise, pool=play.pool(made)) as driver:
        yield driver
    shutil.rmtree(folder, ignore_errors=True)


def _back_up(driver: EpochDriver) -> RestoreCopy:
    assert driver.sink.backup is not None
    return driver.sink.backup()


def _check_refused(answer: Answer, rule: Rule) -> None:
    """Check that a refusal stopped an epoch.

    Raises:
        Violation: If another error did, or none did.
    """
    # The second is of a sink that reads its log first.
    refusals = {"CheckpointMismatch", "LogError"}
    if answer.outcome != "raised" or refusals.isdisjoint(answer.kinds):
        seen = answer.error or answer.outcome
        raise Violation(rule, f"the batch {answer.outcome}: {seen}, and no CheckpointMismatch")
