"""Options of the source, and the rules and locations that follow from them.

Files are known by their paths below the folder that is listed (`SourcePath.root`), so that it can
be moved. Files of another folder would count as read if their names are the same; and if a pattern
moves the root up, all paths differ, and all files would be read again. So `check_same_path` refuses
another path.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import AliasChoices, Field

from krishiv_spark.arrow.cast import Zone
from krishiv_spark.errors import OptionError
from krishiv_spark.messages.suggestions import NEW_CHECKPOINT
from krishiv_spark.options import ByteSize, Duration, Names
from krishiv_spark.parquet.calendars import RebaseMode, TimeRules
from krishiv_spark.parquet.layout import SOURCES
from krishiv_spark.sources.base import SourceOptions
from krishiv_spark.sources.parquet.listing import SourcePath, parse_store_url
from krishiv_spark.sources.parquet.offset import ParquetOffset
from krishiv_spark.sources.parquet.offset_store import StateLocation
from krishiv_spark.storage import StoreUrl
from krishiv_spark.storage.storage import StorageOptions

__all__ = ["FollowRules", "ParquetSourceOptions", "check_same_path"]

_NS_PER_MS = 1_000_000
_STATE_OPTION = "krishiv-parquet: 'stateLocation'"


@dataclass(frozen=True)
class FollowRules:
    """The rules by which a path is followed.

    Attributes:
        recursive: See `scan`.
        newest_first: True if the newest files are read first.
        max_age_ns: Files that much older than the newest one that was read are skipped; None if
            none is.
        checks: True if a file is checked before it is read. A batch read takes every file.
        skip_bad: True if damaged files are skipped.
        fail_on_loss: True if missing files of a published epoch are an error.
    """

    recursive: bool = False
    newest_first: bool = False
    max_age_ns: int | None = None
    checks: bool = True
    skip_bad: bool = False
    fail_on_loss: bool = True


class ParquetSourceOptions(SourceOptions, StorageOptions):
    """Options of the source."""

    path: str = Field(
        validation_alias=AliasChoices("path", "parquet.path"),
        description="Folder, file or glob (`*`, `?`, `[ab]`, `{a,b}`) that every worker can read.",
    )
    moved_from: str | None = Field(
        default=None,
        description="Stream: previous `path`, if all files were moved since the query last ran.",
    )
    max_files_per_trigger: int | None = Field(
        default=10_000, gt=0, description="Maximum number of files in a batch."
    )
    max_file_age: Duration = Field(
        default=7 * 86_400_000,
        ge=0,
        description="Maximum age of a file when it appears, compared with the newest file that "
        "was read. Older files are skipped. Not for `latestFirst` and batch reads.",
    )
    latest_first: bool = Field(
        default=False,
        description="Read the newest files first. The query then remembers every file permanently.",
    )
    state_location: str | None = Field(
        default=None,
        description="Folder for the query's [state](#state-of-a-query). Default: "
        "`_krishiv_sources/` in the folder of `path`.",
    )
    recursive_file_lookup: bool = Field(
        default=False,
        description="Read all sub-folders. Folders such as `day=2013-01-01` are then not partition "
        "columns.",
    )
    columns: Names = Field(
        default=(),
        description="Columns to read, separated by commas. A schema given to Spark takes "
        "precedence.",
    )
    fail_on_data_loss: bool = Field(
        default=True,
        description="Fail if a chosen file was deleted or changed. With `false`, missing files "
        "are skipped, and changed ones are read in their current form.",
    )
    bad_files: Literal["fail", "skip"] = Field(
        default="fail",
        description="Action for a damaged file: `fail`, or `skip` it. `skip` reads each footer "
        "before the file is chosen.",
    )
    max_partition_bytes: ByteSize = Field(
        default=128 * 2**20,
        gt=0,
        description="Approximate maximum size that one task reads. Larger files are split.",
    )
    starting_offsets: Literal["earliest", "latest"] = Field(
        default="earliest",
        description="Start of a new query. With `latest`, files that exist at its first run "
        "count as read.",
    )
    time_zone: Zone | None = Field(
        default=None,
        description="Time zone of times without one that are read as TIMESTAMP, in columns and "
        "folder names. By default, they are an error.",
    )
    datetime_rebase_mode: RebaseMode | None = Field(
        default=None,
        description="Calendar of old dates in files that do not record their version of Spark: "
        "`LEGACY`, `CORRECTED` or `EXCEPTION` ([old calendars](parquet.md#old-calendars)).",
    )
    int96_rebase_mode: RebaseMode | None = Field(
        default=None, description="Calendar of INT96 timestamps, with the same values."
    )

    def times(self) -> TimeRules:
        """Return the rules for times that lack a zone or a calendar."""
        return TimeRules(self.time_zone, self.datetime_rebase_mode, self.int96_rebase_mode)

    def rules(self, *, streaming: bool) -> FollowRules:
        """Return the rules by which the path is followed."""
        ages = streaming and not self.latest_first
        return FollowRules(
            recursive=self.recursive_file_lookup,
            newest_first=self.latest_first,
            max_age_ns=self.max_file_age * _NS_PER_MS if ages else None,
            checks=streaming,
            skip_bad=streaming and self.bad_files == "skip",
            fail_on_loss=streaming and self.fail_on_data_loss,
        )

    def state_location_of(self, path: SourcePath) -> StateLocation:
        """Return the location of the state of a stream of a path.

        Raises:
            OptionError: If `stateLocation` is a URL of an unknown store.
        """
        default = StoreUrl.parse(path.root) / SOURCES
        if self.state_location is None:
            return StateLocation(default, storage=self.storage)
        own = parse_store_url(self.state_location, _STATE_OPTION)
        return StateLocation(own, (default,), self.storage)


def check_same_path(offset: ParquetOffset, path: SourcePath, moved_from: str | None) -> None:
    """Check that an offset is one of this path.

    Args:
        offset: Position of the query, or the batch that it is to read again.
        path: The path of the source now.
        moved_from: The option `movedFrom`: previous path of the same files.

    Raises:
        OptionError: If the offset is one of another path. Offsets of releases that did not record
            the path count as ones of this path.
    """
    recorded = offset.root
    if recorded is None or recorded == path.root:
        return
    if moved_from is not None and recorded == SourcePath.parse(moved_from, path.storage).root:
        return
    raise OptionError(
        f"krishiv-parquet: this query has read files below {recorded}, and 'path' is now "
        f"{path.root}, where other files with the same names would count as read: put 'path' "
        f"back. If these are the same files, moved: .option('movedFrom', '{recorded}'). For other "
        f"files use {NEW_CHECKPOINT}"
    )
