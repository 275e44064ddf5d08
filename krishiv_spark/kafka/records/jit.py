"""Numba where it is installed; the same functions, interpreted, where it is not.

Kernels are written so that both give the same results: whole numbers stay within 64 signed bits,
and no index is used that has not been compared with an end before, since compiled code checks none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

__all__ = ["COMPILED", "copy", "inner", "kernel", "peek"]

njit: Any = None
try:
    import numba

    njit = numba.njit
except ImportError as error:  # also raised by a numba that does not fit the version of numpy
    logging.getLogger(__name__).warning(
        "Kafka records are decoded and encoded many times slower than possible (%s): "
        "pip install 'krishiv-spark[fast]'",
        error,
    )


def _uncounted() -> dict[str, bool]:
    """The option that spares counting references to arrays, which kernels only borrow.

    Counting takes longer than all the rest. The option is no public one.
    """
    options = {"_nrt": False}
    try:
        njit(**options)(lambda: None)
    except KeyError:
        return {}
    return options


COMPILED = njit is not None
_UNCOUNTED = _uncounted() if COMPILED else {}

Result = TypeVar("Result")


def kernel(function: Callable[..., Result]) -> Callable[..., Result]:
    """A function over NumPy arrays and whole numbers, callable from Python."""
    return _compiled(function) if COMPILED else _interpreted(function)


def inner(function: Callable[..., Result]) -> Callable[..., Result]:
    """A function that only kernels call."""
    return _compiled(function) if COMPILED else function


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    from krishiv_spark.kafka.records.kept import keep_compiled

    # Without the lock, kafka-python's thread receives the next answer meanwhile.
    compiled: Callable[..., Any] = njit(nogil=True, **_UNCOUNTED)(function)
    keep_compiled(compiled, function)
    return compiled


def _interpreted(function: Callable[..., Result]) -> Callable[..., Result]:
    """Hand over arrays as memoryviews, whose items are whole numbers that do not overflow."""

    def call(*arguments: Any) -> Result:
        return function(
            # Before Python 3.12 no type says that an array lends its bytes.
            *(memoryview(x) if isinstance(x, np.ndarray) else x for x in arguments)  # type: ignore[arg-type]
        )

    return call


def _peek_unsigned(data: Any, at: int) -> Any:
    return data[np.uint64(at)] & 0xFF


def _peek(data: Any, at: int) -> Any:
    return data[at]


def _copy_unsigned(out: Any, at: int, source: Any, begin: int, size: int) -> None:
    to, where = np.uint64(at), np.uint64(begin)
    for i in range(np.uint64(size)):
        out[to + i] = source[where + i]


def _copy(out: Any, at: int, source: Any, begin: int, size: int) -> None:
    out[at : at + size] = source[begin : begin + size]


# An index without a sign needs no look whether it counts from the end: 12 times as fast.
peek = inner(_peek_unsigned if COMPILED else _peek)
copy = inner(_copy_unsigned if COMPILED else _copy)
