"""Options of the source, and what follows from them."""

from __future__ import annotations

from typing import Literal

from pydantic import AliasChoices, Field

from krishiv_spark.arrow.time_zones import Zone
from krishiv_spark.options import ByteSize, Duration, Names
from krishiv_spark.parquet.calendars import RebaseMode, TimeRules
from krishiv_spark.parquet.layout import SOURCES
from krishiv_spark.sources.base import SourceOptions
from krishiv_spark.sources.parquet.places import Place, store_url
from krishiv_spark.sources.parquet.state import StatePlace
from krishiv_spark.sources.parquet.stream import FollowRules
from krishiv_spark.storage import StoreUrl
from krishiv_spark.storage.options import StorageOptions

__all__ = ["ParquetSourceOptions"]

_NS_PER_MS = 1_000_000
_STATE_OPTION = "krishiv-parquet: 'stateLocation'"


class ParquetSourceOptions(SourceOptions, StorageOptions):
    """Options of the source."""

    path: str = Field(
        validation_alias=AliasChoices("path", "parquet.path"),
        description="Folder, file or glob: a path or `file:` URL on a file system that every "
        "worker shares, or a URL of a bucket or HDFS. The wildcards of a glob are `*`, `?`, "
        "`[ab]` and `{a,b}`.",
    )
    moved_from: str | None = Field(
        default=None,
        description="Stream: previous location of the files, if all of them were moved to `path` "
        "since the query last ran. Without this option, another `path` is refused, because files "
        "with the same names would count as read.",
    )
    max_files_per_trigger: int | None = Field(
        default=10_000, gt=0, description="Maximum number of files in a batch."
    )
    max_file_age: Duration = Field(
        default=7 * 86_400_000,
        ge=0,
        description="Maximum age of a file when it appears, compared with the newest file that was "
        "read. Older files are skipped and counted in the progress. Files of a backlog are "
        "never too old. The option has no effect with `latestFirst` or in batch reads.",
    )
    latest_first: bool = Field(
        default=False,
        description="Read the newest files first. The query then remembers every file permanently.",
    )
    state_location: str | None = Field(
        default=None,
        description="Folder for the query's state, which can be too large for an offset. A folder "
        "next to the checkpoint is suitable. By default, it is `_krishiv_sources/` in the folder "
        "of `path`, which must then be writable.",
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
        description="Fail if a file was deleted after it was chosen for a batch, or belongs to a "
        "published epoch of `krishiv-parquet` and is missing, or has other rows than when "
        "it was chosen. With `false`, missing files are skipped and counted, and changed "
        "files are read in their current form.",
    )
    bad_files: Literal["fail", "skip"] = Field(
        default="fail",
        description="Action for a damaged file: `fail`, or `skip` it. With `skip`, the footer of "
        "each file is read before the file is chosen; a file with an unreadable footer waits "
        "until it is repaired. A valid file that is not supported or has another type is never "
        "skipped.",
    )
    max_partition_bytes: ByteSize = Field(
        default=128 * 2**20,
        gt=0,
        description="Approximate maximum size that one task reads. Larger files are split.",
    )
    starting_offsets: Literal["earliest", "latest"] = Field(
        default="earliest",
        description="Start of a new query. With `latest`, files that exist when the query first "
        "runs count as read, except files that are still being written.",
    )
    time_zone: Zone | None = Field(
        default=None,
        description="Time zone of times that have none, if the schema has TIMESTAMP: in names of "
        "partition folders that other writers than krishiv-parquet created, and in columns "
        "without a zone. It is also the zone in which Spark 2 wrote times before 1900. By "
        "default, such times are an error.",
    )
    datetime_rebase_mode: RebaseMode | None = Field(
        default=None,
        description="Calendar of dates before 1582-10-15 and times before 1900 in files that do "
        "not record which Spark wrote them, as in Spark's own reader: `LEGACY` for Spark 2 and "
        "Hive, `CORRECTED` for others; `EXCEPTION` refuses them. By default, files that Spark up "
        "to 2.4.5 wrote are refused if they have such values, and others are `CORRECTED`.",
    )
    int96_rebase_mode: RebaseMode | None = Field(
        default=None, description="Calendar of INT96 timestamps, with the same values."
    )

    def times(self) -> TimeRules:
        """How times are read that do not say enough of themselves."""
        return TimeRules(self.time_zone, self.datetime_rebase_mode, self.int96_rebase_mode)

    def rules(self, *, streaming: bool) -> FollowRules:
        """How the place is followed."""
        ages = streaming and not self.latest_first
        return FollowRules(
            recursive=self.recursive_file_lookup,
            newest_first=self.latest_first,
            max_age_ns=self.max_file_age * _NS_PER_MS if ages else None,
            looks=streaming,
            skip_bad=streaming and self.bad_files == "skip",
            fail_on_loss=streaming and self.fail_on_data_loss,
        )

    def state_place(self, place: Place) -> StatePlace:
        """Where state is kept.

        Raises:
            OptionError: If `stateLocation` is a URL of a store that is not known.
        """
        usual = StoreUrl.parse(place.root) / SOURCES
        if self.state_location is None:
            return StatePlace(usual, storage=self.storage)
        own = store_url(self.state_location, _STATE_OPTION)
        return StatePlace(own, (usual,), self.storage)
