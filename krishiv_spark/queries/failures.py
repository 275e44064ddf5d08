"""Failures of queries: their reasons, whether they are transient, and checks before a start.

Driver.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from krishiv_spark.errors import KrishivError, QueryFailed
from krishiv_spark.messages.exception_chains import scrub
from krishiv_spark.runtime.workers import file_of_crash
from krishiv_spark.spark.jvm import WriterSays, writer_says
from krishiv_spark.spark.preflight import PreflightRequest

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["Failure", "check", "failure_of", "may_pass"]


_PASSING = frozenset({"CatalogFailedError", "CommitUnknown", "KafkaFailedError", "StorageError"})
"""Errors that may be transient, by name. After a restart, a query first determines the outcome of a
commit."""

_OWN_ERROR = re.compile(r"^krishiv_spark[\w.]*\.(\w+): (.*)$", re.MULTILINE)
_RAISED = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Exit): .*$", re.MULTILINE)
_PLANNING = "PlanningFailed"
"""The class that a planner raises instead of another error, whose class is the start of its
text."""

_OF_SPARK = re.compile(r"\[[A-Z_.0-9]+\][^\n]*")
_TERMINATED = re.compile(r"\[STREAM_FAILED\] Query \[.*?\] terminated with exception: ")
_DIED = "Python worker exited unexpectedly"
_SOCKET_ERRORS = "Stream closed|Connection reset(?: by peer)?|Broken pipe"
_DIED_WITHOUT_TEXT = re.compile(
    rf"terminated with exception:\s*(?:{_SOCKET_ERRORS})?\s*SQLSTATE: \w+"
    rf"|^(?:.*java\.(?:io\.IO|net\.Socket)Exception: )?(?:{_SOCKET_ERRORS})(?: ===|$)",
    re.MULTILINE,
)
"""Errors of Spark after the end of a Python process that is no worker of a task: the one that plans
a source (`PythonStreamingSourceRunner`: an `EOFException` without a message, or a `SocketException`
if it had not read Spark's last message), and the one that starts workers (`NullOutputStream` of
`PythonWorkerFactory`)."""
_DIED_LINE = (
    "a Python process of Spark has ended: it was killed, memory ran out (then raise "
    "spark.executor.memoryOverhead, or spark.driver.memoryOverhead), or a library crashed; "
    "see docs/operate.md, A Python process dies"
)
_AWAY = ("StatusCode.UNAVAILABLE", "UNAVAILABLE:", "failed to connect back")
"""Parts of errors about a server that cannot be reached, and about a Python process that started
too slowly (Spark allows that of a source ten seconds)."""


@dataclass(frozen=True)
class Failure:
    """The classification of an error.

    Attributes:
        line: The reason, in one line.
        passes: True if the query may be restarted: the error may be transient, and no row is
            repeated.
        name: The class of an error of this package; empty for other errors.
    """

    line: str
    passes: bool = False
    name: str = ""


def may_pass(name: str) -> bool:
    """Return True if an error of this package, by the name of its class, may be transient."""
    return name in _PASSING


def failure_of(error: BaseException) -> Failure:
    """Return the classification of an error of Spark or of this package."""
    if isinstance(error, QueryFailed):
        return Failure(str(error), error.passes, error.name)
    if isinstance(error, KrishivError):
        return _ours(type(error).__name__, str(error))
    text = str(error)
    if _DIED in text and (file := file_of_crash(text)) is not None:
        return Failure(
            f"PyArrow {pa.__version__} has ended the Python process that read {file}: the file is "
            f"damaged, or made to do this. Remove it: {_one_line(text)}"
        )
    if found := _OWN_ERROR.findall(text):
        return _ours(*_unwrap(*found[-1]))
    has_died = _DIED in text or _DIED_WITHOUT_TEXT.search(text) is not None
    line = _DIED_LINE if has_died else _one_line(text) or type(error).__name__
    return Failure(line, passes=has_died or any(sign in text for sign in _AWAY))


def _unwrap(name: str, text: str) -> tuple[str, str]:
    if name != _PLANNING:
        return name, text
    inner, _, rest = text.partition(": ")
    return inner, rest


def _ours(name: str, text: str) -> Failure:
    return Failure(text.strip().partition("\n")[0], may_pass(name), name)


def _one_line(text: str) -> str:
    """Return the line with the reason: the last error of the traceback, or Spark's own sentence."""
    plain = _TERMINATED.sub("", text)
    if "Traceback" in plain and (raised := _RAISED.findall(plain)):
        return str(raised[-1])
    match = _OF_SPARK.search(plain)
    return (match[0] if match else plain.strip().partition("\n")[0]).strip()


_log = logging.getLogger(__name__)

_OWN_PREFIX = "krishiv-"


def check(writer: DataStreamWriter, *, new_target: bool = False) -> None:
    """Check a query with its sink before it starts; change nothing.

    The sink checks its options, the rows and the target. With the checkpoint, it checks that this
    is the checkpoint of the query, that the target is the same as before, and that the newest
    epochs of checkpoint, epoch log and target fit each other.

    Spark itself creates a Python sink only when it plans the first epoch, which may be days after
    the start if the source is idle. This check runs in the same kind of process, a Python process
    of the driver, so it may take some seconds. Sinks of formats other than ``krishiv-…``, and
    functions, are not checked.

    Args:
        writer: A writer from ``frame.writeStream``, with its format and options, before its start.
        new_target: True to accept another target than the one that the query has written to. The
            new target does not get the rows of earlier epochs.

    Raises:
        QueryFailed: If the sink would refuse the first epoch, or cannot reach its target.
    """
    try:
        said = writer_says(writer)
    except Exception as error:  # noqa: BLE001  the query then starts without a check
        _log.warning("the target of a query is not checked before its start", exc_info=scrub(error))
        return
    if not said.format.lower().startswith(_OWN_PREFIX):
        return
    if said.mode == "update":
        raise QueryFailed(_update(said.format), name="OptionError")
    try:
        _ask(said, new_target=new_target)
    except Exception as error:
        found = failure_of(error)
        raise QueryFailed(found.line, passes=found.passes, name=found.name) from error


def _update(name: str) -> str:
    return (
        f"{name}: Spark refuses outputMode('update') for Python sinks: use 'complete', or "
        "foreachBatch with krishiv_spark.upsert(...), which takes it into Iceberg and memory"
    )


def _ask(said: WriterSays, *, new_target: bool) -> None:
    asked = PreflightRequest(said.rows.schema.json(), said.mode == "complete", new_target)
    reader = said.rows.sparkSession.read.format(said.format)
    given: Any = asked.to_options(said.options)
    _ = reader.options(**given).load().schema  # under Connect, the schema is requested here
