"""Cases of a sink about older copies: of the checkpoint with its epoch log, and of the target."""

from __future__ import annotations

import pytest

from krishiv_spark.testing.steps import BackUp, Commit, Fault, PutBack
from krishiv_spark.testing.subjects import SinkUnderTest
from krishiv_spark.testing.suites.base import ConnectorSuite
from krishiv_spark.testing.suites.playing import GOOD_EPOCH, STAGED, SinkPlayer
from krishiv_spark.testing.suites.sink_forgeries import skip_without_log

__all__ = ["SinkCopies"]

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
        play(*GOOD_EPOCH, copy, *STAGED, old, *GOOD_EPOCH)  # what is not visible may change

    def test_a_target_that_is_rolled_back_is_refused(
        self, play: SinkPlayer, declared: SinkUnderTest
    ) -> None:
        """A target that was restored from an older copy lacks epochs: to go on loses their rows.

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
