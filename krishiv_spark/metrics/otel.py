"""Metrics for OpenTelemetry, as instruments that are looked at when they are exported. Driver."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from krishiv_spark.metrics.figures import METRICS, OF_QUERY, Metric, QueryView
from krishiv_spark.metrics.reporting import QueryReadings, Reporting, readings, require_library

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["export"]

_TOGETHER_S = 0.1
"""The instruments of one export are looked at within this time, one after the other."""


def export(spark: SparkSession, provider: Any = None) -> Reporting:
    """Give the metrics of a session's queries to OpenTelemetry.

    Args:
        spark: The session, classic or Connect.
        provider: A ``MeterProvider``; without it the one that was set for the whole process. What
            it exports to, and how often, is for whoever made it to say.

    Raises:
        OptionError: If the library is missing (extra ``otel``).
    """
    library = require_library("opentelemetry.metrics", "opentelemetry-sdk", "otel")
    meters = library.get_meter_provider() if provider is None else provider
    meter = meters.get_meter("krishiv_spark", version("krishiv-spark"))
    values = QueryReadings(spark)
    views = _Views(values)
    for metric in METRICS:
        make = meter.create_observable_counter if metric.counts else meter.create_observable_gauge
        look = _looking(library, metric, views)
        make(metric.dotted_name, callbacks=[look], unit=metric.unit, description=metric.says)
    return Reporting("OpenTelemetry", values.stop)


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

    def __init__(self, values: QueryReadings) -> None:
        self._values = values
        self._found: list[QueryView] = []
        self._until_s = 0.0

    def now(self) -> list[QueryView]:
        if time.monotonic() >= self._until_s:
            self._found = self._values.views()
            self._until_s = time.monotonic() + _TOGETHER_S
        return self._found
