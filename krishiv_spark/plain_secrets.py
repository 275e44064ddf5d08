"""Secrets that stand in options as they are: said once where they can be seen."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from krishiv_spark.once import warn_once
from krishiv_spark.options import Options
from krishiv_spark.references import has_reference

__all__ = ["warn_of_plain_secrets"]

_log = logging.getLogger(__name__)


def warn_of_plain_secrets(model: type[Options], given: Mapping[str, str], format_name: str) -> None:
    """Log one warning for each process that names the options whose values anybody can read.

    Args:
        model: Of the options.
        given: What `Options.parse` has taken.
        format_name: How the user knows the connector.
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
