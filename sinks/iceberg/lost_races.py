"""The commits of other writers that were faster than one of this package's. Driver.

A commit loses a race if another one comes between the loading of the table and the request. Against
a writer on another branch, it needs to lose only once: the branch of the commit has not changed
then, and only the sequence number of the snapshot is too low. The next attempt takes a number that
leaves room for as many commits as have come in the meantime, and for twice as many after each
further loss. The Iceberg spec requires that sequence numbers grow, and catalogs check that. (Where
history is examined for expired snapshots, numbers that were left out count as expired ones, which
is the safe side: `has_expired_since`.)

Against a writer on the same branch nothing helps but to be faster, or that it pauses. So the error
names the writers.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pyiceberg.table.refs import MAIN_BRANCH

from krishiv_spark.iceberg.property_keys import find_query_id, iterate_ancestors
from krishiv_spark.messages.redaction import excerpt

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

__all__ = ["LostRaces"]

_MOST_SKIPPED = 2**16
"""Limit of the sequence numbers that one commit leaves out: of 2**63."""

_MOST_NAMED = 3

_SUMMARY = "krishiv.lost-races"

_ENGINE, _ENGINE_VERSION = "engine-name", "engine-version"
"""Keys of Iceberg's libraries in summaries of snapshots."""


class LostRaces:
    """The races that one commit has lost.

    Attributes:
        count: Number of lost races.
        skipped: Number of sequence numbers that the next attempt leaves out.
    """

    def __init__(self) -> None:
        self.count = 0
        self.skipped = 0
        self._may_skip = True
        self._winners: Counter[str] = Counter()

    def record(self, base: TableMetadata, newest: TableMetadata) -> None:
        """Record that the commits after one state of a table were faster.

        Args:
            base: The table as the attempt had loaded it.
            newest: The table as it was loaded after the attempt.
        """
        self.count += 1
        first = int(getattr(base, "last_sequence_number", 0))
        others = int(getattr(newest, "last_sequence_number", 0)) - first
        if others > 0 and self._may_skip:
            self.skipped = min(max(2 * others, 2 * self.skipped), _MOST_SKIPPED)
        known = {snapshot.snapshot_id for snapshot in base.snapshots}
        branches = _find_branches(newest)
        for snapshot in newest.snapshots:
            if snapshot.snapshot_id not in known:
                branch = branches.get(snapshot.snapshot_id, "an unnamed branch")
                self._winners[f"{_describe_writer(snapshot)} on {branch}"] += 1

    def stop_skipping(self) -> bool:
        """Leave out no more sequence numbers; return True if the last attempt did.

        Called after a catalog has refused an attempt: it may want the next number only.
        """
        has_skipped, self.skipped, self._may_skip = self.skipped > 0, 0, False
        return has_skipped

    @property
    def summary(self) -> dict[str, str]:
        """The entry of the commit's snapshot; none without a lost race."""
        return {_SUMMARY: str(self.count)} if self.count else {}

    def describe(self) -> str:
        """Return the writers with the number of their commits, and advice; empty without a race."""
        if not self.count:
            return ""
        named = [
            f"{excerpt(name)} ({times} commit{'s' if times > 1 else ''})"
            for name, times in self._winners.most_common(_MOST_NAMED)
        ]
        more = len(self._winners) - _MOST_NAMED
        others = f" and {more} others" if more > 0 else ""
        listed = f"{', '.join(named)}{others}" if named else "none that the table names"
        return (
            f"faster writers during {self.count} lost races: {listed}. Let them commit less often, "
            "or give this one more time ('commitTimeout')"
        )


def _find_branches(metadata: TableMetadata) -> dict[int, str]:
    """Return the name of a branch for each snapshot; main takes precedence."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    found: dict[int, str] = {}
    for name in sorted(metadata.refs, key=lambda one: one != MAIN_BRANCH):
        for snapshot in iterate_ancestors(by_id, metadata.refs[name].snapshot_id):
            if snapshot.snapshot_id in found:
                break
            found[snapshot.snapshot_id] = f"branch {name}"
    return found


def _describe_writer(snapshot: Snapshot) -> str:
    summary = snapshot.summary
    query = find_query_id(snapshot)
    if summary is None:
        return "a writer without a name"
    if query is not None:
        return f"query {query}"
    engine = summary.get(_ENGINE)
    version = summary.get(_ENGINE_VERSION)
    if engine is None:
        return f"a writer without a name, by {summary.operation.value}"
    return engine if version is None else f"{engine} {version}"
