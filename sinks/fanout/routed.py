"""Frames whose rows know where they go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias, Union

from krishiv_spark.arrow.conform import twins
from krishiv_spark.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["routed"]

Condition: TypeAlias = Union["Column", str]


def routed(frame: DataFrame, **routes: Condition | Sequence[Condition]) -> DataFrame:
    """A frame with a struct column for each route, as ``krishiv-fanout`` takes it.

        rows = krishiv_spark.routed(
            orders,
            good="amount > 0",
            bad=("amount IS NULL OR amount <= 0", "to_json(struct(*)) AS value"),
        )
        rows.writeStream.format("krishiv-fanout").options(
            **{"route.good.format": "krishiv-parquet", "route.good.path": "/data/orders", ...}
        )

    A row goes every route whose condition is true: none, one or several. A condition that is null
    is not true.

    Args:
        frame: A stream, or a batch of one.
        routes: By name of the route, a condition, as SQL or as a column; or that and the columns
            that the target gets, likewise. Without columns it gets all.

    Raises:
        OptionError: If there is no route, one without a condition, or two whose names differ in
            case only.
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
