"""Cases of a sink about entries in its epoch log that another user has written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from krishiv_spark.sinks.logged_writer import LoggedWriter
from krishiv_spark.sinks.participant import Participant
from krishiv_spark.testing.drivers.epochs import EpochDriver
from krishiv_spark.testing.rules import Rule, Violation
from krishiv_spark.testing.subjects import SinkUnderTest
from krishiv_spark.testing.suites.base import ConnectorSuite
from krishiv_spark.testing.suites.playing import GOOD_EPOCH, STAGED, SinkPlayer

__all__ = ["SinkForgeries", "skip_without_log"]

_LINK = "krishiv-elsewhere"
_FILE = "precious"
_UP = "../" * 40
"""More than any path is deep: the root of the disk is above itself."""


class SinkForgeries(ConnectorSuite[SinkUnderTest]):
    """An epoch log that others may write is not believed beyond the target."""

    def test_forged_log_entries_touch_nothing_outside(
        self, play: SinkPlayer, declared: SinkUnderTest
    ) -> None:
        """An intent that names files elsewhere is refused, and nothing elsewhere is touched."""
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
        pytest.skip(f"{declared.source.__name__} has no epoch log of ours")


def _has_log(writer: type) -> bool:
    kinds = getattr(writer, "participant_type", None)
    is_ours = isinstance(kinds, type) and issubclass(kinds, Participant)
    return issubclass(writer, LoggedWriter) or is_ours


def _hostile(elsewhere: Path) -> dict[str, str]:
    """Texts that lead out of any folder that they are joined to, by what they are."""
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

    Each link has files of its own: a file that is moved from where one leads to where another one
    does is noticed.
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
        """Return the names of what has come, gone or changed."""
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
