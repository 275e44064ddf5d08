"""The option ``--spark``: load it with ``pytest -p krishiv_spark.testing.plugin``."""

from __future__ import annotations

import pytest

__all__ = ["pytest_addoption"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Pytest's hook."""
    parser.addoption(
        "--spark", action="store_true", help="conformance kit: run the cases on real Spark too"
    )
