"""``krishiv-spark dev``: real systems on loopback."""

from __future__ import annotations

import contextlib
import signal
import threading

import click

from krishiv_spark.operate.commands.common import say

__all__ = ["dev"]


@click.group()
def dev() -> None:
    """Real systems on loopback, for development and tests."""


@dev.command("kafka")
@click.option("--brokers", default=1, show_default=True, help="How many.")
@click.option("--secure", is_flag=True, help="Listen with TLS and SASL too.")
def dev_kafka(brokers: int, *, secure: bool) -> None:
    """Run Apache Kafka until Ctrl-C.

    It is KRISHIV_TEST_KAFKA if that is set, or a container, or a process with Kafka's own jars;
    with --secure always the last. Then what is printed is for SCRAM-SHA-512; PLAIN works too.
    """
    from krishiv_spark.kafka.dev import open_cluster

    _end_on_signals()
    # Or nothing would be shown for a minute, while jars are downloaded.
    with open_cluster(brokers, secure=secure, tell=lambda line: say(line, err=True)) as cluster:
        way_in = cluster.secure.options() if cluster.secure else {}
        for name, text in {"kafka.bootstrap.servers": cluster.bootstrap, **way_in}.items():
            say(f"{name} = {text}")
        if secure:
            say(f"without TLS and SASL: {cluster.bootstrap}", err=True)
        say(f"{cluster.origin}; Ctrl-C ends it", err=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


def _end_on_signals() -> None:
    """End on SIGTERM and SIGHUP as on Ctrl-C: brokers are killed, and their folder is removed."""

    def end(number: int, frame: object) -> None:
        del number, frame
        raise KeyboardInterrupt

    for name in ("SIGTERM", "SIGHUP"):
        if (known := getattr(signal, name, None)) is not None:  # Windows has no SIGHUP
            signal.signal(known, end)
