"""Connections of one's own to brokers: which there are. What they do, tests/brokers has."""

import contextlib
import socket

from kafka.errors import KafkaTimeoutError
from kafka.protocol.metadata import MetadataRequest
from patience import await_that
from scripted_broker import ScriptedBroker

from krishiv_spark.kafka.connection import Connection
from krishiv_spark.kafka.direct import DirectLines, OpenConnection
from krishiv_spark.kafka.network import Network


def test_one_that_was_begun_twice_is_asked_for_again_once_it_has_ended():
    begun = []
    lines = DirectLines(begun.append)
    ours, theirs = socket.socketpair()
    with theirs:
        ours.settimeout(0)
        while len(begun) < 2:  # the second before the first is open
            assert lines.to(1) is None
        lines.add(1, OpenConnection(ours, None, None, 1.0, 60.0, 1e9))
        lines.add(1, None)  # of two that wait for one connection, the first takes it out
        lines.to(1).close()
        for _ in range(20):
            assert lines.to(1) is None
    assert len(begun) > 2


def test_a_link_that_has_dropped_what_was_idle_is_waited_for_once():
    """Both connections are gone, and neither end was told: the second try goes over a third."""
    with contextlib.closing(ScriptedBroker()) as broker:
        settings = {"bootstrap.servers": f"127.0.0.1:{broker.port}", "request.timeout.ms": "1000"}
        network = Network(Connection.of(settings).values)
        with contextlib.closing(network):
            network.bootstrap(10)
            await_that(lambda: metadata(network) and network._direct._lines)
            broker.drop()
            assert isinstance(metadata(network), KafkaTimeoutError)
            assert metadata(network).brokers


def metadata(network):
    (answer,) = network.ask([(1, MetadataRequest(topics=[], max_version=1))], 5.0)
    return answer
