"""Options ``deadLetters.*`` of a sink, which make it a fan-out of two routes.

The route `ROWS` is the sink itself with its own options, and `DEAD_LETTERS` has the options after
the prefix. Both share one epoch log.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, InstanceOf, model_validator
from typing_extensions import Self, override

from krishiv_spark.errors import OptionError
from krishiv_spark.offsets.planned import ROWS
from krishiv_spark.options.model import OptionFault
from krishiv_spark.sinks.fanout.options import FanoutOptions, by_route, kind_of_route, naming
from krishiv_spark.sinks.options import LogPlaceOptions
from krishiv_spark.storage.paths import url_scheme

__all__ = ["DEAD_LETTERS", "ROWS", "BadRecordLimit", "DeadLetterOptions"]

DEAD_LETTERS = "dead_letters"
"""Route of the dead letters. Their target knows the query by it, so it never changes."""

_PREFIX = "deadLetters."
_OF_ROUTE = {ROWS: f"route.{ROWS}.", DEAD_LETTERS: f"route.{DEAD_LETTERS}."}


@dataclass(frozen=True)
class BadRecordLimit:
    """The greatest number of bad records in an epoch.

    Attributes:
        text: The option as it was written.
        most: The number, inclusive; or, if `is_share`, the greatest share of all rows, 0 to 1,
            which is exact: as a float, 29% of 100 rows would be fewer than 29.
        is_share: True for a share.
    """

    text: str
    most: Fraction
    is_share: bool

    @classmethod
    def parse(cls, text: object) -> object:
        """Parse ``10`` or ``0.5%``.

        Raises:
            ValueError: If it is neither.
        """
        match = re.fullmatch(r"\s*(\d{1,15})(\.\d{1,9})?\s*(%)?\s*", str(text))
        if match is None or (match[2] and not match[3]):
            raise ValueError("write a number of records, such as 10, or a share, such as 1%")
        if not match[3]:
            return cls(str(text), Fraction(match[1]), is_share=False)
        share = Fraction(f"{match[1]}{match[2] or ''}") / 100
        if share > 1:
            raise ValueError("a share is 100% at most")
        return cls(str(text), share, is_share=True)

    def allows(self, bad: int, rows: int) -> bool:
        """Return True if so many bad records among all rows of an epoch are accepted."""
        return bad <= (self.most * rows if self.is_share else self.most)


class DeadLetterOptions(FanoutOptions):
    """Options of a sink with dead letters: its own, and those of the target of dead letters.

    Attributes:
        routes: The options of both targets, by route.
        max_bad_records: The limit of an epoch; None for no limit.
    """

    routes: Annotated[Mapping[str, Mapping[str, InstanceOf[str]]], BeforeValidator(by_route)] = (
        Field(
            default={},
            repr=False,
            validation_alias="deadLetters.<option>",
            description="Target of the rows whose column `_error` is not null: its format, "
            "`deadLetters.format`, and the options of that format.",
        )
    )
    max_bad_records: Annotated[
        InstanceOf[BadRecordLimit] | None, BeforeValidator(BadRecordLimit.parse)
    ] = Field(
        default=None,
        description="Greatest number of dead letters in a batch, such as `10`, or their greatest "
        "share of its rows, such as `1%`. With more, the query fails before anything of the batch "
        "is visible.",
    )

    unsupported: ClassVar[Mapping[str, str]] = {"unrouted": "each row has a route"}

    def naming(self, route: str) -> AbstractContextManager[None]:
        """Return a context that names the dead letters in errors about their target."""
        return naming("deadLetters: ") if route == DEAD_LETTERS else nullcontext()

    def option_of_route(self, route: str, name: str) -> str:
        """Return the name of an option of either target, as the user writes it."""
        return f"{_PREFIX}{name}" if route == DEAD_LETTERS else name

    @model_validator(mode="after")
    def _check_targets(self) -> Self:
        rows, dead = (_lower(self.routes.get(name, {})) for name in (ROWS, DEAD_LETTERS))
        if "format" not in dead:
            raise ValueError(
                "the dead letters need a target: set 'deadLetters.format', such as "
                "krishiv-parquet, and its options, such as 'deadLetters.path'"
            )
        if dead.items() <= rows.items() or _is_same_place(rows, dead):
            raise ValueError(
                "the options 'deadLetters.*' name the target of the rows: give the dead letters "
                "another path, table or topic"
            )
        return self

    @override
    @classmethod
    def _classify(
        cls, given: Mapping[str, str], format_name: str
    ) -> tuple[dict[str, Any], list[OptionFault]]:
        values, faults = super()._classify(cls._to_routes(given, format_name), format_name)
        return values, [OptionFault(_as_given(f.key), _as_given(f.text)) for f in faults]

    @classmethod
    def _to_routes(cls, given: Mapping[str, str], format_name: str) -> dict[str, str]:
        """Return the options of the fan-out: those of the whole, and those of both routes."""
        found = {f"{_OF_ROUTE[ROWS]}format": format_name}
        for key, text in given.items():
            if key.lower().startswith(_PREFIX.lower()):
                found[_OF_ROUTE[DEAD_LETTERS] + key[len(_PREFIX) :]] = text
            else:
                found[key if cls._is_of_whole(key) else _OF_ROUTE[ROWS] + key] = text
        return found

    @classmethod
    def _is_of_whole(cls, key: str) -> bool:
        field = cls._spellings().get(key.lower())
        if field is None:
            starts = LogPlaceOptions.collects_prefixes.values()
            return key.lower().startswith(tuple(start for each in starts for start in each))
        return field in LogPlaceOptions.model_fields or field == "max_bad_records"

    @override
    @classmethod
    def find_errors(cls, given: Mapping[str, str], format_name: str) -> list[OptionFault]:
        """Return all errors, including those of the options of both targets. See `Options`."""
        found = super().find_errors(given, format_name)
        return found or [*cls._route_errors(given, format_name)]

    @classmethod
    def _route_errors(cls, given: Mapping[str, str], format_name: str) -> Iterator[OptionFault]:
        parsed = cls.parse(given, format_name)
        for route, options in sorted(parsed.routes.items()):
            own = {key: text for key, text in options.items() if key.lower() != "format"}
            prefix = _PREFIX if route == DEAD_LETTERS else ""
            try:
                kind = kind_of_route(options)
            except OptionError as error:
                yield OptionFault(f"{prefix}format", f"{format_name}: {error}")
                continue
            name = _lower(options)["format"]
            for fault in kind.options_type.find_errors(own, name):
                text = f"deadLetters: {fault.text}" if prefix else fault.text
                yield OptionFault(None if fault.key is None else prefix + fault.key, text)

    @override
    @classmethod
    def secret_keys(cls, given: Mapping[str, str]) -> set[str]:
        """Return the secret keys of the dead letters' target. See `Options`.

        The secrets of the sink itself are known only with its format: in the form of `routes`.
        """
        found = super().secret_keys(given)
        own = {key[len(_PREFIX) :]: key for key in given if key.lower().startswith(_PREFIX.lower())}
        options = {name: given[key] for name, key in own.items()}
        with suppress(OptionError):  # the sink of the route reports its errors
            kind = kind_of_route(options)
            found |= {own[name] for name in kind.options_type.secret_keys(options)}
        return found


def _lower(options: Mapping[str, str]) -> dict[str, str]:
    return {key.lower(): str.__str__(text) for key, text in options.items()}


def _is_same_place(rows: Mapping[str, str], dead: Mapping[str, str]) -> bool:
    """Return True if both targets are one folder, or one is within the other."""
    kinds = {rows.get("format", "").lower(), dead["format"].lower()}
    if kinds != {"krishiv-parquet"} or "path" not in rows or "path" not in dead:
        return False
    one, other = _place(rows["path"]), _place(dead["path"])
    return one.startswith(other) or other.startswith(one)


def _place(path: str) -> str:
    """Return a folder in one form, with a slash at its end."""
    scheme = url_scheme(path)
    rest = path if scheme is None else path[len(scheme) + 1 :]
    kept = "" if scheme in {None, "file"} else f"{scheme}://"
    return f"{kept}{posixpath.normpath('/' + rest.lstrip('/')).rstrip('/')}/"


def _as_given(text: Any) -> Any:
    """Return a key or a text about keys with the names that the user wrote."""
    if isinstance(text, str):
        text = text.replace(_OF_ROUTE[DEAD_LETTERS], _PREFIX).replace(_OF_ROUTE[ROWS], "")
    return text
