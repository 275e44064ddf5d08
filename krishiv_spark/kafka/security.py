"""Settings that decide how a connection is secured: each has to be one that means something.

kafka-python takes any text, and falls back to clear text, no login and no checks of names where it
does not know it.
"""

from __future__ import annotations

import ipaddress
import logging
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from krishiv_spark.messages.suggestions import suggest
from krishiv_spark.runtime.once import warn_once

__all__ = [
    "MECHANISMS",
    "PROTOCOLS",
    "check_security",
    "checks_names",
    "file_name",
    "login",
    "mechanism",
    "one_of",
    "pem",
    "pem_file",
    "warn_of_clear_login",
]

_log = logging.getLogger(__name__)

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_BY_PASSWORD = {
    "PLAIN": "PlainLoginModule",
    "SCRAM-SHA-256": "ScramLoginModule",
    "SCRAM-SHA-512": "ScramLoginModule",
}
MECHANISMS = (*_BY_PASSWORD, "GSSAPI", "AWS_MSK_IAM")
_CLEAR = frozenset({"PLAIN", "AWS_MSK_IAM"})
"""Mechanisms that send what a listener can log in with; SCRAM and GSSAPI do not."""
_PEM_ONLY = (
    "only PEM files can be read here: convert the store (keytool, openssl) and name the file"
)
_MODULES = re.compile(r"\.(PlainLoginModule|ScramLoginModule)\s")
_JAAS = re.compile(r"""\b(username|password)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([^\s;]+))""")


def one_of(known: Collection[str], *, upper: bool = False) -> Callable[[str], str]:
    """A reading of one of several words, with white space around it.

    Args:
        known: The words that are taken, as kafka-python spells them.
        upper: Whether they are written in capitals, however the user writes them.
    """

    def read(text: str) -> str:
        word = text.strip().upper() if upper else text.strip()
        if word not in known:
            near = suggest(word, known)
            hint = f"did you mean {near!r}? " if near else ""
            raise ValueError(f"{text!r} is not known: {hint}There are {', '.join(known)}")
        return word

    return read


def mechanism(text: str) -> str:
    """A mechanism of SASL that works here."""
    if text.strip().upper() == "OAUTHBEARER":
        raise ValueError("OAUTHBEARER needs a class that gets tokens, and none can be given here")
    return one_of(MECHANISMS, upper=True)(text)


def checks_names(text: str) -> bool:
    """Whether the certificate has to name the host: "https", or nothing for no."""
    word = text.strip().lower()
    if word not in {"https", ""}:
        raise ValueError(f"{text!r} is not known: there are 'https', and '' for no check of names")
    return word == "https"


def pem(text: str) -> None:
    """The one type of store that can be read."""
    if text.strip().upper() != "PEM":
        raise ValueError(_PEM_ONLY)


def file_name(text: str) -> str:
    """The name of a file."""
    if not text.strip():
        raise ValueError("the name of a file is needed")
    return text.strip()


def pem_file(text: str) -> str:
    """The name of a file that may be one."""
    name = file_name(text)
    if name.lower().endswith((".jks", ".p12", ".pfx")):
        raise ValueError(_PEM_ONLY)
    return name


def login(text: str) -> dict[str, str]:
    """User and password out of the configuration of a Java login module."""
    found = {match[1]: next(filter(None, match.groups()[1:]), "") for match in _JAAS.finditer(text)}
    if not _MODULES.search(text) or found.keys() != {"username", "password"}:
        raise ValueError(
            "option 'kafka.sasl.jaas.config': only PlainLoginModule and ScramLoginModule with "
            "username and password are understood here; its value is not shown"
        )
    unescaped = {key: re.sub(r"\\(.)", r"\1", value) for key, value in found.items()}
    return {f"sasl_plain_{key}": value for key, value in unescaped.items()}


def check_security(given: Mapping[str, str], values: Mapping[str, Any]) -> None:
    """Refuse settings of which the protocol would make nothing, and logins that lack something.

    Args:
        given: The settings as the user gave them.
        values: The same for kafka-python.

    Raises:
        ValueError: If a setting is in vain, or missing.
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


def _check_login(jaas: str, values: Mapping[str, Any]) -> None:
    chosen = values.get("sasl_mechanism")
    if chosen is None:
        raise ValueError(
            f"option 'kafka.sasl.mechanism' is required with "
            f"'kafka.security.protocol' = {values['security_protocol']}: there are "
            f"{', '.join(MECHANISMS)}"
        )
    module = _BY_PASSWORD.get(chosen)
    if module is None:
        return
    if not {"sasl_plain_username", "sasl_plain_password"} <= values.keys():
        raise ValueError(
            f"'kafka.sasl.mechanism' = {chosen} needs a user and a password: give "
            "'kafka.sasl.jaas.config', or 'kafka.sasl.username' and 'kafka.sasl.password'"
        )
    found = _MODULES.search(jaas)
    if found is not None and found[1] != module:
        raise ValueError(
            f"option 'kafka.sasl.jaas.config' names {found[1]}, but 'kafka.sasl.mechanism' = "
            f"{chosen} logs in by {module}"
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
