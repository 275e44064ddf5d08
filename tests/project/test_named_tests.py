"""Each test that a page names exists in the file that the page links."""

import re
from collections.abc import Iterator

import pytest
from wheels import ROOT

from krishiv_spark.formats import every_format

PAGES = ("docs/comparison.md", "docs/guarantees.md", "SECURITY.md")
LINKED = re.compile(r"\[`(test_\w+|Test\w+)`\]\(([\w./-]+\.py)\)")
PATH = re.compile(r"`(tests/[\w/]+\.py)`")


def named() -> Iterator[tuple[str, str, str]]:
    """Each test that a page names: the page, the file, and the name, empty for a whole file."""
    for page in PAGES:
        text = (ROOT / page).read_text()
        for name, link in LINKED.findall(text):
            file = ((ROOT / page).parent / link).resolve()
            yield page, file.relative_to(ROOT).as_posix(), name
        for file in PATH.findall(text):
            yield page, file, ""


NAMED = sorted(set(named()))


def test_each_page_names_tests():
    assert {page for page, _, _ in NAMED} == set(PAGES)


@pytest.mark.parametrize(("page", "file", "name"), NAMED)
def test_a_named_test_exists(page, file, name):
    text = (ROOT / file).read_text()
    assert re.search(rf"^\s*(def|class) {name}\b", text, re.MULTILINE), f"{page}: {file}::{name}"


def test_the_guarantees_have_a_row_for_each_format():
    rows = (ROOT / "docs/guarantees.md").read_text()
    sinks, sources = rows.split("## Sinks")[1].split("## Sources")
    for source in every_format():
        if source.writer_type is not None:
            row = re.search(rf"^\| `{source.format_name}` \|.*$", sinks, re.MULTILINE)
            assert row, source.format_name
            assert source.writer_type.guarantee.value in row[0]
        if source.reader_type is not None:
            streams = "-" if source.reader_type.only_batches else "replayable"
            assert f"| `{source.format_name}` | {streams} |" in sources
