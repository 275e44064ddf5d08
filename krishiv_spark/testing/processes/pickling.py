"""What travels, and how: as in Spark, so that what passes here passes there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.datasource import CaseInsensitiveDict

__all__ = ["as_spark_gives", "of_class", "pickled", "unpickled"]

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


def of_class(made: Any, kinds: tuple[type, ...]) -> Any:
    """What a ``DataSource`` has made.

    Raises:
        TypeError: If it is of none of the classes that Spark takes.
    """
    if not isinstance(made, kinds):
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"a {type(made).__name__} was made; Spark wants a {wanted}")
    return made
