"""Debezium's records, decoded to changes of a table: many at once, from Arrow to Arrow. Executor.

A record is an envelope (``before``, ``after``, ``op``, ``source``) or the row alone
(``ExtractNewRecordState``), with or without Connect's schema around it. The types of the values are
those of the table's columns.

A record without a value (a tombstone) deletes its key. In the form of rows it may be the only trace
of a delete, and in a compacted topic too, where it has replaced the record with the delete. After
such a record it deletes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import pyarrow as pa

from krishiv_spark.arrow.compute import pc
from krishiv_spark.changes.change_origins import gather_origins
from krishiv_spark.changes.connect_schemas import Unwrapped, read_type, unwrap
from krishiv_spark.changes.connect_types import ConnectType, find_row_columns
from krishiv_spark.changes.decoded import (
    Changes,
    Rows,
    drop_records,
    sort_changes,
    to_deletes,
)
from krishiv_spark.changes.encodings import to_decoded_type
from krishiv_spark.changes.event_rows import Encodings, FatalRecordError, RowReader, is_true
from krishiv_spark.changes.json_events import JsonEvents, JsonPlan, list_key_values
from krishiv_spark.changes.options import TruncateRule, ValueRules
from krishiv_spark.changes.shapes import Form, Shape
from krishiv_spark.errors import SchemaError

if TYPE_CHECKING:
    from krishiv_spark.changes.avro_events import AvroEvents
    from krishiv_spark.kafka.schemas.registry import RegistrySettings

__all__ = ["DebeziumDecoder", "DebeziumRules", "FoundColumns"]

_log = logging.getLogger(__name__)

_MOST_NAMES = 5
_SAMPLED = 100
"""Number of records whose shape is examined before the others are parsed."""

_ADVICE_KEY = "the record has no key of the table, neither in 'before' nor as the record's key"


@dataclass(frozen=True)
class DebeziumRules:
    """Rules for records.

    Attributes:
        values: Rules for their values.
        unknown: Action for columns of a record that the table does not have.
        truncate: Action for the event of a ``TRUNCATE``.
        registry: The registry with the schemas of records in Avro; None if there are none.
        with_places: Read the positions of changes as texts, beside their times.
    """

    values: ValueRules = field(default_factory=ValueRules)
    unknown: Literal["fail", "ignore"] = "fail"
    truncate: TruncateRule = "fail"
    registry: RegistrySettings | None = None
    with_places: bool = False


class _Plan(Protocol):
    """A parser of records of one schema or shape."""

    @property
    def form(self) -> Form: ...

    @property
    def encodings(self) -> Encodings: ...

    def parse(
        self, texts: pa.Array, *, finds_unknown: bool
    ) -> tuple[pa.StructArray | None, Collection[str]]:
        """Return the parsed records and the names of unknown columns; None if one does not fit."""
        ...

    def explain(self, text: bytes) -> str:
        """Return the fault of a bad record: a predicate without data of the record."""
        ...


class _BadRecords:
    """The bad records of a batch, by number, with the reasons.

    Attributes:
        are_kept: False if the first one is an error.
    """

    def __init__(self) -> None:
        self.are_kept = False
        self.reasons: dict[int, str] = {}

    def add(self, row: int, reason: str) -> None:
        """Add a record.

        Raises:
            FatalRecordError: If that is an error.
        """
        if not self.are_kept:
            raise FatalRecordError(row, reason)
        self.reasons.setdefault(row, reason)


@dataclass(frozen=True)
class FoundColumns:
    """The columns that the schemas of some records describe.

    Attributes:
        schemas: The columns of each schema.
        is_without: True if a record has no schema.
    """

    schemas: Sequence[pa.Schema]
    is_without: bool


class DebeziumDecoder:
    """A decoder of the records of one task.

    Args:
        columns: The columns of the table.
        keys: Its key columns.
        rules: Rules for records.
        bad: The bad records, if they are those of another decoder too.
    """

    def __init__(
        self,
        columns: pa.Schema,
        keys: Sequence[str],
        rules: DebeziumRules,
        bad: _BadRecords | None = None,
    ) -> None:
        fields = [pa.field(each.name, to_decoded_type(each.type)) for each in columns]
        self.columns = pa.schema(fields)
        self._keys = tuple(keys)
        self._rules = rules
        self._bad = bad or _BadRecords()
        is_read = rules.with_places
        self._reader = RowReader(self.columns, self._keys, rules.truncate, with_places=is_read)
        self._json = JsonEvents(self.columns, self._keys, rules.values, with_places=is_read)
        self._avro = self._create_avro()
        self._plans: dict[bytes | None, JsonPlan] = {}
        self._of_keys: DebeziumDecoder | None = None
        self._forms: set[Form] = set()
        self._passed: list[int] = []
        self._found: dict[bytes | int, pa.Schema] = {}

    def _create_avro(self) -> AvroEvents | None:
        settings, of = self._rules.registry, self._rules.values
        if settings is None:
            return None
        from krishiv_spark.changes.avro_events import AvroEvents

        is_read = self._rules.with_places
        return AvroEvents(self.columns, self._keys, of, settings, with_places=is_read)

    def decode(self, values: pa.Array, keys: pa.Array, locate: Callable[[int], str]) -> Changes:
        """Decode the records of a batch.

        Args:
            values: Their values, binary or text.
            keys: Their keys.
            locate: Returns the position of a record, for messages.

        Raises:
            SchemaError: If a record cannot be decoded, or has a column that the table does not
                have.
        """
        try:
            pieces = list(self._decode_all(values.cast(pa.binary()), keys.cast(pa.binary())))
        except FatalRecordError as error:
            raise SchemaError(
                f"{locate(error.row)}: the value {error.reason}. Nothing of this batch was "
                "written; the query repeats it, and may continue with its checkpoint"
            ) from None
        if self._passed:
            _log.warning(
                "%s: the record, one of %d like it, has no value and no key of the table, and "
                "deletes nothing. In a topic of rows alone it may have been a delete: give the "
                "records the key of the table, or set 'keyColumns'",
                locate(self._passed[0]),
                len(self._passed),
            )
        found = sort_changes(pieces, self.columns)
        return replace(found, origins=gather_origins(self._reader.origins, found.records))

    def decode_good(
        self, values: pa.Array, keys: pa.Array, locate: Callable[[int], str]
    ) -> tuple[Changes, dict[int, str]]:
        """Decode the good records of a batch; see `decode`.

        Returns:
            The changes, and the reasons of the bad records by their numbers.

        Raises:
            SchemaError: If the table cannot follow a record: it has another column than the table,
                or is a ``TRUNCATE``.
        """
        self._bad.are_kept, self._bad.reasons = True, {}
        changes, bad = self.decode(values, keys, locate), self._bad.reasons
        return drop_records(changes, bad) if bad else changes, bad

    def find_columns(self, values: pa.Array) -> FoundColumns:
        """Return the columns of a table that the schemas of some records describe.

        Args:
            values: The values of the records, binary or text.

        Raises:
            SchemaError: If a column has no type in a table.
            KrishivError: If the registry does not answer.
        """
        columns: list[pa.Schema] = []
        is_without = False
        for part in self._split(values.cast(pa.binary()).drop_null(), None):
            if part.schema is None:
                is_without |= not pc.all(pc.equal(part.texts, b"null"), min_count=0).as_py()
            else:
                columns.append(self._find_row_columns(part.schema))
        return FoundColumns(columns, is_without)

    def _find_row_columns(self, schema: bytes | int) -> pa.Schema:
        if schema not in self._found:
            try:
                of = read_type(schema) if isinstance(schema, bytes) else self._find_type(schema)
            except SchemaError:
                of = {}  # the records themselves are refused
            self._found[schema] = find_row_columns(of, self._keys)
        return self._found[schema]

    def _find_type(self, schema: int) -> ConnectType:
        assert self._avro is not None
        return self._avro.find_type(schema)

    def decode_rows(self, part: Unwrapped) -> Iterator[Changes]:
        """Decode records that are rows only, such as keys."""
        yield from self._decode_part(part)

    def _decode_all(self, values: pa.Array, keys: pa.Array) -> Iterator[Changes]:
        self._reader.forget()
        self._passed.clear()
        missing = values.is_null().to_numpy(zero_copy_only=False)
        present = np.flatnonzero(~missing)
        if len(present):
            for part in self._split(values.take(pa.array(present)), present):
                is_null = is_true(pc.equal(part.texts, b"null"))
                missing[part.rows[is_null]] = True
                yield from self._decode_part(part.filter(~is_null))
        self._check_keys(keys)
        tombstones = np.flatnonzero(missing)
        if len(tombstones):
            yield from self._delete_by_keys(keys, tombstones, is_needed=False)
        for rows in self._reader.keyless:
            yield from self._delete_by_keys(keys, rows, is_needed=True)

    def _split(self, texts: pa.Array, given: Rows | None) -> Iterator[Unwrapped]:
        """Yield records by their schemas: those of a registry, or of the records themselves."""
        rows = np.arange(len(texts)) if given is None else given
        if self._avro is not None:
            for part in self._avro.split(texts, rows):
                if part.schema is not None:
                    yield part
                elif len(part.rows):
                    yield from unwrap(part.texts, part.rows)
        elif len(rows):
            yield from unwrap(texts, rows)

    def _check_keys(self, keys: pa.Array) -> None:
        """Refuse deletes whose records have another key than the table's.

        For such columns, a row before its delete has nulls or other values than the database
        (unless its replica identity is FULL), so that another row would be deleted, or none.
        """
        for row in (row for part in self._reader.from_before for row in part.tolist()):
            found = self._read_key(keys[row].as_py())
            # Without one, it is a key of another converter, or none.
            if found is not None and not all(name in found for name in self._keys):
                self._bad.add(
                    row,
                    "is a delete, and the key of its record has the columns "
                    f"{', '.join(list(found)[:_MOST_NAMES])}: set 'keyColumns' to the key of the "
                    "database's table",
                )

    def find_keys(self, keys: pa.Array) -> tuple[str, ...]:
        """Return the columns of the first key that has some; none if no key has.

        Args:
            keys: The keys of some records, binary or text.
        """
        found = (self._read_key(key.as_py()) for key in keys.cast(pa.binary()).drop_null())
        return tuple(next(filter(None, found), ()))

    def _read_key(self, key: bytes | None) -> dict[str, bool] | None:
        """Return whether each field of a record's key has a value; None if it has no fields."""
        if self._avro is not None and key is not None and key.startswith(b"\0"):
            return self._avro.read_key(key)
        return list_key_values(key)

    # --- parts with one schema

    def _decode_part(self, part: Unwrapped) -> Iterator[Changes]:
        if not len(part.rows):
            return
        if isinstance(part.schema, int):
            yield from self._decode_registered(part, part.schema)
        else:
            yield from self._decode_json(part, part.schema)

    def _decode_registered(self, part: Unwrapped, schema: int) -> Iterator[Changes]:
        assert self._avro is not None
        try:
            plan = self._avro.plan(schema)
        except SchemaError as error:
            self._refuse_all(part.rows, str(error))
            return
        if plan is not None:
            yield from self._decode_halves(plan, part, np.arange(len(part.rows)))

    def _decode_json(self, part: Unwrapped, schema: bytes | None) -> Iterator[Changes]:
        """Decode records with one schema: at once by the last plan, or group by group."""
        plan = self._plans.get(schema) or self._sample(part, schema)
        if plan is not None and not plan.may_misread(part.texts):
            found = self._attempt(plan, part.texts, part.rows, is_examined=False)
            if found is not None:
                yield from found
                return
        groups = self._json.group(part.texts, are_bare=schema is None)
        for index, reason in groups.unreadable.items():
            self._bad.add(int(part.rows[index]), reason)
        if groups.quoted:
            texts = [groups.quoted.get(n) or text for n, text in enumerate(part.texts.to_pylist())]
            part = Unwrapped(schema, pa.array(texts, pa.binary()), part.rows)
        for shape, own in groups.shapes:
            plan = self._add_plan(shape, schema, part.rows[own])
            if plan is not None:
                yield from self._decode_halves(plan, part, own)
        if groups.wrapped:
            rows = part.rows[np.array([*groups.wrapped])]
            for inner in unwrap(pa.array([*groups.wrapped.values()], pa.binary()), rows):
                yield from self._decode_part(inner)

    def _sample(self, part: Unwrapped, schema: bytes | None) -> JsonPlan | None:
        """Return a plan for the most frequent shape of the first records."""
        groups = self._json.group(part.texts[:_SAMPLED], are_bare=schema is None)
        if not groups.shapes:
            return None
        shape, _ = max(groups.shapes, key=lambda group: len(group[1]))
        try:
            self._plans[schema] = self._json.create_plan(shape, schema)
        except SchemaError:
            return None  # the groups of all records have the reason
        return self._plans[schema]

    def _add_plan(self, shape: Shape, schema: bytes | None, rows: Rows) -> JsonPlan | None:
        """Return the plan of a shape, which later records of this schema are tried with first."""
        try:
            self._plans[schema] = self._json.create_plan(shape, schema)
        except SchemaError as error:
            self._refuse_all(rows, f"cannot be read: {error}")
            return None
        return self._plans[schema]

    def _refuse_all(self, rows: Rows, reason: str) -> None:
        for row in rows.tolist():
            self._bad.add(row, reason)

    def _decode_halves(self, plan: _Plan, part: Unwrapped, own: Rows) -> Iterator[Changes]:
        """Decode records of one shape; if some are bad, halves are tried until one is left."""
        found = self._attempt(plan, part.texts.take(pa.array(own)), part.rows[own])
        if found is not None:
            yield from found
        elif len(own) == 1:
            reason = plan.explain(part.texts[int(own[0])].as_py())
            self._bad.add(int(part.rows[own[0]]), reason)
        else:
            middle = len(own) // 2
            yield from self._decode_halves(plan, part, own[:middle])
            yield from self._decode_halves(plan, part, own[middle:])

    def _attempt(
        self, plan: _Plan, texts: pa.Array, rows: Rows, *, is_examined: bool = True
    ) -> list[Changes] | None:
        """Decode records by one plan; None if one of them does not fit it.

        If they were not examined, a row that has only its key does not fit either: it may be
        another record with a field of this name.
        """
        objects, unknown = plan.parse(texts, finds_unknown=self._rules.unknown == "fail")
        if objects is None:
            return None
        try:
            made = self._reader.read(plan.form, plan.encodings, objects, rows)
        except (pa.ArrowException, ValueError):
            return None
        if plan.form == "row" and not is_examined and self._may_be_others(made):
            return None
        # Only now it is certain that the records have this form.
        self._check_unknown(unknown, rows)
        self._forms.add(plan.form)
        return made

    def _may_be_others(self, made: Sequence[Changes]) -> bool:
        names = [name for name in self.columns.names if name not in self._keys]
        upserts = made[0].rows
        empty = np.full(len(upserts), bool(names))
        for name in names:
            empty &= upserts.column(name).is_null().to_numpy(zero_copy_only=False)
        return bool(empty.any())

    def _check_unknown(self, names: Collection[str], rows: Rows) -> None:
        """Refuse columns that the table does not have."""
        if names and self._rules.unknown == "fail":
            shown = ", ".join(map(repr, sorted(names)[:_MOST_NAMES]))
            raise FatalRecordError(
                int(rows[0]),
                f"or one after it has columns that the table does not have: {shown}. Add them to "
                "the table (ALTER TABLE ... ADD COLUMN), or set 'unknownFields' = 'ignore'",
            )

    # --- keys of records

    def _delete_by_keys(self, keys: pa.Array, rows: Rows, *, is_needed: bool) -> Iterator[Changes]:
        """Yield deletes of the keys of records.

        Args:
            keys: The keys of all records.
            rows: The records.
            is_needed: Whether a record without such a key is bad; otherwise it changes nothing. It
                is added to `_passed` if this task does not know the form of other records.
        """
        if self._of_keys is None:
            columns = pa.schema([self.columns.field(name) for name in self._keys])
            rules = DebeziumRules(
                self._rules.values, unknown="ignore", registry=self._rules.registry
            )
            self._of_keys = DebeziumDecoder(columns, self._keys, rules, self._bad)
        # Of rows alone, a tombstone may be the only trace of a delete.
        is_needed |= "row" in self._forms
        for row in self._find_strange_keys(keys, rows):
            if is_needed:
                self._bad.add(row, f"is a delete, and {_ADVICE_KEY}")
            elif not self._forms:
                self._passed.append(row)
            rows = rows[rows != row]
        if not len(rows):
            return
        for part in self._split(keys.take(pa.array(rows)), rows):
            for found in self._of_keys.decode_rows(part):
                missing = [each for each in self.columns if each.name not in self._keys]
                columns = {name: found.rows.column(name) for name in self._keys}
                columns |= {each.name: pa.nulls(len(found.rows), each.type) for each in missing}
                whole = [columns[name] for name in self.columns.names]
                batch = pa.RecordBatch.from_arrays(whole, schema=self.columns)
                yield to_deletes(batch, found.records)

    def _find_strange_keys(self, keys: pa.Array, rows: Rows) -> list[int]:
        """Return the records whose keys are not objects with the key columns."""
        strange = []
        for row, key in zip(rows.tolist(), keys.take(pa.array(rows)).to_pylist(), strict=True):
            found = self._read_key(key)
            if found is None or not all(found.get(name) for name in self._keys):
                strange.append(row)
        return strange
