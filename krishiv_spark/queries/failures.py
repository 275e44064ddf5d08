"""What the error of a query means: in one line, and whether to try again.

A query's error comes out of the JVM as text, with the traceback of Python's process in it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa

from krishiv_spark.errors import KrishivError, QueryFailed
from krishiv_spark.runtime.workers import file_of_crash

__all__ = ["Failure", "failure_of", "may_pass"]

_PASSING = frozenset({"CatalogFailedError", "CommitUnknown", "KafkaFailedError", "StorageError"})
"""Errors that may pass by themselves, by name. A query that starts again looks first at what became
of a commit."""

_OURS = re.compile(r"^krishiv_spark[\w.]*\.(\w+): (.*)$", re.MULTILINE)
_RAISED = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Exit): .*$", re.MULTILINE)
_PLANNING = "PlanningFailed"
"""What a planner raises in the place of another error, whose class begins its text."""

_OF_SPARK = re.compile(r"\[[A-Z_.0-9]+\][^\n]*")
_TERMINATED = re.compile(r"\[STREAM_FAILED\] Query \[.*?\] terminated with exception: ")
_DIED = "Python worker exited unexpectedly"
_AWAY = ("StatusCode.UNAVAILABLE", "UNAVAILABLE:", "failed to connect back")
"""What is said of a server that is not there, and of a Python process that took too long to start
(Spark gives that of a source ten seconds)."""


@dataclass(frozen=True)
class Failure:
    """An error, judged.

    Attributes:
        line: What went wrong, in one line.
        passes: Whether a query may start again: it may pass, and nothing is repeated.
        name: The class of ours that it is; empty for others.
    """

    line: str
    passes: bool = False
    name: str = ""


def may_pass(name: str) -> bool:
    """Whether an error of ours, by the name of its class, may pass by itself."""
    return name in _PASSING


def failure_of(error: BaseException) -> Failure:
    """Judge an error of Spark's or ours."""
    if isinstance(error, QueryFailed):
        return Failure(str(error), error.passes, error.name)
    if isinstance(error, KrishivError):
        return _ours(type(error).__name__, str(error))
    text = str(error)
    if _DIED in text and (file := file_of_crash(text)) is not None:
        return Failure(
            f"PyArrow {pa.__version__} has ended the Python process that read {file}: the file is "
            f"damaged, or made to do this. Remove it, and see docs/upstream/: {_one_line(text)}"
        )
    if found := _OURS.findall(text):
        return _ours(*_unwrapped(*found[-1]))
    if any(sign in text for sign in _AWAY):
        return Failure(_one_line(text), passes=True)
    return Failure(_one_line(text) or type(error).__name__)


def _unwrapped(name: str, text: str) -> tuple[str, str]:
    if name != _PLANNING:
        return name, text
    inner, _, rest = text.partition(": ")
    return inner, rest


def _ours(name: str, text: str) -> Failure:
    return Failure(text.strip().partition("\n")[0], may_pass(name), name)


def _one_line(text: str) -> str:
    """The line that says it: the last error of a traceback in it, or Spark's own sentence."""
    plain = _TERMINATED.sub("", text)
    if "Traceback" in plain and (raised := _RAISED.findall(plain)):
        return str(raised[-1])
    match = _OF_SPARK.search(plain)
    return (match[0] if match else plain.strip().partition("\n")[0]).strip()
