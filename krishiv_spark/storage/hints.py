"""What the codes mean by which stores refuse."""

from __future__ import annotations

__all__ = ["hint"]

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
