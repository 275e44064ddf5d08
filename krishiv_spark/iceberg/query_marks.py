"""Under which names a table says what queries have written into it, by sink and source alike.

The summary of an epoch's snapshot has the keys that Iceberg's own Spark sink writes
(``SparkWrite.StreamingWrite``). Properties of the table have the newest epoch of each query, and
its offsets: they outlive the expiry of snapshots.
"""

from __future__ import annotations

__all__ = ["DIGEST_OF", "EPOCH_KEY", "EPOCH_OF", "OFFSETS_OF", "QUERY_KEY"]

QUERY_KEY = "spark.sql.streaming.queryId"
EPOCH_KEY = "spark.sql.streaming.epochId"
"""In summaries: the query, and the number of the epoch."""

EPOCH_OF = "krishiv.epoch."
"""Before a query's id, a property of the table: the number of its newest epoch."""

DIGEST_OF = "krishiv.plan."
"""Likewise: that number, a colon, and the digest of what Spark planned for the epoch."""

OFFSETS_OF = "krishiv.offsets."
"""Likewise: that number, and the offset of each source at the end of that epoch, as JSON."""
