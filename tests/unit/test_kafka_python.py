"""The private parts of kafka-python that are used: a version without one must be noticed."""

import inspect
import socket

import pytest
from kafka.net.connection import KafkaConnection, SaslReauthenticator
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.net.transport import KafkaTCPTransport
from kafka.protocol.frame import KafkaBytes
from kafka.protocol.parser import KafkaProtocol


@pytest.fixture
def selector():
    found = NetworkSelector()
    yield found
    found.close()


def test_the_thread_of_the_connections(selector):
    selector.start()
    assert selector._io_thread.is_alive()
    assert selector._exception is None
    selector.stop()


def test_where_transports_are_made():
    assert callable(KafkaConnectionManager._build_transport)


def test_where_connections_are_kept(selector):
    manager = KafkaConnectionManager(selector, bootstrap_servers="127.0.0.1:1")
    assert manager._conns == {}


def test_transports(selector):
    ours, theirs = socket.socketpair()
    with theirs:
        transport = KafkaTCPTransport(selector, ours)
        assert transport._sock is ours
        assert transport._writing is False
        assert transport._protocol is None
        assert callable(transport._sock_recv)
        assert transport.last_write > 0
        assert transport.last_read > 0
        transport.close()


def test_connections_that_are_taken_out(selector):
    ours, theirs = socket.socketpair()
    with theirs, ours:
        connection = KafkaConnection(selector, node_id=1)
        assert connection._reauth.session_lifetime_ms == 0
        transport = KafkaTCPTransport(selector, ours)
        connection.connection_made(transport)
        selector.poll(timeout_ms=1)
        selector.cancel(transport._read_task)
        transport._read_task = transport._sock = None
        connection.close()
        theirs.send(b"\0")
        selector.poll(timeout_ms=50)
        assert ours.recv(10) == b"\0"  # nobody else took it, nor closed it
        assert connection.closed


def test_each_login_of_a_connection_goes_through_one_method(selector):
    connection = KafkaConnection(selector, node_id=1)
    assert inspect.iscoroutinefunction(connection._sasl_authenticate)
    for caller in (KafkaConnection.initialize, SaslReauthenticator._do_reauth):
        assert "._sasl_authenticate(" in inspect.getsource(caller)


def test_parsers():
    parser = KafkaProtocol(client_id="x")
    assert parser._rbuffer is None
    assert isinstance(KafkaBytes(4), bytearray)
