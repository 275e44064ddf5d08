"""``krishiv-memory`` as a sink: exactly once, into a store on the driver's machine.

Tasks send their rows to the driver as Arrow; an epoch is true when its file takes its number
(`krishiv_spark.memory.log.Log`). The unit of parallelism is Spark's task; all rows pass through
the driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import pyarrow as pa
from pydantic import Field

from krishiv_spark.errors import OptionError
from krishiv_spark.memory.entry import Bound, StoreEntry
from krishiv_spark.memory.results import NamedResult, QueryResult
from krishiv_spark.memory.rows import EncodedRows, encode
from krishiv_spark.memory.store import open_store, quoted
from krishiv_spark.options import ByteSize
from krishiv_spark.sinks.base import Epoch, Mark, OutputMode, Task, TwoPhaseWriter
from krishiv_spark.sinks.numbered import NumberedJobOptions

__all__ = ["MemorySinkOptions", "MemoryWriter"]


class MemorySinkOptions(NumberedJobOptions):
    """Options of the sink. The result has a name, or is found by the query's id."""

    name: str | None = Field(default=None, description="Name of the result.")
    path: str | None = Field(
        default=None, description="The same, as given to `start()` or `save()`."
    )
    query_name: str | None = Field(
        default=None, description="The same, as given to Spark's `queryName()`."
    )
    max_rows: int | None = Field(default=None, gt=0, description="Most rows that the result holds.")
    max_bytes: ByteSize = Field(
        default=2**30, gt=0, description="Most bytes that it holds, compressed as it is stored."
    )
    on_full: Literal["error", "dropOldest"] = Field(
        default="error",
        description="A full result refuses the next epoch, or drops whole epochs, oldest first; "
        "the newest one always stays.",
    )

    def result_name(self) -> str | None:
        """The name of the result, None for one that is found by the query's id only."""
        return self.name or self.path or self.query_name

    def bound(self) -> Bound:
        """How much the result may hold."""
        return Bound(self.max_rows, self.max_bytes, self.on_full == "dropOldest")


class MemoryWriter(TwoPhaseWriter[EncodedRows]):
    """Rows in the driver's store, as Arrow."""

    options_type = MemorySinkOptions
    options: MemorySinkOptions

    def check(self) -> None:
        """Planner: the store can be used, and a batch job has a name to write to."""
        open_store()
        name = self.options.result_name()
        if name is not None:
            quoted(name)
        elif not self.streaming or self.options.job is not None:
            raise OptionError(
                "krishiv-memory: a batch write needs a name: .save('clicks') or option 'name'"
            )

    def stage(self, batches: Iterator[pa.RecordBatch], task: Task, plan: None) -> EncodedRows:
        """Executor: the rows travel in the value. Never None: an empty result has a schema."""
        del task, plan
        return encode(batches, self.schema, self.options.bound().refuse)

    def last_committed(self, query: str) -> Mark | None:
        """Driver: the newest epoch that has a number in the store."""
        newest = self._result_of(query).epochs.newest_header()
        return None if newest is None else Mark(newest[0], newest[1].digest)

    def publish(self, epoch: Epoch, staged: Sequence[EncodedRows]) -> None:
        """Driver: one file takes the epoch's number, whole."""
        entry, name = self._entry(staged, epoch), self.options.result_name()
        if self.streaming:
            self._result_of(epoch.query).publish(epoch.number, entry, name)
        else:
            NamedResult(open_store(), name or "").add(entry)

    def discard(self, staged: Sequence[EncodedRows]) -> None:
        """Nothing is stored before `publish`."""

    def _result_of(self, query: str) -> QueryResult:
        """Of a stream, or of numbered jobs: of those, users may have one number for several."""
        name = None if self.options.job is None else self.options.result_name()
        return QueryResult(open_store(), query if name is None else f"{query}.{name}")

    def _entry(self, staged: Sequence[EncodedRows], epoch: Epoch) -> StoreEntry:
        # An empty result has columns all the same.
        rows = staged or [encode([], self.schema)]
        return StoreEntry(
            bodies=[part.body for part in rows],
            rows=sum(part.count for part in rows),
            replaces=self.mode is OutputMode.REPLACE,
            bound=self.options.bound(),
            query=epoch.query,
            digest=epoch.digest,
        )
