"""The format of this package's log lines in Spark's Python processes: time, query, epoch and task.

Spark does not configure Python's logging there, so that Python would write only warnings, and only
their text. Each of these processes runs one task or one planning step at a time, so the context of
a line is the same for all threads of a process.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

from krishiv_spark.messages.redaction import redact
from krishiv_spark.messages.terminal import show_lines, show_text
from krishiv_spark.runtime.workers import is_of_spark

__all__ = ["set_log_context", "write_to_terminal"]

_root = logging.getLogger("krishiv_spark")

_FORM = "%(asctime)s %(levelname)s %(name)s: %(message)s%(about)s"


class _About(logging.Filter):
    """A filter that adds the context of this process to each line."""

    text = ""

    def filter(self, record: logging.LogRecord) -> bool:
        record.about = f" [{show_text(self.text)}]" if self.text else ""
        return True


_about = _About()


class _OneLine(logging.Formatter):
    """A formatter that writes each message as one line, whatever characters its values contain.

    The lines of a traceback are kept. Credentials are removed from both.
    """

    hide: Callable[[str], str] = str

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  logging's name
        record.message = show_text(redact(self.hide(record.message)))
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802  logging's name
        return show_lines(redact(self.hide(super().formatException(ei))))


def set_log_context(level: str, **about: object) -> None:
    """Set the context of this process's log lines, and the lowest level that is written.

    For planner, committer and tasks; in other processes it has no effect. If Python's root logger
    or ``krishiv_spark`` has a handler, as with ``spark.sql.pyspark.worker.logging.enabled``, that
    handler formats the lines; the level is set in any case.

    Args:
        level: The lowest level, as in `krishiv_spark.options.Options.log_level`.
        about: Values by name, such as ``query``; those that are None are omitted.
    """
    if not is_of_spark():
        return
    _about.text = ", ".join(f"{name} {value}" for name, value in about.items() if value is not None)
    _root.setLevel(level.upper())
    if not _root.hasHandlers():
        _root.addHandler(_handler(_FORM))


def write_to_terminal(hide: Callable[[str], str] = str) -> None:
    """Write this package's warnings to standard error, as one line each. For commands.

    A handler of another kind on Python's root logger or ``krishiv_spark`` takes precedence.

    Args:
        hide: A function that removes values from a text that must not be shown.
    """
    ours = [each for each in _root.handlers if isinstance(each.formatter, _OneLine)]
    if ours or not _root.hasHandlers():
        for each in ours:
            _root.removeHandler(each)
        _root.addHandler(_handler("%(message)s", hide))


def _handler(form: str, hide: Callable[[str], str] = str) -> logging.Handler:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter := _OneLine(form))
    formatter.hide = hide
    handler.addFilter(_about)
    return handler
