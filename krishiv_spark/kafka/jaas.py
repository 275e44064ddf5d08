"""Configurations of Java login modules (JAAS), as users paste them into ``sasl.jaas.config``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from krishiv_spark.messages.suggestions import did_you_mean

__all__ = ["LOGIN_MODULES", "find_module", "parse_extensions", "parse_login"]

LOGIN_MODULES: Mapping[str, str] = {
    "PLAIN": "PlainLoginModule",
    "SCRAM-SHA-256": "ScramLoginModule",
    "SCRAM-SHA-512": "ScramLoginModule",
    "OAUTHBEARER": "OAuthBearerLoginModule",
    "AWS_MSK_IAM": "IAMLoginModule",
}
"""By mechanism: the class of its login module."""

_MODULE = re.compile(rf"\.({'|'.join(sorted(set(LOGIN_MODULES.values())))})[\s;]")
_ENTRY = re.compile(r"""([\w.-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([^\s;"']+))""")
_NOT_SHOWN = "; its value is not shown"

_OAUTH = {
    "clientId": "oauth_client_id",
    "clientSecret": "oauth_client_secret",
    "scope": "oauth_scope",
    "ssl.truststore.location": "oauth_ca_file",
    "awsProfileName": "msk_profile",
}
"""By an entry of Kafka's module for OAUTHBEARER: the name of its value (`OAuthLogin`)."""
_OAUTH_IGNORED = frozenset({"ssl.protocol", "ssl.truststore.type", "awsDebugCreds"})

# RFC 7628, section 3.1: a key consists of letters, and a value has no control characters.
_EXTENSION = re.compile(r"([A-Za-z]+)=([\x20-\x7e\t\r\n]+)")
_RESERVED = "auth"
"""The key under which the mechanism sends the token itself."""


def find_module(text: str) -> str | None:
    """Return the class of the login module that a configuration names, if it works here."""
    found = _MODULE.search(text)
    return None if found is None else found[1]


def parse_login(text: str) -> dict[str, Any]:
    """Return the values in the configuration of a Java login module.

    Raises:
        ValueError: If it is not understood. The text shows no value.
    """
    module, entries = find_module(text), _find_entries(text)
    if module == "OAuthBearerLoginModule":
        return _parse_oauth(entries)
    if module == "IAMLoginModule":
        return _parse_iam(entries)
    if module is None or not {"username", "password"} <= entries.keys():
        raise ValueError(
            "option 'kafka.sasl.jaas.config': only PlainLoginModule and ScramLoginModule with "
            "username and password, OAuthBearerLoginModule, and Amazon's IAMLoginModule are "
            "understood here" + _NOT_SHOWN
        )
    return {f"sasl_plain_{key}": entries[key] for key in ("username", "password")}


def _find_entries(text: str) -> dict[str, str]:
    """Return keys and values, without quotes and escapes."""
    return {
        match[1]: re.sub(r"\\(.)", r"\1", next(filter(None, match.groups()[1:]), ""))
        for match in _ENTRY.finditer(text)
    }


def _parse_oauth(entries: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    extensions = []
    for key, text in entries.items():
        if key.startswith("extension_"):
            extensions.append(f"{key.removeprefix('extension_')}={text}")
        elif key in _OAUTH:
            found[_OAUTH[key]] = text
        elif key.startswith("aws") and key not in _OAUTH_IGNORED:
            raise _refuse_of_amazon(key, "OAuthBearerLoginModule")
        elif key not in _OAUTH_IGNORED:
            known = [*_OAUTH, "extension_NAME"]
            hint = did_you_mean(key, known, f"there are {', '.join(known)}")
            raise ValueError(
                f"option 'kafka.sasl.jaas.config': {key!r} of OAuthBearerLoginModule does not work "
                f"here; {hint}{_NOT_SHOWN}"
            )
    if extensions:
        found["oauth_extensions"] = _read_extensions(extensions)
    return found


def _parse_iam(entries: Mapping[str, str]) -> dict[str, Any]:
    for key in entries.keys() - {"awsProfileName", "awsDebugCreds"}:
        raise _refuse_of_amazon(key, "IAMLoginModule")
    found = entries.get("awsProfileName")
    return {} if found is None else {"msk_profile": found}


def _refuse_of_amazon(key: str, module: str) -> ValueError:
    return ValueError(
        f"option 'kafka.sasl.jaas.config': {key!r} of {module} does not work here: "
        f"configure it in a profile of AWS, and name that in awsProfileName{_NOT_SHOWN}"
    )


def parse_extensions(text: str) -> tuple[tuple[str, str], ...]:
    """Parse the SASL extensions of a login with a token: ``name=value,...``, sorted.

    Raises:
        ValueError: If a name or a value is not allowed.
    """
    return _read_extensions(text.split(","))


def _read_extensions(parts: Iterable[str]) -> tuple[tuple[str, str], ...]:
    found = {}
    for part in parts:
        match = _EXTENSION.fullmatch(part.strip())
        if match is None or match[1] == _RESERVED:
            raise ValueError(
                f"the SASL extension {part.strip().partition('=')[0]!r} is not known: write "
                "name=value, the name in letters, and not 'auth'"
            )
        found[match[1]] = match[2]
    return tuple(sorted(found.items()))
