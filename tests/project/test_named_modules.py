"""Names of modules and attributes in strings: what tests patch, preload, or run as a script.

The type checkers find a renamed function where it is imported, but not in such a string, and a test
that is seldom run would fail only then.
"""

import ast
import importlib
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("krishiv_spark", "sinks", "sources", "offsets", "tests", "benchmarks", "servers")
PACKAGE = "krishiv_spark"
DOTTED = re.compile(r"krishiv_spark(\.[A-Za-z_]\w*)+")
INVENTED = {
    "krishiv_spark.map_entries",  # a name of a column
    "krishiv_spark.stores",  # a group of entry points
    "krishiv_spark.sinks.logs",
    "krishiv_spark.somewhere",
    "krishiv_spark.module",
    "krishiv_spark.runtime.x",
}


def _list_names() -> Iterator[tuple[str, str]]:
    files = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    for path in sorted(files):
        for node in ast.walk(ast.parse(path.read_text())):
            text = node.value if isinstance(node, ast.Constant) else None
            if not isinstance(text, str):
                continue
            for name in [text] if DOTTED.fullmatch(text) else _list_names_in_script(text):
                if name not in INVENTED:
                    yield name, f"{path.relative_to(ROOT)}:{node.lineno}"


def _list_names_in_script(text: str) -> Iterator[str]:
    """Yield the names that a string imports or uses, if it is a script that imports the package."""
    try:
        script = ast.parse(textwrap.dedent(text)) if "import" in text and PACKAGE in text else None
    except SyntaxError:  # prose, or a form that is filled in
        script = None
    nodes = list(ast.walk(script)) if script else []
    imported = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
            for alias in node.names:
                imported[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    yield from (name for name in imported.values() if not name.endswith("*"))
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = imported.get(node.value.id)
            yield from [f"{owner}.{node.attr}"] if owner else []


NAMES = dict(_list_names())


@pytest.mark.parametrize("name", NAMES)
def test_a_name_in_a_string_exists(name: str) -> None:
    module, attributes = _import_longest(name)
    for attribute in attributes:
        assert hasattr(module, attribute), f"{NAMES[name]} names {name}, which does not exist"
        module = getattr(module, attribute)


def test_a_name_that_does_not_exist_is_found() -> None:
    assert "krishiv_spark.runtime.contact._contacted" in NAMES  # patched by tests/conftest.py
    assert "krishiv_spark.operate.moving.replaying.QueryReplay" in NAMES  # in a script
    assert _import_longest("krishiv_spark.runtime.x")[1] == ["x"]


def _import_longest(name: str) -> tuple[object, list[str]]:
    """Return the module that a name begins with, and the attributes after it."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        module = ".".join(parts[:count])
        try:
            return importlib.import_module(module), parts[count:]
        except ModuleNotFoundError as error:
            if not f"{module}.".startswith(f"{error.name}."):  # a package of an extra
                raise
    raise AssertionError(name)
