"""Values between processes, pickled as Spark pickles them."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.datasource import CaseInsensitiveDict

__all__ = ["as_spark_gives", "of_class", "pickled", "unpickled"]

_pickler: Any = CloudPickleSerializer()  # type: ignore[no-untyped-call]


def pickled(value: object, advice: str = "") -> bytes:
    """Return a value as bytes, as Spark sends it to another process.

    Args:
        value: The value.
        advice: Where to create what cannot be pickled, for the message.

    Raises:
        PicklingError: As Spark's serializer raises it; with the name of the attribute that cannot
            be pickled, if there is one.
    """
    try:
        result: bytes = _pickler.dumps(value)
    except pickle.PicklingError as error:
        # A subclass is raised by the value itself, such as a writer that cannot plan.
        found = _unpicklable(value) if type(error) is pickle.PicklingError else None
        if found is None:
            raise
        raise pickle.PicklingError(f"{found}. {advice}".strip()) from error
    return result


_DEEPEST = 12


def _unpicklable(value: object) -> str | None:
    """Return the innermost part of a value that cannot be pickled, with its name in its owner."""
    name, owner, part = "", type(value).__name__, value
    for _ in range(_DEEPEST):
        inner = next((each for each in _parts(part) if not _is_picklable(each[1])), None)
        if inner is None:
            break
        key, found = inner
        # Elements of a list or a mapping are named as those of the attribute that contains it.
        is_element = isinstance(part, dict | list | tuple | set | frozenset)
        name = f"{name}[{key!r}]" if is_element else f".{key}"
        owner = owner if is_element else type(part).__name__
        part = found
    kind = type(part).__name__
    return f"{owner}{name} cannot be pickled: it is of type {kind!r}" if name else None


def _parts(value: object) -> Iterator[tuple[object, object]]:
    """Yield the parts that are pickled with a value, each with its name."""
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, list | tuple | set | frozenset):
        yield from enumerate(value)
    elif not isinstance(value, type):
        try:
            reduced: Any = value.__reduce_ex__(4)
        except Exception:  # noqa: BLE001  it is that itself
            return
        if isinstance(reduced, tuple):
            _, arguments, state, *_ = (*reduced, None)
            for part in state if isinstance(state, tuple) else (state,):
                yield from part.items() if isinstance(part, dict) else ()
            yield from enumerate(arguments or ())


def _is_picklable(value: object) -> bool:
    try:
        _pickler.dumps(value)
    except Exception:  # noqa: BLE001  whatever it raises
        return False
    return True


def unpickled(data: bytes) -> Any:
    """Return the value of some bytes."""
    return _pickler.loads(data)


def as_spark_gives(options: Mapping[str, str]) -> CaseInsensitiveDict:
    """Return a user's options as a ``DataSource`` receives them: lower case, found in any case."""
    return CaseInsensitiveDict({key.lower(): value for key, value in options.items()})


def of_class(made: Any, kinds: tuple[type, ...]) -> Any:
    """Return an object that a ``DataSource`` has created, after a check of its class.

    Raises:
        TypeError: If it is of none of the classes that Spark accepts.
    """
    if not isinstance(made, kinds):
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"a {type(made).__name__} was made; Spark wants a {wanted}")
    return made
