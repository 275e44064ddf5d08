"""Routes of ``krishiv-fanout``: their options, their sinks, and the columns of their rows."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias, Union

import pyarrow as pa
from pydantic import BeforeValidator, Field, InstanceOf

from krishiv_spark.arrow.conform import twins
from krishiv_spark.errors import OptionError, SchemaError
from krishiv_spark.messages.suggestions import suggest
from krishiv_spark.options import Options
from krishiv_spark.runtime.lazy import find_format, route_names
from krishiv_spark.sinks.base import OutputMode
from krishiv_spark.sinks.logged_writer import LoggedWriter
from krishiv_spark.sinks.options import LogPlaceOptions
from krishiv_spark.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = [
    "FORMAT",
    "FanoutOptions",
    "by_route",
    "check_columns",
    "kind_of_route",
    "make_routes",
    "naming",
    "routed",
]


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
    found = _import_kind(name) if ":" in name else _route_type_of(name)
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


def _import_kind(name: str) -> Any:
    module, _, kind = name.partition(":")
    try:
        return getattr(import_module(module), kind)
    except (ImportError, AttributeError) as error:
        raise OptionError(f"'format' = {name!r} cannot be imported: {error}") from error


FORMAT = "krishiv-fanout"

_PREFIX = "route."
_KEY = re.compile(r"route\.([a-z0-9_]{1,40})\.(.+)", re.IGNORECASE)


def by_route(given: object) -> object:
    """Return the options of each route, from keys such as ``route.<name>.<option>``.

    Raises:
        ValueError: If a key has another form, or has two values.
    """
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
        routes: The format of each route and its options, by the name of the route.
    """

    def naming(self, route: str) -> contextlib.AbstractContextManager[None]:
        """Return a context that adds the name of the route to errors about its options."""
        return naming(f"{FORMAT}: route {route!r}: ")

    def option_of_route(self, route: str, name: str) -> str:
        """Return the name of an option of a route, as the user writes it."""
        return f"{_PREFIX}{route}.{name}"

    collects_prefixes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **LogPlaceOptions.collects_prefixes,
        "routes": (_PREFIX,),
    }

    @classmethod
    def secret_keys(cls, given: Mapping[str, str]) -> set[str]:
        """Return the secret keys; each route's sink determines its own. See `Options`."""
        found = super().secret_keys(given)
        parts = {key: match for key in given if (match := _KEY.fullmatch(key)) is not None}
        for route in {match[1].lower() for match in parts.values()}:
            own = {m[2]: key for key, m in parts.items() if m[1].lower() == route}
            options = {name: given[key] for name, key in own.items()}
            with contextlib.suppress(OptionError):  # the sink of the route reports its errors
                found |= {own[k] for k in kind_of_route(options).options_type.secret_keys(options)}
        return found

    def secrets(self) -> set[str]:
        """Return the secrets, including those of the routes. See `Options`."""
        given = {f"{_PREFIX}{r}.{k}": t for r, own in self.routes.items() for k, t in own.items()}
        found = super().secrets() | {given[key] for key in self.secret_keys(given)} - {""}
        # The sink of a route knows the single secrets in a text, such as the password of a URL.
        for own in self.routes.values():
            with contextlib.suppress(OptionError):  # the sink of the route reports its errors
                found |= _parse_route(own).secrets()
        return found

    routes: Annotated[Mapping[str, Mapping[str, InstanceOf[str]]], BeforeValidator(by_route)] = (
        Field(
            default={},
            repr=False,
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


_OF_THE_WHOLE = {
    "checkpointlocation": "all routes use the checkpoint of the query",
    "queryid": "the query has one name: set 'queryId'",
    "fullrefresh": "a pipeline refreshes all routes: set 'fullRefresh'",
    "epochlog": "all routes have one epoch log: set 'epochLog'",
    "txnappid": "a batch has one number: set 'txnAppId' and 'txnVersion'",
    "txnversion": "a batch has one number: set 'txnAppId' and 'txnVersion'",
}


def make_routes(
    options: FanoutOptions, schema: pa.Schema, mode: OutputMode, *, streaming: bool
) -> dict[str, LoggedWriter[Any, Any]]:
    """Return the sink of each route.

    Args:
        options: The options of the fan-out.
        schema: The schema, with a struct column for each route. A route without one has no columns.
        mode: The output mode of the fan-out.
        streaming: True for a stream.

    Raises:
        OptionError: If there is no route, or a route has no format, a format that cannot be a
            route, or an option of the whole fan-out.
    """
    _require_one(options)
    made = {}
    for name, given in sorted(options.routes.items()):
        with options.naming(name):
            made[name] = _route(options, given, _columns(schema, name), mode, streaming=streaming)
    return made


def _parse_route(given: Mapping[str, str]) -> Options:
    own = {key: text for key, text in given.items() if key.lower() != "format"}
    return kind_of_route(given).options_type.parse(own, str(given.get("format", FORMAT)))


def _require_one(options: FanoutOptions) -> None:
    if not options.routes:
        raise OptionError(
            f"{FORMAT}: give at least one route, as 'route.good.format' = 'krishiv-parquet' and "
            "'route.good.path'"
        )


def _route(
    options: FanoutOptions,
    given: Mapping[str, str],
    columns: pa.Schema,
    mode: OutputMode,
    *,
    streaming: bool,
) -> LoggedWriter[Any, Any]:
    own = {key: text for key, text in given.items() if key.lower() != "format"}
    for key in own:
        if (why := _OF_THE_WHOLE.get(key.lower())) is not None:
            raise OptionError(f"option {key!r} cannot be given for a route: {why}")
    kind = kind_of_route(given)
    if options.job is None and options.query_id is None and options.checkpoint_location is not None:
        own["checkpointLocation"] = options.checkpoint_location
    parsed = kind.options_type.parse(own, str(given.get("format", FORMAT)))
    own_storage: Storage | None = getattr(parsed, "storage", None)
    if own_storage is not None:
        logins = own_storage.options or options.storage.options
        places = (own_storage.places or frozenset()) | (options.storage.places or frozenset())
        parsed = parsed.model_copy(update={"storage": Storage(logins, places)})
    if getattr(parsed, "delivery", "exactly-once") != "exactly-once":
        raise OptionError("'delivery' = 'at-least-once' would write rows of repeated epochs twice")
    return _kind_for(given, kind, parsed)(parsed, columns, mode, streaming=streaming)


def _kind_for(
    given: Mapping[str, str], kind: type[LoggedWriter[Any, Any]], options: Options
) -> type[LoggedWriter[Any, Any]]:
    """Return the sink of a route for its options, since a format may have several."""
    name = next(text for key, text in given.items() if key.lower() == "format")
    found: type[LoggedWriter[Any, Any]] | None = (
        None if ":" in name else find_format(name).route_for(options)
    )
    return found or kind


def check_columns(options: FanoutOptions, schema: pa.Schema) -> None:
    """Refuse a frame whose columns are not those of the routes. Planner.

    Raises:
        OptionError: If there is no route.
        SchemaError: If a column belongs to no route or is not a struct, or if a route has no
            column, or two that differ only in case.
    """
    _require_one(options)
    if (same := twins(schema.names)) is not None:
        raise SchemaError(
            f"{FORMAT}: the columns {same[0]!r} and {same[1]!r} differ only in case, and would "
            "be one route: give one of them another name, and rename its options "
            "'route.<name>.…' too"
        )
    names = [column.name.lower() for column in schema]
    for column in schema:
        if column.name.lower() not in options.routes:
            near = suggest(column.name.lower(), options.routes)
            hint = f"did you mean the route {near!r}?" if near else "no route has this name;"
            raise SchemaError(
                f"{FORMAT}: column {column.name!r}: {hint} a DataFrame has one struct column "
                "for each route, as krishiv_spark.routed() creates it"
            )
        if not pa.types.is_struct(column.type):
            raise SchemaError(
                f"{FORMAT}: column {column.name!r} is {column.type}, not a struct of the "
                "target's columns, as krishiv_spark.routed() creates it"
            )
    missing = sorted(set(options.routes) - set(names))
    if missing:
        raise SchemaError(
            f"{FORMAT}: there is no column {missing[0]!r} for the route of this name; the "
            f"columns are {', '.join(schema.names)}"
        )


def _columns(schema: pa.Schema, route: str) -> pa.Schema:
    kinds = (one.type for one in schema if one.name.lower() == route)
    return pa.schema(next((list(kind) for kind in kinds if pa.types.is_struct(kind)), []))


@contextlib.contextmanager
def naming(prefix: str) -> Iterator[None]:
    """Add a prefix to errors about options and columns."""
    try:
        yield
    except OptionError as error:
        raise OptionError(f"{prefix}{error}") from error
    except SchemaError as error:
        raise SchemaError(f"{prefix}{error}") from error


Condition: TypeAlias = Union["Column", str]


def routed(frame: DataFrame, **routes: Condition | Sequence[Condition]) -> DataFrame:
    """Return a frame with a struct column for each route, as ``krishiv-fanout`` expects it.

    ::

        rows = krishiv_spark.routed(
            orders,
            good="amount > 0",
            bad=("amount IS NULL OR amount <= 0", "to_json(struct(*)) AS value"),
        )
        rows.writeStream.format("krishiv-fanout").options(
            **{"route.good.format": "krishiv-parquet", "route.good.path": "/data/orders", ...}
        )

    A row goes to every route whose condition is true: none, one or several. A condition that is
    null is not true.

    Args:
        frame: A stream, or a batch of one.
        routes: A condition by the name of the route, as SQL or as a column; or a sequence of the
            condition and the columns for the target. Without columns, the target gets all.

    Raises:
        OptionError: If there is no route, one without a condition, or two whose names differ only
            in case.
    """
    from pyspark.sql import functions as F  # noqa: N812  as everybody calls it

    if not routes:
        raise OptionError("routed: give at least one route, as routed(frame, good='amount > 0')")
    if (same := twins(routes)) is not None:
        raise OptionError(
            f"routed: the routes {same[0]!r} and {same[1]!r} differ only in case, and would be "
            "one route: give one of them another name"
        )
    columns = []
    for name, given in routes.items():
        parts = [given] if isinstance(given, str) or not isinstance(given, Sequence) else [*given]
        if not parts:
            raise OptionError(f"routed: route {name!r} has no condition; 'true' accepts every row")
        condition, *wanted = [F.expr(part) if isinstance(part, str) else part for part in parts]
        taken = F.struct(*(wanted or [F.col("*")]))
        columns.append(F.when(condition, taken).alias(name))
    return frame.select(*columns)
