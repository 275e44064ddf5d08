"""What an epoch log says of an epoch that goes into a table."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

__all__ = ["StagedForTable"]


class StagedForTable(BaseModel, frozen=True):
    """What a task has staged; or, in an intent, all that the epoch brings into the table.

    Attributes:
        staged: What tasks tell; not in intents, which must be short.
        table: UUID of the table, as in `StagedDataFiles`, and so are the next ones.
        spec_id: Partition spec.
        after: Sequence number.
        changes: Places of changes.
        schema_id: Schema of changes.
        manifest: Place of a manifest that names the data files; None if there are none.
        replaces: Whether the epoch takes the place of all rows; None in older intents, and of
            what a task has staged.
        keys: Columns by which changes find the rows that they change, and the next one is of
            changes too.
        order: Column whose highest value wins among the changes of a key; None for the last one.
    """

    staged: Any = Field(default=None, exclude=True)
    table: str
    spec_id: int
    after: int
    changes: tuple[str, ...] = ()
    schema_id: int | None = None
    manifest: str | None = None
    replaces: bool | None = None
    keys: tuple[str, ...] = ()
    order: str | None = None
