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
        "worker shares, or a URL of a bucket or HDFS. In a glob, `*`, `?`, `[ab]` and `{a,b}` are "
        "wildcards.",
    )
    moved_from: str | None = Field(
        default=None,
        description="Stream: where the files were when the query ran last, if they were moved to "
        "`path` since, all of them. Another `path` is refused otherwise, since files of the same "
        "names would count as read.",
    )
    max_files_per_trigger: int | None = Field(
        default=10_000, gt=0, description="Most files in a batch."
    )
    max_file_age: Duration = Field(
        default=7 * 86_400_000,
        ge=0,
        description="A file that appears with a time more than this before that of the newest "
        "file that was read is passed over, and counted in the progress. A backlog is never too "
        "old. Without effect with `latestFirst` and in batch reads.",
    )
    latest_first: bool = Field(
        default=False,
        description="Read the newest files first. Every file is then remembered for ever.",
    )
    state_location: str | None = Field(
        default=None,
        description="Folder for what the query remembers, where that is too much for an offset; "
        "a folder beside the checkpoint is a good one. By default `_krishiv_sources/` in "
        "the folder of `path`, which has to be writable then.",
    )
    recursive_file_lookup: bool = Field(
        default=False,
        description="Go into every sub-folder; folders such as `day=2013-01-01` are then no "
        "partition columns.",
    )
    columns: Names = Field(
        default=(),
        description="Columns to read, separated by commas. Where a schema is given, it decides.",
    )
    fail_on_data_loss: bool = Field(
        default=True,
        description="Fail when a file is gone that was chosen for a batch, or that belongs to a "
        "published epoch of `krishiv-parquet`, or has other rows than when it was chosen. "
        "Otherwise what is gone is passed over and counted, and what has changed is read as it is.",
    )
    bad_files: Literal["fail", "skip"] = Field(
        default="fail",
        description="What happens at a damaged file: fail, or skip it. With `skip`, the footer of "
        "each file is read before it is taken; one that cannot be read is left until it is mended. "
        "A file that is good, but not supported or of another type, is never skipped.",
    )
    max_partition_bytes: ByteSize = Field(
        default=128 * 2**20,
        gt=0,
        description="About the most bytes that one task reads; larger files are split.",
    )
    starting_offsets: Literal["earliest", "latest"] = Field(
        default="earliest",
        description="Where a new query begins; with `latest`, the files that are there when it "
        "first runs count as read, but for those that are still being written.",
    )
    time_zone: Zone | None = Field(
        default=None,
        description="Zone of times that say none, where the schema has TIMESTAMP: in names of "
        "partition folders that others than krishiv-parquet wrote, and in columns without a zone; "
        "also the zone in which Spark 2 wrote times before 1900. Without it they are an error.",
    )
    datetime_rebase_mode: RebaseMode | None = Field(
        default=None,
        description="As in Spark's own reader: what is done with dates before 1582-10-15 and times "
        "before 1900 in files that do not say which Spark wrote them. `LEGACY` for Spark 2 and "
        "Hive, `CORRECTED` for others, and `EXCEPTION` refuses them. Without it, files that Spark "
        "up to 2.4.5 wrote are refused if they have such values, and others are `CORRECTED`.",
    )
    int96_rebase_mode: RebaseMode | None = Field(
        default=None, description="The same for INT96 timestamps."
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
