"""What went wrong comes first in what Spark shows, and the traceback after it.

Spark shows what ``pyspark.util.handle_worker_exception`` makes of an error: a traceback, whose last
line says what is wrong, behind ten to fifty others. With ``SPARK_HIDE_TRACEBACK`` (by which
``spark.sql.execution.pyspark.udf.hideTraceback.enabled`` works) it is that line alone, and the
notes of the error (PEP 678); the traceback is made one of them.

Spark shows whatever leaves here, in the driver's exception, its UI and the log: so here no error
leaves with a secret in it or in its chain.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pickle import PicklingError
from typing import Any, TypeVar, cast

from krishiv_spark.errors import KrishivError
from krishiv_spark.messages.exception_chains import raise_alone, scrub
from krishiv_spark.runtime.workers import is_of_spark

__all__ = ["message_before_traceback"]

MethodT = TypeVar("MethodT", bound="Callable[..., Any]")

_OURS = (KrishivError, PicklingError)
"""The latter is what planners raise (`PlanningFailed`). Of other errors, the traceback may be all
that there is to know."""


def message_before_traceback(method: MethodT) -> MethodT:
    """For a method that Spark calls: of an error of ours, the text comes before the traceback.

    No error leaves it with a secret of the options, nor with what looks like a login. Python 3.10
    has no notes: there the traceback stays where it is.
    """

    @functools.wraps(method)
    def called(*given: Any, **named: Any) -> Any:
        try:
            found = method(*given, **named)
        except Exception as error:
            if (shown := _prepare(error, given[0])) is not error:
                raise_alone(shown)
            raise
        return _each(found, given[0]) if isinstance(found, Iterator) else found

    return cast("MethodT", called)


def _each(found: Iterator[Any], called: Any) -> Iterator[Any]:
    try:
        yield from found
    except Exception as error:
        if (shown := _prepare(error, called)) is not error:
            raise_alone(shown)
        raise


def _prepare(error: Exception, called: Any) -> Exception:
    """Return what Spark may see of an error: mostly the same one."""
    shown = scrub(error, _secrets_of(called))
    if isinstance(shown, _OURS):
        _arrange(shown)
    return shown


def _secrets_of(called: Any) -> set[str]:
    """Return the secrets in the options of what Spark has called: a format, a reader, a writer."""
    with contextlib.suppress(Exception):  # it must not hide what has failed
        found: set[str] = called.known_secrets()
        return found
    return set()


def _arrange(error: Exception) -> None:
    # A worker that has failed ends, so nobody else's traceback is hidden.
    if sys.version_info >= (3, 11) and is_of_spark() and not hasattr(error, "__notes__"):
        error.add_note("".join(["\n", *traceback.format_exception(error)]))
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
