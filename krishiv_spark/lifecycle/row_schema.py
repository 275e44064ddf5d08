"""What a source's rows look like to Spark. Anywhere."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from krishiv_spark.arrow.schemas import conform
from krishiv_spark.errors import SchemaError
from krishiv_spark.offsets.watermark import LATE_COLUMN, check_event_time, judge
from krishiv_spark.sources.base import SourceOptions

__all__ = ["RowSchema"]


@dataclass(frozen=True)
class RowSchema:
    """How the rows of a source look to Spark: the reader's columns, and `_late` where asked for.

    Attributes:
        columns: Arrow schema that the reader yields.
        target: Arrow schema that Spark expects: the same, with `_late` after it under the
            policy "flag".
        options: Event time column and late-row policy.
    """

    columns: pa.Schema
    target: pa.Schema
    options: SourceOptions

    def __post_init__(self) -> None:
        if self.options.event_time is not None:
            check_event_time(self.options.event_time, self.columns)
        elif self.options.late_rows != "keep":
            raise SchemaError(
                f"option 'lateRows' = {self.options.late_rows!r} needs an event time: "
                "name its column with the option 'eventTime'"
            )

    @classmethod
    def inferred(cls, columns: pa.Schema, options: SourceOptions) -> RowSchema:
        """The rows of a reader whose schema the user did not give."""
        late = pa.field(LATE_COLUMN, pa.bool_(), nullable=False)
        flags = options.late_rows == "flag"
        return cls(columns, columns.append(late) if flags else columns, options)

    @classmethod
    def expected(cls, target: pa.Schema, options: SourceOptions) -> RowSchema:
        """The rows of the schema that Spark expects.

        Raises:
            SchemaError: If late rows are to be flagged, but a schema given by the user has no
                column for it.
        """
        if options.late_rows != "flag":
            return cls(target, target, options)
        if LATE_COLUMN not in target.names:
            raise SchemaError(
                f"option 'lateRows' = 'flag' needs a column {LATE_COLUMN} BOOLEAN in the schema"
            )
        return cls(target.remove(target.names.index(LATE_COLUMN)), target, options)

    def judged(self, batch: pa.RecordBatch, watermark_ms: int | None) -> pa.RecordBatch:
        """A batch of the reader's rows after the late-row policy, as Spark expects it."""
        rows = conform(batch, self.columns)
        if self.options.event_time is not None:
            rows = judge(rows, self.options.event_time, self.options.late_rows, watermark_ms)
        return conform(rows, self.target)
