"""The common part of the kit's tests: run a case as pytest would, and read its message."""

import contextlib
import inspect
import re

import pytest
from pyspark.sql.datasource import DataSource

from krishiv_spark import testing
from krishiv_spark.testing import Broken, Sequence

THINNEST = 4
"""A quick look of one in so many calls finds the bugs of a first sink or source."""


def parameters(found, missed, slow=()):
    """Return both tables: bugs that a case finds, and bugs that no case finds yet, with the reason.

    The first bug that breaks each rule is tried in every run, the others by `./run test --all`,
    and so are those that are slow to find.
    """
    firsts = {rule: (bug, case) for bug, case, rule in reversed(found) if bug not in slow}
    yes = [
        pytest.param(
            *(bug, case, rule),
            id=f"{bug}-{case}",
            marks=_long(firsts.get(rule) != (bug, case)),
        )
        for bug, case, rule in found
    ]
    no = [
        pytest.param(*bug, id=bug[0], marks=[pytest.mark.long, _missed(why)])
        for *bug, why in missed
    ]
    return pytest.mark.parametrize(("bug", "case", "rule"), [*yes, *no])


def _long(is_long):
    return [pytest.mark.long] if is_long else []


def _missed(why):
    return pytest.mark.xfail(raises=pytest.fail.Exception, reason=why)


def collect_formats(*modules) -> dict[str, type[DataSource]]:
    """The formats that modules define, by name."""
    return {
        name: kind
        for module in modules
        for name, kind in vars(module).items()
        if is_format(kind) and kind.__module__ == module.__name__
    }


def is_format(kind) -> bool:
    return isinstance(kind, type) and issubclass(kind, DataSource)


def find_failure(suite, case, folder, config, *, again=True) -> Broken:
    """Return the failure that a case finds at the rate of this configuration; None for all calls.

    The sequence that it prints must find the failure again, unless the case needs more.
    """
    method = getattr(suite, f"test_{case}")
    promise = " ".join(inspect.getdoc(method).split())
    with open_player(suite, folder / "once", promise) as play:
        if config is not None:
            one_in = min(config.getoption("--one-in"), THINNEST)
            play.thin(one_in, config.getoption("--draw"))
        play.wants_streams = not hasattr(method, "of_batches")
        given = {"play": play, "declared": play.new()[0]}
        with pytest.raises(Broken) as caught:
            method(**{name: given[name] for name in inspect.signature(method).parameters})
    sequence = parse_printed_sequence(caught.value, promise)
    if again:
        with open_player(suite, folder / "again", "") as play, pytest.raises(Broken):
            play(*sequence, **sequence.how)
    return caught.value


def open_player(suite, folder, promise):
    return contextlib.closing(suite.player(folder, promise))


def parse_printed_sequence(broken, promise) -> Sequence:
    """The sequence as a reader would copy it, from a message that says all the rest too."""
    text = str(broken)
    steps = re.search(
        r"^ +or add to the class: sequences = \[(Sequence\(.*\))\]$", text, re.MULTILINE
    )[1]
    sequence = eval(steps, vars(testing))
    assert (sequence, sequence.how) == (broken.again, broken.again.how)
    told = [f"PROMISED\n    {promise}\n", broken.rule.value, "\nSEEN\n    "]
    assert [part for part in told if part not in text] == []
    assert not sequence or f" {sequence[0]}: " in text.partition("\nDONE\n")[2]
    return sequence
