"""Which partition a row belongs to."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from krishiv_spark.errors import SchemaError
from krishiv_spark.kafka.records.rows import bytes_of, cast

__all__ = ["partition_rows"]


def partition_rows(
    keys: pa.Array | None,
    given: pa.Array | None,
    count: int,
    sticky: int,
    nameable: int | None = None,
) -> NDArray[np.int32]:
    """The partition of each row: the one that is given, or that of its key, or the sticky one.

    Keys are hashed as Java's client does it, so that all producers agree (KIP-480 for the rest).

    Args:
        keys: Binary or string, with nulls; None when no row has a key.
        given: Whole numbers, with nulls; None when no row names its partition.
        count: Number of partitions that keys are spread over.
        sticky: Partition of rows that have neither.
        nameable: Number of partitions of the topic, if that is another one.

    Raises:
        SchemaError: If a row names a partition that the topic does not have, or a column has
            another type.
        ValueError: If there are neither keys nor given partitions.
    """
    some = keys if keys is not None else given
    if some is None:
        raise ValueError("the number of rows is not known: give keys or partitions")
    out = np.full(len(some), sticky, np.int32)
    if keys is not None:
        _by_key(keys, count, out)
    if given is not None:
        _as_given(given, nameable or count, out)
    return out


def _by_key(keys: pa.Array, count: int, out: NDArray[np.int32]) -> None:
    from krishiv_spark.kafka.records.write import place

    spans = np.empty((2, len(keys)), np.int32)
    data = bytes_of(keys, spans, "key")
    place(data, spans[0], spans[1], count, out)


def _as_given(given: pa.Array, count: int, out: NDArray[np.int32]) -> None:
    named = given.is_valid().to_numpy(zero_copy_only=False)
    numbers = cast(given, pa.int64(), "partition").drop_null().to_numpy()
    wrong = (numbers < 0) | (numbers >= count)
    if wrong.any():
        raise SchemaError(
            f"a row names partition {numbers[wrong.argmax()]}, but the topic has the partitions "
            f"0 to {count - 1}"
        )
    out[named] = numbers
