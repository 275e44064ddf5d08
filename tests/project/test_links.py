"""Relative links of the pages lead to files and headings that exist, as GitHub names them."""

import re
from functools import cache
from pathlib import Path

import pytest
from wheels import ROOT

PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "model/*.md", "benchmarks/*.md")
    for page in ROOT.glob(pattern)
    if page.parent != ROOT / "docs" / "site"
)
FENCED = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s#:]*)(?:#([^)\s]*))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def slug(heading: str) -> str:
    """Return the anchor of a heading: lower case, without punctuation, blanks as hyphens."""
    shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", shown.strip().lower()).replace(" ", "-")


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of all headings of a page."""
    return frozenset(map(slug, HEADING.findall(FENCED.sub("", page.read_text()))))


def broken(page: Path) -> list[str]:
    """Return the links of a page that lead nowhere."""
    found = []
    for target, anchor in LINK.findall(FENCED.sub("", page.read_text())):
        wanted = (page.parent / target).resolve() if target else page
        if not wanted.exists() or (
            anchor and wanted.suffix == ".md" and anchor not in anchors(wanted)
        ):
            found.append(f"{target}#{anchor}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_link_leads_to_a_file_and_a_heading(page):
    assert broken(page) == []


def test_a_link_that_leads_nowhere_is_found(tmp_path):
    page = tmp_path / "a.md"
    page.write_text("# One `thing`, [linked](b.md)\n[x](#one-thing-linked) [y](#two) [z](c.md)\n")
    assert broken(page) == ["b.md#", "#two", "c.md#"]
