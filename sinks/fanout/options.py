"""Options of the sink ``krishiv-fanout``: those of its routes, and what they have in common."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, InstanceOf

from krishiv_spark.errors import OptionError
from krishiv_spark.sinks.fanout.kinds import kind_of_route
from krishiv_spark.sinks.log_places import LogPlaceOptions

__all__ = ["FORMAT", "FanoutOptions"]

FORMAT = "krishiv-fanout"

_PREFIX = "route."
_KEY = re.compile(r"route\.([a-z0-9_]{1,40})\.(.+)", re.IGNORECASE)


def _by_route(given: object) -> object:
    if not isinstance(given, Mapping):
        return given
    found: dict[str, dict[str, str]] = {}
    for key, text in given.items():
        match = _KEY.fullmatch(key)
        if match is None:
            raise ValueError(
                f"option {key!r}: write 'route.<name>.<option>'; names have up to 40 letters, "
                "digits and '_'"
            )
        of_route = found.setdefault(match[1].lower(), {})
        if of_route.setdefault(match[2], text) != text:
            raise ValueError(f"option {key!r} is given twice, with different values")
    return found


class FanoutOptions(LogPlaceOptions):
    """Options of the sink.

    Attributes:
        routes: By name of the route, its format and that one's options.
    """

    gathers: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **LogPlaceOptions.gathers,
        "routes": (_PREFIX,),
    }

    @classmethod
    def secret_keys(cls, given: Mapping[str, str]) -> set[str]:
        """See `Options`; a route's own sink knows its secrets."""
        found = super().secret_keys(given)
        parts = {key: match for key in given if (match := _KEY.fullmatch(key)) is not None}
        for route in {match[1].lower() for match in parts.values()}:
            own = {m[2]: key for key, m in parts.items() if m[1].lower() == route}
            options = {name: given[key] for name, key in own.items()}
            with contextlib.suppress(OptionError):  # what is wrong with a route, its sink says
                found |= {own[k] for k in kind_of_route(options).options_type.secret_keys(options)}
        return found

    def secrets(self) -> set[str]:
        """See `Options`; also those of the routes."""
        given = {f"{_PREFIX}{r}.{k}": t for r, own in self.routes.items() for k, t in own.items()}
        return super().secrets() | {given[key] for key in self.secret_keys(given)} - {""}

    routes: Annotated[Mapping[str, Mapping[str, InstanceOf[str]]], BeforeValidator(_by_route)] = (
        Field(
            default={},
            validation_alias="route.<name>.<option>",
            description="Format of a route, `route.<name>.format`, and the options of that format. "
            "The route receives the rows whose column of this name, a struct of the target's "
            "columns, is not null.",
        )
    )
    unrouted: Literal["error", "drop"] = Field(
        default="error",
        description="Action for rows that no route accepts: fail (`error`), or drop them (`drop`).",
    )
