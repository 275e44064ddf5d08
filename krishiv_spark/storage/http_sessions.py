"""Sessions of ``requests`` that send credentials to one server only, and bound the size of errors.

By default, ``requests`` adds credentials of ``.netrc``, follows a redirect to any host with the
user's headers, and reads the whole page of an error, however long it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urljoin, urlsplit

import requests

__all__ = ["RedirectRefusedError", "bound_errors", "guard", "ignore_netrc", "origin_of"]

_MOST_OF_ERROR = 64 * 2**10
"""Maximum number of bytes to read of an error or a redirect."""

_PORTS = {"http": 80, "https": 443}


class RedirectRefusedError(requests.RequestException):
    """A redirect to another server, which must not receive the credentials."""


def origin_of(url: str) -> str:
    """Return scheme, host and port of a URL, without credentials.

    Raises:
        ValueError: If its scheme is neither http nor https.
    """
    parts = urlsplit(url)
    port = parts.port or _PORTS.get(parts.scheme)
    if port is None or parts.hostname is None:
        raise ValueError("it is not an http: or https: URL")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{port}"


def guard(session: requests.Session) -> None:
    """Make a session refuse redirects to other servers, and add no credentials. Driver, task.

    The environment's proxies and certificates still apply. An ``auth`` that is set later takes
    precedence.

    Args:
        session: A new session. Its requests may then raise `RedirectRefusedError`, which is a
            ``RequestException``.
    """
    bound_errors(session)
    ignore_netrc(session)
    session.hooks["response"].append(_refuse_other_origin)


def ignore_netrc(session: requests.Session) -> None:
    """Make a session ignore ``.netrc``; the rest of the environment still applies."""
    session.auth = _keep_headers  # if auth is set, requests does not read .netrc
    vars(session)["rebuild_auth"] = _keep_auth  # the method reads .netrc after a redirect


def bound_errors(session: requests.Session) -> None:
    """Limit a session to reading 64 KiB of an error page."""
    session.hooks["response"].append(_bound_error)


def _keep_headers(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


def _keep_auth(_: requests.PreparedRequest, __: requests.Response) -> None:
    """Keep the credentials: the redirect leads to the same server."""


def _refuse_other_origin(answer: requests.Response, *_: Any, **__: Any) -> None:
    if not answer.is_redirect:
        return
    here, location = origin_of(answer.url), answer.headers["Location"]
    try:
        there = origin_of(urljoin(answer.url, location))
    except ValueError:
        there = "what is no address"
    if there != here:
        answer.close()
        raise RedirectRefusedError(
            f"{here} redirects to {there} ({answer.status_code}), which is given no login: name "
            "that server itself, if it is the right one"
        )


def _bound_error(answer: requests.Response, *_: Any, **__: Any) -> None:
    if answer.is_redirect or not answer.ok:
        answer.raw = _BoundedBody(answer.raw)


class _BoundedBody:
    """The body of an answer, limited to `_MOST_OF_ERROR` bytes; other attributes are urllib3's."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def stream(self, amt: int = 2**14, decode_content: bool | None = None) -> Iterator[bytes]:
        left = _MOST_OF_ERROR
        for piece in self._raw.stream(min(amt, 2**14), decode_content=decode_content):
            yield piece[:left]
            left -= len(piece)
            if left <= 0:
                self._raw.close()  # and its connection, which still contains unread bytes
                return
