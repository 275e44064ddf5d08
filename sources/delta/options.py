"""Options of the Delta source."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AliasChoices, BeforeValidator, Field, model_validator
from typing_extensions import Self

from krishiv_spark.delta.options import DeltaOptions
from krishiv_spark.options import ByteSize, Names
from krishiv_spark.sources.base import SourceOptions

__all__ = ["DeltaSourceOptions"]


def _to_milliseconds(given: object) -> object:
    """Convert a time with a zone to epoch milliseconds; return other values unchanged."""
    if not isinstance(given, str) or given.strip().lstrip("-").isdigit():
        return given
    try:
        time = dt.datetime.fromisoformat(given.strip().replace("Z", "+00:00"))
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise ValueError(
            "write milliseconds since 1970 UTC, or a time with a zone, such as "
            "'2013-01-01T12:00:00Z'"
        )
    return (time - dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)) // dt.timedelta(milliseconds=1)


_Milliseconds = Annotated[int, BeforeValidator(_to_milliseconds)]


def _parse_version(given: object) -> object:
    text = given.strip().lower() if isinstance(given, str) else given
    if text == "latest" or not isinstance(text, str):
        return text
    if not text.isdigit():
        raise ValueError("write the number of a version, or 'latest'")
    return int(text)


_StartVersion = Annotated[int | Literal["latest"], BeforeValidator(_parse_version)]

_NO_TIMES = "tables of Delta give no watermark yet: use Spark's withWatermark()"


def _alias(*spellings: str) -> Any:
    return AliasChoices(*spellings)


class DeltaSourceOptions(SourceOptions, DeltaOptions):
    """Options of the source; most names are those of delta-spark."""

    unsupported: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("event_time", "watermark_delay", "late_rows", "max_event_time_ahead"), _NO_TIMES
    )

    version_as_of: int | None = Field(
        default=None, ge=0, description="Batch: the version to read. Default: the newest."
    )
    timestamp_as_of: _Milliseconds | None = Field(
        default=None,
        description="Batch: read the newest version at this time: milliseconds since 1970 UTC, or "
        "a time with a zone, such as `2013-01-01T12:00:00Z`.",
    )
    starting_version: _StartVersion | None = Field(
        default=None,
        description="Start at the changes of this version, inclusive, or at the next one "
        "(`latest`). By default, a stream first reads all rows of the newest version.",
    )
    ignore_deletes: bool = Field(
        default=False, description="Stream: skip versions that only delete rows."
    )
    ignore_changes: bool = Field(
        default=False,
        description="Stream: read the files that a version adds, also if it removes others. Rows "
        "that were only copied are then there again.",
    )
    skip_change_commits: bool = Field(
        default=False, description="Stream: skip versions that delete or change rows."
    )
    columns: Names = Field(
        default=(),
        description="Columns to read, separated by commas. A schema given to Spark takes "
        "precedence.",
    )
    max_partition_bytes: ByteSize = Field(
        default=128 * 2**20,
        gt=0,
        validation_alias=_alias("maxPartitionBytes"),
        description="Approximate maximum size that one task reads. Larger files are split by row "
        "group.",
    )

    @model_validator(mode="after")
    def _check_pairs(self) -> Self:
        chosen = {
            "versionAsOf": self.version_as_of,
            "timestampAsOf": self.timestamp_as_of,
            "startingVersion": self.starting_version,
        }
        given = [name for name, value in chosen.items() if value is not None]
        if len(given) > 1:
            raise ValueError(f"options {given[0]!r} and {given[1]!r} exclude each other")
        return self

    def list_meaningless(self, *, streaming: bool) -> list[str]:
        """Return the options that were set and have no meaning in a stream, or in a batch."""
        of_streams = {
            "startingVersion": self.starting_version,
            "ignoreDeletes": self.ignore_deletes or None,
            "ignoreChanges": self.ignore_changes or None,
            "skipChangeCommits": self.skip_change_commits or None,
        }
        of_batches = {"versionAsOf": self.version_as_of, "timestampAsOf": self.timestamp_as_of}
        given = of_batches if streaming else of_streams
        return [name for name, value in given.items() if value is not None]
