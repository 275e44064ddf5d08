"""Metrics of the streaming queries of a session, for Prometheus and OpenTelemetry. Driver.

::

    from krishiv_spark import metrics

    metrics.serve(spark, port=9464)  # http://127.0.0.1:9464/metrics

For queries of any format, on a classic session or one of Connect. No query fails or waits because
of metrics. The extras ``metrics`` and ``otel`` install the libraries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from krishiv_spark.runtime.lazy import find

if TYPE_CHECKING:
    from krishiv_spark.metrics.exporters import export, serve, write_file
    from krishiv_spark.metrics.reporting import Reporting

__all__ = ["Reporting", "export", "serve", "write_file"]

_HOMES = {
    "Reporting": "krishiv_spark.metrics.reporting",
    "export": "krishiv_spark.metrics.exporters",
    "serve": "krishiv_spark.metrics.exporters",
    "write_file": "krishiv_spark.metrics.exporters",
}


def __getattr__(name: str) -> object:
    return find(__name__, _HOMES, name)
