"""A driver of its own that starts one query twice: ``python -m benchmarks.starter``.

Spark itself is warm by then: a query from a source of Spark's own has run. What is measured is
what the connector adds to the first query, and to the next one.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import session
from benchmarks.peer import peer_jars
from benchmarks.topics import Topics

__all__ = ["main"]

_PATIENCE_S = 120


def main() -> None:
    """Print what each query took until its first batch was over, in seconds."""
    kind, bootstrap, topic, sink, folder = sys.argv[1:]
    spark = session.start(Path(folder), peer_jars())
    _first_batch(spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100).load(), {})
    topics = Topics(bootstrap)
    given = {"format": kind, "topic": sink, **topics.cluster} if sink else {}
    taken = []
    for number in range(2):
        rows = topics.stream(spark, kind, topic).select("key", "value")
        given |= {"checkpointLocation": f"{folder}/checkpoint-{number}"}
        taken.append(_first_batch(rows, given))
    spark.stop()
    print(json.dumps(taken))


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
