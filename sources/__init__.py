"""Sources: what authors use of the contract is here; `base` is its specification.

A folder for each format holds what that alone needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from krishiv_spark.runtime.lazy import find

if TYPE_CHECKING:
    from krishiv_spark.sources.base import (
        UNLIMITED,
        Limit,
        SourceOptions,
        StreamReader,
        SupportsAvailableNow,
        SupportsBacklog,
        SupportsFilters,
        SupportsMovingStart,
    )

__all__ = [
    "UNLIMITED",
    "Limit",
    "SourceOptions",
    "StreamReader",
    "SupportsAvailableNow",
    "SupportsBacklog",
    "SupportsFilters",
    "SupportsMovingStart",
]

_HOMES = dict.fromkeys(__all__, "krishiv_spark.sources.base")


def __getattr__(name: str) -> object:
    return find(__name__, _HOMES, name)
