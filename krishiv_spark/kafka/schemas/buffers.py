"""Decoded numbers as buffers of Arrow, for every form of records. Executor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

__all__ = ["DecodedRecords", "build_numbers", "pack_flags", "sum_lengths"]

_SMALL_BITS = 32


@dataclass(frozen=True)
class DecodedRecords:
    """The values of some records.

    Attributes:
        values: A value per record; null for a record without a value, and for an invalid one.
        errors: Why a record is not valid, by its index.
    """

    values: pa.Array
    errors: Mapping[int, str]


def pack_flags(flags: NDArray[np.uint8]) -> pa.Buffer | None:
    """Return the bits of values that are not null; None if all are."""
    return None if flags.all() else pa.py_buffer(np.packbits(flags, bitorder="little"))


def sum_lengths(lengths: NDArray[np.int64]) -> pa.Buffer:
    """Return the offsets of values of these lengths, one after the other."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.py_buffer(offsets)


def build_numbers(
    kind: pa.DataType, values: NDArray[np.int64], valid: pa.Buffer | None
) -> pa.Array:
    """Return whole numbers, booleans, times, or floats by their bits, as values of a type."""
    data: NDArray[Any] = values
    if pa.types.is_boolean(kind):
        data = np.packbits(values.astype(np.uint8), bitorder="little")
    elif pa.types.is_float32(kind):
        data = values.astype(np.uint32)
    elif kind.bit_width == _SMALL_BITS:
        data = values.astype(np.int32)
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(data)])
