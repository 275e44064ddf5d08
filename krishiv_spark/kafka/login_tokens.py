"""Tokens of logins with OAUTHBEARER: fetched in each process, cached, and renewed before they end.

Driver, planner, committer and tasks each have their own tokens: a token that the driver sent along
would end in the middle of a long batch. No token is fetched in the thread of the connections, which
must not wait for another server.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import re
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote_plus

from krishiv_spark.kafka.oauth_login import OAuthLogin
from krishiv_spark.messages.exception_chains import describe
from krishiv_spark.messages.redaction import excerpt, first_line
from krishiv_spark.options.plain_secrets import warn_of_plain_http
from krishiv_spark.options.references import read_small

if TYPE_CHECKING:
    import requests

__all__ = ["LoginTokenError", "LoginTokens", "Token", "TokenLogin", "fetch_token", "open_tokens"]

_log = logging.getLogger(__name__)

_SHARE_OF_LIFE = 0.8
"""Share of a token's life after which a login fetches a new one, as in Java's clients."""

_UNKNOWN_LIFE_S = 60.0
"""Life of a token that does not contain its end: it is fetched again at the next login."""

_TRUSTED_S = 60.0
"""Time after a good login during which a refused token is replaced instead of reported. A broker
that has not yet read an authority's new key refuses its tokens for a moment."""

_PAUSE_S = 1.0
"""Time during which the error of a failed attempt stands for the next one."""

_MOST_SHOWN = 8
"""Newest tokens that are hidden in the texts of brokers."""

_COMMAND_S = 8.0
_RETRIES, _RETRY_FACTOR = 2, 0.3
_REDONE = (429, 500, 502, 503, 504)
_OK, _FIRST_ERROR, _FIRST_OF_SERVER = 200, 400, 500
_MOST_BYTES = 2**20
_TOKEN = re.compile(r"[\x21-\x7e]{1,65536}")


class LoginTokenError(Exception):
    """No token could be had for a login: the source of tokens failed, or refused."""


@dataclass(frozen=True)
class Token:
    """A token.

    Attributes:
        text: The token itself, which is a secret.
        renew_s: Time from which a login should fetch a new one, by the monotonic clock.
        end_s: Time at which it expires.
        parts: Parts of it that are secrets when they occur alone.
    """

    text: str = field(repr=False)
    renew_s: float
    end_s: float
    parts: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def with_life(cls, text: str, life_s: float, parts: Iterable[str] = ()) -> Token:
        """Return a token that expires after some seconds from now.

        Args:
            text: The token itself.
            life_s: Its life.
            parts: Its secret parts.
        """
        now_s = time.monotonic()
        return cls(text, now_s + _SHARE_OF_LIFE * life_s, now_s + life_s, tuple(parts))

    def secrets(self) -> set[str]:
        """Return the token and its secret parts, for texts that must not show them."""
        return {self.text, *self.parts} - {""}

    def is_fresh(self) -> bool:
        """Return True if a login may use it without fetching a new one."""
        return time.monotonic() < self.renew_s

    def is_expired(self) -> bool:
        """Return True if a broker would refuse it."""
        return time.monotonic() >= self.end_s


class TokenLogin(Protocol):
    """A login whose tokens, or other credentials, have an end. Equal ones share their tokens."""

    @property
    def origin(self) -> str:
        """The source of the tokens, for messages; without secrets."""
        ...

    @property
    def extensions(self) -> tuple[tuple[str, str], ...]:
        """Names and values that are sent to the broker with each token."""
        ...

    def secrets(self) -> set[str]:
        """Return the secrets of the login, for texts that must not show them."""
        ...


class LoginTokens:
    """The tokens of one login in one process. Any thread may use it.

    Args:
        login: The source of the tokens.
        fetch: Fetches a token, in a separate thread.
    """

    def __init__(self, login: TokenLogin, fetch: Callable[[Any], Token]) -> None:
        self.login = login
        self._fetch_token = fetch
        self._lock = threading.Lock()
        self._token: Token | None = None
        self._shown: deque[Token] = deque(maxlen=_MOST_SHOWN)
        self._fetch: Future[Token] | None = None
        self._failure: tuple[float, str] = (0.0, "")
        self._trusted_until_s = 0.0

    @property
    def text(self) -> str:
        """The newest token; empty if there is none."""
        return self._token.text if self._token is not None else ""

    def secrets(self) -> set[str]:
        """Return the secrets of the login and its newest tokens, for texts that must not show them.

        A broker may repeat a token that it has refused, or that another has replaced meanwhile.
        """
        return self.login.secrets().union(*(token.secrets() for token in [*self._shown]))

    def get(self, within_s: float) -> Token:
        """Return a token for a login; wait until there is one.

        Raises:
            LoginTokenError: If there is none in time, with the reason.
        """
        try:
            return self.request().result(within_s)
        except FutureTimeoutError:
            why = f"{self.login.origin} does not answer within {within_s:.0f} s"
        except LoginTokenError as error:  # of a thread that others wait for too
            why = str(error)
        raise LoginTokenError(why)

    def request(self) -> Future[Token]:
        """Return a future of a token for a login, which a thread fetches if necessary."""
        with self._lock:
            found: Future[Token] = Future()
            if self._token is not None and self._token.is_fresh():
                found.set_result(self._token)
                return found
            failed_s, why = self._failure
            if why and time.monotonic() < failed_s + _PAUSE_S:
                self._settle(found, why)
                return found
            if self._fetch is None:
                self._fetch = found
                threading.Thread(target=self._run, args=(found,), daemon=True).start()
            return self._fetch

    def _run(self, found: Future[Token]) -> None:
        token, why = None, ""
        try:
            token = self._fetch_token(self.login)
        except LoginTokenError as error:
            why = str(error) or f"{self.login.origin} gave no token"
        except Exception as error:  # noqa: BLE001  of a library: it must not end in the thread
            why = f"{self.login.origin}: {describe(error, self.login.secrets())}"
        with self._lock:
            self._fetch = None
            self._failure = (time.monotonic(), why)
            if token is not None:
                self._token = token
                self._shown.append(token)
        self._settle(found, why)

    def _settle(self, found: Future[Token], why: str) -> None:
        """Set the result of a future: the newest token while it is valid, or else the error."""
        token = self._token
        if token is not None and not token.is_expired():
            if why:
                _log.warning("%s; the newest token is used while it is valid", why)
            found.set_result(token)
        else:
            found.set_exception(LoginTokenError(why or f"{self.login.origin}: the token expired"))

    def record_login(self) -> None:
        """Record that a broker has accepted the newest token."""
        self._trusted_until_s = time.monotonic() + _TRUSTED_S

    def record_refusal(self) -> bool:
        """Record that a broker has refused the newest token: the next login fetches another.

        Returns:
            True if tokens of this login were accepted a short time ago: another attempt may help.
        """
        with self._lock:
            self._token = None
        return time.monotonic() < self._trusted_until_s


# --- fetching


def fetch_token(login: OAuthLogin) -> Token:
    """Fetch a token.

    Raises:
        LoginTokenError: If there is none, with the reason.
    """
    if login.file:
        return _read_token(login, _read_file(login), None)
    if login.command:
        printed = _run_command(login)
        answer = _to_mapping(printed)
        if answer is None:
            return _read_token(login, printed, None)
    else:
        answer = _ask_endpoint(login)
    text, life = answer.get("access_token"), answer.get("expires_in")
    if not isinstance(text, str):
        raise LoginTokenError(f"{login.origin} returns JSON without a text 'access_token'")
    return _read_token(login, text, life)


def _read_token(login: OAuthLogin, text: str, life: object) -> Token:
    """Return a token with its life: as its source states it, or else as the token does (JWT)."""
    text = text.strip()
    if not _TOKEN.fullmatch(text):
        raise LoginTokenError(
            f"{login.origin} returns no token, but "
            f"{'a text with other characters than those of a token' if text else 'nothing'}"
        )
    life_s = _to_seconds(life)
    if life_s is None:
        end_s = _find_end(text)
        life_s = _UNKNOWN_LIFE_S if end_s is None else end_s - time.time()
    if life_s <= 0:
        raise LoginTokenError(
            f"{login.origin} returns a token that expired {-life_s:.0f} s ago: renew it, or "
            "correct the clock of this machine"
        )
    return Token.with_life(text, life_s)


def _to_seconds(value: object) -> float | None:
    with suppress(TypeError, ValueError, OverflowError):
        return float(value)  # type: ignore[arg-type]  # some servers write it as a text
    return None


def _find_end(text: str) -> float | None:
    """Return the claim ``exp`` of a JWT, seconds since 1970; None for another kind of token."""
    parts = text.split(".")
    claims = None
    if len(parts) >= 2:  # noqa: PLR2004  header and claims; a signature may be empty
        with suppress(ValueError):
            claims = _to_mapping(base64.urlsafe_b64decode(parts[1] + "==").decode())
    return None if claims is None else _to_seconds(claims.get("exp"))


def _to_mapping(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _read_file(login: OAuthLogin) -> str:
    why = ""
    try:
        return read_small(Path(login.file))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is no small text"
    raise LoginTokenError(f"{login.origin} cannot be read: {why}")


def _run_command(login: OAuthLogin) -> str:
    """Return the output of the token command, which is a secret."""
    why = ""
    try:
        run = subprocess.run(  # noqa: S603  the user's own command
            login.command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_COMMAND_S,
            check=False,
        )  # fmt: skip
        if run.returncode == 0:
            return run.stdout.decode("ascii", "replace")
        said = first_line(run.stderr.decode("utf-8", "replace").strip(), [*login.command[1:]])
        why = f"ended with status {run.returncode}: {said}"
    except subprocess.TimeoutExpired:
        why = f"does not end within {_COMMAND_S:.0f} s"
    except OSError as error:
        why = f"cannot be run: {error.strerror}"
    raise LoginTokenError(f"{login.origin} {why}")


# --- a token endpoint


def _ask_endpoint(login: OAuthLogin) -> dict[str, Any]:
    """Request a token for client credentials (RFC 6749, section 4.4)."""
    import requests

    warn_of_plain_http(login.url, "'kafka.sasl.oauthbearer.client.credentials.client.secret'")
    try:
        with _open_session(login) as session:
            answer = session.post(
                login.url,
                data={"grant_type": "client_credentials", **_scope_of(login)},
                timeout=(login.connect_s, login.read_s),
                # The session's own would stand back behind REQUESTS_CA_BUNDLE.
                verify=login.ca_file or None,
                stream=True,
            )
            status, body = answer.status_code, answer.raw.read(_MOST_BYTES, decode_content=True)
    except (requests.RequestException, OSError, ValueError) as error:
        why = _explain(error, login)
    except Exception as error:  # of urllib3  # noqa: BLE001
        why = f"failed: {_describe(error, login)}"
    else:
        return _check_answer(login, status, body.decode("utf-8", "replace"))
    raise LoginTokenError(f"{login.origin} {why}")


def _scope_of(login: OAuthLogin) -> dict[str, str]:
    return {"scope": login.scope} if login.scope else {}


def _open_session(login: OAuthLogin) -> requests.Session:
    """Return a session that sends the login to the endpoint only, and retries transient errors."""
    import requests
    from requests.adapters import HTTPAdapter
    from urllib3.util import Retry

    from krishiv_spark.storage.http_sessions import guard

    session = requests.Session()
    guard(session)
    encode = quote_plus if login.is_encoded else str
    pair = f"{encode(login.client_id)}:{encode(login.client_secret)}".encode()
    session.headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
    session.headers["Accept"] = "application/json"
    again = Retry(
        total=_RETRIES,
        backoff_factor=_RETRY_FACTOR,
        status_forcelist=_REDONE,
        allowed_methods=None,  # of POST too: a second token does no harm
        raise_on_status=False,
        respect_retry_after_header=False,  # it may be an hour
    )
    for scheme in ("https://", "http://"):
        session.mount(scheme, HTTPAdapter(max_retries=again))
    return session


def _explain(error: Exception, login: OAuthLogin) -> str:
    import requests

    if isinstance(error, requests.exceptions.SSLError):
        return (
            f"has a certificate that is not trusted ({_describe(error, login)}): name a PEM file "
            "with its authority in 'kafka.https.ca.location'"
        )
    if isinstance(error, requests.Timeout):
        return f"does not answer within {login.read_s:g} s"
    return f"cannot be reached: {_describe(error, login)}"


def _describe(error: Exception, login: OAuthLogin) -> str:
    """Return the innermost reason: requests and urllib3 wrap it several times."""
    return describe(getattr(_innermost(error), "reason", None) or error, login.secrets())


def _innermost(error: Exception) -> Exception:
    inner = error.args[0] if error.args else None
    reason = getattr(inner, "reason", None)
    return reason if isinstance(reason, Exception) else error


def _check_answer(login: OAuthLogin, status: int, body: str) -> dict[str, Any]:
    answer = _to_mapping(body)
    if status == _OK and answer is not None:
        return answer
    if status == _OK:
        raise LoginTokenError(f"{login.origin} answers with something else than JSON")
    texts = (str((answer or {}).get(key, "")) for key in ("error", "error_description"))
    said = ": ".join(filter(None, (excerpt(text, login.secrets())[:300] for text in texts)))
    answered = f"HTTP {status}{', ' if said else ''}{said}"
    if _FIRST_ERROR <= status < _FIRST_OF_SERVER and status not in _REDONE:
        raise LoginTokenError(
            f"{login.origin} refuses the client {login.client_id!r} ({answered}): see its id, "
            "secret and scope"
        )
    raise LoginTokenError(f"{login.origin} answers {answered}")


# --- the tokens of a process

_tokens: dict[tuple[TokenLogin, int], LoginTokens] = {}
"""By login and process: a fork may have copied a lock that another thread holds."""


def open_tokens(login: TokenLogin, fetch: Callable[[Any], Token] = fetch_token) -> LoginTokens:
    """Return this process's tokens of a login.

    Args:
        login: The source of the tokens.
        fetch: Fetches a token of such a login.
    """
    return _tokens.setdefault((login, os.getpid()), LoginTokens(login, fetch))
