"""Debezium's records, decoded to changes of a table: many at once, from Arrow to Arrow. Executor.

A record is an envelope (``before``, ``after``, ``op``, ``source``) or the row alone
(``ExtractNewRecordState``), with or without Connect's schema around it. The types of the values are
those of the table's columns.

A record without a value (a tombstone) deletes its key. In the form of rows it may be the only trace
of a delete, and in a compacted topic too, where it has replaced the record with the delete. After
such a record it deletes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from krishiv_spark.arrow.compute import pc
from krishiv_spark.arrow.json_parsing import JsonParser
from krishiv_spark.changes.connect_schemas import (
    Unwrapped,
    apply_schema,
    find_contradiction,
    is_wrapped,
    rewrap,
    unwrap,
)
from krishiv_spark.changes.decoded import (
    Changes,
    Rows,
    filter_changes,
    list_kept_names,
    sort_changes,
    to_deletes,
)
from krishiv_spark.changes.encodings import Encoding, build_encoding, to_decoded_type
from krishiv_spark.changes.options import ValueRules
from krishiv_spark.changes.shapes import (
    DELETED,
    OPERATION,
    Shape,
    UnreadableRecord,
    examine,
    load_object,
)
from krishiv_spark.errors import SchemaError

__all__ = ["DebeziumDecoder", "DebeziumRules"]

_UPSERTS = pa.array(["c", "u", "r"])
_DELETES = pa.array(["d"])
_TRUNCATE, _MESSAGE = "t", "m"
_KNOWN = {"c", "u", "r", "d", _TRUNCATE, _MESSAGE}
_ADDED = (OPERATION, DELETED)
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
    """

    values: ValueRules = field(default_factory=ValueRules)
    unknown: Literal["fail", "ignore"] = "fail"
    truncate: Literal["fail", "ignore"] = "fail"


@dataclass(frozen=True)
class _Plan:
    """The parser of one shape."""

    shape: Shape
    parser: JsonParser
    encodings: dict[str, Encoding]
    decimals: tuple[str, ...] = ()
    """Columns of decimals as JSON numbers: Arrow would read texts as numbers, too."""

    def may_misread(self, texts: pa.Array) -> bool:
        """Return True if a record may have a text in one of `decimals`."""
        found = (pc.match_substring(texts, f'"{name}":"') for name in self.decimals)
        return any(pc.any(flags).as_py() for flags in found)

    @property
    def watched(self) -> str:
        """The object with the columns of the table."""
        return "after" if self.shape.form == "envelope" else ""


class _BadRecordError(Exception):
    """A record cannot be decoded: its number, and the reason."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(row, reason)
        self.row, self.reason = row, reason


class DebeziumDecoder:
    """A decoder of the records of one task.

    Args:
        columns: The columns of the table.
        keys: Its key columns.
        rules: Rules for records.
    """

    def __init__(self, columns: pa.Schema, keys: Sequence[str], rules: DebeziumRules) -> None:
        fields = [pa.field(each.name, to_decoded_type(each.type)) for each in columns]
        self.columns = pa.schema(fields)
        self._keys = tuple(keys)
        self._rules = rules
        self._plans: dict[bytes | None, _Plan] = {}
        self._of_keys: DebeziumDecoder | None = None
        self._from_before: list[Rows] = []

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
        except _BadRecordError as error:
            raise SchemaError(
                f"{locate(error.row)}: the value {error.reason}. Nothing of this batch was "
                "written; the query repeats it, and may continue with its checkpoint"
            ) from None
        return sort_changes(pieces, self.columns)

    def decode_rows(self, part: Unwrapped) -> Iterator[Changes]:
        """Decode records that are rows only, such as keys."""
        yield from self._decode_part(part, [])

    def _decode_all(self, values: pa.Array, keys: pa.Array) -> Iterator[Changes]:
        missing = values.is_null().to_numpy(zero_copy_only=False)
        present = np.flatnonzero(~missing)
        without_key: list[Rows] = []
        if len(present):
            for part in unwrap(values.take(pa.array(present)), present):
                is_null = _to_flags(pc.equal(part.texts, b"null"))
                missing[part.rows[is_null]] = True
                yield from self._decode_part(part.filter(~is_null), without_key)
        self._check_keys(keys)
        tombstones = np.flatnonzero(missing)
        if len(tombstones):
            yield from self._delete_by_keys(keys, tombstones, is_needed=False)
        for rows in without_key:
            yield from self._delete_by_keys(keys, rows, is_needed=True)

    def _check_keys(self, keys: pa.Array) -> None:
        """Refuse deletes whose records have another key than the table's.

        For such columns, a row before its delete has nulls or other values than the database
        (unless its replica identity is FULL), so that another row would be deleted, or none.

        Raises:
            _BadRecordError: If there is such a record.
        """
        rows, self._from_before = self._from_before, []
        for row in (row for part in rows for row in part.tolist()):
            try:
                found = load_object(keys[row].as_py() or b"")
            except UnreadableRecord:
                continue  # a key of another converter, or none
            found = found["payload"] if is_wrapped(found) else found
            if isinstance(found, dict) and not all(name in found for name in self._keys):
                raise _BadRecordError(
                    row,
                    "is a delete, and the key of its record has the columns "
                    f"{', '.join(list(found)[:_MOST_NAMES])}: set 'keyColumns' to the key of the "
                    "database's table",
                )

    def _decode_part(self, part: Unwrapped, without_key: list[Rows]) -> Iterator[Changes]:
        """Decode records with one schema: at once by the last plan, or group by group."""
        if not len(part.rows):
            return
        plan = self._plans.get(part.schema) or self._sample(part)
        if plan is not None and not plan.may_misread(part.texts):
            found = self._attempt(plan, part.texts, part.rows, without_key, is_examined=False)
            if found is not None:
                yield from found
                return
        wrapped: list[tuple[int, bytes]] = []
        for shape, own in self._group(part, wrapped):
            plan = self._add_plan(shape, part, int(own[0]))
            yield from self._decode_halves(plan, part, own, without_key)
        if wrapped:
            rows = np.array([part.rows[row] for row, _ in wrapped])
            for inner in unwrap(pa.array([text for _, text in wrapped], pa.binary()), rows):
                yield from self._decode_part(inner, without_key)

    def _sample(self, part: Unwrapped) -> _Plan | None:
        """Return a plan for the most frequent shape of the first records."""
        first = Unwrapped(part.schema, part.texts[:_SAMPLED], part.rows[:_SAMPLED])
        groups = self._group(first, [])
        if not groups:
            return None
        shape, own = max(groups, key=lambda group: len(group[1]))
        return self._add_plan(shape, part, int(own[0]))

    def _add_plan(self, shape: Shape, part: Unwrapped, row: int) -> _Plan:
        """Return the plan of a shape, which later records of this schema are tried with first.

        Raises:
            _BadRecordError: For this row, if a column cannot have values of this kind.
        """
        try:
            plan = self._create_plan(shape, part.schema)
        except SchemaError as error:
            raise _BadRecordError(int(part.rows[row]), f"cannot be read: {error}") from None
        self._plans[part.schema] = plan
        return plan

    def _group(self, part: Unwrapped, wrapped: list[tuple[int, bytes]]) -> list[tuple[Shape, Rows]]:
        """Examine records one by one, and group them by shape."""
        groups: list[tuple[Shape, list[int]]] = []
        for row, text in enumerate(part.texts.to_pylist()):
            try:
                found = load_object(text)
                if part.schema is None and is_wrapped(found):
                    wrapped.append((row, rewrap(found)))
                    continue
                shape = examine(found, self.columns, self._keys)
            except UnreadableRecord as error:
                raise _BadRecordError(int(part.rows[row]), str(error)) from None
            if shape is None:
                continue
            for number, (other, members) in enumerate(groups):
                if (both := other.merge(shape)) is not None:
                    groups[number] = (both, members)
                    members.append(row)
                    break
            else:
                groups.append((shape, [row]))
        return [(shape, np.array(members, np.int64)) for shape, members in groups]

    def _create_plan(self, shape: Shape, schema: bytes | None) -> _Plan:
        try:
            rules = apply_schema(schema, self._rules.values)
            contradiction = find_contradiction(schema, self.columns)
        except (ValueError, TypeError, AttributeError) as error:
            raise SchemaError(f"its schema cannot be read ({type(error).__name__})") from None
        if contradiction is not None:
            raise SchemaError(contradiction)
        encodings = {}
        for each in self.columns:
            given, element = shape.kind_of(each.name, each.type)
            encodings[each.name] = build_encoding(each.type, given, each.name, rules, element)
        reads = [pa.field(name, made.read) for name, made in encodings.items()]
        if shape.form == "envelope":
            before = [each for each in reads if each.name in self._keys]
            kind = [
                pa.field("op", pa.string()),
                pa.field("before", pa.struct(before)),
                pa.field("after", pa.struct(reads)),
                pa.field("source", pa.struct([("lsn", pa.int64())])),
            ]
        else:
            # Also if no record had a flag so far: a later one must not be taken for an upsert.
            flags = [name for name in _ADDED if name not in encodings]
            kind = [*reads, *(pa.field(name, _flag_type(shape, name)) for name in flags)]
        decimals = [name for name, one in encodings.items() if pa.types.is_decimal(one.read)]
        return _Plan(shape, JsonParser(pa.struct(kind)), encodings, tuple(decimals))

    def _decode_halves(
        self, plan: _Plan, part: Unwrapped, own: Rows, without_key: list[Rows]
    ) -> Iterator[Changes]:
        """Decode records of one shape; if some are bad, halves are tried until one is left."""
        found = self._attempt(plan, part.texts.take(pa.array(own)), part.rows[own], without_key)
        if found is not None:
            yield from found
        elif len(own) == 1:
            reason = self._explain(plan, part.texts[int(own[0])].as_py())
            raise _BadRecordError(int(part.rows[own[0]]), reason)
        else:
            middle = len(own) // 2
            yield from self._decode_halves(plan, part, own[:middle], without_key)
            yield from self._decode_halves(plan, part, own[middle:], without_key)

    def _attempt(
        self,
        plan: _Plan,
        texts: pa.Array,
        rows: Rows,
        without_key: list[Rows],
        *,
        is_examined: bool = True,
    ) -> list[Changes] | None:
        """Decode records by one plan; None if one of them does not fit it.

        If they were not examined, a row that has only its key does not fit either: it may be
        another record with a field of this name.
        """
        is_row = plan.shape.form == "row"
        watched = plan.watched if self._rules.unknown == "fail" else None
        objects, more = plan.parser.parse_all(texts, watched)
        if objects is None:
            # A field of several types cannot be inferred: without a search for other fields.
            objects, _ = plan.parser.parse_all(texts)
            more = frozenset() if objects is None else self._find_more(texts)
        if objects is None:
            return None
        keyless: list[Rows] = []
        try:
            if is_row:
                made = list(self._read_rows(plan, objects, rows))
                if not is_examined and self._may_be_others(made):
                    return None
            else:
                made = list(self._read_envelopes(plan, objects, rows, keyless))
        except (pa.ArrowException, ValueError):
            return None
        # Only now it is certain that the records have this form.
        self._check_unknown(plan, more, rows)
        without_key.extend(keyless)
        return made

    def _may_be_others(self, made: Sequence[Changes]) -> bool:
        names = [name for name in self.columns.names if name not in self._keys]
        upserts = made[0].rows
        empty = np.full(len(upserts), bool(names))
        for name in names:
            empty &= upserts.column(name).is_null().to_numpy(zero_copy_only=False)
        return bool(empty.any())

    def _find_more(self, texts: pa.Array) -> frozenset[str]:
        found: set[str] = set()
        for text in texts.to_pylist():
            value = load_object(text)
            row = value.get("after") if isinstance(value.get("source"), dict) else value
            found.update(row or ())
        return frozenset(found - {*self.columns.names})

    def _check_unknown(self, plan: _Plan, names: Collection[str], rows: Rows) -> None:
        """Refuse columns that the table does not have, except those that Debezium adds to rows."""
        if plan.shape.form == "row":
            names = [name for name in names if not name.startswith("__")]
        if names and self._rules.unknown == "fail":
            shown = ", ".join(map(repr, sorted(names)[:_MOST_NAMES]))
            raise _BadRecordError(
                int(rows[0]),
                f"or one after it has columns that the table does not have: {shown}. Add them to "
                "the table (ALTER TABLE ... ADD COLUMN), or set 'unknownFields' = 'ignore'",
            )

    # --- rows

    def _read_rows(self, plan: _Plan, objects: pa.StructArray, rows: Rows) -> Iterator[Changes]:
        operations, flags = (objects.field(name).cast(pa.string()) for name in _ADDED)
        deletes = _to_flags(pc.is_in(operations, _DELETES)) | _to_flags(pc.equal(flags, "true"))
        upserts = np.flatnonzero(~deletes)
        chosen = objects.take(pa.array(upserts))
        yield self._upsert(plan, chosen, rows[upserts])
        deleted = np.flatnonzero(deletes)
        if len(deleted):
            yield self._delete(plan, objects.take(pa.array(deleted)), rows[deleted])

    def _read_envelopes(
        self, plan: _Plan, objects: pa.StructArray, rows: Rows, without_key: list[Rows]
    ) -> Iterator[Changes]:
        operations, after, before = (objects.field(name) for name in ("op", "after", "before"))
        positions = objects.field("source").field("lsn")
        is_upsert = np.asarray(pc.is_in(operations, _UPSERTS))
        is_delete = np.asarray(pc.is_in(operations, _DELETES))
        self._check_others(operations, ~(is_upsert | is_delete), rows)
        chosen = np.flatnonzero(is_upsert)
        upserted = after.take(pa.array(chosen))
        if upserted.null_count:
            raise ValueError("an upsert without a row")
        at = positions.take(pa.array(chosen))
        made = self._upsert(plan, upserted, rows[chosen], at)
        has_before = np.ones(len(objects), np.bool_)
        for name in self._keys:
            has_before &= before.field(name).is_valid().to_numpy(zero_copy_only=False)
        has_before &= before.is_valid().to_numpy(zero_copy_only=False)
        changed = np.flatnonzero(is_upsert & has_before)
        if len(changed):
            at = positions.take(pa.array(changed))
            old = self._delete(plan, before.take(pa.array(changed)), rows[changed], at)
            new = made.rows.take(pa.array(np.searchsorted(chosen, changed)))
            yield filter_changes(old, ~_have_equal_keys(old.rows, new, self._keys))
        yield made
        deleted = np.flatnonzero(is_delete & has_before)
        if len(deleted):
            at = positions.take(pa.array(deleted))
            yield self._delete(plan, before.take(pa.array(deleted)), rows[deleted], at)
            self._from_before.append(rows[deleted])
        keyless = np.flatnonzero(is_delete & ~has_before)
        if len(keyless):
            without_key.append(rows[keyless])

    def _check_others(self, operations: pa.Array, others: NDArray[np.bool_], rows: Rows) -> None:
        """Refuse operations that are neither upserts nor deletes, except messages.

        Raises:
            ValueError: If an operation is missing or unknown.
            _BadRecordError: If the table was truncated, and that is not to be ignored.
        """
        for row in np.flatnonzero(others):
            operation = operations[int(row)].as_py()
            if operation == _TRUNCATE and self._rules.truncate == "fail":
                raise _BadRecordError(
                    int(rows[row]),
                    "is the event of a TRUNCATE, which names no rows: empty the table or build "
                    "the mirror again, and set 'truncateEvents' = 'ignore' to skip the event",
                )
            if operation not in {_TRUNCATE, _MESSAGE}:
                raise ValueError("an unknown operation")

    def _upsert(
        self,
        plan: _Plan,
        found: pa.StructArray,
        rows: Rows,
        positions: pa.Array | None = None,
    ) -> Changes:
        columns, kept = [], {}
        for name, encoding in plan.encodings.items():
            values = found.field(name)
            if encoding.is_kept is not None:
                is_kept = np.asarray(pc.fill_null(encoding.is_kept(values), False))  # noqa: FBT003  Arrow's function
                if is_kept.any():
                    kept[name] = is_kept
                    places = np.arange(len(values))
                    values = values.take(pa.array(places, mask=is_kept))
            columns.append(encoding.convert(values))
        batch = pa.RecordBatch.from_arrays(
            [
                _as_type(column, each.type)
                for column, each in zip(columns, self.columns, strict=True)
            ],
            schema=self.columns,
        )
        for name in self._keys:
            if batch.column(name).null_count:
                raise ValueError("a row without its key")
        flags = pa.array(np.zeros(len(batch), np.bool_))
        names = list_kept_names(kept, len(batch))
        at = pa.nulls(len(batch), pa.int64()) if positions is None else positions
        return Changes(batch, flags, names, at, rows)

    def _delete(
        self, plan: _Plan, found: pa.StructArray, rows: Rows, positions: pa.Array | None = None
    ) -> Changes:
        columns = []
        for each in self.columns:
            if each.name in self._keys:
                values = plan.encodings[each.name].convert(found.field(each.name))
                columns.append(_as_type(values, each.type))
            else:
                columns.append(pa.nulls(len(found), each.type))
        batch = pa.RecordBatch.from_arrays(columns, schema=self.columns)
        return to_deletes(batch, rows, positions)

    # --- keys of records

    def _delete_by_keys(self, keys: pa.Array, rows: Rows, *, is_needed: bool) -> Iterator[Changes]:
        """Yield deletes of the keys of records.

        Args:
            keys: The keys of all records.
            rows: The records.
            is_needed: Whether a record without such a key is bad; otherwise it changes nothing.
        """
        if self._of_keys is None:
            columns = pa.schema([self.columns.field(name) for name in self._keys])
            rules = DebeziumRules(self._rules.values, unknown="ignore")
            self._of_keys = DebeziumDecoder(columns, self._keys, rules)
        # Of rows alone, a tombstone may be the only trace of a delete.
        is_needed |= any(plan.shape.form == "row" for plan in self._plans.values())
        for row in self._find_strange_keys(keys, rows):
            if is_needed:
                raise _BadRecordError(row, f"is a delete, and {_ADVICE_KEY}")
            rows = rows[rows != row]
        if not len(rows):
            return
        for part in unwrap(keys.take(pa.array(rows)), rows):
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
            try:
                found = load_object(key or b"")
                found = found["payload"] if is_wrapped(found) else found
                if not all(found.get(name) is not None for name in self._keys):
                    strange.append(row)
            except (UnreadableRecord, AttributeError):
                strange.append(row)
        return strange

    # --- reasons

    def _explain(self, plan: _Plan, text: bytes) -> str:
        """Return the fault of a bad record: a predicate without data of the record."""
        found: Any = load_object(text)
        if plan.shape.form == "envelope":
            operation = found["op"]
            if operation not in _KNOWN:
                return "has an unknown operation in 'op'"
            found = found.get("before" if operation == "d" else "after")
            if not isinstance(found, dict):
                return f"has the operation {operation!r}, and no row"
        for name in self._keys:
            if found.get(name) is None:
                return f"has no value in the key column {name!r}"
        for name, encoding in plan.encodings.items():
            if not _is_readable(name, encoding, found.get(name)):
                kind = self.columns.field(name).type
                return f"has a value in column {name!r} that cannot be read as {kind}"
        return "cannot be read"


def _is_readable(name: str, encoding: Encoding, value: object) -> bool:
    text = json.dumps({name: value}).encode()
    parser = JsonParser(pa.struct([(name, encoding.read)]))
    found, _ = parser.parse_all(pa.array([text], pa.binary()))
    if found is None:
        return False
    try:
        _convert(encoding, found.field(name))
    except (pa.ArrowException, ValueError, SchemaError):
        return False
    return True


def _convert(encoding: Encoding, values: pa.Array) -> tuple[pa.Array, NDArray[np.bool_] | None]:
    """Return the values of a column, and which of them stand for unchanged ones; None for none."""
    if encoding.is_kept is None:
        return encoding.convert(values), None
    is_kept = _to_flags(encoding.is_kept(values))
    if not is_kept.any():
        return encoding.convert(values), None
    return encoding.convert(values.take(pa.array(np.arange(len(values)), mask=is_kept))), is_kept


def _to_flags(values: pa.Array) -> NDArray[np.bool_]:
    """Return flags; null is False."""
    return np.asarray(pc.fill_null(values, fill_value=False))


def _flag_type(shape: Shape, name: str) -> pa.DataType:
    return pa.bool_() if shape.flags.get(name) == "bool" else pa.string()


def _as_type(values: pa.Array, kind: pa.DataType) -> pa.Array:
    return values if values.type.equals(kind) else values.cast(kind)


def _have_equal_keys(
    one: pa.RecordBatch, other: pa.RecordBatch, keys: Sequence[str]
) -> NDArray[np.bool_]:
    found = np.ones(len(one), np.bool_)
    for name in keys:
        found &= np.asarray(pc.equal(one.column(name), other.column(name)))
    return found
