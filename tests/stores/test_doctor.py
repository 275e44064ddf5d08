"""The report of the doctor about each store."""

import time
from types import SimpleNamespace

import pytest

from krishiv_spark.operate.doctor import probe as stores
from krishiv_spark.operate.doctor.findings import FindingList, Questions
from krishiv_spark.storage import Storage


def said_of(store, monkeypatch, off_s=0.0):
    """Return the report about a checkpoint there, with the driver's clock shifted that far."""
    clock = SimpleNamespace(time=lambda: time.time() + off_s)
    monkeypatch.setattr(stores, "time", clock)
    asked, said = Questions("a-probe", store.url, options=store.options), FindingList()
    stores.check_checkpoint(asked, said)
    stores.clean(asked)
    assert not list(Storage.of(store.options).folder(store.url).iter_files())
    return [str(line) for line in said.found]


def test_a_store_whose_clock_agrees_is_well(store, monkeypatch):
    (line,) = said_of(store, monkeypatch)
    assert line.startswith("ok ")


@pytest.mark.parametrize(("off_s", "says"), [(-300, "s behind the"), (300, "s ahead of the")])
def test_a_clock_that_is_off_is_said_with_what_to_do(store, monkeypatch, off_s, says):
    wrong, well = said_of(store, monkeypatch, off_s)
    assert well.startswith("ok ")
    assert f"{store.url}: the driver's clock is" in wrong
    assert f"{says} store's; synchronise the clocks" in wrong
