"""All changes of an epoch, the last one for each key. Driver.

Only keys are held in memory, and what orders them: the rows themselves are read when they are
written, batch by batch, however many gigabytes they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from krishiv_spark.arrow.compute import pc
from krishiv_spark.arrow.uuids import is_uuid
from krishiv_spark.parquet.inputs import open_input
from krishiv_spark.parquet.ranges import read_all
from krishiv_spark.sinks.iceberg.changesets import DELETES, UpsertSpec
from krishiv_spark.sinks.iceberg.sorting import sorted_places

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

__all__ = ["EpochChanges", "chosen", "stored_values"]

_RANK = "_krishiv_rank"


class EpochChanges:
    """The changes that tasks have written aside.

    Args:
        io: Reaches their files.
        paths: The files, in the order of the tasks.
        upsert_spec: How rows change others.
    """

    def __init__(self, io: FileIO, paths: Sequence[str], upsert_spec: UpsertSpec) -> None:
        self._io = io
        self._paths = paths
        self._upsert_spec = upsert_spec

    @property
    def keys(self) -> pa.Table:
        """The keys of all rows that must not stay as they are, each once."""
        return self._last[0]

    def upserts(self) -> Iterator[pa.RecordBatch]:
        """The rows that are to be there."""
        for rows in chosen(self._batches(), self._last[1]):
            yield rows.select([name for name in rows.schema.names if name != DELETES])

    @cached_property
    def _last(self) -> tuple[pa.Table, np.ndarray[Any, Any]]:
        """The keys, and of each change whether it is the last one of its key and no delete."""
        names = [*self._upsert_spec.keys, *filter(None, [self._upsert_spec.order]), DELETES]
        # A key may be what orders, too.
        read = pa.Table.from_batches(self._batches(list(dict.fromkeys(names))))
        changes = stored_values(read)
        by_rank = self._by_rank(changes)
        ranks = np.empty_like(by_rank)
        ranks[by_rank] = np.arange(len(by_rank))
        keys = changes.select(list(self._upsert_spec.keys)).append_column(_RANK, pa.array(ranks))
        last = keys.group_by(list(self._upsert_spec.keys)).aggregate([(_RANK, "max")])
        stays = np.zeros(len(by_rank), bool)
        stays[by_rank[last[f"{_RANK}_max"].to_numpy()]] = True
        stays &= ~changes[DELETES].to_numpy()
        return last.select(list(self._upsert_spec.keys)), stays

    def _by_rank(self, changes: pa.Table) -> np.ndarray[Any, Any]:
        """Places of changes, of one key the one that wins last: by its order, then by its place."""
        places = np.arange(changes.num_rows)
        if self._upsert_spec.order is None:
            return places
        order = changes[self._upsert_spec.order]
        valid = pc.cast(pc.is_valid(order), pa.int8())  # null is lower than every value
        rising = [(column, "ascending") for column in (valid, order, pa.array(places))]
        return np.asarray(sorted_places(rising))

    def _batches(self, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        """All changes, always in the same order."""
        for path in self._paths:
            with self._io.new_input(path).open() as stream:
                file = open_input(stream)
                yield from read_all(file, columns or file.schema.names)


def chosen(
    batches: Iterator[pa.RecordBatch], stays: np.ndarray[Any, Any]
) -> Iterator[pa.RecordBatch]:
    """The rows that stay; whether they do is told for the rows of all batches one after another."""
    first = 0
    for batch in batches:
        rows = batch.filter(pa.array(stays[first : first + batch.num_rows]))
        first += batch.num_rows
        if rows.num_rows:
            yield rows


def stored_values(rows: pa.Table) -> pa.Table:
    """Return rows with UUIDs as their bytes: Arrow groups, joins and sorts no UUIDs."""
    columns = [
        pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
        if is_uuid(column.type)
        else column
        for column in rows.columns
    ]
    return pa.table(columns, names=rows.column_names)
