"""Columns and instructions of an encoder, for every form of records. Planner, executor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from krishiv_spark.errors import SchemaError
from krishiv_spark.messages.suggestions import did_you_mean

__all__ = ["ROWS", "EncodeCompiler", "EncodeProgram", "Node"]

ROWS = -1
"""The rows themselves, where elements of lists have the number of their column."""


@dataclass
class Node:
    """A column of the rows, or one within another.

    Attributes:
        index: Its number.
        kind: "number", "decimal", "bytes", "list", "struct", "enum", "time" or "null".
        path: The column and the fields within it, for messages.
        children: Elements of a list, key and value of a map, fields of a struct.
        names: The field of each child of a struct.
        to: The Arrow type whose bits are encoded; None for that of the column.
        divisor: Microseconds in the unit of the schema.
        symbols: Of an enum.
        numbers: The number of each symbol; empty if it is the symbol's place.
        takes_digits: True for an enum that may have numbers without a symbol, written as digits.
        limits: The least and the greatest number that the schema can hold; None without limits.
        choices: Children of a struct of which a row may have one: their places, in groups.
    """

    index: int
    kind: str
    path: str
    children: list[Node] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    to: pa.DataType | None = None
    divisor: int = 1
    symbols: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()
    takes_digits: bool = False
    limits: tuple[int, int] | None = None
    choices: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class EncodeProgram:
    """Instructions that encode rows.

    Attributes:
        root: The column of the whole value.
        nodes: All columns by number.
        code: The instructions.
        constants: Bytes to which they refer.
        depth: Nesting of lists.
        paths: For each instruction the column that it encodes.
        bytes_each: Most bytes of an element of each list, by the number of its column, without
            those of texts; of a row by -1.
    """

    root: Node
    nodes: Sequence[Node]
    code: NDArray[np.int64]
    constants: bytes
    depth: int
    paths: Sequence[str]
    bytes_each: dict[int, int]


class EncodeCompiler(ABC):
    """Collects the columns and the instructions of a program.

    Args:
        path: The column of the value; empty if its fields are columns.

    Attributes:
        nodes: The columns so far.
        code: The instructions so far.
        depth: Slots of the stack that these need.
        bytes_each: See `EncodeProgram.bytes_each`.
    """

    constant_op: int
    """The instruction that writes constants: their start and their size."""

    def __init__(self, path: str, depth: int = 0) -> None:
        self.nodes: list[Node] = []
        self.code: list[tuple[int, int, int, int]] = []
        self.depth = depth
        self.bytes_each: dict[int, int] = {ROWS: 0}
        self._constants = bytearray()
        self._paths: list[str] = []
        self._path = [path] if path else []
        self._lists = [ROWS]

    @abstractmethod
    def measure(self, op: int, second: int) -> int:
        """Return the most bytes that an instruction writes, without those of texts.

        Args:
            op: The instruction.
            second: Its second operand.
        """

    @property
    def path(self) -> str:
        """The column that is being compiled."""
        return ".".join(self._path)

    def add(self, op: int, *operands: int) -> int:
        """Add an instruction; return its number."""
        one, two, three = (*operands, 0, 0, 0)[:3]
        self.code.append((op, one, two, three))
        self._paths.append(self.path)
        self.bytes_each[self._lists[-1]] += self.measure(op, two)
        return len(self.code) - 1

    def write(self, data: bytes) -> None:
        """Add an instruction that writes the same bytes in each row."""
        self.add(self.constant_op, len(self._constants), len(data))
        self._constants += data

    def to_program(self, root: Node) -> EncodeProgram:
        """Return the program of the instructions so far."""
        return EncodeProgram(
            root,
            self.nodes,
            np.array(self.code, np.int64).reshape(-1),
            bytes(self._constants),
            self.depth,
            self._paths,
            self.bytes_each,
        )

    def _new(self, kind: str = "null") -> Node:
        node = Node(len(self.nodes), kind, self.path)
        self.nodes.append(node)
        return node

    def _where(self, name: str | None = None) -> str:
        path = [*self._path, *([] if name is None else [name])]
        return f"column {'.'.join(path)!r}" if path else "the value"

    def _check_names(self, kind: pa.StructType, fields: Sequence[str], owner: str) -> None:
        """Refuse columns that are no fields, and two columns of one field.

        Args:
            kind: The columns.
            fields: The names of the fields.
            owner: What has the fields, for messages: "Avro record Order".
        """
        given = [each.name for each in kind]
        for name in dict.fromkeys(given):
            if given.count(name) > 1:
                raise SchemaError(
                    f"{self._where(name)} is there {given.count(name)} times, and a field of the "
                    f"{owner} has one column: rename or drop the others"
                )
            if name not in fields:
                raise SchemaError(
                    f"{self._where(name)} is no field of the {owner}; "
                    f"{did_you_mean(name, fields, 'there are ' + ', '.join(fields))}. Drop the "
                    "column, or add the field to the schema"
                )
