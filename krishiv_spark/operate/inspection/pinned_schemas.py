"""The schemas with which a query reads, beside the newest versions in their registry. Any process.

A query that reads with another version than the newest stops at its next start, until an option
decides (`krishiv_spark.sources.kafka.registered_values`). Operators can see that before.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from krishiv_spark.errors import OptionError
from krishiv_spark.options.references import resolve

__all__ = ["compare_schemas"]

_PREFIX, _URL = "registry.", "registry.url"
_OF_SINKS = ("subject.name.strategy", "auto.register", "auto.register.schemas")
_TIMEOUT_S = 5.0
"""A person waits for the command, unlike a query, which waits for minutes."""


def compare_schemas(offsets: Mapping[str, str], given: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each schema of a registry that the positions of a query contain.

    Args:
        offsets: Positions as Spark stores them, by the name or index of the source.
        given: Options of the query. Without `registry.url`, no line is yielded.

    Raises:
        OptionError: If an option of the registry is invalid.
        KrishivError: If the registry does not answer within five seconds, or lacks the subject.
    """
    own = {key.lower(): text for key, text in given.items() if key.lower().startswith(_PREFIX)}
    if _URL not in own:
        return
    for source, text in offsets.items():
        position = _parse(text)
        for part in ("value", "key"):
            known = position.get(f"{part}_schema")
            if isinstance(known, dict):
                yield f"{part}s of source {source} are read with {_compare(known, part, own)}"


def _compare(known: Mapping[str, Any], part: str, given: Mapping[str, str]) -> str:
    newest = _open_registry(given).find_version(known["subject"], None).version
    version = known["version"]
    read = f"version {version} of {known['subject']!r}"
    if newest == version:
        return f"{read}, the newest"
    option = "registry.version" if part == "value" else "registry.key.version"
    return (
        f"{read}, and the newest is version {newest}: the next start needs '{option}' = "
        f"'{version}' to continue with the columns of before, or '{newest}' for the new ones"
    )


def _open_registry(given: Mapping[str, str]) -> Any:
    from krishiv_spark.kafka.schemas.registry import RegistrySettings, SchemaRegistry

    try:
        settings = RegistrySettings.from_options(
            {key: resolve(text) for key, text in given.items()}, _OF_SINKS
        )
    except ValueError as error:
        raise OptionError(f"krishiv-spark status: {error}") from None
    return SchemaRegistry(replace(settings, timeout_s=_TIMEOUT_S))


def _parse(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
