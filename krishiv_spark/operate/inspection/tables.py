"""What a table of krishiv-iceberg says of a query: its mark, which comes with the rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from krishiv_spark.errors import KrishivError

__all__ = ["TableStatus", "look_at_table"]

_NAMES = {"table", "iceberg.table", "warehouse", "iceberg.warehouse"}
_CATALOG = "catalog."


@dataclass(frozen=True)
class TableStatus:
    """What a table says of a query.

    Attributes:
        name: As its options have it.
        is_there: Whether there is one; the first epoch may make it.
        snapshot: Id of its newest snapshot; None for none.
        held: The newest epoch of the query that it holds; None for none.
        unknown: Why it could not be asked; None if it could.
    """

    name: str
    is_there: bool = False
    snapshot: int | None = None
    held: int | None = None
    unknown: str | None = None


def look_at_table(given: Mapping[str, str], query: str) -> TableStatus | None:
    """Ask the catalog and the table. Any process that reaches them; changes nothing.

    Args:
        given: Options of a sink, and maybe of a source.
        query: Id of the query.

    Returns:
        None if the options name no table of Iceberg.

    Raises:
        OptionError: If an option is wrong.
        SinkError: If the mark is no number: somebody has changed it.
    """
    if not any(key.lower() in _NAMES or key.lower().startswith(_CATALOG) for key in given):
        return None
    from krishiv_spark.sinks.iceberg.epoch_properties import read_committed_epoch
    from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions
    from krishiv_spark.sinks.iceberg.table_setup import find_table

    options = IcebergSinkOptions.parse(IcebergSinkOptions.among(given), "krishiv-spark status")
    try:
        table = find_table(options)
    except KrishivError as error:
        if isinstance(error, ValueError):  # an option
            raise
        return TableStatus(options.table_name, unknown=str(error))
    if table is None:
        return TableStatus(options.table_name)
    newest = table.metadata.current_snapshot_id
    mark = read_committed_epoch(table.metadata, query)
    held = None if mark is None else mark.epoch
    return TableStatus(options.table_name, is_there=True, snapshot=newest, held=held)
