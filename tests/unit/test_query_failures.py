"""Errors of Spark after the end of a Python process, after which a query may start again."""

from types import SimpleNamespace

import pytest

from krishiv_spark import queries
from krishiv_spark.errors import QueryFailed
from krishiv_spark.queries.failures import failure_of
from krishiv_spark.queries.restarting import Restarts

FAILED = "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: "


@pytest.mark.parametrize(
    "text",
    [
        f"{FAILED} SQLSTATE: XXKST",
        f"{FAILED}Connection reset SQLSTATE: XXKST",
        "Stream closed",
        "Job aborted\njava.io.IOException: Stream closed",
        "Connection reset\n=== Streaming Query ===\nIdentifier: [id = 1, runId = 2]",
        "Connection reset by peer === Streaming Query ===",
        "org.apache.spark.SparkException: x\nCaused by: java.net.SocketException: Broken pipe",
        "Python worker exited unexpectedly (crashed)",
    ],
)
def test_the_end_of_a_python_process_passes(text):
    failure = failure_of(RuntimeError(text))
    assert failure.passes
    assert failure.line.startswith("a Python process of Spark has ended")


@pytest.mark.parametrize(
    "text",
    [
        f"{FAILED}[DIVIDE_BY_ZERO] Division by zero SQLSTATE: XXKST",
        "the function said: Connection reset",
        "Connection reset of the counter is not allowed",
    ],
)
def test_another_error_does_not_pass(text):
    assert not failure_of(RuntimeError(text)).passes


# --- restarts

AWAY = QueryFailed("no broker", passes=True)


@pytest.mark.parametrize("pause", [0, 1, 1e-9])
def test_a_pause_stays_at_its_longest_however_often_a_query_fails(pause):
    policy = Restarts(1_000_000, pause, 60)
    pauses = [policy.pause_after(AWAY, "rows", progressed=False) for _ in range(1100)]
    assert pauses[-1] == (60 if pause else 0)
    assert pauses == sorted(pauses)


def test_a_function_whose_own_read_fails_for_a_while_is_called_again():
    """The schema of its source comes from a catalog that is away at the restart."""
    ended = SimpleNamespace(await_termination=lambda: True)
    outcomes = [RuntimeError("krishiv_spark.errors.CatalogFailedError: x"), ended]

    def make():
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    assert queries.run(make, pause=0) is ended
    outcomes[:] = [RuntimeError("krishiv_spark.errors.OptionError: x"), ended]
    with pytest.raises(RuntimeError, match="OptionError"):
        queries.run(make, pause=0)
    assert outcomes == [ended]
