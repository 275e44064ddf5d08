"""Kafka's record batches: decoded into Arrow rows, and encoded from them.

Importing this imports neither numba nor kafka; the first batch does.
"""

from __future__ import annotations

from krishiv_spark.kafka.records.columns import SCHEMA
from krishiv_spark.kafka.records.decode import Decoded, decode
from krishiv_spark.kafka.records.encode import Accumulator, EncodedBatch, next_sequence
from krishiv_spark.kafka.records.partitioning import partition_rows
from krishiv_spark.kafka.records.rows import RecordColumns
from krishiv_spark.kafka.records.wanted import BatchPolicy, DeadBatch, RecordError, RecordRange
from krishiv_spark.kafka.records.warm import await_warm, warm_ahead, warm_up

__all__ = [
    "SCHEMA",
    "Accumulator",
    "BatchPolicy",
    "DeadBatch",
    "Decoded",
    "EncodedBatch",
    "RecordColumns",
    "RecordError",
    "RecordRange",
    "await_warm",
    "decode",
    "next_sequence",
    "partition_rows",
    "warm_ahead",
    "warm_up",
]
