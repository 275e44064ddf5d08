"""``krishiv-memory`` as a sink: exactly once, into a store on the driver's machine.

Tasks send their rows to the driver as Arrow; an epoch is committed when its file takes its number
(`krishiv_spark.memory.log.Log`). The unit of parallelism is Spark's task; all rows pass through the
driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Literal

import pyarrow as pa
from pydantic import Field

from krishiv_spark.errors import OptionError
from krishiv_spark.memory.entry import Bound, EncodedRows, StoreEntry, encode
from krishiv_spark.memory.results import (
    NamedResult,
    QueryResult,
    check_kept_keys,
    check_keys,
    upsert,
)
from krishiv_spark.memory.store import Store, open_store, quote_name
from krishiv_spark.options import ByteSize, DistinctNames
from krishiv_spark.sinks.base import CommittedEpoch, Epoch, OutputMode, Task, TwoPhaseWriter
from krishiv_spark.sinks.numbered import NumberedJobOptions
from krishiv_spark.spark.query_target import QueryTarget

__all__ = ["MemorySinkOptions", "MemoryWriter"]


class MemorySinkOptions(NumberedJobOptions):
    """Options of the sink. The result has a name, or is found by the query's id."""

    name: str | None = Field(default=None, description="Name of the result.")
    path: str | None = Field(
        default=None, description="Name of the result, as given to `start()` or `save()`."
    )
    query_name: str | None = Field(
        default=None, description="Name of the result, as given to Spark's `queryName()`."
    )
    mode: Literal["append", "upsert"] = Field(
        default="append",
        description="Append the rows (`append`), or replace rows that have the same key "
        "(`upsert`). The driver writes the whole result with each epoch.",
    )
    key_columns: DistinctNames = Field(
        default=(),
        description="Columns that identify a row, separated by commas; required for `upsert`. If "
        "an epoch has several rows with one key, the last one in Spark's order is kept.",
    )
    allow_mixed_keys: bool = Field(
        default=False,
        description="Allow writes to a result that has upserts with other `keyColumns`, or with "
        "`mode` = `append`. A key may then have several rows.",
    )
    max_rows: int | None = Field(
        default=None, gt=0, description="Maximum number of rows in the result."
    )
    max_bytes: ByteSize = Field(
        default=2**30,
        gt=0,
        description="Maximum size of the result in bytes, compressed as it is stored.",
    )
    on_full: Literal["error", "dropOldest"] = Field(
        default="error",
        description="Action when the result is full: refuse the next epoch (`error`), or drop "
        "whole epochs, oldest first (`dropOldest`). The newest epoch is always kept.",
    )

    def result_name(self) -> str | None:
        """Return the name of the result; None for one that is found by the query's id only."""
        return self.name or self.path or self.query_name

    def target_text(self) -> str:
        """Return the name of the result. See `NumberedJobOptions`."""
        return self.result_name() or ""

    def bound(self) -> Bound:
        """Return the limit of the result."""
        return Bound(self.max_rows, self.max_bytes, self.on_full == "dropOldest")


class MemoryWriter(TwoPhaseWriter[EncodedRows]):
    """A writer of rows into the driver's store, as Arrow."""

    options_type = MemorySinkOptions
    is_cleared_at_will = True
    options: MemorySinkOptions

    def check(self) -> None:
        """Planner: check that the store can be used, and that a batch job has a result's name."""
        _ = self._store  # raises if the store cannot be opened
        name = self.options.result_name()
        if name is not None:
            quote_name(name)
        elif not self.streaming or self.options.job is not None:
            raise OptionError(
                "krishiv-memory: a batch write needs a name: .save('clicks') or option 'name'"
            )
        if self.options.mode == "upsert":
            self._check_upsert()
        self._check_name()

    def _check_name(self) -> None:
        """Refuse a numbered batch that would add to rows of other writers under the name."""
        job = self.options.job
        if job is not None and self.mode is not OutputMode.REPLACE:
            self._result_of(job.name).check_name(self.options.result_name() or "")

    def _check_upsert(self) -> None:
        check_keys(self.options.key_columns, self.schema)
        if self.mode is OutputMode.REPLACE:
            raise OptionError("krishiv-memory: 'mode' = 'upsert' cannot replace the whole result")
        if not self.streaming:
            raise OptionError(
                "krishiv-memory: batches that upsert need numbers, 'txnAppId' and "
                "'txnVersion', as krishiv_spark.upsert() sets them in foreachBatch: two "
                "batches at once would lose rows"
            )

    def describe_target(self) -> QueryTarget | None:
        """Driver: describe the result by the name in the options.

        Spark's ``queryName`` does not count: it may change, and the rows are found without it.
        """
        name = self.options.name or self.options.path
        return None if name is None else QueryTarget.of("krishiv-memory", name)

    def peek_committed(self, query: str) -> CommittedEpoch | None:
        """Driver: return the newest epoch as `last_committed` does."""
        return self.last_committed(query)

    def stage(self, batches: Iterator[pa.RecordBatch], task: Task, plan: None) -> EncodedRows:
        """Executor: return the rows; never None, since an empty result has a schema."""
        del task, plan
        return encode(batches, self.schema, self.options.bound().refuse)

    def last_committed(self, query: str) -> CommittedEpoch | None:
        """Driver: return the newest epoch that has a number in the store.

        Raises:
            OptionError: If the result has upserts by other columns.
        """
        newest = self._result_of(query).epochs.newest_header()
        if newest is None:
            return None
        number, header = newest
        if self.mode is not OutputMode.REPLACE and not self.options.allow_mixed_keys:
            check_kept_keys(self._keys, header.keys)
        return CommittedEpoch(number, header.digest)

    def publish(self, epoch: Epoch, staged: Sequence[EncodedRows]) -> None:
        """Driver: publish the epoch: one complete file takes its number."""
        name = self.options.result_name()
        if not self.streaming:
            NamedResult(self._store, name or "").add(self._entry(staged, epoch))
            return
        result, replaces = self._result_of(epoch.query), self.mode is OutputMode.REPLACE
        if self.options.mode == "upsert":
            # Any other process that does this for the epoch creates the same number, and only one
            # succeeds.
            bodies = [part.body for part in staged]
            rows = upsert(result.bodies(), bodies, self._keys, self.schema)
            staged, replaces = [rows], True
        self._check_name()
        result.publish(epoch.number, self._entry(staged, epoch, replaces=replaces), name)

    def discard(self, staged: Sequence[EncodedRows]) -> None:
        """Do nothing: nothing is stored before `publish`."""

    def _result_of(self, query: str) -> QueryResult:
        """Return the result of a stream, or of jobs: several results may have the same numbers."""
        name = None if self.options.job is None else self.options.result_name()
        return QueryResult(self._store, query if name is None else f"{query}.{name}")

    @property
    def _keys(self) -> tuple[str, ...]:
        """The key columns by which the rows are upserteded; empty if they are appended."""
        return self.options.key_columns if self.options.mode == "upsert" else ()

    @cached_property
    def _store(self) -> Store:
        return open_store()

    def _entry(
        self, staged: Sequence[EncodedRows], epoch: Epoch, *, replaces: bool | None = None
    ) -> StoreEntry:
        # An empty result has columns nevertheless.
        rows = staged or [encode([], self.schema)]
        return StoreEntry(
            bodies=[part.body for part in rows],
            rows=sum(part.count for part in rows),
            replaces=self.mode is OutputMode.REPLACE if replaces is None else replaces,
            bound=self.options.bound(),
            query=epoch.query,
            digest=epoch.digest,
            keys=sorted(self._keys),
        )
