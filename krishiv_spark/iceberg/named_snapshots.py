"""Snapshots that branches and tags need: they must not expire, whoever names them and when. Driver.

PyIceberg drops every branch and tag whose snapshot goes, and no requirement of a commit tells of a
name that is new. So the catalogs that compare by themselves (`GuardedMetastoreCatalog`) check the
names as they are then: they compare and set by the metadata file that they have checked, so that a
name that comes later makes the commit fail.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update import RemoveSnapshotsUpdate

from krishiv_spark.iceberg.untrusted import iterate_ancestors

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.table.update import TableUpdate

__all__ = ["check_expiry", "needed_by_name"]


def check_expiry(metadata: TableMetadata, updates: Sequence[TableUpdate]) -> None:
    """Refuse to expire snapshots that have got a name.

    Args:
        metadata: Of the table as it is now.
        updates: What is to be done to it.

    Raises:
        CommitFailedException: If a branch or a tag needs one of them.
    """
    removing = [update for update in updates if isinstance(update, RemoveSnapshotsUpdate)]
    gone = {number for update in removing for number in update.snapshot_ids}
    if gone and (kept := gone.intersection(needed_by_name(metadata))):
        numbers = ", ".join(map(str, sorted(kept)))
        raise CommitFailedException(
            f"Requirement failed: a branch or a tag needs snapshots that were to expire: {numbers}"
        )


def needed_by_name(metadata: TableMetadata) -> Iterator[int]:
    """Ids of the snapshots that branches but the main one, and tags, need."""
    by_id: dict[int, Snapshot] = {}
    for name, reference in metadata.refs.items():
        if name == MAIN_BRANCH:
            continue
        by_id = by_id or {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
        is_branch = reference.snapshot_ref_type == "branch"
        line = iterate_ancestors(by_id, reference.snapshot_id)
        yield from (one.snapshot_id for one in islice(line, None if is_branch else 1))
