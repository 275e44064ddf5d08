"""Lines of the log in Spark's Python processes."""

import logging
import sys
import types
from importlib.machinery import ModuleSpec

import pytest

from krishiv_spark.spark import logs


@pytest.fixture
def log(monkeypatch):
    """In one of Spark's processes, in which nobody has set up logging."""
    main = types.ModuleType("__main__")
    main.__spec__ = ModuleSpec("pyspark.daemon", None)
    monkeypatch.setitem(sys.modules, "__main__", main)
    alone = logging.Logger("krishiv_spark.somewhere")  # noqa: LOG001  pytest adds handlers to others
    monkeypatch.setattr(logs, "_root", alone)
    return alone


def test_a_line_says_when_where_and_of_what(log, capfd):
    logs.set_log_context("warning", query="q", epoch=17, task=None)
    log.warning("something")
    log.info("nothing of interest")
    (line,) = capfd.readouterr().err.splitlines()
    when, rest = line.split(" WARNING ")
    assert when.startswith("20")
    assert rest == "krishiv_spark.somewhere: something [query q, epoch 17]"


def test_what_comes_next_takes_the_place_of_what_was(log, capfd):
    logs.set_log_context("info", query="q", epoch=17, task=3)
    logs.set_log_context("info")
    log.info("of no query")
    logs.set_log_context("info", query="q", epoch=18, task=0)
    log.info("staged")
    first, second = capfd.readouterr().err.splitlines()
    assert first.endswith("INFO krishiv_spark.somewhere: of no query")
    assert second.endswith("INFO krishiv_spark.somewhere: staged [query q, epoch 18, task 0]")


def test_who_has_a_handler_keeps_it(log, capfd):
    log.addHandler(logging.StreamHandler(sys.stdout))
    logs.set_log_context("info", query="q")
    log.info("something")
    assert capfd.readouterr() == ("something\n", "")


def test_other_processes_are_left_alone():
    before = logging.getLogger("krishiv_spark").level
    logs.set_log_context("debug", query="q")
    assert logging.getLogger("krishiv_spark").level == before
    assert not logging.getLogger("krishiv_spark").handlers
