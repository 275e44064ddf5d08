"""The syntax trees of the repository's modules, each parsed once in a run."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path


@cache
def parse_module(path: Path) -> ast.Module:
    """Return the tree of a module, which callers must not change."""
    return ast.parse(path.read_text())


def walk_statements(of: ast.AST) -> Iterator[ast.stmt]:
    """Yield all statements below a node, as `ast.walk` does, but without their expressions."""
    for part in ("body", "orelse", "finalbody", "handlers", "cases"):
        for each in getattr(of, part, ()):
            if isinstance(each, ast.stmt):
                yield each
            yield from walk_statements(each)
