"""Where a reader of two sources, one after the other, stands."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator

from krishiv_spark.offsets import Offset
from krishiv_spark.sources.chain.kinds import offset_of

__all__ = ["ChainOffset"]


def _part(value: Any) -> Offset:
    if isinstance(value, Offset):
        return value
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} is not an offset")  # noqa: TRY004  pydantic takes no TypeError
    return offset_of(value.get("kind")).from_dict(value)


PartOffset = Annotated[Offset, PlainValidator(_part), PlainSerializer(lambda part: part.to_dict())]
"""An offset of one of the two, of whichever kind; its text is what it is in a query of its own."""


class ChainOffset(Offset):
    """Where a query stands in each of the two sources.

    Attributes:
        first: In the one that is read first; stays at its end afterwards.
        then: In the one that follows. Until the first one is read, this is the seam: where the rows
            end that are in the first one.
    """

    kind = "chain"

    first: PartOffset
    then: PartOffset
