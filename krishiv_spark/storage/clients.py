"""Clients of stores: one way to open and call them, and to explain their errors."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from html import unescape
from importlib import import_module
from typing import Any, TypeVar

from krishiv_spark.errors import KrishivError, OptionError, StorageError
from krishiv_spark.messages.exception_chains import raise_alone
from krishiv_spark.messages.redaction import first_line
from krishiv_spark.runtime.contact import TimeoutPolicy
from krishiv_spark.storage.base import BaseStore, Hint, StoreUrl
from krishiv_spark.storage.settings import UNREACHABLE

__all__ = [
    "CONNECTIONS",
    "StoreClient",
    "explain_code",
    "explain_connect_error",
    "explain_obstore",
    "explain_redirect",
    "explain_refusal",
    "explain_silence",
    "is_absent",
    "is_busy_answer",
    "require_packages",
]

_T = TypeVar("_T")

CONNECTIONS = 16
"""Maximum number of connections of a vendor's client; as many files are completed in parallel."""


@dataclass(frozen=True)
class StoreClient(ABC):
    """A client of the bucket of a store, opened once per process.

    Attributes:
        store: Any location in the bucket, with its settings.
    """

    store: BaseStore

    @abstractmethod
    def open(self, timeouts: TimeoutPolicy) -> Any:
        """Open the client. `ask` calls this once for each process and each value of `timeouts`."""

    def explain(self, error: Exception) -> str:
        """Return the meaning of an error of the client, and the next step."""
        return self.store.explain_error(error)

    def is_busy(self, error: Exception) -> bool:
        """Return True if an error shows that the store is reachable, but has too many requests."""
        del error
        return False

    def ask(
        self,
        what: str,
        function: Callable[[Any], _T],
        translate: Callable[[Exception, str], Exception] | None = None,
    ) -> _T:
        """Call a function with the client, and return its result.

        Args:
            what: The action, for the error text: a verb and its object.
            function: Takes the client. It is called again if the store is busy and has not answered
                before.
            translate: Creates the error to raise from the client's error and a text; None creates a
                `StorageError`.

        Raises:
            StorageError: If the function fails. The text has one line, no secrets, and no text of
                the client's own.
            OptionError: If there are no credentials.
        """
        url, settings = self.store.url, self.store.settings
        place = (url.scheme, url.authority)
        timeouts = settings.timeouts(place)
        try:
            found = function(open_client(os.getpid(), self._at_root(), timeouts))
        except KrishivError:
            raise
        except Exception as error:  # noqa: BLE001  clients raise what they like
            if timeouts.is_first_contact and self.is_busy(error):
                settings.record_answer(place)
                return self.ask(what, function, translate)
            why = settings.redact(self.explain(error))
            text = f"cannot {what}: {why}"
            raise_alone(StorageError(text) if translate is None else translate(error, text))
        settings.record_answer(place)
        return found

    def _at_root(self) -> StoreClient:
        """Return the same client without a path, so that a bucket has only one."""
        url = self.store.url
        root = StoreUrl(url.kind, url.scheme, url.authority, "")
        return replace(self, store=replace(self.store, url=root))


@lru_cache(maxsize=32)
def open_client(
    process: int,  # noqa: ARG001  connections do not survive a fork
    client: StoreClient,
    timeouts: TimeoutPolicy,
) -> Any:
    """Return a client, which is opened by the first call."""
    return client.open(timeouts)


def require_packages(store: type[BaseStore]) -> None:
    """Check that the packages by which a store's Parquet files are written are installed.

    Raises:
        OptionError: If one is missing.
    """
    for module, package in store.packages.items():
        try:
            import_module(module)
        except ImportError as error:
            raise OptionError(
                f"writing Parquet files to {store.title} needs the package {package}, on every "
                f'machine: pip install "krishiv-spark[{store.kind}]"'
            ) from error


# --- explanations

_RIGHTS = Hint(
    "the credentials do not allow it", "give them the right to, or name others by {keys}"
)
_LOGIN_WRONG = "correct {keys}, or the setting in the environment"
_CREATE = "create it, or correct the URL"
_BUSY = Hint("the store is asked too much, or in trouble", "try again later")

_HINTS = {
    "AccessControlException": _RIGHTS,
    "AccessDenied": _RIGHTS,
    "AllAccessDisabled": _RIGHTS,
    "AuthenticationFailed": Hint("the account or its key is wrong", _LOGIN_WRONG),
    "AuthorizationFailure": _RIGHTS,
    "AuthorizationPermissionMismatch": _RIGHTS,
    "ContainerNotFound": Hint("the container does not exist", _CREATE),
    "ExpiredToken": Hint("the credentials have expired", "renew {keys}"),
    "InternalError": _BUSY,
    "InvalidAccessKeyId": Hint("the access key is not known there", _LOGIN_WRONG),
    "NoSuchBucket": Hint("the bucket does not exist", _CREATE),
    "RequestTimeTooSkewed": Hint("the clock of this machine is wrong", "set it"),
    "ServerBusy": _BUSY,
    "ServiceUnavailable": _BUSY,
    "SignatureDoesNotMatch": Hint("the secret is wrong", _LOGIN_WRONG),
    "SlowDown": _BUSY,
    "XAdminUserNotFound": Hint("the access key is not known there", _LOGIN_WRONG),  # versitygw's
    "401": Hint("the login is wrong", _LOGIN_WRONG),
    "403": _RIGHTS,
}
"""Meanings of error codes of several stores, and of HTTP statuses; classes of stores add others."""

_UNKNOWN = Hint("the store refuses it", "")
_REDIRECTS = ("302", "303", "307", "308")

_IDENTITY_HOST = "169.254.169.254"
"""Host from which a machine in a cloud gets its identity, if no option contains credentials."""


def explain_code(code: str) -> str:
    """Return the meaning of a store's error code."""
    return _HINTS.get(code, _UNKNOWN).means


def explain_refusal(store: BaseStore, code: str, status: object, message: str) -> str:
    """Return the meaning of a refused request, and the next step.

    Args:
        store: The store that has answered.
        code: The error code in its answer; empty if there is none.
        status: The HTTP status.
        message: The text of its answer, or the request.
    """
    if not code and str(status) in _REDIRECTS:
        return f"{explain_redirect(store, 'the store')} ({status})"
    hints = {**_HINTS, **store.hints}
    found = hints.get(code) or hints.get(str(status), _UNKNOWN)
    advice = found.advice.format(keys=store.login_options)
    answer = f"{code or status}: {first_line(message)}".rstrip(": .")
    return f"{found.means} ({answer}){f': {advice}' if advice else ''}"


def explain_redirect(store: BaseStore, where: str) -> str:
    """Return the meaning of a redirect to another host, and the next step."""
    options = store.endpoint_options or f"'storage.{store.kind}.endpoint'"
    return f"{where} redirects to another server, which is given no login: correct {options}"


def explain_silence(store: BaseStore, where: str, why: str) -> str:
    """Return the meaning of a missing answer, and the next step.

    Args:
        store: The store that does not answer.
        where: The address of the request.
        why: The text of the machine's or the client's error, of any length.
    """
    if _IDENTITY_HOST in where or "redential" in why:
        return (
            f"no login is configured, and this machine has no identity: set {store.login_options}, "
            "or the environment"
        )
    what = explain_connect_error(where, why) or f"{where} cannot be asked ({first_line(why)})"
    if "certificate" in why.lower():
        return f"{what}: set 'storage.{store.kind}.caFile'"
    return f"{what}: correct 'storage.{store.kind}.endpoint', or the setting in the environment"


def explain_connect_error(where: str, why: str) -> str | None:
    """Return the meaning of a failed connection; None if the error is unknown.

    Args:
        where: The address of the request.
        why: The text of the machine's or the client's error.
    """
    known = next((means for word, means in _CONNECT_ERRORS.items() if word in why), None)
    return None if known is None else known.format(where=where)


_CONNECT_ERRORS = {
    "ame or service not known": "the host of {where} is not known",
    "lookup address": "the host of {where} is not known",
    "ameResolution": "the host of {where} is not known",
    "ould not connect": "no server listens at {where}",
    "efused": "no server listens at {where}",
    "ertificate": "the certificate of {where} is not trusted",
    "imed": "{where} does not respond",
    "imeout": "{where} does not respond",
    "reset": "{where} breaks connections off",
}
"""Parts of error texts of several clients, without the first letter, whose case varies."""


# --- errors of obstore, whose text alone contains the answer of the store

_REQUEST = re.compile(r"Error performing ([A-Z]+) (https?://\S+|REDACTED)")
_REDIRECT = "redirect without LOCATION"
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"(?:<Code>|\(code: )(\w+)")  # the latter of objects that S3 does not delete
_MESSAGE = re.compile(r"<Message>([^<]*)")

_BUSY_STATUS = {"429", "503"}

_MOST_CHARACTERS = 64 * 2**10
"""Maximum number of characters of an error to parse: obstore repeats the server's whole page."""

_NO_OBJECT = {"404", "BlobNotFound", "NoSuchKey", "NotFound", "PathNotFound", "ResourceNotFound"}
"""Codes of a missing object. The last one is a number, as Azure returns it for several
deletions."""


def is_busy_answer(error: Exception) -> bool:
    """Return True if obstore reports that the store is reachable, but has too many requests."""
    return _search(_STATUS, str(error)[:_MOST_CHARACTERS]) in _BUSY_STATUS


def is_absent(error: FileNotFoundError) -> bool:
    """Return True if the object is missing; False if its bucket or the user is.

    An answer to HEAD contains no more details, since it has no body.
    """
    return _search(_CODE, str(error)[:_MOST_CHARACTERS]) in {"", *_NO_OBJECT}


def explain_obstore(store: BaseStore, error: Exception) -> str:
    """Return the meaning of an error of obstore, without signatures and credentials in URLs.

    Args:
        store: The store of the request.
        error: An error of obstore; or one of Python, by which obstore reports a missing object.
    """
    text = str(error)[:_MOST_CHARACTERS] or type(error).__name__
    request, inner = _REQUEST.search(text), text.partition("inner: ")[2]
    where, why = _host_of(request), text.partition("\n")[0].rpartition(" - ")[2]
    if request is not None and (f"{UNREACHABLE}," in inner or "following redirect" in why):
        return explain_redirect(store, where)
    if request is not None and (inner.startswith("Http(") or _IDENTITY_HOST in request[2]):
        return explain_silence(store, where, f"{why}\n{inner}")
    code, status = _search(_CODE, text), "301" if _REDIRECT in text else _search(_STATUS, text)
    if not code and not status:
        return first_line(text)
    message = unescape(_search(_MESSAGE, text)) or (request[0] if request else text)
    return explain_refusal(store, code, status, message)


def _host_of(request: re.Match[str] | None) -> str:
    """Return scheme and host of a request. obstore hides URLs that contain a signature."""
    url = "REDACTED" if request is None else request[2]
    return "the store" if url == "REDACTED" else "/".join(url.split("/")[:3])


def _search(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return "" if match is None else match[1]
