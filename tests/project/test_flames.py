"""Flame graphs of an epoch's roles: what stacks become, and what is left of them."""

import re
from collections import Counter
from xml.etree import ElementTree as ET

import pytest

from benchmarks.report.flame import Frame, flame_graph
from benchmarks.roles import _by_role

COMMIT = 'process 7:"python";<module> (x.py:1);Life.commit (benchmarks/writers.py:131)'
PLAN = f"{COMMIT};Life._plan (benchmarks/writers.py:175)"
SAMPLES = [
    f"{PLAN};Log.newest (krishiv_spark/memory/log.py:44);loads (json/__init__.py:299) 3",
    f"{PLAN} 1",
    f"{COMMIT};dumps (pyarrow/x.py:2) 2",
    'process 7:"python";<module> (x.py:1);wait (threading.py:1) 50',
]


def test_a_sample_is_counted_for_the_role_that_was_at_work():
    found = _by_role(SAMPLES)
    newest = Frame("Log.newest", "krishiv_spark/memory/log.py", "ours")
    loads = Frame("loads", "json/__init__.py", "python")
    seen = {stack: count for stack, count in found.items() if count}
    assert seen == {
        (Frame("planner"), newest, loads): 3,
        (Frame("planner"),): 1,
        (Frame("Spark's part"),): 2,
    }


@pytest.fixture
def boxes():
    """By title: where a box begins, how wide it is, and how far down."""
    low = Frame("b<c>", "a.py", "ours")
    stacks = Counter({(Frame("two"), low): 30, (Frame("one"),): 60, (Frame("two"),): 10})
    svg = ET.fromstring(flame_graph("whole", stacks, 1000.0))
    space = {"s": "http://www.w3.org/2000/svg"}
    found = {}
    for group in svg.findall("s:g", space):
        box = group.find("s:rect", space)
        title = group.find("s:title", space).text
        found[title] = tuple(float(box.get(key)) for key in ("x", "width", "y"))
    return found


def test_a_box_is_as_wide_as_its_share_and_says_its_time(boxes):
    assert boxes["whole: 1,000 us"][:2] == (0, 1200)
    assert boxes["one: 600 us"][1] == pytest.approx(720)
    assert boxes["b<c>, a.py: 300 us"][1] == pytest.approx(360)


def test_what_is_called_stands_below_who_calls_it_and_parts_stay_in_order(boxes):
    two, low, one = boxes["two: 400 us"], boxes["b<c>, a.py: 300 us"], boxes["one: 600 us"]
    assert (low[0], low[2]) == (two[0], two[2] + 17)
    assert two[0] == 0
    assert one[0] == pytest.approx(two[1])


@pytest.mark.long
def test_what_nobody_could_see_is_left_out():
    many = Counter({(Frame("f", f"{n}.py", "ours"),): 1 for n in range(2000)})
    assert len(re.findall("<rect", flame_graph("whole", many, 1.0))) == 1
