"""The settings of TLS and SASL, each checked for a known value.

kafka-python accepts any text, and treats an unknown one as clear text, no login, or no check of
host names.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

from krishiv_spark.kafka.jaas import LOGIN_MODULES, find_module
from krishiv_spark.kafka.key_stores import explain_jks
from krishiv_spark.kafka.oauth_login import OAuthLogin
from krishiv_spark.messages.suggestions import suggest
from krishiv_spark.runtime.once import warn_once

__all__ = [
    "MECHANISMS",
    "PROTOCOLS",
    "check_security",
    "check_store_type",
    "parse_file_name",
    "parse_host_check",
    "parse_mechanism",
    "parse_one_of",
    "parse_store",
    "warn_of_clear_login",
]

_log = logging.getLogger(__name__)

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = (*LOGIN_MODULES, "GSSAPI")
_BY_PASSWORD = frozenset({"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"})
_CLEAR = frozenset({"PLAIN", "OAUTHBEARER", "AWS_MSK_IAM"})
"""Mechanisms whose messages allow a listener to log in; SCRAM and GSSAPI do not."""


def parse_one_of(known: Collection[str], *, upper: bool = False) -> Callable[[str], str]:
    """Return a parser of one of several words, with white space around it.

    Args:
        known: The accepted words, as kafka-python spells them.
        upper: True to accept other cases of capital words.
    """

    def parse(text: str) -> str:
        word = text.strip().upper() if upper else text.strip()
        if word not in known:
            near = suggest(word, known)
            hint = f"did you mean {near!r}? " if near else ""
            raise ValueError(f"{text!r} is not known: {hint}There are {', '.join(known)}")
        return word

    return parse


def parse_mechanism(text: str) -> str:
    """Parse a mechanism of SASL that works here."""
    return parse_one_of(MECHANISMS, upper=True)(text)


def parse_host_check(text: str) -> bool:
    """Return True if the certificate must name the host: "https"; an empty text means no."""
    word = text.strip().lower()
    if word not in {"https", ""}:
        raise ValueError(f"{text!r} is not known: there are 'https', and '' for no check of names")
    return word == "https"


def check_store_type(text: str) -> None:
    """Check that a store is of a type that can be read."""
    kind = text.strip().upper()
    if kind == "JKS":
        raise ValueError(explain_jks("STORE.jks"))
    if kind not in {"PEM", "PKCS12"}:
        raise ValueError(f"{text!r} is not known: there are PEM and PKCS12")


def parse_file_name(text: str) -> str:
    """Parse the name of a file."""
    if not text.strip():
        raise ValueError("the name of a file is needed")
    return text.strip()


def parse_store(text: str) -> str:
    """Parse the name of a file that may be a PEM file or a PKCS#12 store."""
    name = parse_file_name(text)
    if name.lower().endswith(".jks"):
        raise ValueError(explain_jks(name))
    return name


def check_security(given: Mapping[str, str], values: Mapping[str, Any]) -> None:
    """Refuse settings that have no effect under the protocol, and incomplete logins.

    Args:
        given: The settings as the user gave them.
        values: The same for kafka-python.

    Raises:
        ValueError: If a setting has no effect, or is missing.
    """
    protocol = values.get("security_protocol", "PLAINTEXT")
    for start, word in (("ssl.", "SSL"), ("sasl.", "SASL")):
        idle = next((key for key in given if key.startswith(start)), None)
        if idle is not None and word not in protocol.split("_"):
            fitting = " or ".join(each for each in PROTOCOLS if word in each.split("_"))
            raise ValueError(
                f"option 'kafka.{idle}' needs 'kafka.security.protocol' = {fitting}, but it is "
                f"{protocol}: nothing would come of it"
            )
    if protocol.startswith("SASL"):
        _check_login(given.get("sasl.jaas.config", ""), values)
    OAuthLogin.from_values(values)


def _check_login(jaas: str, values: Mapping[str, Any]) -> None:
    chosen = values.get("sasl_mechanism")
    if chosen is None:
        raise ValueError(
            f"option 'kafka.sasl.mechanism' is required with "
            f"'kafka.security.protocol' = {values['security_protocol']}: there are "
            f"{', '.join(MECHANISMS)}"
        )
    found = find_module(jaas)
    if found is not None and found != LOGIN_MODULES.get(chosen, found):
        raise ValueError(
            f"option 'kafka.sasl.jaas.config' names {found}, but 'kafka.sasl.mechanism' = "
            f"{chosen} logs in by {LOGIN_MODULES[chosen]}"
        )
    if chosen == "AWS_MSK_IAM" and values["security_protocol"] != "SASL_SSL":
        raise ValueError(
            "'kafka.sasl.mechanism' = AWS_MSK_IAM needs 'kafka.security.protocol' = SASL_SSL"
        )
    if chosen in _BY_PASSWORD and not {"sasl_plain_username", "sasl_plain_password"} <= (
        values.keys()
    ):
        raise ValueError(
            f"'kafka.sasl.mechanism' = {chosen} needs a user and a password: give "
            "'kafka.sasl.jaas.config', or 'kafka.sasl.username' and 'kafka.sasl.password'"
        )


def warn_of_clear_login(values: Mapping[str, Any]) -> None:
    """Log one warning for each process if a login crosses a network in clear text.

    Args:
        values: The settings for kafka-python.
    """
    if (
        values.get("security_protocol") != "SASL_PLAINTEXT"
        or values["sasl_mechanism"] not in _CLEAR
    ):
        return
    far = next((s for s in values["bootstrap_servers"] if not _is_loopback(s)), None)
    if far is not None:
        warn_once(
            _log,
            "login in clear text",
            "'kafka.sasl.mechanism' = %s under SASL_PLAINTEXT: the login is sent to %s in clear "
            "text, and machines on the way can read and use it: set 'kafka.security.protocol' to "
            "SASL_SSL, or use SCRAM",
            values["sasl_mechanism"],
            far,
        )


def _is_loopback(server: str) -> bool:
    host = server.rpartition(":")[0].strip("[]") or server
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost" or host.lower().endswith(".localhost")
