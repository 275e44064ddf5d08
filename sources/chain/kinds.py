"""Which sources can be parts of a chain. Any process; no I/O."""

from __future__ import annotations

from typing import Any

from krishiv_spark.errors import OffsetError
from krishiv_spark.offsets import Offset
from krishiv_spark.runtime.lazy import find_format
from krishiv_spark.sources.base import StreamReader
from krishiv_spark.sources.handover import SupportsBackfillSource, SupportsBackfillTarget

__all__ = ["offset_of", "reader_of"]


def reader_of(format_name: str) -> type[StreamReader[Any, Any]]:
    """Return the source of a format that can be a part."""
    found: type[StreamReader[Any, Any]] = find_format(format_name).reader_type
    return found


def offset_of(kind: object) -> type[Offset]:
    """Return the class of a part's offsets, by the ``kind`` in their JSON.

    Raises:
        OffsetError: If no format has a source with such offsets.
    """
    source = find_format(f"krishiv-{kind}")
    reader = None if source is None else source.reader_type
    if reader is None or not issubclass(reader, SupportsBackfillSource | SupportsBackfillTarget):
        raise OffsetError(f"an offset of krishiv-chain of kind {kind!r}: there is no such kind")
    found: type[Offset] = reader.offset_type
    return found
