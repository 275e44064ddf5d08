"""Options of the Iceberg source."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BeforeValidator, Field, model_validator
from typing_extensions import Self

from krishiv_spark.iceberg.options import IcebergOptions
from krishiv_spark.options import ByteSize, Names
from krishiv_spark.sources.base import SourceOptions

__all__ = ["IcebergSourceOptions", "Milliseconds"]


def _to_milliseconds(text: object) -> object:
    """Convert a time with a zone to epoch milliseconds; return other values unchanged."""
    if not isinstance(text, str) or text.strip().lstrip("-").isdigit():
        return text
    try:
        # Python 3.10 does not know the "Z".
        time = dt.datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise ValueError(
            "write milliseconds since 1970 UTC, or a time with a zone, such as "
            "'2013-01-01T12:00:00Z'"
        )
    since = time - dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
    return since // dt.timedelta(milliseconds=1)


Milliseconds = Annotated[int, BeforeValidator(_to_milliseconds)]
"""A time in milliseconds since 1970 UTC."""


def _alias(written: str, *more: str) -> Any:
    return AliasChoices(written, *more)


class IcebergSourceOptions(SourceOptions, IcebergOptions):
    """Options of the Iceberg source; names with hyphens are those of Iceberg's own connector."""

    snapshot_id: int | None = Field(
        default=None,
        validation_alias=_alias("snapshot-id", "snapshotId"),
        description="Snapshot to read. A stream then reads the rows that were appended after it.",
    )
    as_of_timestamp: Milliseconds | None = Field(
        default=None,
        validation_alias=_alias("as-of-timestamp", "asOfTimestamp", "timestampAsOf"),
        description="Batch: read the newest snapshot at this time: milliseconds since 1970 UTC, or "
        "a time with a zone, such as `2013-01-01T12:00:00Z`.",
    )
    branch: str | None = Field(
        default=None, description="Branch to read or to follow. Default: `main`."
    )
    tag: str | None = Field(default=None, description="Batch: the tag to read.")
    start_snapshot_id: int | None = Field(
        default=None,
        validation_alias=_alias("start-snapshot-id", "startSnapshotId"),
        description="Read only rows that were appended after this snapshot.",
    )
    end_snapshot_id: int | None = Field(
        default=None,
        validation_alias=_alias("end-snapshot-id", "endSnapshotId"),
        description="Batch, with `start-snapshot-id`: the last snapshot whose rows are read.",
    )
    stream_from_timestamp: Milliseconds | None = Field(
        default=None,
        validation_alias=_alias("stream-from-timestamp", "streamFromTimestamp"),
        description="Stream: start at the first snapshot with this timestamp or later, written as "
        "for `as-of-timestamp`.",
    )
    starting_offsets: Literal["earliest", "current", "latest"] = Field(
        default="earliest",
        description="Stream: start of a new query, at the oldest snapshot in the table "
        "(`earliest`), the newest snapshot (`current`), or the next one (`latest`).",
    )
    max_files_per_trigger: int | None = Field(
        default=None,
        gt=0,
        validation_alias=_alias("streaming-max-files-per-micro-batch", "maxFilesPerTrigger"),
        description="Maximum number of files in a batch.",
    )
    max_rows_per_trigger: int | None = Field(
        default=None,
        gt=0,
        validation_alias=_alias("streaming-max-rows-per-micro-batch", "maxRowsPerTrigger"),
        description="Maximum number of rows in a batch. A file is never split over batches.",
    )
    skip_overwrite_snapshots: bool = Field(
        default=False,
        validation_alias=_alias("streaming-skip-overwrite-snapshots", "skipOverwriteSnapshots"),
        description="Skip snapshots that overwrite rows, including the rows that they add.",
    )
    skip_delete_snapshots: bool = Field(
        default=False,
        validation_alias=_alias("streaming-skip-delete-snapshots", "skipDeleteSnapshots"),
        description="Skip snapshots that only delete rows.",
    )
    columns: Names = Field(
        default=(),
        description="Columns to read, separated by commas. A schema given to Spark takes "
        "precedence.",
    )
    row_filter: str | None = Field(
        default=None,
        validation_alias=_alias("rowFilter", "row-filter"),
        description="Filter for the rows to read, in PyIceberg's notation: `carrier = 'UA' and "
        "delay >= 15`.",
    )
    read_changes: bool = Field(
        default=False,
        description="Read changes instead of rows: `_weight` is 1 for an inserted row and -1 for a "
        "deleted row, `_op` is `insert` or `delete`.",
    )
    key_columns: Names = Field(
        default=(),
        description="With `readChanges`: columns that identify a row. An inserted row has `_op` = "
        "`update` if a row with its key is deleted in the same batch.",
    )
    max_partition_bytes: ByteSize = Field(
        default=128 * 2**20,
        gt=0,
        validation_alias=_alias("maxPartitionBytes", "split-size"),
        description="Approximate maximum size that one task reads. Larger files are split by row "
        "group. By default, tasks are smaller, down to `16m`, until there are 200.",
    )

    @model_validator(mode="after")
    def _check_starts(self) -> Self:
        chosen = {
            "snapshot-id": self.snapshot_id,
            "as-of-timestamp": self.as_of_timestamp,
            "tag": self.tag,
            "start-snapshot-id": self.start_snapshot_id,
            "stream-from-timestamp": self.stream_from_timestamp,
        }
        given = [name for name, value in chosen.items() if value is not None]
        if len(given) > 1:
            raise ValueError(f"options {given[0]!r} and {given[1]!r} exclude each other")
        if given and "starting_offsets" in self.model_fields_set:
            raise ValueError(f"options {given[0]!r} and 'startingOffsets' exclude each other")
        if self.branch is not None and (self.tag or self.snapshot_id is not None):
            raise ValueError(f"options {given[0]!r} and 'branch' exclude each other")
        if self.end_snapshot_id is not None and self.start_snapshot_id is None:
            raise ValueError("option 'end-snapshot-id' needs 'start-snapshot-id'")
        return self

    @model_validator(mode="after")
    def _check_changes(self) -> Self:
        if self.key_columns and not self.read_changes:
            raise ValueError("option 'keyColumns' needs 'readChanges'")
        if self.read_changes and (self.skip_overwrite_snapshots or self.skip_delete_snapshots):
            raise ValueError("options 'readChanges' and 'streaming-skip-…' exclude each other")
        if self.read_changes and self.event_time is not None:
            raise ValueError(
                "options 'readChanges' and 'eventTime' exclude each other: deleted rows can "
                "have any age, so no watermark is valid for them"
            )
        return self

    def list_meaningless(self, *, streaming: bool) -> list[str]:
        """Return the options that were set and have no meaning in a stream, or in a batch."""
        stream = {"stream-from-timestamp": self.stream_from_timestamp}
        if "starting_offsets" in self.model_fields_set:
            stream["startingOffsets"] = 0
        batch = {
            "as-of-timestamp": self.as_of_timestamp,
            "tag": self.tag,
            "end-snapshot-id": self.end_snapshot_id,
        }
        given = batch if streaming else stream
        return [name for name, value in given.items() if value is not None]
