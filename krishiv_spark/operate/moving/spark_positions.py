"""Conversion of positions of Spark's file source and Iceberg's connector to krishiv-spark's."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from krishiv_spark.errors import DataLossError, OffsetError, OptionError
from krishiv_spark.sources.iceberg.offset import IcebergOffset, StreamingOffset
from krishiv_spark.sources.iceberg.options import IcebergSourceOptions
from krishiv_spark.sources.parquet.listing import ROOT_ITSELF, FoundFile, SourcePath
from krishiv_spark.sources.parquet.offset import ParquetOffset, ReadFileIds
from krishiv_spark.sources.parquet.offset_store import BatchEnd, OffsetStore
from krishiv_spark.sources.parquet.options import ParquetSourceOptions
from krishiv_spark.spark.checkpoint import SparkCheckpoint
from krishiv_spark.storage import Folder, StoreUrl

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

    from krishiv_spark.sources.iceberg.history import History

__all__ = [
    "ReadFile",
    "SparkFilePositions",
    "SparkIcebergPosition",
    "SparkTablePositions",
    "list_read_files",
    "parse_file_log_offset",
    "parse_iceberg_position",
]


_NS_PER_MS = 1_000_000
_COMPACT = ".compact"


class ReadFile(NamedTuple):
    """A file that Spark's source has read.

    Attributes:
        url: Its whole path, without escapes.
        modified_ms: Time of its last modification, milliseconds since 1970 UTC.
    """

    url: str
    modified_ms: int


def parse_file_log_offset(text: str) -> int | None:
    """Return the last log entry that the source has read; None for an offset of another kind."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    if isinstance(value, dict) and value.keys() == {"logOffset"}:
        found = value["logOffset"]
        return found if isinstance(found, int) else None
    return None


def list_read_files(folder: Folder, upto: int) -> list[ReadFile]:
    """Return the files that the source has read.

    Args:
        folder: The folder with its log, ``sources/<number>`` of a checkpoint.
        upto: Number of the last entry to include.

    Raises:
        OptionError: If an entry is missing, or has an unknown form.
    """
    names = folder.names().keys()
    compacted = [int(n.removesuffix(_COMPACT)) for n in names if _is_compacted(n)]
    newest = max(compacted, default=-1)
    wanted = [] if newest < 0 else [f"{newest}{_COMPACT}"]
    # A compacted entry contains all earlier ones, and the entry number of each file.
    wanted += [str(number) for number in range(newest + 1, upto + 1)]
    found = []
    for name, data in zip(wanted, folder.read_each(wanted), strict=True):
        if data is None:
            raise OptionError(
                f"{folder}/{name}, which records the files that were read, is missing"
            )
        found += [
            file for entry, file in _entries(data.decode(), f"{folder}/{name}") if entry <= upto
        ]
    return found


def _is_compacted(name: str) -> bool:
    return name.endswith(_COMPACT) and name.removesuffix(_COMPACT).isdecimal()


def _entries(text: str, place: str) -> Iterator[tuple[int, ReadFile]]:
    version, *lines = text.removesuffix("\n").split("\n")
    if version != "v1":
        raise OptionError(f"{place} has the form {version[:20]!r}, which is not known: upgrade")
    for line in lines:
        try:
            entry = json.loads(line)
            # ``SparkPath.urlEncoded``
            file = ReadFile(unquote(str(entry["path"])), int(entry["timestamp"]))
            yield int(entry["batchId"]), file
        except (ValueError, LookupError, TypeError) as error:
            raise OptionError(f"{place} is damaged: {error}") from error


@dataclass(frozen=True)
class SparkFilePositions:
    """A converter of positions of Spark's file source to krishiv-parquet's.

    Attributes:
        old: The checkpoint of Spark's query.
        options: The options of the ``krishiv-parquet`` source that will continue.
    """

    old: SparkCheckpoint
    options: Mapping[str, str]

    @cached_property
    def _parsed_options(self) -> ParquetSourceOptions:
        return ParquetSourceOptions.parse(dict(self.options), "krishiv-parquet")

    @cached_property
    def _place(self) -> SourcePath:
        return SourcePath.parse(self._parsed_options.path, self._parsed_options.storage)

    def check_listed(self) -> None:
        """Refuse a folder that Spark's source reads by its log instead of a listing.

        Raises:
            OptionError: If it is such a folder.
        """
        if self._place.has_sink_log():
            raise OptionError(
                f"{self._place.root} was written by Spark's own file sink: its _spark_metadata "
                "lists the valid files, and krishiv-parquet would read files of failed tasks "
                "as well, whose rows are there twice. Continue with Spark's source, or have "
                "krishiv-parquet write that folder"
            )

    def found(self, source: str, upto: int) -> list[FoundFile]:
        """Return the files that were read, as krishiv-parquet's source names them.

        Args:
            source: Name or index of Spark's source.
            upto: See `list_read_files`.

        Raises:
            OptionError: As `list_read_files`; or if a file is outside of the path in the options.
        """
        read = list_read_files(self.old.folder(f"sources/{source}"), upto)
        return [
            FoundFile(self._relative(file.url), 0, file.modified_ms * _NS_PER_MS) for file in read
        ]

    def _relative(self, text: str) -> str:
        url, root = StoreUrl.parse(text), StoreUrl.parse(self._place.root)
        folder = f"{root.path.rstrip('/')}/" if root.path else ""
        same_store = (url.kind, url.authority) == (root.kind, root.authority)
        if same_store and url.path == root.path:
            return ROOT_ITSELF
        if not same_store or not url.path.startswith(folder):
            raise OptionError(
                f"the old query has read {text}, which is not below {self._place.root}: give the "
                "'path' that it was given, -o path=..."
            )
        return url.path.removeprefix(folder)

    def position(self, source: str, upto: int) -> ParquetOffset:
        """Return the position of krishiv-parquet's source after the same files; write its state.

        Raises:
            OptionError: As `found`; or if there are too many files for an offset, and no state can
                be stored.
        """
        store = OffsetStore(self._parsed_options.state_location_of(self._place), bounded=True)
        files = self.found(source, upto)
        # There is no newest time, so that no file that the old query has left is too old for the
        # new one.
        end = BatchEnd((), ReadFileIds().union(files), {}, None)
        offset, _ = store.make_offset(ParquetOffset(), end, lambda: [file.path for file in files])
        return offset.model_copy(update={"root": self._place.root})


_KEYS = {"version", "snapshot_id", "position", "scan_all_files"}
_BEFORE_ALL = -1


class SparkIcebergPosition(NamedTuple):
    """A position of Iceberg's connector (its ``StreamingOffset``).

    Attributes:
        snapshot: The snapshot that was read last, completely or in part; -1 before the first.
        position: Number of its files that were read.
        scan: True if all files of the table at that snapshot are read; False if only the files that
            the snapshot added.
    """

    snapshot: int
    position: int
    scan: bool


def parse_iceberg_position(text: str) -> SparkIcebergPosition | None:
    """Return the position of an offset; None for an offset of another source."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    if not isinstance(value, dict) or value.keys() != _KEYS or value["version"] != 1:
        return None
    return SparkIcebergPosition(value["snapshot_id"], value["position"], value["scan_all_files"])


@dataclass(frozen=True)
class SparkTablePositions:
    """A converter of positions of Iceberg's connector to krishiv-iceberg's.

    Attributes:
        options: The options of the ``krishiv-iceberg`` source that will continue.
    """

    options: Mapping[str, str] = field(repr=False)

    @cached_property
    def _parsed_options(self) -> IcebergSourceOptions:
        return IcebergSourceOptions.parse(dict(self.options), "krishiv-iceberg")

    @cached_property
    def _table(self) -> Table:
        from krishiv_spark.iceberg.catalogs import open_table

        return open_table(self._parsed_options)

    @cached_property
    def _history(self) -> History:
        from krishiv_spark.sources.iceberg.history import History

        return History.of_branch(
            self._parsed_options.table_name, self._table.metadata, self._parsed_options.branch
        )

    def offset(self, spot: SparkIcebergPosition) -> IcebergOffset:
        """Return krishiv-iceberg's offset at the same position.

        Raises:
            DataLossError: If the table no longer has the snapshot.
            OffsetError: If nothing was read yet.
        """
        if spot.snapshot == _BEFORE_ALL:
            raise OffsetError(
                "the old query has read nothing yet: start with an empty checkpoint, with the "
                "options that specify where it starts"
            )
        snapshot = self._history.find(spot.snapshot)
        if snapshot is None:
            raise DataLossError(
                f"snapshot {spot.snapshot}, up to which the old query has read, is not in the "
                f"history of {self._parsed_options.table_name}; "
                f"{self._history.describe_available()}"
            )
        place = self._place(spot, snapshot)
        return IcebergOffset(table=str(self._table.metadata.table_uuid), spot=place)

    def _place(self, spot: SparkIcebergPosition, snapshot: Snapshot) -> StreamingOffset:
        from krishiv_spark.sources.iceberg.offset import end_of_snapshot

        read, count = self._files_read(spot, snapshot)
        if read == count:
            return end_of_snapshot(snapshot)
        if read == 0 and not spot.scan:
            return self._before(snapshot)
        return end_of_snapshot(snapshot).model_copy(update={"file": read, "scan": spot.scan})

    def _files_read(self, spot: SparkIcebergPosition, snapshot: Snapshot) -> tuple[int, int]:
        """Return the number of files read and of all files of a snapshot.

        Both count in the order of the manifests (``MicroBatches``, `plan_files`). Iceberg's
        connector starts each manifest at the number of files in the previous ones, including files
        that it does not read because an earlier snapshot has added them.

        Raises:
            OffsetError: If the files that were read depend on the version of the connector.
        """
        from krishiv_spark.iceberg.planning import (
            count_listed_files,
            explain_metadata_errors,
            list_data_entries,
            list_data_manifests,
        )

        begin = read = count = 0
        with explain_metadata_errors(snapshot):
            for manifest in list_data_manifests(self._table, snapshot, scan=spot.scan):
                files = len(list_data_entries(self._table, snapshot, manifest, scan=spot.scan))
                listed = count_listed_files(manifest)
                if spot.scan and manifest.deleted_files_count:
                    self._check_removed(spot, begin + listed + manifest.deleted_files_count)
                read += min(files, max(0, spot.position - begin))
                count += files
                begin += listed
        return read, count

    def _check_removed(self, spot: SparkIcebergPosition, end: int) -> None:
        """Refuse a position whose meaning depends on the version: some count removed files."""
        if 0 < spot.position < end:
            raise OffsetError(
                f"the old query is at file {spot.position} of all files of snapshot "
                f"{spot.snapshot}, which has removed files too, and whether these are counted "
                "depends on the version of Iceberg: let it read on to the next snapshot first"
            )

    def _before(self, snapshot: Snapshot) -> StreamingOffset:
        """Return the position after the previous snapshot, since each position has one text."""
        from krishiv_spark.sources.iceberg.offset import end_of_snapshot

        parent = self._history.find(snapshot.parent_snapshot_id)
        if parent is not None:
            return end_of_snapshot(parent)
        before = snapshot.parent_snapshot_id
        return StreamingOffset() if before is None else StreamingOffset(snapshot=before)
