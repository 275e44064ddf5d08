"""Arrow columns as the arrays that kernels read, and records as Arrow, for every form of records.

Executor.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from krishiv_spark.arrow.compute import pc
from krishiv_spark.errors import SchemaError
from krishiv_spark.kafka.schemas.encode_nodes import ROWS, EncodeProgram, Node

__all__ = ["ProgramRunner"]

_MOST_BYTES = 2**31 - 1
_UNSIGNED = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}


class ProgramRunner:
    """Runs an encoder's program over columns.

    Args:
        program: The program.
        kernel: The function that interprets it.
        slots: Numbers that the kernel keeps for the nesting of lists and messages.
        explain: Returns the error of a row, by the number of the instruction.
    """

    def __init__(
        self,
        program: EncodeProgram,
        kernel: Callable[..., int],
        slots: int,
        explain: Callable[[int], SchemaError],
    ) -> None:
        self._program, self._kernel, self._explain = program, kernel, explain
        self._constants = np.frombuffer(program.constants or b"\0", np.uint8)
        self._slots = max(slots, 1)

    def encode(self, column: pa.Array) -> pa.BinaryArray:
        """Encode a column; null stays null.

        Raises:
            SchemaError: If a row cannot be encoded.
        """
        program = self._program
        columns = _KernelColumns(len(program.nodes))
        columns.add(program.root, column)
        sizes = {ROWS: len(column), **columns.elements}
        most = sum(sizes.get(of, 0) * each for of, each in program.bytes_each.items())
        out = np.empty(max(most + columns.octet_count, 1), np.uint8)
        ends = np.zeros(len(column), np.int64)
        present = np.ones(len(column), np.uint8)
        if column.null_count:
            present = _to_flags(column)
        stack = np.zeros(self._slots, np.int64)
        arrays = columns.join()
        bad = self._kernel(present, self._constants, program.code, *arrays, stack, out, ends)
        if bad >= 0:
            raise self._explain(bad)
        return _build_records(out, ends, column)


def _build_records(
    out: NDArray[np.uint8], ends: NDArray[np.int64], column: pa.Array
) -> pa.BinaryArray:
    """Return encoded records.

    Args:
        out: Their bytes.
        ends: The end of each, exclusive.
        column: The rows that were encoded: null stays null.

    Raises:
        SchemaError: If they are too long for one array.
    """
    size = int(ends[-1]) if len(ends) else 0
    if size > _MOST_BYTES:
        raise SchemaError(
            f"{len(ends)} rows are {size} bytes, and one Arrow batch may have 2 GiB: set "
            "'spark.sql.execution.arrow.maxRecordsPerBatch' to a smaller number"
        )
    offsets = np.zeros(len(ends) + 1, np.int32)
    offsets[1:] = ends
    valid = None
    if column.null_count:
        valid = pa.py_buffer(np.packbits(_to_flags(column), bitorder="little"))
    data = pa.py_buffer(out[:size])
    return pa.Array.from_buffers(pa.binary(), len(ends), [valid, pa.py_buffer(offsets), data])


def _to_flags(column: pa.Array) -> NDArray[np.uint8]:
    """Return 1 for each value that is not null."""
    return np.asarray(column.is_valid().to_numpy(zero_copy_only=False), np.uint8)


@dataclass
class _KernelColumns:
    """The values of all columns, one after the other, as the kernel reads them.

    Attributes:
        count: Number of columns.
        elements: Number of elements of each list, by the number of its column.
        octet_count: Number of bytes of all texts.
    """

    count: int
    elements: dict[int, int] = field(default_factory=dict)
    octet_count: int = 0

    def __post_init__(self) -> None:
        self._numbers: list[NDArray[np.int64]] = []
        self._octets: list[NDArray[np.uint8]] = []
        self._valid: list[NDArray[np.uint8]] = []
        self._number_at = np.zeros(self.count, np.int64)
        self._valid_at = np.full(self.count, -1, np.int64)
        self._ends = [0, 0]

    def join(self) -> tuple[NDArray[Any], ...]:
        """Return numbers and their starts, bytes, flags and their starts."""
        return (
            _join(self._numbers, np.int64),
            self._number_at,
            _join(self._octets, np.uint8),
            _join(self._valid, np.uint8),
            self._valid_at,
        )

    def add(self, node: Node, column: Any) -> None:
        """Add a column with all that is within it."""
        if column.null_count and node.kind != "null":
            self._valid_at[node.index] = self._ends[1]
            self._valid.append(_to_flags(column))
            self._ends[1] += len(column)
        if node.kind == "struct":
            self._add_struct(node, column)
        elif node.kind == "list":
            self._add_list(node, column)
        elif node.kind == "bytes":
            self._add_bytes(node, column)
        elif node.kind == "time":
            for child, numbers in zip(node.children, _split_times(column), strict=True):
                self._put(child, numbers)
        elif node.kind != "null":
            self._put(node, _to_numbers(node, column))

    def _add_struct(self, node: Node, column: Any) -> None:
        fields = [each.name for each in column.type]
        children = column.flatten()  # nulls of the struct are nulls of its fields
        given = [children[fields.index(name)] for name in node.names]
        for choice in node.choices:
            _check_choice(node, choice, given)
        for child, values in zip(node.children, given, strict=True):
            self.add(child, values)

    def _put(self, node: Node, numbers: NDArray[np.int64]) -> None:
        self._number_at[node.index] = self._ends[0]
        self._numbers.append(numbers)
        self._ends[0] += len(numbers)

    def _add_list(self, node: Node, column: Any) -> None:
        offsets = np.asarray(column.offsets, np.int64)
        begin, end = int(offsets[0]), int(offsets[-1])
        self._put(node, offsets - begin)
        self.elements[node.index] = end - begin
        is_map = pa.types.is_map(column.type)
        parts = [column.keys, column.items] if is_map else [column.values]
        for child, values in zip(node.children, parts, strict=True):
            self.add(child, values.slice(begin, end - begin))

    def _add_bytes(self, node: Node, column: Any) -> None:
        _, ends, data = column.buffers()
        if not len(column) or ends is None:
            return self._put(node, np.zeros(1, np.int64))
        offsets = np.frombuffer(ends, np.int32)[column.offset : column.offset + len(column) + 1]
        begin, end = int(offsets[0]), int(offsets[-1])
        self._put(node, offsets.astype(np.int64) + (self.octet_count - begin))
        self._octets.append(np.frombuffer(data or b"", np.uint8)[begin:end])
        self.octet_count += end - begin
        return None


def _join(parts: list[NDArray[Any]], kind: Any) -> NDArray[Any]:
    # Always a copy: numba compiles the kernel once more for arrays that may not be written.
    return np.concatenate(parts) if sum(map(len, parts)) else np.zeros(1, kind)


def _to_numbers(node: Node, column: Any) -> NDArray[np.int64]:
    """Return the values of a column as whole numbers: those of floats are their bits."""
    kind = column.type
    if node.kind in {"decimal", "enum"}:
        return _to_symbols(node, column) if node.kind == "enum" else _view(column, np.int64, 2)
    if node.limits is not None:
        _check_limits(node, node.limits, column)
    if pa.types.is_boolean(kind):
        bits = column.fill_null(False).to_numpy(zero_copy_only=False)  # noqa: FBT003
        return np.asarray(bits, np.int64)
    if pa.types.is_floating(kind):
        return _to_bits(column, as_double=node.to == pa.float64())
    if pa.types.is_decimal128(kind):  # a whole number without a sign: its lower half
        return np.ascontiguousarray(_view(column, np.int64, 2)[::2])
    numbers = _view(column, _UNSIGNED[kind.bit_width // 8]).astype(np.int64, copy=False)
    return np.floor_divide(numbers, node.divisor) if node.divisor > 1 else numbers


def _to_bits(column: Any, *, as_double: bool) -> NDArray[np.int64]:
    """Return the bits of floats, or of the doubles that are equal to them."""
    values = _view(column, np.float32 if pa.types.is_float32(column.type) else np.float64)
    if as_double:
        return np.ascontiguousarray(values, np.float64).view(np.int64)
    return np.ascontiguousarray(values).view(np.uint32).astype(np.int64)


def _check_limits(node: Node, limits: tuple[int, int], column: Any) -> None:
    found = pc.min_max(column).as_py()
    for number in found.values():
        if number is not None and not limits[0] <= number <= limits[1]:
            raise SchemaError(
                f"column {node.path!r}: a row has {number}, and the type of the schema holds "
                f"{limits[0]} to {limits[1]}"
            )


def _check_choice(node: Node, choice: tuple[int, ...], given: Sequence[Any]) -> None:
    """Refuse rows with several fields of which a record can have one: the others would be lost."""
    counts = sum(_to_flags(given[place]) for place in choice)
    if np.any(counts > 1):
        names = ", ".join(node.names[place] for place in choice)
        raise SchemaError(
            f"column {node.path or 'value'!r}: a row has several of the fields {names}, and a "
            "record has one of them at most: set the others to NULL"
        )


_MICROS = 1_000_000


def _split_times(column: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return whole seconds and nanoseconds: of an interval both have its sign."""
    micros = _view(column, np.int64)
    seconds = np.floor_divide(micros, _MICROS)
    rest = micros - seconds * _MICROS
    if pa.types.is_duration(column.type):
        rounds_up = (seconds < 0) & (rest > 0)
        seconds, rest = seconds + rounds_up, rest - rounds_up * _MICROS
    return seconds, rest * 1000


def _view(column: Any, kind: Any, each: int = 1) -> NDArray[Any]:
    """Return the buffer of a column's values; those of nulls are undefined."""
    data = column.buffers()[1]
    if data is None or not len(column):
        return np.zeros(0, kind)
    start = column.offset * each
    return np.frombuffer(data, kind)[start : start + len(column) * each]


def _to_symbols(node: Node, column: Any) -> NDArray[np.int64]:
    symbols = pa.array(node.symbols, pa.string())
    found = pc.index_in(column, value_set=symbols)
    numbers = np.asarray(found.fill_null(0).to_numpy(), np.int64)
    if node.numbers:
        numbers = np.asarray(node.numbers, np.int64)[numbers]
    if found.null_count > column.null_count:
        strange = pc.and_(found.is_null(), column.is_valid())
        texts = column.filter(strange)
        is_number = node.takes_digits and pc.all(pc.match_substring_regex(texts, _DIGITS)).as_py()
        if not is_number:
            raise _to_unknown_symbol(node, texts)
        numbers[np.asarray(strange)] = np.asarray(texts.cast(pa.int32()), np.int64)
    return numbers


_DIGITS = "^-?[0-9]{1,9}$"


def _to_unknown_symbol(node: Node, texts: Any) -> SchemaError:
    bad = next((each for each in texts.to_pylist() if not re.match(_DIGITS, each)), "")
    bad = bad if node.takes_digits and bad else texts[0].as_py()
    return SchemaError(
        f"column {node.path!r}: a row has {bad[:100]!r}, which is no symbol of its enum: there are "
        f"{', '.join(node.symbols[:10])}"
    )
