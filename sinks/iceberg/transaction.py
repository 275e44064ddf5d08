"""A transaction of PyIceberg that costs the same however many snapshots a table has. Driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyiceberg.table import Table, Transaction
from pyiceberg.table.update import AssertCurrentSchemaId, AssertTableUUID

from krishiv_spark.iceberg._pyiceberg import commit_once

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableRequirement, TableUpdate

    from krishiv_spark.iceberg._pyiceberg import SnapshotProducer

__all__ = ["EpochTransaction"]


class EpochTransaction(Transaction):
    """A transaction of one snapshot that is sent once.

    PyIceberg's own works out the table as it will be about eighteen times for a commit, with a
    deep copy of every snapshot: nine tenths of what a commit costs. One snapshot needs to know
    only the table as it is.
    """

    may_expire = True
    """True if the table's own properties may expire snapshots with the commit."""
    expires = False
    """True if they do."""

    @property
    def table(self) -> Table:
        """The table as it was when the transaction began."""
        return self._table

    @property
    def table_metadata(self) -> TableMetadata:
        """The table as it is."""
        return self._table.metadata

    @property
    def producer(self) -> SnapshotProducer[Any]:
        """What made the snapshot; knows the files that it wrote for it."""
        (producer,) = self._snapshot_producers
        return producer

    def stage(self, update: TableUpdate) -> None:
        """Have an update go with the snapshot."""
        self._stage((update,))

    def require(self, requirement: TableRequirement) -> None:
        """Have the catalog check something before it takes the updates."""
        self._stage((), (requirement,))

    def compare_and_set(self) -> None:
        """Ask the catalog once to take the updates, if the table is what they were made for."""
        # The branch alone does not tell a table that was made anew, and is as empty as this one
        # was.
        metadata = self._table.metadata
        same_table = AssertTableUUID(uuid=metadata.table_uuid)
        # Or a column could be dropped, and made again, after the files were compared with it.
        same_columns = AssertCurrentSchemaId.model_validate(
            {"current-schema-id": metadata.current_schema_id}
        )
        requirements = (*self._requirements, same_table, same_columns)
        commit_once(self._table, self._updates, requirements)
