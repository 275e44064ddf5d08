"""Errors whose chain of causes and contexts contains no secret.

A client's own error may contain a URL with a signature, a token, or an answer that repeats both.
Spark formats the whole chain of an error into the driver's exception, its UI and the log. So the
chain ends where such an error is caught: `raise_alone` raises this package's error without it.
Where Spark or a command calls this package, `scrub` checks every error that leaves, whatever raised
it.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

from krishiv_spark.errors import KrishivError
from krishiv_spark.messages.redaction import MOST_CHARACTERS, first_line, redact

__all__ = ["describe", "raise_alone", "scrub", "shows_secret", "texts_of", "walk"]


def raise_alone(error: Exception) -> NoReturn:
    """Raise an error without the one that is being handled, neither as its cause nor its context.

    ``raise … from None`` would keep the latter as ``__context__``, which is hidden from tracebacks
    only.

    Raises:
        Exception: The given error, always.
    """
    try:
        raise error
    except type(error):
        _detach(error)
        raise  # does not set the context again


def describe(error: BaseException, secrets: Iterable[str] = ()) -> str:
    """Return the class of a library's error and one line of its text, without secrets.

    Args:
        error: The error of a library.
        secrets: Known secrets.
    """
    text = ""
    with contextlib.suppress(Exception):  # as `_own_texts`
        text = first_line(str(error), secrets)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def scrub(error: Exception, secrets: Iterable[str] = ()) -> Exception:
    """Return an error without secrets in it or in its chain; the same object if possible.

    An error without a secret is returned unchanged, with its whole chain. Otherwise, its chain
    becomes a redacted note (PEP 678, from Python 3.11 on), and its own text is redacted. If the
    text cannot be redacted, a `KrishivError` that names its class is returned.

    Args:
        error: The error that is about to leave.
        secrets: Known secrets.
    """
    known = frozenset(secrets)
    if not shows_secret(error, known):
        return error
    shown = redact("".join(traceback.format_exception(error)), known)
    made = _redact(error, known)
    _detach(made)
    if sys.version_info >= (3, 11):
        made.__notes__ = [redact(note, known) for note in getattr(made, "__notes__", ())]
        made.add_note(f"\n{shown[-20 * MOST_CHARACTERS :]}")
    return made


def shows_secret(error: Exception, secrets: Iterable[str] = ()) -> bool:
    """Return True if an error, or one that is linked to it, contains a secret."""
    known = frozenset(secrets)
    return any(redact(text, known) != text for text in texts_of(error))


def _redact(error: Exception, secrets: frozenset[str]) -> Exception:
    """Return an error with a redacted text: the same object, if the text is its arguments."""
    error.args = tuple(redact(arg, secrets) if isinstance(arg, str) else arg for arg in error.args)
    own = _own_texts(error)
    if all(redact(text, secrets) == text for text in own) and not _has_children(error):
        return error
    return KrishivError(describe(error, secrets)).with_traceback(error.__traceback__)


def _detach(error: BaseException) -> None:
    error.__cause__ = error.__context__ = None


def _has_children(error: BaseException) -> bool:
    return bool(getattr(error, "exceptions", ()))


def walk(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and all linked ones: causes, contexts, members, arguments."""
    waiting: list[Any] = [error]
    seen: set[int] = set()
    while waiting:
        found = waiting.pop()
        if isinstance(found, (tuple, list)):
            waiting += found
        elif isinstance(found, BaseException) and id(found) not in seen:
            seen.add(id(found))
            yield found
            waiting += [found.__cause__, found.__context__, found.args]
            waiting.append(getattr(found, "exceptions", ()))


def texts_of(error: BaseException) -> Iterator[str]:
    """Yield each text by which an error and its linked errors may be shown."""
    for found in walk(error):
        yield from _own_texts(found)


def _own_texts(error: BaseException) -> Iterator[str]:
    with contextlib.suppress(Exception):  # the class of a third party may raise
        yield str(error)
    for value in (error, vars(error), *error.args):  # notes are in a variable
        with contextlib.suppress(Exception):
            yield repr(value)
