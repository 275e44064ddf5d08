"""The settings of a login with a token: SASL/OAUTHBEARER (KIP-255, KIP-768, KIP-1139).

Names are those of Kafka's Java clients. Three of this package complete them: ``https.ca.location``
and ``sasl.oauthbearer.extensions``, which librdkafka has too, and
``sasl.oauthbearer.token.command``.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote_plus, unquote, urlsplit, urlunsplit

__all__ = [
    "KNOWN_CLASSES",
    "OAuthLogin",
    "parse_class",
    "parse_command",
    "parse_token_url",
    "parse_yes_or_no",
]

_CONNECT_S, _READ_S = 4.0, 8.0
"""Time limits of a token endpoint. A start of a query waits for eight seconds in all."""

_SOURCES = {
    "oauth_url": "sasl.oauthbearer.token.endpoint.url",
    "oauth_command": "sasl.oauthbearer.token.command",
}
_JAVA_CLASSES = "org.apache.kafka.common.security.oauthbearer."
_OF_AMAZON = "software.amazon.msk.auth.iam.IAMClientCallbackHandler"
_TOKENS_OF_AMAZON = "software.amazon.msk.auth.iam.IAMOAuthBearerLoginCallbackHandler"
KNOWN_CLASSES = {
    "sasl.login.callback.handler.class": {
        "OAuthBearerLoginCallbackHandler",
        "secured.OAuthBearerLoginCallbackHandler",
        _TOKENS_OF_AMAZON,
    },
    "sasl.client.callback.handler.class": {_OF_AMAZON},
    "sasl.oauthbearer.jwt.retriever.class": {
        "ClientCredentialsJwtRetriever",
        "DefaultJwtRetriever",
        "FileJwtRetriever",
    },
}
"""By setting: Java classes whose work this package does, those of Kafka below `_JAVA_CLASSES`."""


@dataclass(frozen=True)
class OAuthLogin:
    """The source of a login's tokens, and the extensions that are sent with them.

    Attributes:
        url: Token endpoint that gives a token for client credentials; empty for a file or command.
        file: File that contains a token; another program renews it.
        command: Program and arguments that print a token.
        client_id: Name of the client at the endpoint.
        client_secret: Its secret.
        scope: Scopes to request, separated by spaces; may be empty.
        extensions: Names and values that are sent to the broker with each token.
        ca_file: PEM file with the authorities of the endpoint; empty for those of the system.
        is_encoded: True to encode id and secret as in a URL, as RFC 6749 requires and few servers
            expect.
        connect_s: Time limit of a connection to the endpoint.
        read_s: Time limit of its answer.
    """

    url: str = field(default="", repr=False)
    file: str = ""
    command: tuple[str, ...] = ()
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    scope: str = ""
    extensions: tuple[tuple[str, str], ...] = ()
    ca_file: str = ""
    is_encoded: bool = False
    connect_s: float = _CONNECT_S
    read_s: float = _READ_S

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> OAuthLogin | None:
        """Return the login in the settings of a cluster; None if they log in another way.

        Raises:
            ValueError: If a setting is missing, or two exclude each other.
        """
        given = [name for name in values if name.startswith("oauth_")]
        if values.get("msk_token") and values.get("sasl_mechanism") == "OAUTHBEARER":
            _check_msk(given)
            return None
        if "msk_profile" in values and values.get("sasl_mechanism") == "OAUTHBEARER":
            raise ValueError(
                "awsProfileName in 'kafka.sasl.jaas.config' needs "
                f"'kafka.sasl.login.callback.handler.class' = {_TOKENS_OF_AMAZON}"
            )
        if values.get("sasl_mechanism") != "OAUTHBEARER":
            if given:
                raise ValueError(
                    "settings of a login with a token need 'kafka.sasl.mechanism' = OAUTHBEARER: "
                    f"nothing would come of {_name_setting(given[0])}"
                )
            return None
        url = values.get("oauth_url", "")
        is_file = url.startswith("file:")
        made = cls(
            url="" if is_file else url,
            file=unquote(urlsplit(url).path) if is_file else "",
            command=values.get("oauth_command", ()),
            client_id=values.get("oauth_client_id", ""),
            client_secret=values.get("oauth_client_secret", ""),
            scope=values.get("oauth_scope", ""),
            extensions=values.get("oauth_extensions", ()),
            ca_file=values.get("oauth_ca_file", ""),
            is_encoded=values.get("oauth_is_encoded", False),
            connect_s=values.get("oauth_connect_ms", 1000 * _CONNECT_S) / 1000,
            read_s=values.get("oauth_read_ms", 1000 * _READ_S) / 1000,
        )
        made._check(bool(url))
        return made

    def _check(self, has_url: bool) -> None:
        if has_url == bool(self.command):
            names = " or ".join(f"'kafka.{name}'" for name in _SOURCES.values())
            both = "both are given" if has_url else "a source of tokens is needed"
            raise ValueError(f"'kafka.sasl.mechanism' = OAUTHBEARER: {both}: give {names}")
        if self.url and not (self.client_id and self.client_secret):
            raise ValueError(
                "'kafka.sasl.oauthbearer.token.endpoint.url' needs a client: give "
                "'kafka.sasl.oauthbearer.client.credentials.client.id' and '….client.secret', or "
                "clientId and clientSecret in 'kafka.sasl.jaas.config'"
            )

    @property
    def origin(self) -> str:
        """The source of the tokens, for messages; without secrets."""
        if self.command:
            return f"the token command {os.path.basename(self.command[0])!r}"
        if self.file:
            return f"the token file {self.file!r}"
        shown = urlunsplit(urlsplit(self.url)._replace(query="", fragment=""))
        return f"the token endpoint {shown}"

    def secrets(self) -> set[str]:
        """Return the secrets of the client and the address, for texts that must not show them.

        An encoded secret is hidden too: its base64 is not that of the secret itself. The query of
        an address may contain a key.
        """
        encoded = quote_plus(self.client_secret)
        return {self.client_secret, encoded, urlsplit(self.url).query} - {""}


def _check_msk(given: Collection[str]) -> None:
    sources = [_name_setting(each) for each in given if each in _SOURCES]
    if sources:
        raise ValueError(
            f"AWS signs the tokens of {_TOKENS_OF_AMAZON}: nothing would come of {sources[0]}"
        )


def _name_setting(value: str) -> str:
    name = _SOURCES.get(value)
    return f"'kafka.{name}'" if name else "the others"


def parse_token_url(text: str) -> str:
    """Parse the address of tokens: ``https:``, ``http:`` or ``file:`` with a whole path.

    Raises:
        ValueError: If it is another address, or contains a login.
    """
    try:
        parts = urlsplit(text.strip())
        _ = parts.port
    except ValueError:  # its text may show a login
        raise ValueError("it is no address: write https://host/path") from None
    if parts.scheme == "file" and not parts.netloc and parts.path.startswith("/"):
        return text.strip()
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("write https://host/path, or file:///path for a file with a token")
    if parts.username is not None:
        raise ValueError("a login in the address would be shown: give client id and secret instead")
    return urlunsplit(parts)


def parse_command(text: str) -> tuple[str, ...]:
    """Parse a program and its arguments, quoted as in a shell; no shell runs it.

    Raises:
        ValueError: If there is none, or a quotation is not closed.
    """
    try:
        found = tuple(shlex.split(text))
    except ValueError as error:
        raise ValueError(f"the command cannot be read: {error}") from None
    if not found:
        raise ValueError("a program is needed, such as '/opt/bin/print-token --for kafka'")
    return found


def parse_yes_or_no(text: str) -> bool:
    """Parse a setting that is true or false."""
    word = text.strip().lower()
    if word not in {"true", "false"}:
        raise ValueError(f"{text!r} is not known: write true or false")
    return word == "true"


def parse_class(setting: str, text: str) -> dict[str, Any]:
    """Return the values that a Java class stands for, whose work this package does.

    Raises:
        ValueError: If it is another one.
    """
    known: Collection[str] = KNOWN_CLASSES[setting]
    if text.strip().removeprefix(_JAVA_CLASSES) not in known:
        raise ValueError(
            f"the Java class {text.strip()!r} cannot run here: omit the setting, and have "
            "'kafka.sasl.oauthbearer.token.command' print a token"
        )
    return {"msk_token": True} if text.strip() == _TOKENS_OF_AMAZON else {}
