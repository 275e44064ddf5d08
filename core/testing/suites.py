"""What all suites share: the promise of a case, and the door to real Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from krishiv_spark.testing.spark import SparkDriver

__all__ = ["Suite"]


class Suite:
    """Fixtures of every suite."""

    @pytest.fixture
    def promise(self, request: pytest.FixtureRequest) -> str:
        """What the case is after: its docstring."""
        return " ".join((request.function.__doc__ or request.node.name).split())

    @pytest.fixture
    def spark_driver(
        self, request: pytest.FixtureRequest, promise: str, tmp_path: Path
    ) -> SparkDriver:
        """Real Spark, if it was asked for."""
        if not request.config.getoption("--spark", default=False):
            pytest.skip("real Spark: give -p krishiv_spark.testing.plugin --spark")
        (tmp_path / "spark").mkdir()
        return SparkDriver(tmp_path / "spark", promise)
