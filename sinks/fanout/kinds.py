"""Which sinks can be a route. Any process; no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from krishiv_spark.errors import OptionError
from krishiv_spark.messages.suggestions import suggest
from krishiv_spark.sinks.logged_writer import LoggedWriter

__all__ = ["kind_of_route"]

# By name, so that no process imports what its routes do not use.
_SINKS = {
    "krishiv-iceberg": "krishiv_spark.sinks.iceberg.route:IcebergRoute",
    "krishiv-kafka": "krishiv_spark.sinks.kafka.writer:KafkaWriter",
    "krishiv-parquet": "krishiv_spark.sinks.parquet.writer:ParquetWriter",
}


def kind_of_route(given: Mapping[str, str]) -> type[LoggedWriter[Any, Any]]:
    """The sink of a route. Any process.

    Args:
        given: Its options, with names in any case; ``format`` says which sink.

    Raises:
        OptionError: If that is not given, not known, or no sink with an epoch log.
    """
    name = next((text for key, text in given.items() if key.lower() == "format"), None)
    known = ", ".join(_SINKS)
    if name is None:
        raise OptionError(f"option 'format' is required; known: {known}")
    place = _SINKS.get(name.lower(), name)
    if ":" not in place:
        near = suggest(name.lower(), _SINKS)
        hint = f"did you mean {near!r}?" if near else f"known: {known}"
        raise OptionError(
            f"'format' = {name!r} cannot be a route; {hint} Or 'module:Class' of a LoggedWriter"
        )
    module, _, kind = place.partition(":")
    try:
        found = getattr(import_module(module), kind)
    except (ImportError, AttributeError) as error:
        raise OptionError(f"'format' = {name!r} cannot be imported: {error}") from error
    if not (isinstance(found, type) and issubclass(found, LoggedWriter)):
        raise OptionError(f"'format' = {name!r} is no LoggedWriter, so it cannot be a route")
    return found
