"""Exporters of metrics to Prometheus and OpenTelemetry. Driver."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from krishiv_spark.errors import OptionError
from krishiv_spark.metrics.definitions import METRICS, OF_QUERY, Metric, QueryView
from krishiv_spark.metrics.reporting import QueryReadings, Reporting, readings, require_library
from krishiv_spark.runtime.once import warn_once

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["export", "serve", "write_file"]


_log = logging.getLogger(__name__)

DEFAULT_PORT = 9464
"""What exporters of OpenTelemetry for Prometheus have by default, too."""


def serve(spark: SparkSession, port: int = DEFAULT_PORT, host: str = "127.0.0.1") -> Reporting:
    """Give the metrics of a session's queries to Prometheus, at ``http://<host>:<port>/metrics``.

    Anybody who reaches the port can read them: names of queries and topics, and numbers. They are
    worked out when somebody asks.

    Args:
        spark: The session, classic or Connect.
        port: 0 for any that is free; `Reporting.address` has it.
        host: An address of this machine; by default nobody else reaches it.

    Raises:
        OptionError: If the library is missing (extra ``metrics``), or the port is not free.
    """
    library = require_library("prometheus_client", "prometheus-client", "metrics")
    values = QueryReadings(spark)
    try:
        server, thread = library.start_http_server(port, host, _registry(library, values))
    except (OSError, OverflowError) as error:
        values.stop()
        why = getattr(error, "strerror", None) or error
        raise OptionError(
            f"metrics cannot be served at {host}:{port}: {why}; give another port, or 0 for any "
            "that is free"
        ) from error
    name = f"[{host}]" if ":" in host else host
    address = f"http://{name}:{server.server_port}/metrics"
    return Reporting(address, values.stop, server.shutdown, server.server_close, thread.join)


def write_file(spark: SparkSession, path: str | os.PathLike[str], every: float = 15) -> Reporting:
    """Write the metrics of a session's queries to a file, again and again.

    For the textfile collector of node_exporter. Whoever reads the file sees all of the old or all
    of the new one. It is removed at the end, unless a query has failed: that was to be seen by
    whoever reads the file next. One that is left, as by a driver that was killed, is known by
    ``krishiv_query_last_seen_timestamp_seconds``.

    Args:
        spark: The session, classic or Connect.
        path: Of the file, which ends in ``.prom``; each driver needs one of its own.
        every: Seconds from one time to the next.

    Raises:
        OptionError: If the library is missing (extra ``metrics``), or the file cannot be written.
    """
    library = require_library("prometheus_client", "prometheus-client", "metrics")
    values = QueryReadings(spark)
    registry, place = _registry(library, values), Path(path)
    writer = _FileWriter(
        lambda: library.write_to_textfile(str(place), registry), place, every, values.has_failed
    )
    try:
        writer.write()
    except OSError as error:
        values.stop()
        raise OptionError(f"metrics cannot be written to {place}: {error.strerror}") from error
    writer.start()
    reporting = Reporting(str(place), writer.end, values.stop)
    atexit.register(reporting.stop)
    return reporting


class _FileWriter(threading.Thread):
    """Writes a file now and then; at the end it is written once more or removed."""

    def __init__(
        self,
        write: Callable[[], object],
        place: Path,
        every_s: float,
        is_kept: Callable[[], bool],
    ) -> None:
        super().__init__(name=f"writes {place}", daemon=True)
        self.write, self._is_kept = write, is_kept
        self._place, self._every_s = place, every_s
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(self._every_s):
            try:
                self.write()
            except OSError as error:
                warn_once(_log, self._place, "metrics cannot be written any more: %s", error)

    def end(self) -> None:
        self._over.set()
        self.join()
        try:
            self.write() if self._is_kept() else self._place.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("metrics are left at %s: %s", self._place, error)


def _registry(library: Any, values: QueryReadings) -> Any:
    """Return a separate registry, since the process may have other metrics in the global one."""
    registry = library.CollectorRegistry()
    registry.register(_QueryCollector(library, values))
    return registry


class _QueryCollector:
    """Works the metrics out when somebody asks."""

    def __init__(self, library: Any, values: QueryReadings) -> None:
        self._families = library.metrics_core
        self._values = values

    def collect(self) -> Iterator[Any]:
        views = self._values.views()
        for metric in METRICS:
            kind = "CounterMetricFamily" if metric.counts else "GaugeMetricFamily"
            labels = (*OF_QUERY, *metric.labels)
            family = getattr(self._families, kind)(metric.name, metric.says, labels=labels)
            for values, number in readings(metric, views):
                family.add_metric(values, number)
            yield family


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
