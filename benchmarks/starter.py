"""A driver of its own that starts one query twice: ``python -m benchmarks.starter``.

Spark itself is warm by then: a query from a source of Spark's own has run. What is measured is
what the connector adds to the first query, and to the next one.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks import session
from benchmarks.bare import BARE_SINK, BARE_SOURCE, register_bare_sink, register_bare_source
from benchmarks.peer import KAFKA, peer_jars
from benchmarks.topics import OURS, PARTITIONS, Topics, format_of

__all__ = ["FAST", "ROWS", "main"]

FAST = f"{OURS}, fast start"
"""Ours after `krishiv_spark.fast_start`."""

ROWS = 1000
"""In the first batch of a query."""

_PATIENCE_S = 120


def main() -> None:
    """Print what each query took until its first batch was over, in seconds."""
    kind, bootstrap, topic, sink, folder = sys.argv[1:]
    fast = ["kafka"] if kind == FAST else None
    kind = format_of(kind)
    spark = session.start(Path(folder), peer_jars(KAFKA), fast=fast)
    _first_batch(spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100).load(), {})
    topics = Topics(bootstrap)
    stream, given = (_bare if kind == BARE_SOURCE else _topic)(spark, topics, kind, topic, sink)
    taken = []
    for number in range(2):
        rows = stream().select("key", "value")
        taken.append(_first_batch(rows, {**given, "checkpointLocation": f"{folder}/{number}"}))
    spark.stop()
    print(json.dumps(taken))


_Query = tuple[Callable[[], Any], dict[str, str]]
"""A function that makes a query's rows, and the options of its sink, with the format."""


def _topic(spark: Any, topics: Topics, kind: str, topic: str, sink: str) -> _Query:
    given = {"format": kind, "topic": sink, **topics.cluster} if sink else {}
    return partial(topics.stream, spark, kind, topic), given


def _bare(spark: Any, topics: Topics, kind: str, topic: str, sink: str) -> _Query:
    """As many rows, from a source in Python that does nothing, and into such a sink."""
    del topics, topic
    register_bare_sink(spark)
    rows = pa.array([b"."] * ROWS)
    batch = pa.RecordBatch.from_arrays([rows, rows], ["key", "value"])
    register_bare_source(spark, batch[: ROWS // PARTITIONS], ROWS, PARTITIONS)
    return spark.readStream.format(kind).load, {"format": BARE_SINK} if sink else {}


def _first_batch(rows: Any, given: dict[str, str]) -> float:
    options = {"format": "noop", **given}
    writer = rows.writeStream.format(options.pop("format")).options(**options)
    begin = time.perf_counter()
    query = writer.start()
    try:
        while not query.recentProgress:
            _check(query, begin)
            time.sleep(0.01)
        return time.perf_counter() - begin
    finally:
        query.stop()


def _check(query: Any, begin: float) -> None:
    if query.exception() is not None:
        raise query.exception()
    if time.perf_counter() - begin > _PATIENCE_S:
        raise TimeoutError(f"no batch in {_PATIENCE_S} s")


if __name__ == "__main__":
    main()
