"""The commands ``krishiv-spark new``, for a new project, and ``doctor``, for a cluster."""

from __future__ import annotations

import re
import sys
import uuid
from collections.abc import Iterator, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import click

from krishiv_spark.errors import OptionError
from krishiv_spark.operate.commands.common import name_and_value, open_session, say, say_lines

__all__ = ["doctor", "new"]


_NAME = re.compile(r"[a-z][a-z0-9_]*")
_SUFFIX = ".template"
_TEMPLATES = Path(__file__).parents[2] / "templates"


@click.group()
def new() -> None:
    """Create a small project that runs without changes."""


_INTO = click.option(
    "--into", default=".", show_default=True, help="Parent folder of the new project."
)


@new.command()
@click.argument("name")
@_INTO
def connector(name: str, into: str) -> None:
    """Create a format of your own: a sink, a source, and tests that prove they lose nothing."""
    title = name.title().replace("_", "")
    example = {
        "examples.": "",
        "sqlite_sink": f"{name}_sink",
        "json_source": f"{name}_source",
        "SqliteDataSource": f"{title}DataSource",
        "SqliteSink": f"{title}Sink",
        "JsonSource": f"{title}Source",
        '"sqlite"': f'"{name}"',
        '"json-lines"': f'"{name}"',
        "json-lines:": f"{name}:",
    }
    _make("connector", name, into, example)


@new.command()
@click.argument("name")
@_INTO
def project(name: str, into: str) -> None:
    """Create a streaming query of your own, and a test that runs it."""
    _make("project", name, into, {})


def _make(kind: str, name: str, into: str, example: Mapping[str, str]) -> None:
    if not _NAME.fullmatch(name):
        raise OptionError(
            f"{name!r} is not a valid name: use lower-case letters, digits and '_', as in 'orders'"
        )
    folder = Path(into, name)
    if folder.exists():
        raise OptionError(f"{folder} exists already: give another name, or remove it")
    words = {**example, "Title": name.title().replace("_", ""), "NAME": name}
    for place, text in _templates(_TEMPLATES / kind):
        path = folder / place.replace("NAME", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(reduce(lambda said, word: said.replace(word, words[word]), words, text))
        say(path)


def _templates(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the files of a template, each with its destination."""
    for found in sorted(folder.rglob(f"*{_SUFFIX}")):
        yield found.relative_to(folder).as_posix().removesuffix(_SUFFIX), found.read_text()


_NAMED = "Further options of the query, each as name=value: storage.… or kafka.… settings."


@click.command()
@click.option("--checkpoint", help="Future checkpointLocation of the query.")
@click.option("--target", help="Folder or store URL that the query's tasks will write to.")
@click.option("--kafka", help="Kafka brokers, as host:port,...")
@click.option("--topic", help="Kafka topic that the query will write to.")
@click.option(
    "--command-config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with Kafka's TLS and SASL settings, one name=value per line.",
)
@click.option("-o", "--option", "given", multiple=True, help=_NAMED)
@click.option("--spark-remote", help="Spark Connect server, as sc://host:15002.")
@click.option(
    "--master",
    help="Spark master, as for spark-submit. Not needed under spark-submit, which sets it.",
)
@click.option("--conf", multiple=True, help="Spark setting, as name=value.")
@click.option(
    "--tasks",
    default=8,
    show_default=True,
    help="Number of probe tasks to run. Give the number of executor cores.",
)
def doctor(*, tasks: int, spark_remote: str | None, master: str | None, **said: Any) -> None:
    """Check driver and executors, and report missing requirements of exactly-once queries.

    The checks cover Python and package versions on every machine, clocks and free space; the
    checkpoint, whose store must create files exclusively; the target, which every task must
    reach; the Kafka brokers, their transaction settings, and the user's permissions there.

    The exit code is 1 if a query would fail.
    """
    from krishiv_spark.operate.doctor.examination import examine
    from krishiv_spark.operate.doctor.findings import Questions

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
    from krishiv_spark.sinks.kafka.admin import read_kafka_settings

    options = {name.lower(): text for name, text in map(name_and_value, given)}
    return options if brokers is None else {**read_kafka_settings(brokers, config), **options}
