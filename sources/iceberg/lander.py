"""The query that lands the rows of a table, and where its source stood. Driver."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from krishiv_spark.errors import OffsetError, OptionError
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.iceberg.query_marks import EPOCH_OF, NO_EPOCH, OFFSETS_OF, digest_of
from krishiv_spark.iceberg.untrusted import parse_count
from krishiv_spark.offsets import PlannedOffsets
from krishiv_spark.sources.iceberg.options import IcebergSourceOptions
from krishiv_spark.spark.checkpoint import SparkCheckpoint

__all__ = ["BY_HAND", "NAME_IT", "Lander", "lander_of"]

BY_HAND = (
    "say it yourself: 'snapshot', and for the source that follows 'then.startingOffsets' with the "
    "offset of each partition at which the rows of that snapshot end"
)
NAME_IT = "name the query with 'landedBy', by its id or by its checkpoint"


@dataclass(frozen=True)
class Lander:
    """What is known of the query that lands the rows.

    Attributes:
        query: Id that Spark or its user has given it.
        epoch: Its newest one.
        offset: Where its source stood at the end of that.
    """

    query: str
    epoch: int
    offset: Mapping[str, Any]


def lander_of(
    options: IcebergSourceOptions, properties: Mapping[str, str], by: str | None
) -> Lander:
    """The query that a table, or its user, names; with its newest epoch.

    Args:
        options: Of the source.
        properties: Of the table, from the metadata file that is read.
        by: Its id or its checkpoint, if the user gives it.

    Raises:
        OptionError: If it is not certain which one it is, or where its source stood.
        OffsetError: If what the table says of it is damaged.
    """
    checkpoint = SparkCheckpoint(by, options.storage) if by is not None and "/" in by else None
    query = by if checkpoint is None else checkpoint.query_id()
    if query is None:
        query = _only_one(options.table_name, properties)
    epoch = _epoch_of(options.table_name, properties, query)
    text = properties.get(f"{OFFSETS_OF}{query}")
    if text is not None:
        offsets = _kept(text, query, epoch)
    else:
        offsets = _in_checkpoint(options.table_name, properties, checkpoint, query, epoch)
    if len(offsets) != 1:
        raise OptionError(
            f"{FORMAT}: query {query}, which has written table {options.table_name}, reads "
            f"{len(offsets)} sources, and only one can follow: {BY_HAND}"
        )
    return Lander(query, epoch, offsets[0])


def _only_one(table: str, properties: Mapping[str, str]) -> str:
    """The query whose offsets are known, if no other has ever written into the table."""
    # By their epochs, which stay, and not by offsets: those go with a query's last snapshot.
    queries = _queries(properties)
    if len(queries) > 1:
        raise OptionError(
            f"{FORMAT}: {len(queries)} queries have written into table {table}: "
            f"{', '.join(queries)}. {NAME_IT}: what the others have written must not come again "
            "from after the position of that one"
        )
    if queries and f"{OFFSETS_OF}{queries[0]}" in properties:
        return queries[0]
    known = f"; there are epochs of {queries[0]}" if queries else ""
    raise OptionError(
        f"{FORMAT}: table {table} does not say where the source of its rows stood{known}. "
        "krishiv-iceberg's sink keeps that for streams whose writer has the option "
        "'checkpointLocation', if it is no longer than 16384 characters. Give 'landedBy' the "
        f"checkpoint of the query that lands the rows, or {BY_HAND}"
    )


def _queries(properties: Mapping[str, str]) -> list[str]:
    """Ids of the queries that have an epoch in the table."""
    return sorted(
        name.removeprefix(EPOCH_OF)
        for name, text in properties.items()
        if name.startswith(EPOCH_OF) and text != NO_EPOCH
    )


def _epoch_of(table: str, properties: Mapping[str, str], query: str) -> int:
    text = properties.get(f"{EPOCH_OF}{query}")
    if text is None or text == NO_EPOCH:
        raise OptionError(
            f"{FORMAT}: query {query} has written no epoch into table {table}; those that have: "
            f"{', '.join(_queries(properties)) or 'none'}"
        )
    epoch = parse_count(text)
    if epoch is None:
        raise OffsetError(f"{FORMAT}: table property '{EPOCH_OF}{query}' is {text!r}, no epoch")
    return epoch


def _kept(text: str, query: str, epoch: int) -> list[dict[str, Any]]:
    """The offsets in the table's property, if they are those of the epoch."""
    try:
        told = json.loads(text)
        number, offsets = told["epoch"], [dict(offset) for offset in told["offsets"]]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise OffsetError(
            f"{FORMAT}: table property '{OFFSETS_OF}{query}' is damaged: {error}; {BY_HAND}"
        ) from error
    if number != epoch:
        raise OffsetError(
            f"{FORMAT}: table property '{OFFSETS_OF}{query}' is of epoch {number}, and the newest "
            f"of the query is {epoch}: somebody has changed one of them; {BY_HAND}"
        )
    return offsets


def _in_checkpoint(
    table: str,
    properties: Mapping[str, str],
    checkpoint: SparkCheckpoint | None,
    query: str,
    epoch: int,
) -> list[dict[str, Any]]:
    """What Spark wrote down for the epoch that the table holds."""
    if checkpoint is None:
        raise OptionError(
            f"{FORMAT}: table {table} does not say where the source of query {query} stood: give "
            f"'landedBy' the query's checkpoint instead of its id, or {BY_HAND}"
        )
    planned = checkpoint.offset_seq(epoch)
    if planned is None:
        raise OptionError(
            f"{FORMAT}: {checkpoint.location}/offsets/{epoch} cannot be read, and table {table} "
            f"holds epoch {epoch} of the query; {BY_HAND}"
        )
    digest = digest_of(properties, query, str(epoch))
    ends = None if digest is None else PlannedOffsets.ends_of(digest)
    if ends not in {None, checkpoint.offsets_of(epoch).ends}:
        raise OptionError(
            f"{FORMAT}: {checkpoint.location}/offsets/{epoch} is not what table {table} holds as "
            f"epoch {epoch} of the query: the checkpoint was put back from an older copy, or "
            f"edited; {BY_HAND}"
        )
    return planned.objects
