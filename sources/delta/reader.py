"""``krishiv-delta`` as a source: tables of Delta Lake, as batches and as streams.

A batch reads one version. A stream reads all rows of one version first, unless an option specifies
another start, and then the rows that each later version adds, every row exactly once. An offset
contains a version and the number of a file in it: versions never change, so a replay reads the same
rows also after later commits. The unit of a batch is a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa

from krishiv_spark.arrow.schemas import select_columns
from krishiv_spark.delta.column_types import read_columns
from krishiv_spark.delta.opening import open_table
from krishiv_spark.delta.options import FORMAT
from krishiv_spark.sources.base import Limit, StreamReader
from krishiv_spark.sources.delta.change_feed import add_feed_columns, without_feed_columns
from krishiv_spark.sources.delta.chosen_versions import open_for_batch
from krishiv_spark.sources.delta.file_tasks import DeltaTask, plan_tasks, read_task
from krishiv_spark.sources.delta.offset import DeltaOffset
from krishiv_spark.sources.delta.options import DeltaSourceOptions
from krishiv_spark.sources.delta.table_files import list_snapshot
from krishiv_spark.sources.delta.version_stream import VersionStream

__all__ = ["DeltaReader"]


class DeltaReader(StreamReader[DeltaOffset, DeltaTask]):
    """A reader of one table."""

    options_type = DeltaSourceOptions
    offset_type = DeltaOffset
    options: DeltaSourceOptions

    def __init__(
        self, options: DeltaSourceOptions, schema: pa.Schema | None, *, streaming: bool
    ) -> None:
        super().__init__(options, schema, streaming=streaming)
        self._pushed: tuple[Any, ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what only the driver needs."""
        return {name: value for name, value in vars(self).items() if name != "_stream"}

    def infer_schema(self) -> pa.Schema:
        """Return the columns of the version that is read, or those of the option `columns`.

        A stream has those of the newest version.
        """
        options = self.options
        columns = read_columns(open_table(options) if self.streaming else open_for_batch(options))
        if self.options.read_change_feed:
            columns = add_feed_columns(columns)
        return select_columns(columns, self.options.columns, FORMAT)

    # --- positions

    def initial(self) -> DeltaOffset:
        """Return the name of the start that the options specify, which is constant.

        The first batch resolves it to a version, and the end of that batch contains it.

        Raises:
            OptionError: If an option has no meaning in a stream, or in a batch.
        """
        self.options.check_use(streaming=self.streaming)
        return DeltaOffset(at=self.options.name_start())

    def latest(self, start: DeltaOffset, limit: Limit) -> DeltaOffset:
        """Read the log, and list the files of new versions, up to the end of the next batch."""
        stream = self._stream
        return stream.latest(start, limit) if self.streaming else stream.find_batch_end(start)

    def freeze(self) -> None:
        """Read no version that is committed after this call."""
        self._stream.freeze()

    def backlog(self) -> Mapping[str, Any]:
        """Return the newest version, as it was when the last batch was planned."""
        return self._stream.backlog()

    def push(self, filters: Sequence[Any]) -> None:
        """Keep conditions of Spark for `plan`."""
        self._pushed = tuple(filters)

    # --- rows

    def plan(self, start: DeltaOffset, end: DeltaOffset) -> Sequence[DeltaTask]:
        """Plan the tasks, by the two offsets and the versions that they contain."""
        if start == end:
            return []
        most = self.options.max_partition_bytes
        if self.streaming or self.options.read_change_feed:
            return plan_tasks(self._stream.list_files(start, end), most)
        assert end.spot is not None, end
        table = open_table(self.options, end.spot.version)
        return plan_tasks(list_snapshot(self.options, table, self._pushed), most)

    def read(self, partition: DeltaTask) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task. See `read_task`."""
        url = self.options.url
        return read_task(partition, url, self.options.storage.files(url), self._schema)

    @cached_property
    def _schema(self) -> pa.Schema:
        return self.infer_schema() if self.schema is None else self.schema

    @cached_property
    def _stream(self) -> VersionStream:
        columns = self._schema
        if self.options.read_change_feed:
            columns = without_feed_columns(columns)
        return VersionStream(self.options, columns)
