"""Columns and instructions of an encoder, for every form of records. Planner, executor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

__all__ = ["ROWS", "EncodeProgram", "Node"]

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
