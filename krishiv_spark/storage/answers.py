"""What obstore says of the answers of stores: which is in its text alone."""

from __future__ import annotations

import re
from html import unescape

from krishiv_spark.storage.hints import IDENTITY, one_line, refusal, silence

__all__ = ["explain", "is_absent", "is_busy"]

# Of what obstore says of a request: which, and what was answered to it.
_ASKED = re.compile(r"Error performing ([A-Z]+) (https?://\S+)")
_REDIRECT = "redirect without LOCATION"
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"(?:<Code>|\(code: )(\w+)")  # the latter of objects that S3 does not remove
_MESSAGE = re.compile(r"<Message>([^<]*)")

_BUSY = {"429", "503"}

_NO_OBJECT = {"404", "BlobNotFound", "NoSuchKey", "NotFound", "PathNotFound", "ResourceNotFound"}
"""Codes by which the object itself is not there; a number where Azure removes several at once."""


def is_busy(error: Exception) -> bool:
    """Whether a store is there, and asked too much."""
    return _found(_STATUS, str(error)) in _BUSY


def is_absent(error: FileNotFoundError) -> bool:
    """Whether it is the object that is not there, not its bucket or who asks.

    An answer to HEAD says nothing more: it has no body.
    """
    return _found(_CODE, str(error)) in {"", *_NO_OBJECT}


def explain(kind: str, error: Exception) -> str:
    """What obstore says, in one line; signatures and logins in URLs are cut out.

    Args:
        kind: Of the store.
        error: Of obstore; or of Python, by which it says that something is missing.
    """
    text = str(error) or type(error).__name__
    asked, inner = _ASKED.search(text), text.partition("inner: ")[2]
    if asked is not None and (inner.startswith("Http(") or IDENTITY in asked[2]):
        return silence(kind, "/".join(asked[2].split("/")[:3]), inner)
    code, status = _found(_CODE, text), "301" if _REDIRECT in text else _found(_STATUS, text)
    if not code and not status:
        return one_line(text)
    said = unescape(_found(_MESSAGE, text)) or (asked[0] if asked else text)
    return refusal(kind, code, status, said)


def _found(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return "" if match is None else match[1]
