"""Errors of Spark after the end of a Python process, after which a query may start again."""

import pytest

from krishiv_spark.queries.failures import failure_of

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
