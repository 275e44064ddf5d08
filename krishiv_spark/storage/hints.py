"""What stores say when they refuse, for people: in one line, without secrets."""

from __future__ import annotations

import re

__all__ = ["hint", "one_line"]

_QUERY = re.compile(r"(https?://[^\s?]*|/[^\s?]*)\?[^\s)\"]*")
"""A URL, or its path, with what follows that: Azure's SAS tokens are there."""

_LOGIN = re.compile(r"//[^/\s@]+@")
"""A user and a password of a URL, as of a proxy."""

_HINTS = {
    "AccessDenied": "the credentials do not allow it",
    "AllAccessDisabled": "the credentials do not allow it",
    "AuthenticationFailed": "the account or its key is wrong",
    "AuthorizationFailure": "the credentials do not allow it",
    "AuthorizationPermissionMismatch": "the credentials do not allow it",
    "ContainerNotFound": "the container does not exist",
    "ExpiredToken": "the credentials have expired",
    "InvalidAccessKeyId": "the access key is not known there",
    "NoSuchBucket": "the bucket does not exist",
    "PermanentRedirect": "the bucket is in another region, or has another endpoint",
    "SignatureDoesNotMatch": "the secret is wrong",
}


def hint(code: str) -> str:
    """What the code in a store's answer means to who reads it."""
    return _HINTS.get(code, "the store refuses it")


def one_line(text: str) -> str:
    """The first line of a message; signatures and logins in URLs are cut out."""
    return _LOGIN.sub("//", _QUERY.sub(r"\1", (text.splitlines() or [""])[0]))
