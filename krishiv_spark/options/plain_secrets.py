"""Warnings, once each, of secrets that others can read: in options, or sent unencrypted."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
from collections.abc import Mapping
from urllib.parse import urlsplit

from krishiv_spark.options import Options
from krishiv_spark.options.references import has_reference, resolve
from krishiv_spark.runtime.once import warn_once

__all__ = ["is_loopback", "secrets_among", "warn_of_plain_http", "warn_of_plain_secrets"]

_log = logging.getLogger(__name__)


def warn_of_plain_secrets(model: type[Options], given: Mapping[str, str], format_name: str) -> None:
    """Log one warning per process that names the options whose secret values are written out.

    Args:
        model: The model of the options.
        given: The options that `Options.parse` has accepted.
        format_name: The name of the connector, for the message.
    """
    written = {key: text for key, text in given.items() if not has_reference(text)}
    plain = frozenset(model.secret_keys(written))
    if not plain:
        return
    warn_once(
        _log,
        (format_name, plain),
        "%s: %s: a secret is written out, and Spark shows options in plans, in its UI and in event "
        "logs, under Spark Connect every one of them: write ${env:NAME} or ${file:/path} instead "
        "(docs/secrets.md)",
        format_name,
        ", ".join(sorted(plain)),
    )


def secrets_among(model: type[Options], given: Mapping[str, str]) -> set[str]:
    """Return the secrets in a user's options. References that cannot be resolved are omitted.

    Args:
        model: The model of the options.
        given: The options, whose values may be references.

    Raises:
        OptionError: If the model cannot determine which of them are secret.
    """
    found = set()
    for key in model.secret_keys(given):
        with contextlib.suppress(ValueError):
            found.add(str.__str__(resolve(given[key])))
    return found - {""}


def warn_of_plain_http(url: str, login: str) -> None:
    """Log one warning per process and login if a login is sent without encryption.

    It is silent for https, and for this machine itself.

    Args:
        url: The address of the server.
        login: The name of the secret, without its value.
    """
    try:
        to = urlsplit(url)
        host = to.hostname or ""
    except ValueError:  # the connection itself reports it
        return
    if to.scheme == "http" and not is_loopback(host):
        warn_once(
            _log,
            login,
            "%s is sent to %s without encryption: anyone with access to the network can use "
            "it. Use https:",
            login,
            host,
        )


def is_loopback(host: str) -> bool:
    """Return True if a host is this machine itself: ``localhost`` or a loopback address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost" or host.lower().endswith(".localhost")
