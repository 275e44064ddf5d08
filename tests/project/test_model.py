"""The protocols in every order of steps (``model/``), and without each of their rules."""

import re
from itertools import groupby
from operator import attrgetter

import pytest

from model.bounds import BOUNDS, Bound
from model.rules import RULES, Rule
from model.tlc import FOLDER


def marked(cases):
    """The first small case of each module is tried each time: who changes a model runs them all."""
    first = {case.module: case for case in reversed(cases) if case.small}.values()
    return [
        pytest.param(
            case,
            id=f"{case.module}: {case.name}",
            marks=() if case in first else pytest.mark.long,
        )
        for case in cases
    ]


@pytest.mark.long  # runs TLC, as ./run model does
@pytest.mark.parametrize("bound", marked(BOUNDS))
def test_what_is_promised_holds_whatever_happens_in_whatever_order(bound: Bound):
    found = bound.check()
    assert found.violated is None, "\n".join(found.steps)
    assert found.distinct > 1000


RULED = marked(RULES)


@pytest.mark.long  # runs TLC, as ./run model does
@pytest.mark.parametrize("rule", RULED)
def test_without_a_rule_something_else_does_not_hold(rule: Rule):
    assert rule.check(on=False).violated == rule.caught_by


@pytest.mark.long
@pytest.mark.parametrize("rule", RULED)
def test_what_a_rule_is_for_holds_with_it(rule: Rule):
    found = rule.check(on=True)
    assert found.violated is None, "\n".join(found.steps)


@pytest.mark.parametrize("module", sorted({rule.module for rule in RULES}))
def test_each_rule_that_a_module_can_switch_off_is_tried(module):
    names = set(re.findall(r'Rule\("(\w+)"\)', (FOLDER / f"{module}.tla").read_text()))
    assert names == {rule.name for rule in RULES if rule.module == module and not rule.without}


def test_the_readme_lists_these_bounds_and_rules():
    page = (FOLDER / "README.md").read_text()
    for module, bounds in groupby(BOUNDS, key=attrgetter("module")):
        assert f"| {module} | {'; '.join(bound.name for bound in bounds)} |" in page
    for rule in RULES:
        assert f"| {rule.module} | {rule.name} | {rule.says} | {rule.caught_by} |" in page
