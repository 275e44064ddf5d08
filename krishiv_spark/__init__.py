"""Python connectors for Apache Spark that never lose or repeat a row.

    import krishiv_spark
    krishiv_spark.register(spark)
    spark.readStream.format("krishiv-parquet")...

Connector authors start at `krishiv_spark.sinks` and `krishiv_spark.sources`. Public is what these
and the modules `datasource`, `durable`, `errors`, `jobs`, `metrics`, `offsets`, `options`,
`queries` and `testing` offer, and the functions here. Any other module is private, whatever its
name: it may change with any release.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from krishiv_spark.runtime.archives import share_directories
from krishiv_spark.runtime.lazy import find

if TYPE_CHECKING:
    from krishiv_spark.formats import register
    from krishiv_spark.memory import memory_batches, memory_clear, memory_table
    from krishiv_spark.sinks.each_batch import each_batch, upsert
    from krishiv_spark.sinks.fanout.letter_rules import with_rules
    from krishiv_spark.sinks.fanout.options import routed
    from krishiv_spark.sinks.iceberg.views.aggregate import aggregate
    from krishiv_spark.sources.memory.handle import memory_source
    from krishiv_spark.spark.fast_start.builder import fast_start

__all__ = [
    "aggregate",
    "each_batch",
    "fast_start",
    "memory_batches",
    "memory_clear",
    "memory_source",
    "memory_table",
    "register",
    "routed",
    "upsert",
    "with_rules",
]

_HOMES = {
    "register": "krishiv_spark.formats",
    "memory_batches": "krishiv_spark.memory",
    "memory_clear": "krishiv_spark.memory",
    "aggregate": "krishiv_spark.sinks.iceberg.views.aggregate",
    "each_batch": "krishiv_spark.sinks.each_batch",
    "fast_start": "krishiv_spark.spark.fast_start.builder",
    "memory_source": "krishiv_spark.sources.memory.handle",
    "memory_table": "krishiv_spark.memory",
    "routed": "krishiv_spark.sinks.fanout.options",
    "upsert": "krishiv_spark.sinks.each_batch",
    "with_rules": "krishiv_spark.sinks.fanout.letter_rules",
}


share_directories()


def __getattr__(name: str) -> object:
    return find(__name__, _HOMES, name)
