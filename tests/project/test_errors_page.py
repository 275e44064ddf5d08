"""docs/errors.md: a section for each class of errors, with the messages that lack a remedy.

A message that contains its remedy needs no line on the page: the user follows the message.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from wheels import ROOT

PAGE = (ROOT / "docs" / "errors.md").read_text()
SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
SIGN = re.compile(r"`([^`]+)`")
LINES = re.MULTILINE | re.DOTALL
REMEDY = re.compile(
    r"(?:[:;.,] |\b(?:and|first|or|then) )(?:call|check|choose|compare|compute|continue|correct|"
    r"give|have|keep|let|make|move|put|raise|remove|repair|restart|restore|retry|run|see|set|"
    r"start|stop|upgrade|use|write)\b|'krishiv-spark log",
    re.IGNORECASE,
)
"""An imperative at the start of a clause, by which a message states what to do."""
NOT_USERS = ("krishiv_spark/operate/doctor", "krishiv_spark/kafka/dev", "krishiv_spark/testing")
OF_ALL_KINDS = {"KrishivError", "ManifestError", "OptionError", "QueryFailed", "SchemaError"}
"""Errors with too many texts: the page describes their common part."""


def sources() -> Iterator[tuple[str, ast.Module]]:
    for folder in ("krishiv_spark", "offsets", "sinks", "sources"):
        for path in (ROOT / folder).rglob("*.py"):  # which does not follow links
            name = str(path.relative_to(ROOT))
            if not name.startswith(NOT_USERS):
                yield name, ast.parse(path.read_text())


TREES = dict(sources())


def classes() -> set[str]:
    """Public ones that are errors of ours."""
    bases = {
        node.name: {base.id for base in node.bases if isinstance(base, ast.Name)}
        for tree in TREES.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    found = {"KrishivError"}
    while more := {name for name, of in bases.items() if of & found} - found:
        found |= more
    return {name for name in found if not name.startswith("_")}


def text_of(message: ast.expr) -> str:
    """Return the constant part of a message, without the values that are inserted."""
    if isinstance(message, ast.JoinedStr):
        return "".join(
            str(p.value) if isinstance(p, ast.Constant) else "{}" for p in message.values
        )
    return str(message.value) if isinstance(message, ast.Constant) else ""


def messages() -> dict[str, set[tuple[str, str]]]:
    """By class, where it is raised and with which text."""
    found = defaultdict(set)
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
                found[node.func.id].add((path, text_of(node.args[0])))
    return found


RAISED = messages()
TEXTS = [str(n.value) for t in TREES.values() for n in ast.walk(t) if isinstance(n, ast.Constant)]


def entries_of(name: str) -> list[str]:
    """Return the entries of its list: words of messages, the cause, and the remedy."""
    text = SECTIONS[name].split("<!-- end -->")[1]
    return [" ".join(entry.split()) for entry in re.findall(r"^\* (`.*?)(?=^\* |\Z)", text, LINES)]


def signs_of(name: str) -> list[str]:
    """Return the words of messages by which its list can be searched."""
    return [sign for entry in entries_of(name) for sign in SIGN.findall(entry.split("`:")[0] + "`")]


def test_each_class_has_a_section_and_no_other():
    assert SECTIONS.keys() == classes()


@pytest.mark.parametrize("name", sorted(SECTIONS))
def test_a_section_has_the_meaning_of_the_class_and_what_follows(name):
    generated, _, text = SECTIONS[name].partition("<!-- end -->")
    assert f"<!-- generated: error.{name} -->" in generated
    assert text.strip()
    assert all(re.search(r"`: \S", entry) for entry in entries_of(name))


@pytest.mark.parametrize("name", sorted(SECTIONS))
def test_the_words_of_a_message_are_in_one(name):
    missing = [sign for sign in signs_of(name) if not any(sign in text for text in TEXTS)]
    assert not missing


@pytest.mark.parametrize("name", sorted(SECTIONS.keys() - OF_ALL_KINDS))
def test_a_message_contains_its_remedy_or_is_in_the_section_of_its_class(name):
    # A message that consists of other texts, but for a word, is found by those.
    own = {one for one in RAISED[name] if len(re.findall(r"[a-z]{3,}", one[1])) > 1}
    own = {one for one in own if not REMEDY.search(one[1])}
    unknown = [one for one in own if not any(sign in one[1] for sign in signs_of(name))]
    assert not unknown


def test_a_message_without_a_remedy_is_noticed():
    assert not REMEDY.search("the table {} has a gap")
    assert REMEDY.search("the table {} has a gap: restore it from a backup")


def test_links_into_the_page_lead_to_sections():
    headings = re.findall(r"^##+ (.*)", PAGE, re.MULTILINE)
    anchors = {re.sub(r"\W+", "-", heading.lower()) for heading in headings}
    anchors |= {heading.lower() for heading in headings}  # GitHub keeps underscores
    for path in [*Path(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]:
        for anchor in re.findall(r"errors\.md#([\w-]+)", path.read_text()):
            assert anchor in anchors, (path, anchor)


@pytest.mark.parametrize(
    "name",
    [
        "DATA_SOURCE_NOT_FOUND",
        "JAVA_GATEWAY_EXITED",
        "ModuleNotFoundError in a task",
        "Python worker failed to connect back",
    ],
)
def test_the_first_errors_of_a_newcomer_are_there_by_the_names_that_spark_gives_them(name):
    assert f"\n### {name}\n" in PAGE
