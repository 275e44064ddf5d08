"""Connections of one's own to brokers: which there are. What they do, tests/brokers has."""

import contextlib
import socket

from kafka.errors import KafkaTimeoutError
from kafka.protocol.metadata import MetadataRequest
from patience import await_that
from scripted_broker import ScriptedBroker

from krishiv_spark.kafka._kafka_python import OpenConnection
from krishiv_spark.kafka.config import KafkaConfig
from krishiv_spark.kafka.transport import BlockingConnections, Transport


def ask(lines, times):
    for _ in range(times):
        assert lines.get(1) is None


def test_one_is_opened_at_a_time_and_again_once_it_has_ended():
    opened = []
    lines = BlockingConnections(opened.append)
    ours, theirs = socket.socketpair()
    with theirs:
        ours.settimeout(0)
        ask(lines, 50)
        assert opened == [1]
        lines.add(1, OpenConnection(ours, None, None, 1.0, 60.0, 1e9))
        lines.get(1).close()
        ask(lines, 20)
    assert opened == [1, 1]


def test_a_broker_that_refuses_one_is_left_alone_for_a_thousand_messages():
    opened = []
    lines = BlockingConnections(opened.append)
    ask(lines, 20)
    lines.add(1, None)
    ask(lines, 900)
    assert opened == [1]
    ask(lines, 200)
    assert opened == [1, 1]


def test_a_link_that_has_dropped_what_was_idle_is_waited_for_once():
    """Both connections are gone, and neither end was told: the second try goes over a third."""
    with contextlib.closing(ScriptedBroker()) as broker:
        settings = {"bootstrap.servers": f"127.0.0.1:{broker.port}", "request.timeout.ms": "1000"}
        network = Transport(KafkaConfig.from_settings(settings).values)
        with contextlib.closing(network):
            network.bootstrap(10)
            await_that(lambda: metadata(network) and network._blocking._connections)
            broker.drop()
            assert isinstance(metadata(network), KafkaTimeoutError)
            assert metadata(network).brokers


def metadata(network):
    (answer,) = network.ask([(1, MetadataRequest(topics=[], max_version=1))], 5.0)
    return answer
