"""The log lines of this package in Spark's Python processes: time, query, epoch and task.

Nobody has set up Python's logging there: by itself it writes warnings, and only their text. Each of
these processes does one thing at a time, a task or a step of a plan, so that all its threads write
of the same.
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
    """Adds to each line what this process is about."""

    text = ""

    def filter(self, record: logging.LogRecord) -> bool:
        record.about = f" [{show_text(self.text)}]" if self.text else ""
        return True


_about = _About()


class _OneLine(logging.Formatter):
    """Writes each message as one line, whatever a name or a text of another party in it contains.

    The lines of a traceback stay. Logins are left out of both.
    """

    hide: Callable[[str], str] = str

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  logging's name
        record.message = show_text(redact(self.hide(record.message)))
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802  logging's name
        return show_lines(redact(self.hide(super().formatException(ei))))


def set_log_context(level: str, **about: object) -> None:
    """Say what the lines of this process are of, from here on, and which of them are written.

    Planner, committer, task; elsewhere it does nothing. Where somebody has given Python's root
    logger or ``krishiv_spark`` a handler, as Spark does with
    ``spark.sql.pyspark.worker.logging.enabled``, lines go there in its form; the level is set all
    the same.

    Args:
        level: The least that is written, as `krishiv_spark.options.Options.log_level` has it.
        about: By name, such as ``query``; what is None is left away.
    """
    if not is_of_spark():
        return
    _about.text = ", ".join(f"{name} {value}" for name, value in about.items() if value is not None)
    _root.setLevel(level.upper())
    if not _root.hasHandlers():
        _root.addHandler(_handler(_FORM))


def write_to_terminal(hide: Callable[[str], str] = str) -> None:
    """Write this package's warnings to standard error, as one line each. For commands.

    Where Python's root logger or ``krishiv_spark`` has a handler of another kind, that stays.

    Args:
        hide: Given each text, returns it without values that must not be shown.
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
