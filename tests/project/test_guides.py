"""Pages of formats have the same sections; recipes have valid Python and known options."""

import ast
import re
import textwrap

import pytest
from wheels import ROOT

from krishiv_spark.formats import every_format, route_names
from krishiv_spark.kafka.schemas.avro.avro_derive import DERIVED_TYPES
from krishiv_spark.kafka.schemas.json_schema.json_schema_encode import DERIVED_JSON_TYPES
from krishiv_spark.kafka.schemas.protobuf.protobuf_derive import DERIVED_PROTO_TYPES
from krishiv_spark.sinks.fanout.dead_letter_options import DeadLetterOptions

GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
FORMATS = [
    ROOT / "docs" / f"{name}.md" for name in ("console", "iceberg", "kafka", "memory", "parquet")
]
SECTIONS = [
    "Example", "Reading", "Writing", "What is guaranteed", "Options", "Common problems", "Limits",
]  # fmt: skip
_OTHERS = ("backfill", "dead-letters", "fanout")
PAGES = [*FORMATS, *GUIDES, *((ROOT / "docs" / f"{name}.md") for name in _OTHERS)]
BLOCK = re.compile(r"^( *)```python\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
WORDS = 450
SPARKS_OWN = {"columnnameofcorruptrecord"}
PREFIXES = ("catalog.", "kafka.", "spark.", "storage.", "tableproperty.")
OF_A_PART = re.compile(r"(route\.\w+|first|then|deadLetters)\.", re.IGNORECASE)


def options() -> set[str]:
    """Return the names of all options of all formats, in lower case."""
    models = (
        part.options_type
        for source in every_format()
        for part in (source.reader_type, source.writer_type)
        if part
    )
    models = (*models, DeadLetterOptions)
    return {"format", *(name.lower() for model in models for name in model.names())}


OPTIONS = options()


def code(page) -> list[ast.Module]:
    """Return the parsed blocks of Python of a page; one of `.option(...)` lines is a part."""
    texts = (textwrap.dedent(block) for _, block in BLOCK.findall(page.read_text()))
    return [ast.parse(f"(x\n{text})" if text.startswith(".") else text) for text in texts]


def given(tree: ast.Module) -> set[str]:
    """Return the names of the options that code sets by `option` and `options`."""
    names = set()
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            if call.func.attr == "option" and isinstance(call.args[0], ast.Constant):
                names.add(call.args[0].value)
            elif call.func.attr == "options":
                names |= {keyword.arg for keyword in call.keywords if keyword.arg}
    return names


@pytest.mark.parametrize("page", FORMATS, ids=lambda page: page.stem)
def test_a_page_of_a_format_has_the_sections_of_all(page):
    assert re.findall(r"^## (.+)$", page.read_text(), re.MULTILINE) == SECTIONS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_python_and_options_of_a_page_are_right(page):
    names = {name.lower() for tree in code(page) for name in given(tree)}
    own = {OF_A_PART.sub("", name) for name in names} - SPARKS_OWN
    assert {name for name in own if not name.startswith(PREFIXES)} <= OPTIONS


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_a_recipe_is_short_and_found(page):
    assert len(page.read_text().split()) <= WORDS
    name = page.name
    assert f"](guides/{name})" in (ROOT / "docs" / "index.md").read_text()
    assert f"guides/{name}" in (ROOT / "mkdocs.yml").read_text()


def test_each_option_has_a_row_in_a_table():
    pages = [page.read_text() for page in sorted((ROOT / "docs").glob("*.md"))]
    rows = re.findall(r"^\| ([^|]*) \|", "\n".join(pages), re.MULTILINE)
    shown = {name.lower() for row in rows for name in re.findall(r"`([^`]+)`", row)}
    in_prose = {"format", "streaming-max-files-per-micro-batch"}
    assert OPTIONS - in_prose <= shown


def test_the_page_of_the_fan_out_names_all_formats_that_can_be_routes():
    bullets = (ROOT / "docs" / "fanout.md").read_text().split("\n* ")
    line = next(text for text in bullets if text.startswith("**Routes**"))
    assert set(re.findall(r"`(krishiv-\w+)`", line)) == set(route_names())


def test_a_derived_schema_has_the_first_type_of_each_cell():
    """As the page states, with its exceptions."""
    page = (ROOT / "docs" / "kafka-schemas.md").read_text()
    rows = [line.split("|")[1:-1] for line in page.splitlines() if line.startswith("| `")]
    cells = {row[0].strip(" `"): row[1:] for row in rows}
    others, numbers = {"TINYINT", "SMALLINT", "VOID"}, {"INT", "FLOAT"}
    forms = (
        (DERIVED_TYPES, others),
        (DERIVED_PROTO_TYPES, others),
        (DERIVED_JSON_TYPES, others | numbers),
    )
    for column, (derived, exceptions) in enumerate(forms):
        for name, _, form in derived:
            if name in exceptions:
                continue
            words = re.findall(r"[\w-]+", cells[name][column])
            text = form.rpartition(".")[2] if isinstance(form, str) else None
            if isinstance(form, dict):
                text = form.get("logicalType", form["type"])
                assert set(form.values()) <= {text, *words, form["type"]}
            assert words[0] == text, name
