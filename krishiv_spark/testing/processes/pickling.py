"""What travels, and how: as in Spark, so that what passes here passes there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.datasource import CaseInsensitiveDict

__all__ = ["as_spark_gives", "pickled", "unpickled"]

_pickler: Any = CloudPickleSerializer()  # type: ignore[no-untyped-call]


def pickled(value: object) -> bytes:
    """A value as bytes."""
    result: bytes = _pickler.dumps(value)
    return result


def unpickled(data: bytes) -> Any:
    """The value of some bytes."""
    return _pickler.loads(data)


def as_spark_gives(options: Mapping[str, str]) -> CaseInsensitiveDict:
    """A user's options as a ``DataSource`` gets them: in lower case, found in any."""
    return CaseInsensitiveDict({key.lower(): value for key, value in options.items()})
