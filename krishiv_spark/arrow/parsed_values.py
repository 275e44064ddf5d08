"""The result of a parser of records, of any form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

__all__ = ["ParsedValues", "UnknownFields"]


@dataclass(frozen=True)
class ParsedValues:
    """The values of some rows.

    Attributes:
        objects: The objects; null for a null value, and for a value that cannot be read.
        bad: The positions of values that cannot be read, in order.
        may_have_more: True if a value may have a field that is not read. Only a parser that
            `looks_for_more` sets it.
    """

    objects: pa.StructArray
    bad: NDArray[np.int64]
    may_have_more: bool = False


@dataclass(frozen=True)
class UnknownFields:
    """Fields of values that the schema does not have.

    Attributes:
        rows: The row of each field.
        names: The path of each field, as ``order.remark``.
        rests: For each row a JSON object of the fields, and null for a row without one. It contains
            the whole value of a known field that has an unknown one in it.
    """

    rows: NDArray[np.int64]
    names: pa.Array
    rests: pa.Array
