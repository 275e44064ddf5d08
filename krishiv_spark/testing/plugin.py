"""The kit's options: load them with ``pytest -p krishiv_spark.testing.plugin``."""

from __future__ import annotations

import secrets

import pytest

__all__ = [
    "pytest_addoption",
    "pytest_configure",
    "pytest_report_header",
    "pytest_terminal_summary",
]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the kit's options; a hook of pytest."""
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
    parser.addoption(
        "--draw",
        type=int,
        metavar="SEED",
        help="conformance kit: seed of the draw of --one-in; default: a new seed in each run",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Set defaults; a hook of pytest. Workers of pytest-xdist get the options that result."""
    if config.option.draw is None:
        config.option.draw = secrets.randbelow(1_000_000)


def pytest_report_header(config: pytest.Config) -> str | None:
    """Report the draw; a hook of pytest."""
    return _drawn(config)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Report the draw after failures, which may need it to be repeated; a hook of pytest."""
    drawn = _drawn(config)
    if drawn and terminalreporter.stats.get("failed"):
        terminalreporter.write_line(drawn)


def _drawn(config: pytest.Config) -> str | None:
    one_in = config.getoption("--one-in")
    if one_in == 1:
        return None
    return f"conformance kit: --one-in {one_in} --draw {config.getoption('--draw')}"
