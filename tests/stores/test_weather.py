"""A table in a store that throttles, fails now and then, or no longer knows who asks.

Epochs go on, or fail and are exact on a restart.
"""

import threading
from urllib.parse import urlsplit

import pytest
from cutting_proxy import CuttingProxy
from sink_life import Life, rows
from store_tables import make_onlooker
from store_weather import BUSY, in_weather

from krishiv_spark.errors import KrishivError
from krishiv_spark.lifecycle.plans import PlanningFailed
from krishiv_spark.runtime.contact import _FIRST_CONTACT_S
from krishiv_spark.sinks.base import OutputMode
from krishiv_spark.sinks.parquet.writer import ParquetWriter
from krishiv_spark.storage import Storage, use_long_timeouts

EPOCHS, TASKS, ROWS, RESTARTS = 4, 2, 5, 10
BUSY_S = 30


class Table:
    """A table that a query writes to, through a proxy, and that somebody reads directly.

    Args:
        store: Where it is.
    """

    def __init__(self, store):
        self.options = {"path": f"{store.url}/table", **store.options}
        self.failures = []

    def fill(self, renew=lambda: None, epochs=range(EPOCHS)):
        """Write epochs; whatever fails is begun anew by another driver, and `renew` called."""
        for number in epochs:
            while not self._epoch(number):
                assert len(self.failures) < RESTARTS, self.failures
                renew()

    def _epoch(self, number):
        first = number * TASKS * ROWS
        batches = [rows(first + task * ROWS, ROWS) for task in range(TASKS)]
        try:
            Life(ParquetWriter, self.options, "q1", OutputMode.APPEND).epoch(number, *batches)
        except (KrishivError, PlanningFailed) as error:
            self.failures.append(str(error))
            return False
        return True

    def assert_exact(self, store):
        assert not [text for text in self.failures if "\n" in text]
        ids = make_onlooker(self.options["path"], store.options).ids()
        assert ids == list(range(EPOCHS * TASKS * ROWS))


def test_a_store_that_is_busy_now_and_then_is_asked_again(store):
    with in_weather(store, one_in=5) as (throttled, weather):
        table = Table(throttled)
        table.fill()
        print(weather.refused, weather.asked, len(table.failures))
    table.assert_exact(store)
    assert len(weather.refused) == 2


@pytest.mark.long  # half a minute each
def test_a_store_that_is_busy_for_half_a_minute_is_waited_for(store):
    with in_weather(store) as (throttled, weather):
        table = Table(throttled)
        table.fill(epochs=range(2))
        weather.be_busy(BUSY_S)
        table.fill(epochs=range(2, EPOCHS))
        print(weather.refused, weather.asked, len(table.failures))
    assert weather.refused["busy"]
    table.assert_exact(store)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_credentials_that_expire_in_the_middle_leave_it_exact(store, share):
    use_long_timeouts()
    with in_weather(store) as (counted, weather):
        Table(counted).fill()
    other = type(store)(**{**vars(store), "url": f"{store.url}/other"})
    with in_weather(other, expired_from=int(share * weather.asked)) as (expiring, weather):
        table = Table(expiring)
        table.fill(weather.renew)
    assert weather.refused["expired"]
    table.assert_exact(other)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["s3", "gcs", "azure"])
def test_a_planner_waits_for_a_store_that_is_busy_when_it_is_first_asked(
    servers, kind, monkeypatch
):
    monkeypatch.setitem(BUSY, kind, BUSY[kind][:1])  # 500 may mean anything
    with in_weather(servers(kind)) as (throttled, weather):
        weather.be_busy(_FIRST_CONTACT_S + 4)
        assert Storage.of(throttled.options).folder(f"{throttled.url}/new").names() == {}


@pytest.mark.long
@pytest.mark.parametrize("kind", ["s3", "hdfs"])
def test_a_task_waits_for_a_store_that_it_has_never_asked(servers, kind):
    use_long_timeouts()
    store = servers(kind)
    with CuttingProxy(urlsplit(store.options[f"storage.{kind}.endpoint"]).port) as proxy:
        proxy.refuse()
        back = threading.Timer(_FIRST_CONTACT_S + 4, proxy.allow)
        back.start()
        endpoint = {f"storage.{kind}.endpoint": f"http://127.0.0.1:{proxy.port}"}
        assert Storage.of({**store.options, **endpoint}).folder(f"{store.url}/new").names() == {}
        back.join()
