"""What went wrong comes first in what Spark shows, and the traceback after it.

Spark shows what ``pyspark.util.handle_worker_exception`` makes of an error: a traceback, whose last
line says what is wrong, behind ten to fifty others. With ``SPARK_HIDE_TRACEBACK`` (by which
``spark.sql.execution.pyspark.udf.hideTraceback.enabled`` works) it is that line alone, and the
notes of the error (PEP 678); the traceback is made one of them.
"""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pickle import PicklingError
from typing import Any, TypeVar, cast

from krishiv_spark.errors import KrishivError
from krishiv_spark.workers import is_of_spark

__all__ = ["sentence_first"]

MethodT = TypeVar("MethodT", bound="Callable[..., Any]")

_OURS = (KrishivError, PicklingError)
"""The latter is what planners raise (`PlanningFailed`). Of other errors, the traceback may be all
that there is to know."""


def sentence_first(method: MethodT) -> MethodT:
    """For a method that Spark calls: of an error of ours, the text comes before the traceback.

    Python 3.10 has no notes: there it stays as it is.
    """

    @functools.wraps(method)
    def called(*given: Any, **named: Any) -> Any:
        try:
            found = method(*given, **named)
        except _OURS as error:
            _arrange(error)
            raise
        return _each(found) if isinstance(found, Iterator) else found

    return cast("MethodT", called)


def _each(found: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from found
    except _OURS as error:
        _arrange(error)
        raise


def _arrange(error: Exception) -> None:
    # A worker that has failed ends, so nobody else's traceback is hidden.
    if sys.version_info >= (3, 11) and is_of_spark() and not hasattr(error, "__notes__"):
        error.add_note("".join(["\n", *traceback.format_exception(error)]))
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
