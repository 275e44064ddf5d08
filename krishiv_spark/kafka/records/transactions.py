"""Which batches belong to transactions that were aborted.

As Java's consumer decides it (``CompletedFetch``): a transaction in the list has begun when a batch
reaches its first offset, and ends with the control record that says so.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from krishiv_spark.kafka.records.layout import ABORT, CONTROL, TRANSACTIONAL

__all__ = ["Aborted", "aborted_rows", "control_type"]

# Producer id and first offset, as the response to a Fetch lists them.
Aborted = tuple[int, int]

_CONTROL_KEY = struct.Struct(">hh")


def aborted_rows(
    table: NDArray[np.int64], aborted: Iterable[Aborted], type_of: Callable[[int], int]
) -> NDArray[np.bool_]:
    """Which batches of a table belong to aborted transactions.

    Args:
        table: Batches, in order.
        aborted: Transactions that were aborted.
        type_of: The type of the control record in a batch, by its row in the table.
    """
    from krishiv_spark.kafka.records.scan import ATTRIBUTES, LAST, PRODUCER

    waiting = [(first, producer) for producer, first in aborted]
    heapq.heapify(waiting)
    begun: set[int] = set()
    found = np.zeros(len(table), np.bool_)
    for row, batch in enumerate(table[:, (LAST, ATTRIBUTES, PRODUCER)].tolist()):
        last, attributes, producer = batch
        while waiting and waiting[0][0] <= last:
            begun.add(heapq.heappop(waiting)[1])
        if attributes & CONTROL:
            if producer in begun and type_of(row) == ABORT:
                begun.remove(producer)
        elif attributes & TRANSACTIONAL:
            found[row] = producer in begun
    return found


def control_type(key: bytes | None) -> int:
    """The type of a control record, by its key.

    Raises:
        ValueError: If it is not the key of one.
    """
    if key is None or len(key) < _CONTROL_KEY.size:
        raise ValueError(f"a control record has the key {key!r}")
    version, kind = _CONTROL_KEY.unpack_from(key)
    if version < 0:
        raise ValueError(f"a control record has version {version}")
    return int(kind)
