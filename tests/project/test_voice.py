"""Texts that users read are sentences, and phrases of the old dialect become fewer."""

import ast
from collections.abc import Iterator

import click
import pytest
from voice import (
    PHRASES,
    count_phrases,
    docstrings,
    find_fragments,
    question_docstrings,
    read_recorded_counts,
)

from krishiv_spark.cli import main
from krishiv_spark.formats import every_format
from krishiv_spark.jobs import job_schema
from krishiv_spark.metrics.definitions import METRICS
from krishiv_spark.storage.base import store_kinds, store_type

_RENEW = "./run python tests/support/voice.py"


def _commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from _commands(below, f"{path} {name}")


def _help_texts() -> Iterator[tuple[str, str]]:
    for path, command in _commands(main, "krishiv-spark"):
        yield path, command.help or ""
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                yield f"{path} {parameter.opts[0]}", parameter.help or ""


def _option_texts() -> Iterator[tuple[str, str]]:
    models = {store_type(kind).settings_type for kind in store_kinds()}
    for source in every_format():
        for kind in (source.reader_type, source.writer_type):
            if kind is not None:
                models.add(kind.options_type)
    for model in sorted(models, key=lambda one: one.__qualname__):
        for name, field in model.user_options().items():
            yield f"{model.__qualname__} {name}", model.model_fields[field].description or ""


def _job_texts(schema: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield every description; properties that are named so are models, not texts."""
    if isinstance(schema, list):
        for part in schema:
            yield from _job_texts(part, path)
    elif isinstance(schema, dict):
        if isinstance(text := schema.get("description"), str):
            yield path, text
        for key, part in schema.items():
            if key == "default":
                continue
            yield from _job_texts(part, f"{path}/{key}")


def _metric_texts() -> Iterator[tuple[str, str]]:
    return ((metric.name, metric.says) for metric in METRICS)


def _faults(texts: Iterator[tuple[str, str]]) -> list[str]:
    return [f"{name}: {fault}: {text}" for name, text in texts for fault in find_fragments(text)]


def test_help_texts_are_sentences() -> None:
    assert _faults(_help_texts()) == []


def test_descriptions_of_options_are_sentences() -> None:
    assert _faults(_option_texts()) == []


def test_descriptions_in_the_job_schema_are_sentences() -> None:
    assert _faults(_job_texts(job_schema())) == []


def test_descriptions_of_metrics_are_sentences() -> None:
    assert _faults(_metric_texts()) == []


@pytest.mark.parametrize(
    "text",
    [
        "How many.",
        "From look to look.",
        "Of the view. It is new.",
        "Rows that were read",
        "The name. Which source it is.",
        "number of rows to read.",
    ],
)
def test_a_fragment_is_found(text: str) -> None:
    assert find_fragments(text)


def test_no_docstring_starts_with_a_question_word() -> None:
    """A function's summary starts with a verb, that of anything else with a noun."""
    assert question_docstrings() == []


def test_docstrings_of_attributes_are_found() -> None:
    code = 'FOLDER = "a"\n"""Where files are."""\n\ndef name():\n    """Return it."""\n'
    assert list(docstrings(ast.parse(code))) == [(2, "Where files are."), (5, "Return it.")]


def test_phrases_of_the_old_dialect_become_fewer() -> None:
    """A file with more of a phrase is reworded; with fewer, the record is renewed."""
    now, before = count_phrases(), read_recorded_counts()
    changed = {
        f"{file}: {phrase!r}: {was} -> {count}"
        for file in now.keys() | before.keys()
        for phrase in PHRASES
        if (count := now.get(file, {}).get(phrase, 0))
        != (was := before.get(file, {}).get(phrase, 0))
    }
    assert not changed, f"reword what rose, then renew the record: {_RENEW}"
