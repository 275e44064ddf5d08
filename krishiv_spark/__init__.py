"""Python connectors for Apache Spark that never lose or repeat a row.

    import krishiv_spark
    krishiv_spark.register(spark)
    spark.readStream.format("krishiv-parquet")...

Connector authors start at `krishiv_spark.sinks.base` and `krishiv_spark.sources.base`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from krishiv_spark.formats import register
    from krishiv_spark.memory import memory_batches, memory_clear, memory_table
    from krishiv_spark.sinks.iceberg.upsert import upsert
    from krishiv_spark.sources.memory.handle import memory_source

__all__ = [
    "memory_batches",
    "memory_clear",
    "memory_source",
    "memory_table",
    "register",
    "upsert",
]

_HOMES = {
    "register": "krishiv_spark.formats",
    "memory_batches": "krishiv_spark.memory",
    "memory_clear": "krishiv_spark.memory",
    "memory_source": "krishiv_spark.sources.memory.handle",
    "memory_table": "krishiv_spark.memory",
    "upsert": "krishiv_spark.sinks.iceberg.upsert",
}


def __getattr__(name: str) -> object:
    # Lazily: a worker that needs one format must not pay for the others.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
