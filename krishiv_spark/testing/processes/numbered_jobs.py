"""A sink as functions of ``foreachBatch`` use it: each epoch is a batch job with a number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql import datasource as spark
from pyspark.sql.types import StructType

from krishiv_spark.spark.checkpoint import SparkCheckpoint

__all__ = ["in_foreach_batch"]

_StreamArrowWriter: Any = getattr(
    spark, "DataSourceStreamArrowWriter", spark.DataSourceStreamWriter
)


def in_foreach_batch(
    source: type[spark.DataSource], name: str | None = None, *, ahead: int = 0
) -> type[spark.DataSource]:
    """Return the class of a format whose streams write by numbered jobs, as `each_batch` does.

    Args:
        source: The class that Spark registers.
        name: What the user calls the query; None for its id.
        ahead: How much higher the numbers are than those of the checkpoint, as after batches that
            went elsewhere.
    """

    class InForeachBatch(source):  # type: ignore[misc,valid-type]  # a class that the author gives
        def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802  Spark's name
            given = _Given(name, ahead)
            return _NumberedBatches(source, self.options, schema, overwrite, given)

    return InForeachBatch


class _Given:
    """The name and the numbers of the jobs, if they are not the usual ones."""

    def __init__(self, name: str | None, ahead: int) -> None:
        self.name, self.ahead = name, ahead


class _NumberedBatches(_StreamArrowWriter, spark.DataSourceArrowWriter):  # type: ignore[misc]  # base chosen by version
    """The writer of a stream, as the kit knows it."""

    def __init__(
        self,
        source: type[spark.DataSource],
        options: Mapping[str, str],
        schema: StructType,
        overwrite: bool,
        given: _Given,
    ) -> None:
        self._source, self._options, self._given = source, dict(options), given
        self._schema, self._overwrite = schema, overwrite
        self._checkpoint = SparkCheckpoint(options["checkpointLocation"])
        self._planned: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """Plan the job, with which this is pickled."""
        if self._planned is None:
            self._planned = self._job(self._checkpoint.planned_offsets().epoch)
        return self.__dict__

    def _job(self, epoch: int) -> Any:
        query = self._checkpoint.query_id()
        job = {
            "txnAppId": self._given.name or f"{query}-output",
            "txnVersion": str(epoch + self._given.ahead),
            "txnRepeats": "newest",
            "txnCheckpoint": self._checkpoint.location,
        }
        if self._given.name is not None:
            job["txnQueryId"] = query
        return self._source({**self._options, **job}).writer(self._schema, self._overwrite)

    @property
    def _writer(self) -> Any:
        """The author's, by whose verb `discard` the kit tries it."""
        return self._job(0)._writer  # noqa: SLF001

    def write(self, iterator: Iterator[Any]) -> Any:
        """Spark: executor."""
        return self._planned.write(iterator)

    def commit(  # type: ignore[override]  # streams name the batch, batches do not
        self, messages: list[Any], epoch: int
    ) -> None:
        """Spark: driver, in a process of its own."""
        self._job(epoch).commit(messages)

    def abort(  # type: ignore[override]  # as `commit`
        self, messages: list[Any], epoch: int
    ) -> None:
        """Spark: driver, in a process of its own."""
        self._job(epoch).abort(messages)
