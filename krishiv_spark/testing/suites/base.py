"""What all suites share: the promise of a case, the player, and the door to real Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import pytest

from krishiv_spark.testing.real_spark.driver import SparkDriver
from krishiv_spark.testing.steps import Sequence
from krishiv_spark.testing.suites.playing import Player, Subject

__all__ = ["ConnectorSuite", "Suite", "of_batches"]

CaseT = TypeVar("CaseT", bound=Callable[..., None])


def of_batches(case: CaseT) -> CaseT:
    """Mark a case that says something about a connector without streams too."""
    case.__dict__["of_batches"] = True
    return case


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
    def draw(self, request: pytest.FixtureRequest) -> int:
        """Which ones."""
        given: int | None = request.config.getoption("--draw", default=None)
        return given or 0

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
    def play(
        self, request: pytest.FixtureRequest, promise: str, one_in: int, draw: int, tmp_path: Path
    ) -> Iterator[Player[Subject]]:
        """The player of a case."""
        player = self.player(tmp_path, promise)
        player.thin(one_in, draw)
        player.wants_streams = not hasattr(request.function, "of_batches")
        yield player
        player.close()

    @pytest.fixture
    def declared(self, play: Player[Subject]) -> Subject:
        """A connector that nobody uses, to ask for its abilities."""
        return play.new()[0]

    @of_batches
    def test_sequences_that_failed_once(self, play: Any) -> None:
        """What was found once stays mended."""
        for sequence in self.sequences:
            play(*sequence, **sequence.how)
