"""Uploads that nobody will complete: of attempts that were lost, of drivers that have died."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

from krishiv_spark.parquet.names import DataFile, query_tag
from krishiv_spark.runtime.caches import LruCache
from krishiv_spark.runtime.retry import map_in_parallel
from krishiv_spark.sinks.base import Epoch
from krishiv_spark.sinks.parquet.tables import StoreTable
from krishiv_spark.storage import PendingUpload

__all__ = ["discard_open", "is_due", "pending_of"]

_SWEEP_AFTER_S = 600.0

_swept: LruCache[tuple[int, StoreTable, str], float] = LruCache(64)
"""When this process last looked, by process, table and query."""


def is_due(table: StoreTable, query: str, *, clean: bool) -> bool:
    """Whether to look for what was left; if so, it counts as done. Planner.

    Args:
        table: In which uploads were begun.
        query: Which has begun them.
        clean: Whether the generation before has left nothing that is known.
    """
    key, now_s = (os.getpid(), table, query), time.monotonic()
    before_s = _swept.get(key)
    if clean and before_s is not None and now_s - before_s < _SWEEP_AFTER_S:
        return False
    _swept.put(key, now_s)
    return True


def discard_open(table: StoreTable, epoch: Epoch, is_owner: Callable[[Epoch], bool]) -> None:
    """Discard what a query has open. Driver; no attempt of a task that may still win is running.

    Uploads do not say of which generation they are. So they are listed first, and discarded only if
    this generation owns the query after that: those of a later one began later.

    Args:
        table: In which uploads were begun.
        epoch: Of which query, with the generation that is to own it.
        is_owner: Whether it does.
    """
    found = list(pending_of(table, epoch.query))
    if found and is_owner(epoch):
        map_in_parallel(table.uploads.discard, [item.upload for item in found])


def pending_of(table: StoreTable, query: str) -> Iterator[PendingUpload]:
    """Uploads that a query has begun and nobody has completed."""
    tag = query_tag(query)
    for item in table.uploads.pending():
        file = DataFile.parse(item.upload.key.rpartition("/")[2])
        if file is not None and file.tag == tag:
            yield item
