"""Which sources can be parts of a chain. Any process; no I/O."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from krishiv_spark.errors import OffsetError
from krishiv_spark.offsets import Offset
from krishiv_spark.sources.base import StreamReader

__all__ = ["offset_of", "reader_of"]

# By name, so that no process imports a part that it does not use.
_READERS = {
    "krishiv-iceberg": "krishiv_spark.sources.iceberg.reader:IcebergReader",
    "krishiv-kafka": "krishiv_spark.sources.kafka.reader:KafkaReader",
}
_OFFSETS = {
    "iceberg": "krishiv_spark.sources.iceberg.offset:IcebergOffset",
    "kafka": "krishiv_spark.sources.kafka.offset:KafkaOffset",
}


def reader_of(format_name: str) -> type[StreamReader[Any, Any]]:
    """The source of a format that can be a part."""
    found: type[StreamReader[Any, Any]] = _imported(_READERS[format_name])
    return found


def offset_of(kind: object) -> type[Offset]:
    """The form of a part's offsets, by the name that their text has.

    Raises:
        OffsetError: If no part has such offsets.
    """
    place = _OFFSETS.get(kind) if isinstance(kind, str) else None
    if place is None:
        raise OffsetError(f"an offset of krishiv-chain of kind {kind!r}: there is no such kind")
    found: type[Offset] = _imported(place)
    return found


def _imported(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
