"""Positions of Iceberg's own connector for Spark, as ours: a snapshot, and a file in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from krishiv_spark.errors import DataLossError, OffsetError
from krishiv_spark.sources.iceberg.offset import IcebergOffset, StreamingOffset
from krishiv_spark.sources.iceberg.options import IcebergSourceOptions

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

    from krishiv_spark.sources.iceberg.history import History

__all__ = ["SparksSpot", "TableSpots", "sparks_spot"]

_KEYS = {"version", "snapshot_id", "position", "scan_all_files"}
_BEFORE_ALL = -1


class SparksSpot(NamedTuple):
    """A position of Iceberg's connector (its ``StreamingOffset``).

    Attributes:
        snapshot: That was read last, wholly or in part; -1 before the first.
        position: How many of its files were read.
        scan: Whether the files are all that are in the table then, and not those that it added.
    """

    snapshot: int
    position: int
    scan: bool


def sparks_spot(text: str) -> SparksSpot | None:
    """The position that an offset is; None if it is another source's."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    if not isinstance(value, dict) or value.keys() != _KEYS or value["version"] != 1:
        return None
    return SparksSpot(value["snapshot_id"], value["position"], value["scan_all_files"])


@dataclass(frozen=True)
class TableSpots:
    """Makes our positions in a table of those of Iceberg's connector.

    Attributes:
        options: Of the ``krishiv-iceberg`` source that will go on.
    """

    options: Mapping[str, str] = field(repr=False)

    @cached_property
    def _parsed(self) -> IcebergSourceOptions:
        return IcebergSourceOptions.parse(dict(self.options), "krishiv-iceberg")

    @cached_property
    def _table(self) -> Table:
        from krishiv_spark.iceberg.catalogs import open_table

        return open_table(self._parsed)

    @cached_property
    def _history(self) -> History:
        from krishiv_spark.sources.iceberg.history import History

        return History.of_branch(self._parsed.table_name, self._table.metadata, self._parsed.branch)

    def offset(self, spot: SparksSpot) -> IcebergOffset:
        """Ours at the same place.

        Raises:
            DataLossError: If the table does not have the snapshot any more.
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
                f"history of {self._parsed.table_name}; {self._history.describe_available()}"
            )
        place = self._place(spot, snapshot)
        return IcebergOffset(table=str(self._table.metadata.table_uuid), spot=place)

    def _place(self, spot: SparksSpot, snapshot: Snapshot) -> StreamingOffset:
        from krishiv_spark.sources.iceberg.offset import end_of_snapshot

        read, count = self._files_read(spot, snapshot)
        if read == count:
            return end_of_snapshot(snapshot)
        if read == 0 and not spot.scan:
            return self._before(snapshot)
        return end_of_snapshot(snapshot).model_copy(update={"file": read, "scan": spot.scan})

    def _files_read(self, spot: SparksSpot, snapshot: Snapshot) -> tuple[int, int]:
        """How many files of a snapshot were read, as ours counts them, and how many there are.

        Both count in the order of the manifests (``MicroBatches``, `plan_files`). Iceberg's
        connector begins each one with the number of files in those before, also of files that it
        does not read, since an earlier snapshot has added them.

        Raises:
            OffsetError: If it depends on the version of the connector which files were read.
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

    def _check_removed(self, spot: SparksSpot, end: int) -> None:
        """Some versions count, and read, files that a scan's snapshot has removed."""
        if 0 < spot.position < end:
            raise OffsetError(
                f"the old query is at file {spot.position} of all files of snapshot "
                f"{spot.snapshot}, which has removed files too, and whether these are counted "
                "depends on the version of Iceberg: let it read on to the next snapshot first"
            )

    def _before(self, snapshot: Snapshot) -> StreamingOffset:
        """After the snapshot before, since one place has one text."""
        from krishiv_spark.sources.iceberg.offset import end_of_snapshot

        parent = self._history.find(snapshot.parent_snapshot_id)
        if parent is not None:
            return end_of_snapshot(parent)
        before = snapshot.parent_snapshot_id
        return StreamingOffset() if before is None else StreamingOffset(snapshot=before)
