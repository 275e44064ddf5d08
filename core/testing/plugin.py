"""The kit's options: load them with ``pytest -p krishiv_spark.testing.plugin``."""

from __future__ import annotations

import pytest

__all__ = ["pytest_addoption"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Pytest's hook."""
    parser.addoption(
        "--spark", action="store_true", help="conformance kit: run the cases on real Spark too"
    )
    parser.addoption(
        "--one-in",
        type=int,
        default=1,
        metavar="N",
        help="conformance kit: go wrong at one in N of the calls to the outside, and try one in N "
        "of the random sequences: a quick look between two changes. A connector is proven by the "
        "default, which is all of them",
    )
