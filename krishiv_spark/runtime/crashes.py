"""The name of a file in what is left of a process that died while it read that file.

PyArrow ends the process when some metadata of a damaged file are asked for (docs/upstream/).
``faulthandler`` then writes the functions that ran, each with the name of its source file, and with
``spark.python.worker.faulthandler.enabled`` Spark puts that into the driver's error. So the reader
runs below a function whose source file is called like the file that is read. That costs some
microseconds for each file.
"""

from __future__ import annotations

import contextlib
import faulthandler
import re
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import TypeVar, cast

from krishiv_spark.runtime.workers import is_of_spark

__all__ = ["file_of_crash", "name_call", "name_rows"]

T = TypeVar("T")

_NAME = "<krishiv-spark reads {}>"
"""In angle brackets, so that no traceback looks for lines of source in it."""

_NAMED = re.compile(r'File "<krishiv-spark reads (.*?)(?:>"|\.\.\.|$)', re.MULTILINE)


def name_call(path: str, call: Callable[[], T]) -> T:
    """Return what a function returns; it runs below a function that names a file."""
    return cast("T", _below(path, _call.__code__)(call))


def name_rows(path: str, rows: Iterator[T]) -> Iterator[T]:
    """Yield from an iterator; each step runs below a function that names a file."""
    return cast("Iterator[T]", _below(path, _yield.__code__)(rows))


def file_of_crash(text: str) -> str | None:
    """Return the file that a process read when it died, from the text of ``faulthandler``.

    The text has at most 500 characters of the name, with others than ASCII escaped.
    """
    found = _NAMED.search(text)
    return None if found is None else found[1]


def _below(path: str, code: CodeType) -> FunctionType:
    # With its setting, Spark enables it for a task, and disables it afterwards.
    if is_of_spark() and not faulthandler.is_enabled():
        with contextlib.suppress(Exception):  # without a standard error there is nothing to write
            faulthandler.enable()
    return FunctionType(code.replace(co_filename=_NAME.format(path)), {})


def _call(call: Callable[[], T]) -> T:
    return call()


def _yield(rows: Iterator[T]) -> Iterator[T]:
    yield from rows
