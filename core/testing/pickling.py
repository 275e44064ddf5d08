"""Pickles as Spark does, so that what passes here passes there."""

from __future__ import annotations

from typing import Any

from pyspark.serializers import CloudPickleSerializer

__all__ = ["pickled", "unpickled"]

_pickler: Any = CloudPickleSerializer()  # type: ignore[no-untyped-call]


def pickled(value: object) -> bytes:
    """A value as bytes."""
    result: bytes = _pickler.dumps(value)
    return result


def unpickled(data: bytes) -> Any:
    """The value behind some bytes."""
    return _pickler.loads(data)
