"""Connections of one's own to brokers: which there are. What they do, tests/brokers has."""

import socket

from krishiv_spark.kafka.direct import DirectLines, OpenConnection


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
