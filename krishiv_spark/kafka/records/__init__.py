"""Record batches of Kafka: a decoder to Arrow rows and an encoder of rows.

The import of this package imports neither numba nor kafka; the first batch does.
"""

from __future__ import annotations

from krishiv_spark.kafka.records.decode import Decoded, decode
from krishiv_spark.kafka.records.encode import (
    Accumulator,
    EncodedBatch,
    RecordColumns,
    next_sequence,
    partition_rows,
)
from krishiv_spark.kafka.records.scanner import (
    SCHEMA,
    BatchPolicy,
    DeadBatch,
    RecordError,
    RecordRange,
)
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
