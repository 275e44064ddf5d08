"""The rule that a table has one key, and the properties or summaries that record it. Driver.

A query that upserts by other columns than before, or appends, can add a second row for an existing
key. So the table has properties with the ids of the key columns: of each query that has upserted,
and of the newest upsert of any query. They are committed with the rows of an epoch.

Where the catalog keeps no properties, the summary of an epoch's snapshot has the key, and the tag
that records the epoch keeps the snapshot: for batch jobs without a number, a common tag of the
property's name. The newest one of all such tags has the key of the table.

They are not Iceberg's identifier fields. Those must be required columns, and columns of a DataFrame
are optional: making them required would refuse writers that may have nulls, and change the schema
that other programs write with. Identifier fields that another program has set are respected.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from krishiv_spark.errors import OptionError
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.iceberg.property_keys import (
    EPOCH_PREFIX,
    UPSERT_KEY,
    UPSERT_KEY_PREFIX,
    SnapshotIndex,
    parse_count,
)
from krishiv_spark.runtime.once import warn_once
from krishiv_spark.sinks.iceberg.epoch_properties import (
    EpochMark,
    is_repeatable,
    read_committed_epoch,
    stage_tag,
)

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

    from krishiv_spark.sinks.iceberg.epoch_snapshot import EpochTransaction
    from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions

__all__ = ["KeyRule"]

_log = logging.getLogger(__name__)

_NO_KEY = "none"
"""In the summary of an epoch that replaced all rows: keys of earlier epochs do not count."""


@dataclass(frozen=True)
class KeyRule:
    """The rule that a table's upserts have one key.

    Attributes:
        options: Of the sink.
        keys: Key columns by which epochs upsert; empty if they append or replace.
        replaces: Whether epochs replace all rows of the table.
        query: Id of the query, or name of a numbered job; None for a batch job without a number
            that has no id yet.
        is_decided: True for an epoch whose intent is logged: it was checked before that.
    """

    options: IcebergSinkOptions
    keys: tuple[str, ...]
    replaces: bool
    query: str | None
    is_decided: bool = False

    def check(self, metadata: TableMetadata) -> None:
        """Refuse an epoch that could make a second row for a key.

        A query that wrote to the table before the table recorded keys continues with a warning: its
        rows may have keys that no other row has.

        Raises:
            OptionError: If the epoch upserts by other columns, or appends to a table with upserts.
        """
        if self.is_decided or self.replaces or self.options.allow_mixed_keys:
            return
        wanted, own = self._find_key_ids(metadata.schema()), self._get_query_key(metadata)
        kept = own or self._get_table_key(metadata)
        if kept is None or wanted == kept or _is_empty(metadata):
            return
        if own is None and self._has_committed(metadata):
            self._warn(metadata, kept)
            return
        raise OptionError(self._describe_refusal(metadata, kept))

    def summarize(self, metadata: TableMetadata) -> dict[str, str]:
        """Return the entry for the summary of an epoch whose snapshot gets the query's tag.

        An append repeats the key of the query's earlier upserts, whose snapshot loses the tag.
        """
        if self.replaces:
            return {UPSERT_KEY: _NO_KEY}
        ids = self._find_key_ids(metadata.schema())
        ids = ids or _read_tagged_keys(metadata).get(self.query or "")
        return {} if ids is None else {UPSERT_KEY: _to_text(ids)}

    def choose_mark(self, metadata: TableMetadata, *, is_refused: bool) -> EpochMark:
        """Return the kind of record of the key that the commit of a batch without a number has.

        Args:
            metadata: Metadata of the table before the commit.
            is_refused: Whether the catalog has refused properties to an earlier attempt.
        """
        has_record = self.replaces or self._find_key_ids(metadata.schema()) is not None
        is_property_lacking = UPSERT_KEY not in metadata.properties
        has_tags = any(_iterate_tags(metadata))
        is_tagged = has_record and is_property_lacking and (is_refused or has_tags)
        return EpochMark(is_tagged, has_properties=not is_tagged)

    def stage(self, transaction: EpochTransaction, mark: EpochMark) -> None:
        """Add the key's properties to the commit of an upsert; remove them if it replaces all.

        Args:
            transaction: The transaction of the commit.
            mark: The records that the commit has.
        """
        if mark.is_tagged and not self._is_repeatable:
            stage_tag(transaction, UPSERT_KEY)
        metadata = transaction.table_metadata
        properties = metadata.properties
        if self.replaces:
            found = [
                name
                for name in properties
                if name == UPSERT_KEY or name.startswith(UPSERT_KEY_PREFIX)
            ]
            if found:
                transaction.remove_properties(*found)
            return
        if mark.has_properties and (changed := self._find_changed(metadata)):
            transaction.set_properties(changed)

    def sets_properties(self, metadata: TableMetadata) -> bool:
        """Return True if a commit to this table sets properties for the key."""
        return not self.replaces and bool(self._find_changed(metadata))

    def warn_of_dropped_key(self, metadata: TableMetadata, mark: EpochMark) -> None:
        """Warn if the catalog has dropped the key of a batch without a number.

        Args:
            metadata: Metadata of the table after the commit.
            mark: The records that the commit had.
        """
        if self._is_repeatable or not (mark.has_properties and self.sets_properties(metadata)):
            return
        warn_once(
            _log,
            f"key {metadata.table_uuid}",
            "%s: the catalog does not keep the properties of table %s, so the key of this batch, "
            "%r, is not recorded: appends, and upserts by another key, will not be refused. Give "
            "the batch a number ('txnAppId' and 'txnVersion'): then a tag records its key",
            FORMAT,
            self.options.table_name,
            ",".join(self.keys),
        )

    # --- recorded keys

    @property
    def _is_repeatable(self) -> bool:
        return self.query is not None and is_repeatable(self.query, self.options.txn_app_id)

    def _find_changed(self, metadata: TableMetadata) -> dict[str, str]:
        """Return the properties of the key that the table does not have yet."""
        ids = self._find_key_ids(metadata.schema())
        if ids is None:
            return {}
        names = [UPSERT_KEY, *([f"{UPSERT_KEY_PREFIX}{self.query}"] if self._is_repeatable else [])]
        text = _to_text(ids)
        return {name: text for name in names if metadata.properties.get(name) != text}

    def _find_key_ids(self, schema: Schema) -> frozenset[int] | None:
        """Return the ids of the key columns; None for an append, or if the table lacks a column."""
        if not self.keys:
            return None
        by_name = {field.name: field.field_id for field in schema.fields}
        found = [by_name.get(name) for name in self.keys]
        known = frozenset(number for number in found if number is not None)
        return known if len(known) == len(found) else None

    def _get_query_key(self, metadata: TableMetadata) -> frozenset[int] | None:
        if self.query is None or not self._is_repeatable:
            return None
        kept = _parse_property(metadata.properties, f"{UPSERT_KEY_PREFIX}{self.query}")
        return kept or _read_tagged_keys(metadata).get(self.query)

    def _get_table_key(self, metadata: TableMetadata) -> frozenset[int] | None:
        """Return the key of the table by all queries; identifier fields bind upserts only.

        A program that sets them declares that rows are distinct, not that it upserts.
        """
        kept = _parse_property(metadata.properties, UPSERT_KEY)
        if kept is None:
            kept = next(reversed(_read_tagged_keys(metadata).values()), None)
        if kept is None and self.keys:
            kept = frozenset(metadata.schema().identifier_field_ids) or None
        return kept

    def _has_committed(self, metadata: TableMetadata) -> bool:
        if self.query is None or not self._is_repeatable:
            return False
        return read_committed_epoch(metadata, self.query) is not None

    # --- messages

    def _describe_refusal(self, metadata: TableMetadata, kept: frozenset[int]) -> str:
        names, table = _join_names(metadata.schema(), kept), self.options.table_name
        if not self.keys:
            return (
                f"{FORMAT}: table {table} is upserted by {names!r}, and 'mode' is 'append': "
                "rows whose keys exist already would be in the table twice. Nothing was "
                f"written: set 'mode' = 'upsert' and 'keyColumns' = {names!r}; or, if the rows "
                "have keys that no other row has, 'allowMixedKeys' = 'true'"
            )
        given = ",".join(self.keys)
        return (
            f"{FORMAT}: 'keyColumns' = {given!r}, but table {table} is upserted by {names!r}: "
            f"rows of one {names!r} would be in the table twice. Nothing was written: set "
            f"'keyColumns' = {names!r}, or use another table; or, to have {given!r} as the key "
            "from now on, 'allowMixedKeys' = 'true'"
        )

    def _warn(self, metadata: TableMetadata, kept: frozenset[int]) -> None:
        names, given = _join_names(metadata.schema(), kept), ",".join(self.keys)
        does = f"upserts by {given!r}" if given else "appends"
        warn_once(
            _log,
            f"{metadata.table_uuid} {self.query}",
            "%s: query %s %s to table %s, which is upserted by %r: rows of one key may be in "
            "the table twice. The query continues, since it did so before the table recorded "
            "its key. If the rows have keys that no other row has, set 'allowMixedKeys' = "
            "'true'",
            FORMAT,
            self.query,
            does,
            self.options.table_name,
            names,
        )


def _read_tagged_keys(metadata: TableMetadata) -> dict[str, frozenset[int]]:
    """Return the keys in the summaries of the snapshots that tags of queries name.

    Returns:
        The ids of the key columns by query, in the order of the snapshots. Keys from before an
        epoch that replaced all rows are left out.

    Raises:
        OptionError: If a summary has something else.
    """
    names = [*_iterate_tags(metadata)]
    if not names:
        return {}
    index = SnapshotIndex(metadata)
    tagged = [(index.get(metadata.refs[name].snapshot_id), name) for name in names]
    found: dict[str, frozenset[int]] = {}
    for snapshot, name in sorted(tagged, key=lambda pair: _get_order(pair[0])):
        text = (
            None
            if snapshot is None or snapshot.summary is None
            else snapshot.summary.get(UPSERT_KEY)
        )
        if text == _NO_KEY:
            found.clear()
        elif text is not None:
            where = f"entry {UPSERT_KEY!r} in the summary of the snapshot of tag {name!r}"
            found[name.removeprefix(EPOCH_PREFIX)] = _parse_key(text, where)
    return found


def _iterate_tags(metadata: TableMetadata) -> Iterator[str]:
    """Yield the names of the tags whose snapshots may have keys in their summaries."""
    return (name for name in metadata.refs if name.startswith(EPOCH_PREFIX) or name == UPSERT_KEY)


def _get_order(snapshot: Snapshot | None) -> tuple[int, int]:
    # Snapshots of format version 1 have no sequence numbers.
    return (0, 0) if snapshot is None else (snapshot.sequence_number or 0, snapshot.timestamp_ms)


def _to_text(ids: frozenset[int]) -> str:
    return ",".join(map(str, sorted(ids)))


def _parse_property(properties: Mapping[str, str], name: str) -> frozenset[int] | None:
    """Return the ids that a property contains; None if there is no such property.

    Raises:
        OptionError: If the property is not a list of ids.
    """
    text = properties.get(name)
    return None if text is None else _parse_key(text, f"table property {name!r}")


def _parse_key(text: str, where: str) -> frozenset[int]:
    """Return the ids of the key columns.

    Raises:
        OptionError: If the text is not a list of ids.
    """
    numbers = [parse_count(part) for part in text.split(",")]
    found = frozenset(number for number in numbers if number is not None)
    if len(found) < len(numbers):
        raise OptionError(
            f"{FORMAT}: {where} is {text[:100]!r}: it must be the ids of the key columns, "
            "separated by commas. Correct or remove it"
        )
    return found


def _is_empty(metadata: TableMetadata) -> bool:
    """Return True if the table has no rows: it is new or was emptied."""
    head = metadata.current_snapshot()
    return head is None or (head.summary is not None and head.summary.get("total-records") == "0")


def _join_names(schema: Schema, ids: frozenset[int]) -> str:
    names = (schema.find_column_name(number) or f"a dropped column ({number})" for number in ids)
    return ",".join(sorted(names))
