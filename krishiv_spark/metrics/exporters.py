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
"""The default of OpenTelemetry's exporters for Prometheus."""


def serve(spark: SparkSession, port: int = DEFAULT_PORT, host: str = "127.0.0.1") -> Reporting:
    """Serve the metrics of a session's queries to Prometheus, at ``http://<host>:<port>/metrics``.

    Every client that reaches the port can read them: names of queries and topics, and numbers. They
    are computed for each request.

    Args:
        spark: The session, classic or Connect.
        port: The port; 0 for any free port, which `Reporting.address` contains.
        host: An address of this machine. By default, only this machine can connect.

    Raises:
        OptionError: If the library is missing (extra ``metrics``), or the port is in use.
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
    """Write the metrics of a session's queries to a file, periodically.

    For the textfile collector of node_exporter. A reader of the file gets the complete old or the
    complete new content. The file is removed at the end, unless a query has failed, so that the
    failure is reported at the next reading. A file that remains for another reason, such as a
    killed driver, is recognized by ``krishiv_query_last_seen_timestamp_seconds``.

    Args:
        spark: The session, classic or Connect.
        path: Path of the file, which ends in ``.prom``. Each driver needs a separate file.
        every: Interval of the writes, in seconds.

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
    """A thread that writes a file periodically.

    At the end it writes the file again, or removes it.
    """

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
    """A collector that computes the metrics for each request."""

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
"""Time within which the instruments of one export are read, one after the other."""


def export(spark: SparkSession, provider: Any = None) -> Reporting:
    """Export the metrics of a session's queries to OpenTelemetry.

    Several sessions may be exported, at once or one after the other.

    Args:
        spark: The session, classic or Connect.
        provider: A ``MeterProvider``; None for the global one. It determines the destination and
            the interval of the export.

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
    """The queries that all instruments of one export share."""

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
                # A session that is exported twice has its queries once, as the first export has
                # counted them.
                found = [view for each in reversed(self._values) for view in each.views()]
                self._found = list({view.record.query: view for view in found}.values())
                self._until_s = time.monotonic() + _TOGETHER_S
            return self._found


_lock = threading.Lock()

_views: MutableMapping[Any, _Views] = WeakKeyDictionary()
"""The views by provider. A provider creates an instrument once, and silently drops the callbacks of
a second one with the same name."""
