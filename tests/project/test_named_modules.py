"""Names of modules and attributes in strings: what tests patch, what workers preload.

The type checkers find a renamed function where it is imported, but not in such a string, and a test
that is seldom run would fail only then.
"""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("krishiv_spark", "sinks", "sources", "offsets", "tests", "benchmarks", "servers")
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
            name = node.value if isinstance(node, ast.Constant) else None
            if isinstance(name, str) and DOTTED.fullmatch(name) and name not in INVENTED:
                yield name, f"{path.relative_to(ROOT)}:{node.lineno}"


NAMES = dict(_list_names())


@pytest.mark.parametrize("name", NAMES)
def test_a_name_in_a_string_exists(name: str) -> None:
    module, attributes = _import_longest(name)
    for attribute in attributes:
        assert hasattr(module, attribute), f"{NAMES[name]} names {name}, which does not exist"
        module = getattr(module, attribute)


def test_a_name_that_does_not_exist_is_found() -> None:
    assert "krishiv_spark.runtime.contact._contacted" in NAMES
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
