"""One broker for a whole run of the tests, for those that neither kill it nor configure it.

A broker costs about eight seconds of processor time to start, and forty files of tests use one.
`./run test` sets KRISHIV_SHARED_BROKER for the parts that need it; where a test is run alone,
`open_cluster()` starts a broker for it.
"""

import os
from contextlib import ExitStack

import pytest

from krishiv_spark.kafka.dev import open_cluster

_BROKER = pytest.StashKey[ExitStack]()
_PATIENT = {"broker.session.timeout.ms": "120000"}
"""After `--all` it has thousands of topics on a busy machine: a pause must not fence it."""


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Start it in the process that starts the workers of xdist, which inherit its address."""
    shared = os.environ.pop("KRISHIV_SHARED_BROKER", None)
    if not shared or "KRISHIV_TEST_KAFKA" in os.environ or config.option.collectonly:
        return
    stack = config.stash[_BROKER] = ExitStack()
    cluster = stack.enter_context(open_cluster(settings=_PATIENT))
    os.environ["KRISHIV_TEST_KAFKA"] = cluster.bootstrap
    stack.callback(os.environ.pop, "KRISHIV_TEST_KAFKA")


def pytest_unconfigure(config: pytest.Config) -> None:
    """End it after the last worker."""
    if _BROKER in config.stash:
        config.stash[_BROKER].close()
