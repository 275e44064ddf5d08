"""Encoded Protobuf records as Arrow columns. Executor."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from krishiv_spark.arrow.compute import sort_distinct
from krishiv_spark.kafka.schemas.buffers import (
    DecodedRecords,
    build_numbers,
    pack_flags,
    sum_lengths,
)
from krishiv_spark.kafka.schemas.octets import copy_octets
from krishiv_spark.kafka.schemas.protobuf.protobuf_decode_kernel import (
    ABSENT,
    FIRST_RARE,
    PROTO_ERRORS,
    decode_messages,
)
from krishiv_spark.kafka.schemas.protobuf.protobuf_decode_program import (
    ProtoColumn,
    ProtoProgram,
    check_writer,
    compile_reader,
)
from krishiv_spark.kafka.schemas.protobuf.protobuf_files import (
    encode_indexes,
    find_message,
    list_messages,
    message_class,
)
from krishiv_spark.kafka.schemas.protobuf.protobuf_types import ProtoMessage, read_message

__all__ = ["ProtobufDecoder", "decode_values", "select_fields"]

_GROUPS = 100
_GROWTH = 4
_MICROS, _NANOS_EACH = 1_000_000, 1000


def select_fields(message: ProtoMessage, names: Collection[str]) -> ProtoMessage:
    """Return a message with some of its fields, and with the others of their oneofs.

    A field of a oneof is null in a record that has another one of them after it.
    """
    groups = {each.oneof for each in message.fields if each.name in names} - {""}
    kept = (each for each in message.fields if each.name in names or each.oneof in groups)
    return replace(message, fields=tuple(kept))


class ProtobufDecoder:
    """Decodes records of one writer's file into values of the reader's message.

    Args:
        writer: The file descriptor of the schema with which the records were written.
        reader: The descriptor of the reader's message.
        names: The fields to read.

    Raises:
        SchemaError: If the writer's file does not have the message, or the reader's message has a
            field of a type that does not fit.
    """

    def __init__(self, writer: Any, reader: Any, names: Collection[str]) -> None:
        message = select_fields(read_message(reader), names)
        written = find_message(writer, reader.full_name)
        check_writer(written, message)
        self._headers = encode_indexes(written)
        self._names = [each.full_name for each in list_messages(writer)]
        self._reader = reader
        self._program = compile_reader(message)
        self._room = np.zeros(len(self._program.lists), np.int64)

    def decode(
        self, data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> DecodedRecords:
        """Decode some records, each after the number of its message.

        Args:
            data: The bytes of all records.
            starts: Where each record starts in them, inclusive; -1 for one without a value.
            ends: Where each record ends, exclusive.
        """
        errors: dict[int, str] = {}
        starts = self._skip_headers(data, starts, ends, errors)
        found, status = self._run(data, starts, ends)
        rare = np.flatnonzero((status > 0) & (status % 256 >= FIRST_RARE))
        rare = sort_distinct(np.concatenate([rare, found.find_twice(self._program)]))
        if len(rare):
            data, starts, ends = self._normalize(data, starts, ends, rare, errors)
            found, status = self._run(data, starts, ends)
        for row in np.flatnonzero((status != 0) & (status != ABSENT)):
            errors[int(row)] = self._explain(int(status[row]))
        return DecodedRecords(found.build(self._program.root), errors)

    def _skip_headers(
        self,
        data: NDArray[np.uint8],
        starts: NDArray[np.int64],
        ends: NDArray[np.int64],
        errors: dict[int, str],
    ) -> NDArray[np.int64]:
        """Return where records start after the number of their message, which is checked."""
        after = np.full(len(starts), ABSENT, np.int64)
        for header in self._headers:
            fits = (starts >= 0) & (ends - starts >= len(header))
            for at, octet in enumerate(header):
                fits[fits] = data[starts[fits] + at] == octet
            after[fits] = starts[fits] + len(header)
        for row in np.flatnonzero((after < 0) & (starts >= 0)):
            shown = bytes(data[starts[row] : min(ends[row], starts[row] + 8)]).hex(" ")
            errors[int(row)] = (
                f"it is another message than {self._reader.full_name} (its message number is in "
                f"the bytes {shown or 'of which there are none'}; its schema has "
                f"{', '.join(self._names)})"
            )
        return after

    def _run(
        self, data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> tuple[_Values, NDArray[np.int64]]:
        return decode_values(self._program, data, starts, ends, self._room)

    def _explain(self, status: int) -> str:
        path, error = self._program.paths[status // 256], PROTO_ERRORS[status % 256]
        return f"at field {path}: {error}" if path else error

    def _normalize(
        self,
        data: NDArray[np.uint8],
        starts: NDArray[np.int64],
        ends: NDArray[np.int64],
        rows: NDArray[np.int64],
        errors: dict[int, str],
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
        """Write records of a rare form in the usual one, by Google's own parser."""
        from google.protobuf.message import DecodeError

        parse, parts, size = message_class(self._reader), [data], len(data)
        starts, ends = starts.copy(), ends.copy()
        for row in rows:
            try:
                message = parse.FromString(bytes(data[starts[row] : ends[row]]))
            except DecodeError as error:
                errors[int(row)], starts[row] = str(error), ABSENT
                continue
            message.DiscardUnknownFields()
            part = np.frombuffer(message.SerializePartialToString(), np.uint8)
            starts[row], ends[row] = size, size + len(part)
            size += len(part)
            parts.append(part)
        return np.concatenate(parts), starts, ends


def decode_values(
    program: ProtoProgram,
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    known_room: NDArray[np.int64] | None = None,
) -> tuple[_Values, NDArray[np.int64]]:
    """Decode records by a program; return values, and the status of each record.

    Args:
        program: The program.
        data: The bytes of all records.
        starts: Where each record starts in them; -1 for one without a value.
        ends: Where each record ends, exclusive.
        known_room: The number of values that each domain had before, which is raised.
    """
    status = np.zeros(len(starts), np.int64)
    stack, groups = np.zeros(4 * program.depth, np.int64), np.zeros(_GROUPS, np.int64)
    room = np.zeros(len(program.lists), np.int64) if known_room is None else known_room
    np.maximum(room, len(starts), out=room)
    while True:
        values = _Values.of(program.columns, room, data, program.constants)
        full = decode_messages(
            data, starts, ends, program.fields, program.messages, program.domains,
            program.tables, status, values.counts, np.zeros_like(values.counts), room,
            values.begins, values.numbers, values.sizes, values.valid, stack, groups,
        )  # fmt: skip
        if full < 0:
            return values, status
        room[full] *= _GROWTH


@dataclass(frozen=True)
class _Values:
    """The values of all columns, one after the other.

    Attributes:
        data: The bytes of all records.
        constants: Bytes of defaults.
        counts: The number of values of each domain.
        begins: Where each column starts in the arrays.
        numbers: Values, lengths of lists, and starts of bytes.
        sizes: Numbers of bytes.
        valid: 1 for each value that is not null.
    """

    data: NDArray[np.uint8]
    constants: NDArray[np.uint8]
    counts: NDArray[np.int64]
    begins: NDArray[np.int64]
    numbers: NDArray[np.int64]
    sizes: NDArray[np.int64]
    valid: NDArray[np.uint8]

    @classmethod
    def of(
        cls,
        columns: Sequence[ProtoColumn],
        room: NDArray[np.int64],
        data: NDArray[np.uint8],
        constants: bytes,
    ) -> _Values:
        """Make room for this many values of each domain."""
        ends = np.cumsum(room[[each.domain for each in columns]])
        total = max(int(ends[-1]), 1)
        return cls(
            data,
            np.frombuffer(constants or b"\0", np.uint8),
            np.zeros(len(room), np.int64),
            np.concatenate(([0], ends[:-1])).astype(np.int64),
            np.empty(total, np.int64),
            np.empty(total, np.int64),
            np.empty(total, np.uint8),
        )

    def _slice(self, column: ProtoColumn, of: NDArray[Any]) -> NDArray[Any]:
        begin = self.begins[column.index]
        return of[begin : begin + self.counts[column.domain]]

    def build(self, column: ProtoColumn) -> pa.Array:
        """Return the values of a column."""
        n = int(self.counts[column.domain])
        valid = pack_flags(self._slice(column, self.valid)) if column.is_nullable else None
        values = self._slice(column, self.numbers)
        if column.kind == "struct":
            children = [self.build(child) for child in column.children]
            return pa.Array.from_buffers(column.type, n, [valid], children=children)
        if column.kind in {"list", "map"}:
            items = self.build(column.children[0])
            return pa.Array.from_buffers(
                column.type, n, [valid, sum_lengths(values)], children=[items]
            )
        if column.kind == "bytes":
            return self._build_bytes(column, values, valid)
        if column.kind == "enum":
            return _build_enum(column, values, valid)
        return self._build_numbers(column, values, valid)

    def _build_numbers(
        self, column: ProtoColumn, values: NDArray[np.int64], valid: pa.Buffer | None
    ) -> pa.Array:
        n = len(values)
        if column.kind == "time":
            seconds, nanos = (self._slice(child, self.numbers) for child in column.children)
            return build_numbers(column.type, _to_micros(seconds, nanos), valid)
        if column.kind == "unsigned":
            pairs = np.zeros(2 * n, np.int64)
            pairs[0::2] = values
            return pa.Array.from_buffers(column.type, n, [valid, pa.py_buffer(pairs)])
        return build_numbers(column.type, values, valid)

    def _build_bytes(
        self, column: ProtoColumn, starts: NDArray[np.int64], valid: pa.Buffer | None
    ) -> pa.Array:
        sizes = self._slice(column, self.sizes)
        out = np.empty(max(int(sizes.sum()), 1), np.uint8)
        copy_octets(self.data, self.constants, starts, sizes, out)
        buffers = [valid, sum_lengths(sizes), pa.py_buffer(out)]
        return pa.Array.from_buffers(column.type, len(starts), buffers)

    # --- keys that a map has twice

    def find_twice(self, program: ProtoProgram) -> NDArray[np.int64]:
        """Return the rows in which a map has a key twice, of which the last counts."""
        found = [np.zeros(0, np.int64)]
        for column in program.columns:
            if column.kind == "map":
                slots = self._find_slots(column)
                found.append(self._to_rows(slots, column.domain, program.lists))
        return sort_distinct(np.concatenate(found))

    def _find_slots(self, column: ProtoColumn) -> NDArray[np.int64]:
        lengths = self._slice(column, self.numbers)
        if not len(lengths) or lengths.max() < 2:  # noqa: PLR2004
            return np.zeros(0, np.int64)
        keys = self.build(column.children[0].children[0]).dictionary_encode()
        slots = np.repeat(np.arange(len(lengths)), lengths)
        pairs = slots * len(keys.dictionary) + keys.indices.to_numpy()
        order = np.argsort(pairs, kind="stable")
        same = order[1:][np.diff(pairs[order]) == 0]
        return sort_distinct(slots[same])

    def _to_rows(
        self, slots: NDArray[np.int64], domain: int, lists: Sequence[ProtoColumn | None]
    ) -> NDArray[np.int64]:
        """Return the rows of elements of a domain."""
        outer = lists[domain]
        if outer is None or not len(slots):
            return slots
        lengths = self._slice(outer, self.numbers)
        return self._to_rows(
            np.repeat(np.arange(len(lengths)), lengths)[slots], outer.domain, lists
        )


def _to_micros(seconds: NDArray[np.int64], nanos: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return microseconds; of a finer time the rest is cut off, toward zero."""
    # The fields of a time that was replaced in a oneof may be any numbers, and are not shown.
    rest = np.where(nanos < 0, -(-nanos // _NANOS_EACH), nanos // _NANOS_EACH)
    found: NDArray[np.int64] = seconds * _MICROS + rest
    return found


def _build_enum(
    column: ProtoColumn, values: NDArray[np.int64], valid: pa.Buffer | None
) -> pa.Array:
    """Return the names of numbers; a number without a name is a text of its digits."""
    known = np.array(sorted(column.symbols), np.int64)
    names = [column.symbols[int(each)] for each in known]
    at = np.minimum(np.searchsorted(known, values), len(known) - 1)
    others = known[at] != values
    if others.any():
        unknown, index = np.unique(values[others], return_inverse=True)
        at[others] = len(names) + index
        names += [str(each) for each in unknown]
    indices = pa.Array.from_buffers(pa.int64(), len(at), [valid, pa.py_buffer(at.astype(np.int64))])
    return pa.array(names, pa.string()).take(indices)
