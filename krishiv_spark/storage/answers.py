"""What obstore says of the answers of stores: which is in its text alone."""

from __future__ import annotations

import re
from html import unescape

from krishiv_spark.storage.hints import IDENTITY, elsewhere, one_line, refusal, silence
from krishiv_spark.storage.settings import NOWHERE

__all__ = ["explain", "is_absent", "is_busy"]

# Of what obstore says of a request: which, and what was answered to it.
_ASKED = re.compile(r"Error performing ([A-Z]+) (https?://\S+|REDACTED)")
_REDIRECT = "redirect without LOCATION"
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"(?:<Code>|\(code: )(\w+)")  # the latter of objects that S3 does not remove
_MESSAGE = re.compile(r"<Message>([^<]*)")

_BUSY = {"429", "503"}

_MOST = 64 * 2**10
"""Characters of an error that are looked at: obstore repeats the whole page of a server."""

_NO_OBJECT = {"404", "BlobNotFound", "NoSuchKey", "NotFound", "PathNotFound", "ResourceNotFound"}
"""Codes by which the object itself is not there; a number where Azure removes several at once."""


def is_busy(error: Exception) -> bool:
    """Whether a store is there, and asked too much."""
    return _found(_STATUS, str(error)[:_MOST]) in _BUSY


def is_absent(error: FileNotFoundError) -> bool:
    """Whether it is the object that is not there, not its bucket or who asks.

    An answer to HEAD says nothing more: it has no body.
    """
    return _found(_CODE, str(error)[:_MOST]) in {"", *_NO_OBJECT}


def explain(kind: str, error: Exception) -> str:
    """What obstore says, in one line; signatures and logins in URLs are cut out.

    Args:
        kind: Of the store.
        error: Of obstore; or of Python, by which it says that something is missing.
    """
    text = str(error)[:_MOST] or type(error).__name__
    asked, inner = _ASKED.search(text), text.partition("inner: ")[2]
    where, why = _asked_of(asked), text.partition("\n")[0].rpartition(" - ")[2]
    if asked is not None and (f"{NOWHERE}," in inner or "following redirect" in why):
        return elsewhere(kind, where)
    if asked is not None and (inner.startswith("Http(") or IDENTITY in asked[2]):
        return silence(kind, where, f"{why}\n{inner}")
    code, status = _found(_CODE, text), "301" if _REDIRECT in text else _found(_STATUS, text)
    if not code and not status:
        return one_line(text)
    said = unescape(_found(_MESSAGE, text)) or (asked[0] if asked else text)
    return refusal(kind, code, status, said)


def _asked_of(asked: re.Match[str] | None) -> str:
    """Return scheme and host of a request; obstore hides the URLs that have a signature."""
    url = "REDACTED" if asked is None else asked[2]
    return "the store" if url == "REDACTED" else "/".join(url.split("/")[:3])


def _found(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return "" if match is None else match[1]
