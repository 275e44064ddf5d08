"""What stores say when they refuse, or say nothing, for people: in one line, without secrets."""

from __future__ import annotations

from typing import NamedTuple

from krishiv_spark.messages.redaction import first_line as one_line

__all__ = ["IDENTITY", "elsewhere", "known_silence", "meaning", "one_line", "refusal", "silence"]

_KEYS = {
    "s3": "'storage.s3.accessKeyId' and '.secretAccessKey'",
    "gcs": "'storage.gcs.credentialsFile'",
    "azure": "'storage.azure.accountKey' or '.sasToken'",
    "hdfs": "'storage.hdfs.user' or '.token'",
}


class _Hint(NamedTuple):
    """What a code means, and what to do; there, ``{keys}`` are the options that log in."""

    means: str
    advice: str


_RIGHTS = _Hint(
    "the credentials do not allow it", "give them the right to, or name others by {keys}"
)
_LOGIN_WRONG = "correct {keys}, or what the environment says instead"
_PLACE = "create it, or correct the URL"
_BUSY = _Hint("the store is asked too much, or in trouble", "try again later")

_HINTS = {
    "AccessDenied": _RIGHTS,
    "AccessControlException": _RIGHTS,
    "AllAccessDisabled": _RIGHTS,
    "AuthenticationFailed": _Hint("the account or its key is wrong", _LOGIN_WRONG),
    "AuthorizationFailure": _RIGHTS,
    "AuthorizationHeaderMalformed": _Hint(
        "the bucket is in another region", "set 'storage.s3.region' to the one of the bucket"
    ),
    "AuthorizationPermissionMismatch": _RIGHTS,
    "ContainerNotFound": _Hint("the container does not exist", _PLACE),
    "ExpiredToken": _Hint("the credentials have expired", "renew {keys}"),
    "InternalError": _BUSY,
    "InvalidAccessKeyId": _Hint("the access key is not known there", _LOGIN_WRONG),
    "NoSuchBucket": _Hint("the bucket does not exist", _PLACE),
    "PermanentRedirect": _Hint(
        "the bucket is in another region, or has another endpoint",
        "set 'storage.s3.region' and '.endpoint' to those of the bucket",
    ),
    "RequestTimeTooSkewed": _Hint("the clock of this machine is wrong", "set it"),
    "ServerBusy": _BUSY,
    "ServiceUnavailable": _BUSY,
    "SignatureDoesNotMatch": _Hint("the secret is wrong", _LOGIN_WRONG),
    "SlowDown": _BUSY,
    "XAdminUserNotFound": _Hint("the access key is not known there", _LOGIN_WRONG),  # versitygw's
    "301": _Hint("the bucket is in another region", "set 'storage.s3.region' to the one of it"),
    "401": _Hint("the login is wrong", _LOGIN_WRONG),
    "403": _RIGHTS,
}
_UNKNOWN = _Hint("the store refuses it", "")
_REDIRECTS = ("302", "303", "307", "308")

IDENTITY = "169.254.169.254"
"""Where a machine of a cloud asks who it is, if nothing says how to log in."""


def meaning(code: str) -> str:
    """What a code means by which a store refuses."""
    return _HINTS.get(code, _UNKNOWN).means


def refusal(kind: str, code: str, status: object, said: str) -> str:
    """What an answer of a store that refuses means, and what to do.

    Args:
        kind: Of the store, as `StoreUrl` has it.
        code: In its answer; empty if there is none.
        status: Of HTTP.
        said: What else is in its answer, or what was asked for.
    """
    if not code and str(status) in _REDIRECTS:
        return f"{elsewhere(kind, 'the store')} ({status})"
    found = _HINTS.get(code) or _HINTS.get(str(status), _UNKNOWN)
    advice = found.advice.format(keys=_keys(kind))
    answer = f"{code or status}: {one_line(said)}".rstrip(": .")
    return f"{found.means} ({answer}){f': {advice}' if advice else ''}"


def _keys(kind: str) -> str:
    return _KEYS.get(kind, "the options 'storage.…'")


def elsewhere(kind: str, where: str) -> str:
    """Return what it means that a store redirects to another host, and what to do."""
    region = "'storage.s3.region' and " if kind == "s3" else ""
    return (
        f"{where} redirects to another server, which is given no login: correct {region}"
        f"'storage.{kind}.endpoint'"
    )


def silence(kind: str, where: str, why: str) -> str:
    """What it means that a store does not answer, and what to do.

    Args:
        kind: Of the store, as `StoreUrl` has it.
        where: Which address was asked.
        why: Whatever the machine or the client says of it, as long as that may be.
    """
    if IDENTITY in where or "redential" in why:
        return (
            "nothing says how to log in, and this machine has no identity of its own: set "
            f"{_keys(kind)}, or the environment"
        )
    what = known_silence(where, why) or f"{where} cannot be asked ({one_line(why)})"
    if "certificate" in why.lower():
        return f"{what}: set 'storage.{kind}.caFile'"
    return f"{what}: correct 'storage.{kind}.endpoint', or what the environment says instead"


def known_silence(where: str, why: str) -> str | None:
    """What it means that a server does not answer; None if that is not known.

    Args:
        where: Which address was asked.
        why: Whatever the machine or the client says of it.
    """
    known = next((means for word, means in _SILENCES.items() if word in why), None)
    return None if known is None else known.format(where=where)


_SILENCES = {
    "ame or service not known": "the host of {where} is not known",
    "lookup address": "the host of {where} is not known",
    "ameResolution": "the host of {where} is not known",
    "ould not connect": "nobody listens at {where}",
    "efused": "nobody listens at {where}",
    "ertificate": "the certificate of {where} is not trusted",
    "imed": "{where} does not answer",
    "imeout": "{where} does not answer",
    "reset": "{where} breaks connections off",
}
