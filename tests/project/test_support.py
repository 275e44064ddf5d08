"""The support code of the tests: modules are found by name, and all imported names exist.

A test that runs with `--all` only would fail there if a helper that it imports was renamed.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import tomli
from wheels import ROOT

SUPPORT = ROOT / "tests" / "support"
FOLDERS = [SUPPORT, *(path for path in SUPPORT.iterdir() if path.is_dir() and path.name[0] != "_")]
MODULES = {
    path.stem: path / "__init__.py" if path.is_dir() else path
    for folder in FOLDERS
    for path in folder.iterdir()
    if path not in FOLDERS and (path.suffix == ".py" or (path / "__init__.py").exists())
}


def test_each_folder_is_in_the_path():
    settings = tomli.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    assert {ROOT / path for path in settings["pythonpath"]} == {ROOT, *FOLDERS}


def test_names_of_modules_are_unique():
    names = Counter(path.stem for folder in FOLDERS for path in folder.glob("*.py"))
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("path", sorted((ROOT / "tests").rglob("*.py")), ids=lambda path: path.name)
def test_what_is_imported_from_it_exists(path: Path):
    missing = {
        f"{path.relative_to(ROOT)}:{line}: {module}.{name}"
        for line, module, name in list_imports(path)
        if name not in list_names(MODULES[module])
    }
    assert not missing


def list_imports(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the module and the name of each import of a name of the support code."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module in MODULES and not node.level:
            yield from ((node.lineno, node.module, alias.name) for alias in node.names)


@cache
def list_names(path: Path) -> frozenset[str]:
    """Return the names that a module or a package defines or imports, at any depth."""
    names = {child.stem for child in path.parent.iterdir()} if path.stem == "__init__" else set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update(alias.asname or alias.name for alias in node.names)
    return frozenset(names)
