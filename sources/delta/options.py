"""Options of the Delta source."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AliasChoices, BeforeValidator, Field, model_validator
from typing_extensions import Self

from krishiv_spark.delta.options import FORMAT, DeltaOptions
from krishiv_spark.errors import OptionError
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
    foreign: ClassVar[Mapping[str, str]] = {
        "mergeschema": "a stream reads the columns that the table has when it starts",
        "excluderegex": "files are those of the log; filter the rows",
        "ignorefiledeletion": "set 'ignoreDeletes' or 'ignoreChanges'",
        "failondataloss": "a version that was cleaned up is always an error: start with another "
        "checkpoint",
        "schematrackinglocation": "restart the query after a change of columns",
        "witheventtimeorder": "rows of a first load have no order: use a longer withWatermark()",
        "ignorechangefiles": "set 'ignoreChanges'",
    }

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
    starting_timestamp: _Milliseconds | None = Field(
        default=None,
        description="Start at the changes of the first version at this time or later, in the form "
        "of `timestampAsOf`.",
    )
    read_change_feed: bool = Field(
        default=False,
        validation_alias=_alias("readChangeFeed", "readChangeData"),
        description="Read [changes of rows](delta.md#changes-of-rows) instead of rows, with the "
        "columns `_change_type`, `_commit_version` and `_commit_timestamp`. A batch needs "
        "`startingVersion` or `startingTimestamp`.",
    )
    ending_version: int | None = Field(
        default=None,
        ge=0,
        description="Batch with `readChangeFeed`: the last version, inclusive. Default: the "
        "newest.",
    )
    ending_timestamp: _Milliseconds | None = Field(
        default=None,
        description="Batch with `readChangeFeed`: the last version is the newest one at this time.",
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
        for group in (_STARTS, _ENDS):
            given = [name for name, field in group.items() if getattr(self, field) is not None]
            if len(given) > 1:
                raise ValueError(f"options {given[0]!r} and {given[1]!r} exclude each other")
        first, last = self.starting_version, self.ending_version
        if isinstance(first, int) and last is not None and last < first:
            raise ValueError("'endingVersion' is before 'startingVersion'")
        return self

    def name_start(self) -> str:
        """Return a constant name of the start of a query."""
        if self.starting_timestamp is not None:
            return f"time {self.starting_timestamp}"
        given = self.starting_version
        return "current" if given is None else f"version {given}"

    def check_use(self, *, streaming: bool) -> None:
        """Refuse options without a meaning in a stream or in a batch.

        Raises:
            OptionError: If there is one, or a batch of changes has no start.
        """
        feed = self.read_change_feed
        refused = {
            "is for batch reads": (*_OF_BATCHES, *_ENDS) if streaming else (),
            "is for streams": () if streaming else _OF_STREAMS,
            "is for streams, or needs 'readChangeFeed'": () if streaming or feed else _BEGINS,
            "needs 'readChangeFeed'": () if streaming or feed else tuple(_ENDS),
            "has no meaning with 'readChangeFeed'": (*_OF_BATCHES, *_OF_STREAMS) if feed else (),
        }
        for why, names in refused.items():
            for name in names:
                if (value := getattr(self, _FIELDS[name])) is not None and value is not False:
                    raise OptionError(f"{FORMAT}: option {name!r} {why}")
        if feed and not streaming and self.starting_version is self.starting_timestamp is None:
            raise OptionError(
                f"{FORMAT}: a batch with 'readChangeFeed' needs 'startingVersion' or "
                "'startingTimestamp', such as 'startingVersion' = '0'"
            )


_ENDS = {"endingVersion": "ending_version", "endingTimestamp": "ending_timestamp"}
_OF_BATCHES = {"versionAsOf": "version_as_of", "timestampAsOf": "timestamp_as_of"}
_BEGINS = {"startingVersion": "starting_version", "startingTimestamp": "starting_timestamp"}
_OF_STREAMS = {
    "ignoreDeletes": "ignore_deletes",
    "ignoreChanges": "ignore_changes",
    "skipChangeCommits": "skip_change_commits",
}
_STARTS = {**_OF_BATCHES, **_BEGINS}
_FIELDS = {**_STARTS, **_ENDS, **_OF_STREAMS}
