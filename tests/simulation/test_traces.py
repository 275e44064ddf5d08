"""A failure of a model without one of its rules is also one of the code without it."""

from unittest import mock

import pytest
from simulation.storage import Store
from simulation.traces import Replay

from krishiv_spark.offsets.journal import StoredEntries
from model.modules import SMALLEST
from model.rules import RULES


def deceived(steps, **store):
    replay = Replay(Store(**store), int(SMALLEST["Journal"]["FoldEvery"]))
    replay.play(steps)
    return replay.deceived


def trace_without(name):
    (rule,) = (rule for rule in RULES if (rule.module, rule.name) == ("Journal", name))
    return rule.check(on=False).steps


@pytest.mark.long
def test_a_store_that_passes_over_exclusive_deceives_the_code_as_it_does_the_model():
    steps = trace_without("exclusive")
    assert deceived(steps, knows_exclusive=False) == {1}
    assert deceived(steps) == set()


@pytest.mark.long  # TLC looks at a million states until it has this one
def test_whoever_sleeps_through_two_folds_is_deceived_if_it_does_not_look_afterwards():
    steps = trace_without("lookafter")
    with mock.patch.object(StoredEntries, "list_after", lambda stored, _: stored._journal.list()):
        assert deceived(steps)
    assert deceived(steps) == set()
