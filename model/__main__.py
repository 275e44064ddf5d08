"""``python -m model``: check the models, and that they need each of their rules."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any

import click

from model.bounds import BOUNDS
from model.rules import RULES
from model.tlc import FOLDER, Found

_BOUND_HEAD = ("module", "bound", "distinct states", "depth")
_MODULE_HEAD = ("module", "bounds", "distinct states in all")
_RULE_HEAD = ("module", "rule", "with the rule", "violated without it")
_TABLE = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


class _Failed(click.ClickException):
    """Something does not hold, or a rule is not needed."""


@click.command()
@click.option("--bound", type=click.Choice(["small", "full"]), default="small", show_default=True)
@click.option("--write", is_flag=True, help="Put the tables into model/README.md (full only).")
def main(bound: str, *, write: bool) -> None:
    """Check every module up to its bounds, then without each rule."""
    full = bound == "full"
    bounds = list(_shown(_BOUND_HEAD, _checked_bounds(full=full)))
    rules = list(_shown(_RULE_HEAD, _checked_rules(full=full)))
    if write and full:
        _write({"bounds": _by_module(bounds), "rules": _table(_RULE_HEAD, rules)})


def _shown(head: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[str, ...]]:
    click.echo("\n" + _line(head))
    for row in rows:
        cells = tuple(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row)
        click.echo(_line(cells))
        yield cells


def _checked_bounds(*, full: bool) -> Iterator[tuple[Any, ...]]:
    for each in BOUNDS:
        if each.small or full:
            found = each.check()
            _demand(found, None, f"{each.module}, {each.name}")
            yield each.module, each.name, found.distinct, found.depth


def _checked_rules(*, full: bool) -> Iterator[tuple[Any, ...]]:
    for each in RULES:
        if each.small or full:
            what = f"{each.module}, {each.name}"
            if full:
                _demand(each.check(on=True), None, f"{what}, with the rule")
            found = each.check(on=False)
            _demand(found, each.caught_by, f"{what}, without the rule")
            yield each.module, each.name, each.says, each.caught_by


def _demand(found: Found, violated: str | None, what: str) -> None:
    if found.violated != violated:
        steps = "".join(f"\n  {step}" for step in found.steps)
        raise _Failed(f"{what}: violated is {found.violated}, expected {violated}{steps}")


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    return "\n".join(_line(row) for row in (head, ("---",) * len(head), *rows)) + "\n"


def _by_module(bounds: Iterable[tuple[str, ...]]) -> str:
    """Return a table with one row for each module: its bounds, and the sum of their states."""
    rows = []
    for module, found in groupby(bounds, key=itemgetter(0)):
        _, names, states, _ = zip(*found, strict=True)
        total = sum(int(count.replace(",", "")) for count in states)
        rows.append((module, "; ".join(names), f"{total:,}"))
    return _table(_MODULE_HEAD, rows)


def _write(tables: dict[str, str]) -> None:
    page = FOLDER / "README.md"
    page.write_text(_TABLE.sub(lambda m: m[1] + tables[m[2]] + m[3], page.read_text()))


if __name__ == "__main__":
    sys.exit(main())
