"""``krishiv-spark doctor``: what a cluster lacks."""

from __future__ import annotations

import sys
import uuid
from pathlib import Path
from typing import Any

import click

from krishiv_spark.operate.commands.common import name_and_value, open_session, say_lines

__all__ = ["doctor"]

_NAMED = "Further options of the query, as name=value: storage.…, kafka.…"


@click.command()
@click.option("--checkpoint", help="Where the checkpointLocation of a query will be.")
@click.option("--target", help="Where its tasks will write files: a folder, or in a store.")
@click.option("--kafka", help="Brokers, as host:port,...")
@click.option("--topic", help="Topic that will be written.")
@click.option(
    "--command-config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with Kafka's settings for TLS and SASL, one name=value in a line.",
)
@click.option("-o", "--option", "given", multiple=True, help=_NAMED)
@click.option("--spark-remote", help="Spark Connect, as sc://host:15002.")
@click.option("--master", help="As for spark-submit, which gives it if it runs this.")
@click.option("--conf", multiple=True, help="A setting of Spark, as name=value.")
@click.option("--tasks", default=8, show_default=True, help="How many; as many as there are cores.")
def doctor(*, tasks: int, spark_remote: str | None, master: str | None, **said: Any) -> None:
    """Look at driver and executors, and say what is missing for exactly-once queries.

    What is looked at: whether Python and packages are the same everywhere, clocks, free space;
    the checkpoint, whose store must create a file exclusively; the target, which every task has to
    find; brokers, their rules of transactions, and what the user may do there.

    The exit code is 1 if something will fail.
    """
    from krishiv_spark.operate.doctor.examining import examine
    from krishiv_spark.operate.doctor.questions import Questions

    asked = Questions(
        probe=uuid.uuid4().hex,
        checkpoint=said["checkpoint"],
        target=said["target"],
        topic=said["topic"],
        options=_options(said["kafka"], said["command_config"], said["given"]),
        tasks=tasks,
    )
    conf = dict(map(name_and_value, said["conf"]))
    found = examine(open_session(spark_remote, master, conf, "krishiv-spark doctor"), asked)
    say_lines(found)
    sys.exit(any(line.level == "WRONG" for line in found))


def _options(brokers: str | None, config: Path | None, given: tuple[str, ...]) -> dict[str, str]:
    from krishiv_spark.sinks.kafka.admin import kafka_settings

    options = {name.lower(): text for name, text in map(name_and_value, given)}
    return options if brokers is None else {**kafka_settings(brokers, config), **options}
