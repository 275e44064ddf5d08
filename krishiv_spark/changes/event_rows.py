"""Parsed records as changes of rows: operations, keys, and values of the table's columns. Executor.

Records of every encoding are parsed to structs with the same fields: an envelope with ``op``,
``before`` (its key), ``after`` and ``source``, or a row with the flags of `ExtractNewRecordState`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from krishiv_spark.arrow.compute import pc
from krishiv_spark.changes.change_origins import (
    Origins,
    list_origin_fields,
    read_origins,
    read_positions,
)
from krishiv_spark.changes.decoded import (
    Changes,
    Rows,
    filter_changes,
    list_kept_names,
    to_deletes,
)
from krishiv_spark.changes.encodings import Encoding
from krishiv_spark.changes.options import TruncateRule
from krishiv_spark.changes.shapes import DELETED, OPERATION, Form

__all__ = [
    "KNOWN_OPERATIONS",
    "Encodings",
    "FatalRecordError",
    "RowReader",
    "convert_values",
    "is_true",
    "to_read_type",
]

_UPSERTS = pa.array(["c", "u", "r"])
_DELETES = pa.array(["d"])
_READ, _TRUNCATE, _MESSAGE = "r", "t", "m"
_NO_POSITION = pa.scalar(None, pa.int64())
KNOWN_OPERATIONS = {"c", "u", _READ, "d", _TRUNCATE, _MESSAGE}
_FLAGS = (OPERATION, DELETED)

_log = logging.getLogger(__name__)

Encodings: TypeAlias = Mapping[str, Encoding]
"""The encoding of each column of the table, by name."""


class FatalRecordError(Exception):
    """A record that the table cannot follow: its number in the batch, and the reason."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(row, reason)
        self.row, self.reason = row, reason


def to_read_type(
    form: Form,
    encodings: Encodings,
    keys: Sequence[str],
    flags: Mapping[str, pa.DataType],
    *,
    with_places: bool = False,
) -> pa.StructType:
    """Return the type to which records are parsed for `RowReader`.

    Args:
        form: The form of the records.
        encodings: The encodings of the columns.
        keys: The key columns.
        flags: The types of the flags of rows, which are text by default.
        with_places: Parse the fields of positions, beside those of times.
    """
    more = list_origin_fields(form, with_places=with_places)
    reads = [pa.field(name, made.read) for name, made in encodings.items()]
    if form == "envelope":
        return pa.struct(
            [
                pa.field("op", pa.string()),
                pa.field("before", pa.struct([each for each in reads if each.name in keys])),
                pa.field("after", pa.struct(reads)),
                pa.field("source", pa.struct(more)),
            ]
        )
    # Also if no record had a flag so far: a later one must not be taken for an upsert.
    added = [name for name in _FLAGS if name not in encodings]
    added_fields = [pa.field(name, flags.get(name, pa.string())) for name in added]
    return pa.struct([*reads, *added_fields, *(one for one in more if one.name not in encodings)])


@dataclass(frozen=True)
class RowReader:
    """A reader of parsed records.

    Attributes:
        columns: The columns of the table, with the types of `to_decoded_type`.
        keys: Its key columns.
        truncate: The action for the event of a ``TRUNCATE``.
        keyless: Receives deletes whose row before the change has no key.
        from_before: Receives deletes whose key is that of the row before the change.
        with_places: Read the positions of records.
        origins: Receives positions and times.
    """

    columns: pa.Schema
    keys: tuple[str, ...]
    truncate: TruncateRule = "fail"
    keyless: list[Rows] = field(default_factory=list)
    from_before: list[Rows] = field(default_factory=list)
    with_places: bool = False
    origins: list[Origins] = field(default_factory=list)

    def forget(self) -> None:
        """Empty the lists of the last batch: another one follows."""
        self.keyless.clear()
        self.from_before.clear()
        self.origins.clear()

    def read(
        self, form: Form, encodings: Encodings, objects: pa.StructArray, rows: Rows
    ) -> list[Changes]:
        """Return the changes of parsed records: of rows first the upserts.

        Args:
            form: The form of the records.
            encodings: The encodings of the columns.
            objects: The records, with the type of `to_read_type`.
            rows: Their numbers.

        Raises:
            pyarrow.ArrowException, ValueError: If one of them is bad.
            FatalRecordError: If the table was truncated, and that is an error.
        """
        if form == "row":
            made = [*self._read_rows(encodings, objects, rows)]
            self._read_origins(form, objects, rows)
            return made
        keyless: list[Rows] = []
        from_before: list[Rows] = []
        made = [*self._read_envelopes(encodings, objects, rows, keyless, from_before)]
        self.keyless.extend(keyless)
        self.from_before.extend(from_before)
        self._read_origins(form, objects, rows)
        return made

    def _read_origins(self, form: Form, objects: pa.StructArray, rows: Rows) -> None:
        operations = objects.field("op" if form == "envelope" else OPERATION)
        reads = is_true(pc.equal(operations.cast(pa.string()), _READ))
        made = read_origins(form, objects, reads, rows, with_places=self.with_places)
        self.origins.append(made)

    def _read_rows(
        self, encodings: Encodings, objects: pa.StructArray, rows: Rows
    ) -> Iterator[Changes]:
        operations, flags = (objects.field(name).cast(pa.string()) for name in _FLAGS)
        deletes = is_true(pc.is_in(operations, _DELETES)) | is_true(pc.equal(flags, "true"))
        is_read = pa.array(is_true(pc.equal(operations, _READ)))
        positions = pc.if_else(is_read, _NO_POSITION, read_positions(objects))
        upserts = np.flatnonzero(~deletes)
        at = positions.take(pa.array(upserts))
        yield self._upsert(encodings, objects.take(pa.array(upserts)), rows[upserts], at)
        deleted = np.flatnonzero(deletes)
        if len(deleted):
            at = positions.take(pa.array(deleted))
            yield self._delete(encodings, objects.take(pa.array(deleted)), rows[deleted], at)

    def _read_envelopes(
        self,
        encodings: Encodings,
        objects: pa.StructArray,
        rows: Rows,
        keyless: list[Rows],
        from_before: list[Rows],
    ) -> Iterator[Changes]:
        operations, after, before = (objects.field(name) for name in ("op", "after", "before"))
        # A snapshot reads rows at a later position than that of open transactions, whose changes
        # follow: of these, the later offset wins.
        is_read = pc.equal(operations, _READ)
        positions = pc.if_else(is_read, _NO_POSITION, objects.field("source").field("lsn"))
        is_upsert = np.asarray(pc.is_in(operations, _UPSERTS))
        is_delete = np.asarray(pc.is_in(operations, _DELETES))
        self._check_others(operations, ~(is_upsert | is_delete), rows)
        truncated = np.flatnonzero(is_true(pc.equal(operations, _TRUNCATE)))
        if len(truncated) and self.truncate == "apply":
            yield self._truncate(rows[truncated], positions.take(pa.array(truncated)))
        chosen = np.flatnonzero(is_upsert)
        upserted = after.take(pa.array(chosen))
        if upserted.null_count:
            raise ValueError("an upsert without a row")
        at = positions.take(pa.array(chosen))
        made = self._upsert(encodings, upserted, rows[chosen], at)
        has_before = np.ones(len(objects), np.bool_)
        for name in self.keys:
            has_before &= before.field(name).is_valid().to_numpy(zero_copy_only=False)
        has_before &= before.is_valid().to_numpy(zero_copy_only=False)
        changed = np.flatnonzero(is_upsert & has_before)
        if len(changed):
            at = positions.take(pa.array(changed))
            old = self._delete(encodings, before.take(pa.array(changed)), rows[changed], at)
            new = made.rows.take(pa.array(np.searchsorted(chosen, changed)))
            yield filter_changes(old, ~_have_equal_keys(old.rows, new, self.keys))
        yield made
        deleted = np.flatnonzero(is_delete & has_before)
        if len(deleted):
            at = positions.take(pa.array(deleted))
            yield self._delete(encodings, before.take(pa.array(deleted)), rows[deleted], at)
            from_before.append(rows[deleted])
        without = np.flatnonzero(is_delete & ~has_before)
        if len(without):
            keyless.append(rows[without])

    def _check_others(self, operations: pa.Array, others: NDArray[np.bool_], rows: Rows) -> None:
        """Refuse operations that are neither upserts nor deletes, except messages.

        Raises:
            ValueError: If an operation is missing or unknown.
            FatalRecordError: If the table was truncated, and that is not to be ignored.
        """
        ignored = 0
        for row in np.flatnonzero(others):
            operation = operations[int(row)].as_py()
            ignored += operation == _TRUNCATE and self.truncate == "ignore"
            if operation == _TRUNCATE and self.truncate == "fail":
                raise FatalRecordError(
                    int(rows[row]),
                    "is the event of a TRUNCATE, which names no rows: empty the table or build "
                    "the mirror again, and set 'truncateEvents' = 'ignore' to skip the event, or "
                    "'apply' to delete all rows",
                )
            if operation not in {_TRUNCATE, _MESSAGE}:
                raise ValueError("an unknown operation")
        if ignored:
            _log.warning(
                "%d events of a TRUNCATE delete nothing, since 'truncateEvents' is 'ignore'",
                ignored,
            )

    def _truncate(self, rows: Rows, positions: pa.Array) -> Changes:
        """Return deletes without a key: they delete all rows."""
        nulls = [pa.nulls(len(rows), each.type) for each in self.columns]
        batch = pa.RecordBatch.from_arrays(nulls, schema=self.columns)
        return to_deletes(batch, rows, positions)

    def _upsert(
        self,
        encodings: Encodings,
        found: pa.StructArray,
        rows: Rows,
        positions: pa.Array | None = None,
    ) -> Changes:
        columns, kept = [], {}
        for name, encoding in encodings.items():
            values, is_kept = convert_values(encoding, found.field(name))
            if is_kept is not None:
                kept[name] = is_kept
            columns.append(values)
        batch = pa.RecordBatch.from_arrays(
            [
                _as_type(column, each.type)
                for column, each in zip(columns, self.columns, strict=True)
            ],
            schema=self.columns,
        )
        self._check_keys(batch)
        flags = pa.array(np.zeros(len(batch), np.bool_))
        names = list_kept_names(kept, len(batch))
        at = pa.nulls(len(batch), pa.int64()) if positions is None else positions
        return Changes(batch, flags, names, at, rows)

    def _delete(
        self,
        encodings: Encodings,
        found: pa.StructArray,
        rows: Rows,
        positions: pa.Array | None = None,
    ) -> Changes:
        columns = []
        for each in self.columns:
            if each.name in self.keys:
                values = encodings[each.name].convert(found.field(each.name))
                columns.append(_as_type(values, each.type))
            else:
                columns.append(pa.nulls(len(found), each.type))
        batch = pa.RecordBatch.from_arrays(columns, schema=self.columns)
        self._check_keys(batch)
        return to_deletes(batch, rows, positions)

    def _check_keys(self, batch: pa.RecordBatch) -> None:
        """Refuse rows without their key: a delete without one would delete all rows.

        Raises:
            ValueError: If there is one.
        """
        if any(batch.column(name).null_count for name in self.keys):
            raise ValueError("a row without its key")


def convert_values(
    encoding: Encoding, values: pa.Array
) -> tuple[pa.Array, NDArray[np.bool_] | None]:
    """Return the values of a column, and which of them stand for unchanged ones; None for none."""
    if encoding.is_kept is None:
        return encoding.convert(values), None
    is_kept = is_true(encoding.is_kept(values))
    if not is_kept.any():
        return encoding.convert(values), None
    return encoding.convert(values.take(pa.array(np.arange(len(values)), mask=is_kept))), is_kept


def is_true(values: pa.Array) -> NDArray[np.bool_]:
    """Return flags; null is False."""
    return np.asarray(pc.fill_null(values, fill_value=False))


def _as_type(values: pa.Array, kind: pa.DataType) -> pa.Array:
    return values if values.type.equals(kind) else values.cast(kind)


def _have_equal_keys(
    one: pa.RecordBatch, other: pa.RecordBatch, keys: Sequence[str]
) -> NDArray[np.bool_]:
    found = np.ones(len(one), np.bool_)
    for name in keys:
        found &= np.asarray(pc.equal(one.column(name), other.column(name)))
    return found
