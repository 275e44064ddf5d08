"""Records of change data as staged changes of a table. Executor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from krishiv_spark.arrow.compute import pc, sort_distinct
from krishiv_spark.changes.change_origins import (
    OFFSET,
    TIME_TYPE,
    Origins,
    format_number,
    mark_reads,
)
from krishiv_spark.changes.debezium import DebeziumDecoder, DebeziumRules
from krishiv_spark.changes.decoded import Changes
from krishiv_spark.errors import OptionError, SchemaError
from krishiv_spark.sinks.change_options import KeyedChangeOptions
from krishiv_spark.sinks.column_policy import Evolution, grow_columns, limit_evolution
from krishiv_spark.sinks.logged_writer import Examined
from krishiv_spark.sinks.upserts import (
    CLOCK,
    DELETES,
    KEPT,
    ORDER,
    PARTITION,
    PLACE,
    POSITION,
    READ,
    TIME,
    check_names,
    drop_further,
)

__all__ = ["ChangeRecords", "RecordTarget"]

_POSITION = ("topic", "partition", "offset")
_NO_ROWS = pa.RecordBatch.from_pylist([], pa.schema([]))


class RecordTarget(Protocol):
    """The table of a sink, as the decoder of its records knows it. Executor."""

    format_name: str
    """The name of the sink, for messages."""
    shown: str
    """The name of the table, for messages."""
    with_origins: bool
    """True if changes have the columns `PLACE`, `TIME` and `READ`, instead of `CLOCK`."""
    most_evolution: Evolution
    """The most that records may change of the table's columns; `schemaEvolution` may allow less."""
    numbers: frozenset[str]
    """Names of the text columns that have numbers; see `ValueRules`."""

    def to_columns(self, rows: pa.Schema) -> pa.Schema:
        """Return the columns of rows with the types that new columns would have.

        Raises:
            SchemaError: If the table cannot have such a column.
        """
        ...

    def check_columns(self, columns: pa.Schema) -> None:
        """Refuse columns that the table cannot have beside those that it generates.

        Raises:
            OptionError: If there is one.
        """
        ...

    def check_values(self, changes: pa.RecordBatch, columns: pa.Schema) -> None:
        """Refuse changes that the table does not accept.

        Raises:
            SchemaError: If a value does not fit its column.
        """
        ...


class ChangeRecords:
    """A decoder of the records of one task, by `changeFormat`.

    Args:
        options: Options of the sink.
        target: Its table.
        columns: The columns of the table that have values of events.
    """

    def __init__(
        self, options: KeyedChangeOptions, target: RecordTarget, columns: pa.Schema
    ) -> None:
        rules = DebeziumRules(
            replace(options.value_rules, numbers=target.numbers),
            options.unknown_fields,
            options.truncate_events,
            options.registry,
            with_places=target.with_origins,
        )
        self._target = target
        self._rules, self._options = rules, options
        allowed: Evolution = options.schema_evolution if len(columns) else "widen"
        self._evolution: Evolution = limit_evolution(allowed, target.most_evolution)
        self.columns = columns
        """The columns of the table, with those that it needs for the records so far."""
        self._decoder = DebeziumDecoder(columns, options.key_columns, rules)

    @property
    def may_grow(self) -> bool:
        """True if records may add columns to those of the table."""
        return self._evolution != "none"

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the changes of records, with further columns for the sink.

        Changes, which `examine` has returned, are returned unchanged.

        Raises:
            SchemaError: If a record cannot be decoded.
        """
        if DELETES in batch.schema.names:
            self._grow(drop_further(batch).schema)
            return batch
        if not self._follow(batch):
            return _NO_ROWS
        found = self._decoder.decode(
            batch.column("value"), batch.column("key"), lambda row: _locate(batch, row)
        )
        return self._add_further(found, batch)

    def examine(self, batch: pa.RecordBatch) -> Examined:
        """Return the changes of good records, and the reasons of the others.

        Raises:
            SchemaError: If the table cannot follow a record.
        """
        if not self._follow(batch):
            return Examined((), {})
        found, bad = self._decoder.decode_good(
            batch.column("value"), batch.column("key"), lambda row: _locate(batch, row)
        )
        changes = self._add_further(found, batch)
        unfit = dict(self._find_unfit(changes, found.records, sort_distinct(found.records)))
        if unfit:
            stays = ~np.isin(found.records, [*unfit])
            changes = changes.filter(pa.array(stays))
        return Examined((changes,), {**bad, **unfit})

    def _follow(self, batch: pa.RecordBatch) -> bool:
        """Add the columns that the schemas of records describe, as `schemaEvolution` allows.

        A table without columns, which the planner has created, gets all of them.

        Returns:
            False if the table has no columns, and no record changes a row.

        Raises:
            SchemaError: If the table has no columns, and the records have no schemas, or lack a key
                column.
        """
        if self._evolution == "none":
            return True
        found = self._decoder.find_columns(batch.column("value"))
        for schema in found.schemas:
            self._grow(self._target.to_columns(schema))
        if len(self.columns):
            self._check_keys()
            return True
        if found.is_without:
            raise SchemaError(
                f"{self._target.format_name}: table {self._target.shown} has no columns yet, and "
                "an event has no schema: declare the columns with 'tableSchema', such as 'id "
                "BIGINT, name STRING', or let the converter write schemas "
                "(value.converter.schemas.enable)"
            )
        return False

    def _check_keys(self) -> None:
        """Refuse key columns that the events do not have, before the table gets its columns.

        Raises:
            SchemaError: If there is one.
        """
        for name in self._options.key_columns:
            if name not in self.columns.names:
                raise SchemaError(
                    f"{self._target.format_name}: 'keyColumns' names {name!r}, and the events "
                    f"have the columns {', '.join(self.columns.names)}"
                )

    def _grow(self, needed: pa.Schema) -> None:
        grown = grow_columns(self.columns, needed, self._evolution)
        if grown is not self.columns:
            try:
                check_names(grown.names, self._target.format_name)
                self._target.check_columns(grown)
            except OptionError as error:
                raise SchemaError(f"{error}, and rename it in an existing table") from None
            self.columns = grown
            self._decoder = DebeziumDecoder(grown, self._options.key_columns, self._rules)

    def _find_unfit(
        self, changes: pa.RecordBatch, records: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]
    ) -> Sequence[tuple[int, str]]:
        """Return the records of changes that the table does not accept, with the reasons."""
        chosen = changes.filter(pa.array(np.isin(records, wanted)))
        try:
            self._target.check_values(chosen, self.columns)
        except SchemaError as error:
            if len(wanted) == 1:
                return [(int(wanted[0]), f"does not fit the table: {error}")]
            middle = len(wanted) // 2
            halves = (wanted[:middle], wanted[middle:])
            return [each for half in halves for each in self._find_unfit(changes, records, half)]
        return []

    def _add_further(self, found: Changes, batch: pa.RecordBatch) -> pa.RecordBatch:
        further = {
            DELETES: found.deletes,
            KEPT: found.kept,
            POSITION: found.positions,
            PARTITION: _name_partitions(batch).take(pa.array(found.records)),
            ORDER: _number_records(batch, found.records),
        }
        if found.origins is not None:
            is_history = self._target.with_origins
            clock = {CLOCK: found.origins.times.cast(pa.int64())}
            further |= _mark_origins(batch, found.origins) if is_history else clock
        rows = found.rows
        for name, values in further.items():
            rows = rows.append_column(name, values)
        return rows


def _mark_origins(batch: pa.RecordBatch, origins: Origins) -> dict[str, pa.Array]:
    """Return positions and times of changes; those of the records in Kafka where they have none."""
    records = pa.array(origins.rows)
    offsets = format_number(batch.column("offset").cast(pa.int64()).take(records))
    of_records = mark_reads(pc.binary_join_element_wise(OFFSET, offsets, ""), origins.reads)
    written = batch.column("timestamp").cast(pa.timestamp("us")).cast(TIME_TYPE).take(records)
    return {
        PLACE: pc.coalesce(origins.places, of_records),
        TIME: pc.coalesce(origins.times, written),
        READ: pa.array(origins.reads),
    }


def _number_records(batch: pa.RecordBatch, records: np.ndarray[Any, Any]) -> pa.Array:
    """Return the offsets of records: of two changes of a key, the later one wins."""
    if "offset" not in batch.schema.names:
        return pa.nulls(len(records), pa.int64())
    return batch.column("offset").cast(pa.int64()).take(pa.array(records))


def _name_partitions(batch: pa.RecordBatch) -> pa.Array:
    """Return the partition of each record, as ``topic-0``; null if that is not known."""
    if not {"topic", "partition"} <= set(batch.schema.names):
        return pa.nulls(len(batch), pa.string())
    topics, numbers = batch.column("topic"), batch.column("partition").cast(pa.string())
    return pc.binary_join_element_wise(topics.cast(pa.string()), numbers, "-")


def _locate(batch: pa.RecordBatch, row: int) -> str:
    if not set(_POSITION) <= set(batch.schema.names):
        return f"row {row} of a batch"
    topic, partition, offset = (batch.column(name)[row] for name in _POSITION)
    return f"{topic}-{partition} at offset {offset}"
