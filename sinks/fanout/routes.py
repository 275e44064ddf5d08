"""Which sinks can be a route, and how they are made. Any process; no I/O."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from krishiv_spark.arrow.conform import twins
from krishiv_spark.errors import OptionError, SchemaError
from krishiv_spark.messages.suggestions import suggest
from krishiv_spark.sinks.base import OutputMode
from krishiv_spark.sinks.fanout.kinds import kind_of_route
from krishiv_spark.sinks.fanout.options import FORMAT, FanoutOptions
from krishiv_spark.sinks.logged_writer import LoggedWriter
from krishiv_spark.storage import Storage

__all__ = ["check_columns", "make_routes", "naming"]

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
    """The sink of each route.

    Args:
        options: Of the whole.
        schema: With a struct column for each route; one without has no columns.
        mode: Of the whole.
        streaming: Of the whole.

    Raises:
        OptionError: If there is none, or one of them has no format, another one than can be a
            route, or an option that is for the whole.
    """
    _require_one(options)
    made = {}
    for name, given in sorted(options.routes.items()):
        with naming(name):
            made[name] = _route(options, given, _columns(schema, name), mode, streaming=streaming)
    return made


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
    return kind(parsed, columns, mode, streaming=streaming)


def check_columns(options: FanoutOptions, schema: pa.Schema) -> None:
    """Refuse a frame whose columns are not the routes'. Planner.

    Raises:
        OptionError: If there is no route.
        SchemaError: If a column is no route, a route has no column or two that differ in case only,
            or it is no struct.
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
def naming(route: str) -> Iterator[None]:
    """Say in errors about what was given which route they are about."""
    try:
        yield
    except OptionError as error:
        raise OptionError(f"{FORMAT}: route {route!r}: {error}") from error
    except SchemaError as error:
        raise SchemaError(f"{FORMAT}: route {route!r}: {error}") from error
