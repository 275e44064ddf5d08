"""What all suites share: the promise of a case, the player, and the door to real Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Generic

import pytest

from krishiv_spark.testing.real_spark.driver import SparkDriver
from krishiv_spark.testing.steps import Sequence
from krishiv_spark.testing.suites.playing import Player, Subject

__all__ = ["ConnectorSuite", "Suite"]


class Suite:
    """Fixtures of every suite."""

    @pytest.fixture
    def promise(self, request: pytest.FixtureRequest) -> str:
        """What the case is after: its docstring."""
        return " ".join((request.function.__doc__ or request.node.name).split())

    @pytest.fixture
    def one_in(self, request: pytest.FixtureRequest) -> int:
        """One in how many traps and random sequences is tried."""
        given: int | None = request.config.getoption("--one-in", default=None)
        return given or 1

    @pytest.fixture
    def spark_driver(
        self, request: pytest.FixtureRequest, promise: str, tmp_path: Path
    ) -> SparkDriver:
        """Real Spark, if it was asked for."""
        if not request.config.getoption("--spark", default=False):
            pytest.skip("real Spark: give -p krishiv_spark.testing.plugin --spark")
        (tmp_path / "spark").mkdir()
        return SparkDriver(tmp_path / "spark", promise)


class ConnectorSuite(Suite, Generic[Subject]):
    """A suite that plays sequences on connectors.

    Attributes:
        random_sequences: How many random sequences are tried.
        sequences: Sequences that failed once; they are tried again every time.
    """

    random_sequences: ClassVar[int] = 50
    sequences: ClassVar[Iterable[Sequence]] = ()

    def player(self, folder: Path, promise: str) -> Player[Subject]:
        """Plays the sequences of one case."""
        raise NotImplementedError

    @pytest.fixture
    def play(self, promise: str, one_in: int, tmp_path: Path) -> Iterator[Player[Subject]]:
        """The player of a case."""
        player = self.player(tmp_path, promise)
        player.one_in = one_in
        yield player
        player.close()

    @pytest.fixture
    def declared(self, play: Player[Subject]) -> Subject:
        """A connector that nobody uses, to ask for its abilities."""
        return play.new()[0]

    def test_sequences_that_failed_once(self, play: Any) -> None:
        """What was found once stays mended."""
        for sequence in self.sequences:
            play(*sequence, **sequence.how)
