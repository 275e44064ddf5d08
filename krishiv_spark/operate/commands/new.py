"""``krishiv-spark new``: small projects that run as they are."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import reduce
from pathlib import Path

import click

from krishiv_spark.errors import OptionError
from krishiv_spark.operate.commands.common import say

__all__ = ["new"]

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_SUFFIX = ".template"
_TEMPLATES = Path(__file__).parents[2] / "templates"


@click.group()
def new() -> None:
    """Make a folder with a small project that runs as it is."""


_INTO = click.option("--into", default=".", show_default=True, help="Where the folder is made.")


@new.command()
@click.argument("name")
@_INTO
def connector(name: str, into: str) -> None:
    """A format of your own: a sink, a source, and the proof that they lose nothing."""
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
    """A stream of yours, and a test that runs it."""
    _make("project", name, into, {})


def _make(kind: str, name: str, into: str, example: Mapping[str, str]) -> None:
    if not _NAME.fullmatch(name):
        raise OptionError(
            f"{name!r} is no name: lower-case letters, digits and '_', as in 'orders'"
        )
    folder = Path(into, name)
    if folder.exists():
        raise OptionError(f"{folder} is there already: give another name, or remove it")
    words = {**example, "Title": name.title().replace("_", ""), "NAME": name}
    for place, text in _templates(_TEMPLATES / kind):
        path = folder / place.replace("NAME", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(reduce(lambda said, word: said.replace(word, words[word]), words, text))
        say(path)


def _templates(folder: Path) -> Iterator[tuple[str, str]]:
    """The files of a template, each with where it goes."""
    for found in sorted(folder.rglob(f"*{_SUFFIX}")):
        yield found.relative_to(folder).as_posix().removesuffix(_SUFFIX), found.read_text()
