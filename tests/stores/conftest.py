"""Each store that a checkpoint can lie on, started once for each process of the tests."""

import uuid
from dataclasses import replace
from pathlib import Path

import pytest
from store_or_skip import open_when_possible

from krishiv_spark.kafka.dev import open_cluster
from krishiv_spark.kafka.records import warm_up
from krishiv_spark.testing.suites.base import ConnectorSuite
from servers.stores import OPENED, Store

FOLDER = Path(__file__).parent
BROUGHT = {"azure", "gcs", "hdfs", "versity"}
"""Stores whose servers are built or downloaded first; moto is there with the other packages."""


@pytest.fixture(scope="session")
def servers(tmp_path_factory):
    """By kind, a store, which is started when it is first asked for."""
    started = {}

    def started_once(kind: str) -> Store:
        if kind not in started:
            context = open_when_possible(kind, tmp_path_factory.mktemp(kind))
            started[kind] = (context, context.__enter__())
        return started[kind][1]

    yield started_once
    for context, _ in started.values():
        context.__exit__(None, None, None)


@pytest.fixture(params=[pytest.param(kind, marks=pytest.mark.xdist_group(kind)) for kind in OPENED])
def store(request, servers) -> Store:
    """A place of its own in each of the stores."""
    found = servers(request.param)
    url = f"{found.url}/{uuid.uuid4().hex}"
    return replace(found, url=url)


@pytest.fixture(scope="session")
def cluster():
    """Kafka's, for what keeps only its log in a store."""
    warm_up()  # here, so that no process of the kit loads compiled code
    with open_cluster() as found:
        yield found


@pytest.hookimpl(tryfirst=True)  # xdist names the groups after that
def pytest_collection_modifyitems(items):
    """The kit's suites go first, then `own_process`: obstore's threads do not survive their forks.

    In groups of their own, since a worker takes one group after the other; in their order with
    ``--no-loadscope-reorder``, else the largest first. What only other stores than S3 show is long.
    """
    items.sort(key=lambda item: (not _is_of_kit(item), not _is_forked(item)))
    for item in items:
        if FOLDER not in item.path.parents:
            continue  # pytest passes the tests of all folders of a run
        if _is_of_kit(item):
            item.add_marker(pytest.mark.xdist_group("kit"))
        elif _is_forked(item):  # its first group counts
            item.add_marker(pytest.mark.xdist_group("own_process"), append=False)
        if not BROUGHT.isdisjoint(_list_kinds(item)):
            item.add_marker(pytest.mark.long)


def _list_kinds(item):
    """Yield the groups and the parameters that are texts: the kind of its store is among them."""
    yield from (mark.args[0] for mark in item.iter_markers("xdist_group"))
    params = item.callspec.params.values() if hasattr(item, "callspec") else ()
    for value in params:
        kind = value[0] if isinstance(value, tuple) and value else value
        if isinstance(kind, str):
            yield kind


def _is_of_kit(item):
    return issubclass(item.cls or object, ConnectorSuite)


def _is_forked(item):
    return item.get_closest_marker("own_process") is not None
