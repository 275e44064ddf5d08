"""Redaction of texts: the only module with the rules by which a secret is recognized.

A known secret is replaced in each form in which a client or a server may repeat it. Unknown
credentials, such as those that a server has created, are recognized by the names around them.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterable
from functools import cache, lru_cache
from urllib.parse import quote, quote_plus, unquote

__all__ = ["MOST_CHARACTERS", "excerpt", "first_line", "redact", "without_secrets"]

_HIDDEN = "***"

MOST_CHARACTERS = 2_000
"""Maximum number of characters of another program's text in a message. Error pages have no
limit."""

_SHORT = 6
"""A shorter secret is part of many ordinary words, so it is replaced only as a whole word."""

_NAMES = (
    r"access[_-]?token|account[_-]?key|aws[_-]?secret[_-]?access[_-]?key|client[_-]?assertion|"
    r"client[_-]?secret|delegation|id[_-]?token|pass(?:word|wd)|private[_-]?key|refresh[_-]?token|"
    r"sas[_-]?token|secret[_-]?access[_-]?key|session[_-]?token|shared[_-]?key|sig|"
    r"(?:x-(?:amz|goog)-)?signature|x-(?:amz|goog)-(?:credential|security-token)"
)
"""Names of parameters, headers and settings that contain credentials."""

_VALUE = r"""(?:\\?"[^"\\]*\\?"|\\?'[^'\\]*\\?'|[^\s"'&;,)<>\]}]+)"""
_FOLDER = _VALUE.replace(r"""<>\]}]+""", r"""<>\]}/]+""")
"""The value in the name of a folder, as of a partition. The path below it is shown."""

_EQUALS = r"(?:\s{0,3}=\s{0,3}|%3[dD])"
_COLON = r"""\\?["']?\s{0,3}:\s{0,3}"""


@cache  # compiled on first use, since that takes several milliseconds
def _patterns() -> tuple[tuple[re.Pattern[str], str], ...]:
    return (
        (re.compile(rf"(?i)(?<=/)({_NAMES}|token)({_EQUALS}){_FOLDER}"), r"\1\2" + _HIDDEN),
        # The form in a URL, even an encoded one, in a JAAS configuration, or in code.
        (
            re.compile(
                rf"(?i)(?:(?<![a-z0-9/])|(?<=%26)|(?<=%3[f]))({_NAMES}|token)({_EQUALS}){_VALUE}"
            ),
            r"\1\2" + _HIDDEN,
        ),
        # The form in JSON, in a dict of Python or in headers.
        (
            re.compile(rf"(?i)(?<![a-z0-9])({_NAMES})({_COLON}){_VALUE}"),
            r"\1\2" + _HIDDEN,
        ),
        (
            re.compile(
                r"""(?i)(authorization\\?["']?\s{0,3}[:=]\s{0,3})\\?["']?"""
                r"""(?:[\w-]{1,40}\s{1,3})?[^\s"',}]+"""
            ),
            r"\1" + _HIDDEN,
        ),
        (re.compile(r"(?i)\b(bearer\s{1,3})(?=[^\s\"']*[\d._-])[^\s\"',;)}]{8,}"), r"\1" + _HIDDEN),
        # The name before an account of Azure, without a colon, is a container and no secret.
        (re.compile(r"//[^/\s@:]{0,200}:[^/\s@]{0,2000}@|(?<=http:)//[^/\s@]{1,2000}@"), "//"),
        (re.compile(r"(?<=https:)//[^/\s@]{1,2000}@"), "//"),
    )


@cache
def _part_of_secret() -> re.Pattern[str]:
    return re.compile(
        rf"""(?i)(?<![a-z0-9])(?:{_NAMES}|token)\\?["']?\s{{0,3}}[=:]\s{{0,3}}({_VALUE})"""
    )


_LOGIN_OF_URL = re.compile(r"//([^/\s@]*)@")


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Return a text in which ``***`` replaces secrets, and all that looks like credentials.

    Args:
        text: A text of another program.
        secrets: Known secrets, as they were configured.
    """
    shown = without_secrets(text, secrets)
    for pattern, instead in _patterns():
        shown = pattern.sub(instead, shown)
    return shown


def excerpt(text: str, secrets: Iterable[str] = ()) -> str:
    """Return the start of another program's text, up to the limit of a message, redacted.

    It takes time in proportion to `MOST_CHARACTERS`, for a text of any length.
    """
    # A secret that the limit splits would not be recognized, so the text is cut later at first.
    known = list(secrets)
    most = MOST_CHARACTERS + max((4 * len(secret) for secret in known), default=0)
    return redact(without_secrets(text[:most], known)[:MOST_CHARACTERS])


def first_line(text: str, secrets: Iterable[str] = ()) -> str:
    """Return the first line of a message, redacted, without the queries of its URLs.

    It takes time in proportion to `MOST_CHARACTERS` at most, for a message of any length.
    """
    line = (excerpt(text, secrets).splitlines() or [""])[0]
    return re.sub(r"\S+", lambda word: _without_queries(word[0]), line)


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """Return a text in which ``***`` replaces each secret, in any form."""
    # The longest comes first: a secret that is part of another would leave the rest of it.
    forms = {form for secret in secrets for form in _forms(secret)}
    for form in sorted(forms, key=len, reverse=True):
        if len(form) >= _SHORT:
            text = text.replace(form, _HIDDEN)
        elif form in text:
            text = re.sub(rf"(?<![A-Za-z0-9_]){re.escape(form)}(?![A-Za-z0-9_])", _HIDDEN, text)
    return text


@lru_cache(maxsize=256)
def _forms(secret: str) -> frozenset[str]:
    """Return the forms in which a secret may be repeated, and its parts that may occur alone."""
    found = set()
    for part in {secret, *_parts(secret)} - {""}:
        escaped = json.dumps(part)[1:-1]
        found |= {part, escaped, repr(part)[1:-1], unquote(part), quote(part), quote_plus(part)}
        found.add(quote(part, safe=""))
        if len(part) >= _SHORT:
            found |= _in_base64(part)
    return frozenset(found - {""})


def _parts(secret: str) -> Iterable[str]:
    """Yield the parts of a secret: a signature of a SAS token, a password of a URL or JAAS."""
    for match in _part_of_secret().finditer(secret):
        yield match[1].strip("\\\"'")
    for match in _LOGIN_OF_URL.finditer(secret):
        yield match[1]
        yield match[1].partition(":")[2]


def _in_base64(text: str) -> set[str]:
    """Return the part of a text's base64 that no neighbour changes, for each alignment."""
    data, found = text.encode(), set()
    for before in range(3):
        coded = b64encode(bytes(before) + data).decode().rstrip("=")
        end = len(coded) if (before + len(data)) % 3 == 0 else len(coded) - 1
        inner = coded[(0, 2, 3)[before] : end]
        found |= {inner, inner.replace("+", "-").replace("/", "_")}
    return found


def _without_queries(word: str) -> str:
    """Return a word without the queries of its URLs and paths, which may contain signatures."""
    kept = []
    while True:
        head, mark, query = word.partition("?")
        kept.append(head)
        if not mark:
            return "".join(kept)
        if "/" not in head:
            kept.append(mark)
            word = query
            continue
        end = min((at for at in (query.find(")"), query.find('"')) if at >= 0), default=len(query))
        word = query[end:]
