"""Which sinks can be a route. Any process; no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from krishiv_spark.errors import OptionError
from krishiv_spark.messages.suggestions import suggest
from krishiv_spark.runtime.lazy import find_format, route_names
from krishiv_spark.sinks.logged_writer import LoggedWriter

__all__ = ["kind_of_route"]


def kind_of_route(given: Mapping[str, str]) -> type[LoggedWriter[Any, Any]]:
    """Return the sink of a route. Any process.

    Args:
        given: The options of the route, with names in any case. ``format`` names a format that has
            a `route_type`, or is 'module:Class' of a `LoggedWriter`.

    Raises:
        OptionError: If ``format`` is missing or unknown, or names no sink with an epoch log.
    """
    name = next((text for key, text in given.items() if key.lower() == "format"), None)
    if name is None:
        raise OptionError(f"option 'format' is required; known: {', '.join(route_names())}")
    found = _imported(name) if ":" in name else _route_type_of(name)
    if not (isinstance(found, type) and issubclass(found, LoggedWriter)):
        raise OptionError(f"'format' = {name!r} is not a LoggedWriter, so it cannot be a route")
    return found


def _route_type_of(name: str) -> Any:
    source = find_format(name)
    route = None if source is None else source.route_type
    if route is None:
        names = route_names()
        near = suggest(name.lower(), names)
        hint = f"did you mean {near!r}?" if near else f"known: {', '.join(names)}"
        raise OptionError(
            f"'format' = {name!r} cannot be a route; {hint} Or 'module:Class' of a LoggedWriter"
        )
    return route


def _imported(name: str) -> Any:
    module, _, kind = name.partition(":")
    try:
        return getattr(import_module(module), kind)
    except (ImportError, AttributeError) as error:
        raise OptionError(f"'format' = {name!r} cannot be imported: {error}") from error
