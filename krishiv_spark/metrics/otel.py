"""Metrics for OpenTelemetry, as instruments that are looked at when they are exported. Driver."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, MutableMapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from krishiv_spark.metrics.figures import METRICS, OF_QUERY, Metric, QueryView
from krishiv_spark.metrics.reporting import QueryReadings, Reporting, readings, require_library

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["export"]

_TOGETHER_S = 0.1
"""The instruments of one export are looked at within this time, one after the other."""


def export(spark: SparkSession, provider: Any = None) -> Reporting:
    """Give the metrics of a session's queries to OpenTelemetry.

    Several sessions may do so, at once or one after the other.

    Args:
        spark: The session, classic or Connect.
        provider: A ``MeterProvider``; without it the one that was set for the whole process. What
            it exports to, and how often, is for whoever made it to say.

    Raises:
        OptionError: If the library is missing (extra ``otel``).
    """
    library = require_library("opentelemetry.metrics", "opentelemetry-sdk", "otel")
    meters = library.get_meter_provider() if provider is None else provider
    with _lock:
        views = _views.get(meters)
        if views is None:
            views = _views[meters] = _Views()
            _make_instruments(library, meters, views)
    values = QueryReadings(spark)
    views.add(values)
    return Reporting("OpenTelemetry", lambda: views.remove(values), values.stop)


def _make_instruments(library: Any, meters: Any, views: _Views) -> None:
    meter = meters.get_meter("krishiv_spark", version("krishiv-spark"))
    for metric in METRICS:
        make = meter.create_observable_counter if metric.counts else meter.create_observable_gauge
        look = _looking(library, metric, views)
        make(metric.dotted_name, callbacks=[look], unit=metric.unit, description=metric.says)


def _looking(library: Any, metric: Metric, views: _Views) -> Callable[[Any], list[Any]]:
    names = (*OF_QUERY, *metric.labels)

    def look(_: Any) -> list[Any]:
        return [
            library.Observation(number, dict(zip(names, labels, strict=True)))
            for labels, number in readings(metric, views.now())
        ]

    return look


class _Views:
    """The same queries for all instruments that are looked at together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: list[QueryReadings] = []
        self._found: list[QueryView] = []
        self._until_s = 0.0

    def add(self, values: QueryReadings) -> None:
        with self._lock:
            self._values.append(values)
            self._until_s = 0

    def remove(self, values: QueryReadings) -> None:
        with self._lock:
            self._values.remove(values)
            self._until_s = 0

    def now(self) -> list[QueryView]:
        with self._lock:
            if time.monotonic() >= self._until_s:
                # A session that is exported twice has its queries once, as the first has counted.
                found = [view for each in reversed(self._values) for view in each.views()]
                self._found = list({view.record.query: view for view in found}.values())
                self._until_s = time.monotonic() + _TOGETHER_S
            return self._found


_lock = threading.Lock()

_views: MutableMapping[Any, _Views] = WeakKeyDictionary()
"""By provider: it makes an instrument once, and drops the callbacks of another of its name without
a word."""
