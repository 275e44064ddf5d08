"""What Spark's workers leave out of their collections."""

import gc
import sys
import types
from importlib.machinery import ModuleSpec

import pytest

from krishiv_spark import workers


@pytest.fixture
def worker(monkeypatch):
    """As if this were one of Spark's."""
    main = types.ModuleType("__main__")
    main.__spec__ = ModuleSpec("pyspark.daemon", None)
    monkeypatch.setitem(sys.modules, "__main__", main)
    workers._settle.cache_clear()
    yield
    gc.unfreeze()
    workers._settle.cache_clear()


def frozen_by(monkeypatch, *modules):
    for name in modules:
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    before = gc.get_freeze_count()
    workers.settle()
    return gc.get_freeze_count() - before


@pytest.mark.usefixtures("worker")
def test_what_is_imported_is_passed_over_and_what_comes_later_too(monkeypatch):
    assert frozen_by(monkeypatch) > 1000
    assert frozen_by(monkeypatch) == 0
    kept = [[number] for number in range(100)]
    assert frozen_by(monkeypatch, "imported_by_the_first_task") >= len(kept)


def test_elsewhere_nothing_is_frozen(monkeypatch):
    workers._settle.cache_clear()
    assert frozen_by(monkeypatch) == 0
