"""Positions: frozen values with one canonical JSON text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from types import NoneType
from typing import Any, ClassVar, Literal, get_args

from pydantic import ConfigDict
from typing_extensions import Self

from krishiv_spark.errors import OffsetError, OffsetVersionError
from krishiv_spark.messages.suggestions import NEW_CHECKPOINT
from krishiv_spark.options.model import LateModel

__all__ = ["Offset", "Start", "Value", "Watermark", "canonical_json"]

# Errors of a damaged value, in pydantic (a ValueError) or in an author's `upgrade`.
_DAMAGE = (ValueError, LookupError, TypeError, AttributeError, RecursionError)


def canonical_json(value: object) -> str:
    """Return the canonical text of a JSON value: sorted keys, no white space, ASCII, no floats.

    Spark compares offsets as text (``MicroBatchExecution``): with two texts for one position, Spark
    would run batches without data endlessly.

    Raises:
        TypeError: If the value contains a float or a key that is no string, whose text is not
            unique, or is not JSON.
    """
    _refuse_ambiguous(value)
    return _encoded(value)


# One encoder, since `json.dumps` creates one for each call with these arguments.
_encoded = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode

_UNAMBIGUOUS = frozenset({str, int, bool, NoneType})


def _refuse_ambiguous(value: object) -> None:
    if isinstance(value, float):
        raise TypeError(f"an offset cannot contain the float {value!r}: use an int, with the unit")
    inside: Iterable[object] = ()
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"an offset cannot contain the key {key!r}: JSON has only strings")
        inside = value.values()
    elif isinstance(value, list | tuple):
        inside = value
    for item in inside:
        # Most texts are plain, and a call for each takes longer than JSON.
        if type(item) not in _UNAMBIGUOUS:
            _refuse_ambiguous(item)


class Value(LateModel):
    """A frozen value that an offset is made of.

    A field that may be None must have None as its default: the text omits it then.
    """

    # An unknown field belongs to a newer release, and the value would have another meaning without
    # it. Strict, so that no second text ("1" for 1) has the same value.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse a subclass whose values could not be parsed from their text."""
        super().__pydantic_init_subclass__(**kwargs)
        for name, field in cls.model_fields.items():
            if NoneType in get_args(field.annotation) and field.default is not None:
                raise TypeError(f"{cls.__name__}.{name} may be None: make None its default")


class Watermark(Value):
    """The progress of event time.

    Attributes:
        ms: The time below which no further row is expected, in milliseconds since 1970 UTC. None
            before the first event time.
        held: The reason that the latest batch did not move it, for the query's progress.
    """

    ms: int | None = None
    held: str | None = None


class Offset(Value):
    """The position of a reader: the next record, which is the exclusive end of the rows read.

    Subclass it with typed fields of JSON's types. Equal offsets have equal text, and different
    offsets have different texts.

    Attributes:
        kind: Name of the offset's form in its text; it never changes.
        version: Version of the form; raise it when the meaning of a field changes.
        watermark: Event time at this position, None for a reader without event time.
    """

    kind: ClassVar[str] = "offset"
    version: ClassVar[int] = 1

    watermark: Watermark | None = None

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse a subclass whose fields have the names of common parts of the text."""
        super().__pydantic_init_subclass__(**kwargs)
        if taken := {"kind", "v"} & cls.model_fields.keys():
            raise TypeError(f"{cls.__name__}: a field cannot be called {taken.pop()!r}")

    def to_dict(self) -> dict[str, Any]:
        """Return the offset as Spark stores it: keys sorted, so that its text is canonical."""
        fields = self.model_dump(mode="json", exclude_none=True)
        result: dict[str, Any] = json.loads(
            canonical_json({"kind": self.kind, "v": self.version, **fields})
        )
        return result

    def to_json(self) -> str:
        """Return the canonical text."""
        return canonical_json(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse a text that any released version wrote.

        Raises:
            OffsetVersionError: If its version is newer than this release.
            OffsetError: If it is damaged or belongs to another kind of reader.
        """
        try:
            value = json.loads(text, object_pairs_hook=_once)
        except (ValueError, RecursionError) as error:
            raise OffsetError(f"damaged {cls.kind} offset {_shorten(text)}: {error}") from error
        return cls.from_dict(value)

    @classmethod
    def from_dict(cls, value: object) -> Self:
        """Parse the value of a JSON text, like `from_json`."""
        if not isinstance(value, dict):
            raise OffsetError(f"damaged {cls.kind} offset: {_shorten(value)} is not an object")
        fields = dict(value)
        kind, version = fields.pop("kind", None), fields.pop("v", None)
        _check_form(cls, kind, version, value)
        try:
            # JSON rules of pydantic, so that a list may become a tuple, and nothing else is
            # converted
            return cls.model_validate_json(json.dumps(cls.upgrade(version, fields)))
        except _DAMAGE as error:
            raise OffsetError(f"damaged {cls.kind} offset {_shorten(value)}: {error}") from error

    @classmethod
    def upgrade(cls, version: int, fields: dict[str, Any]) -> dict[str, Any]:
        """Convert the fields of an older version; override it when raising `version`."""
        del version
        return fields


class Start(Offset):
    """A starting point that is not a position yet, such as "latest".

    Spark asks for the initial offset again after a crash and stores only the ends of batches. A
    start that moves is therefore pinned: this marker never changes, and the first batch, which is
    empty, ends at the position that the marker meant when the query began.

    Attributes:
        at: The meaning of the start.
        ms: For "timestamp", milliseconds since 1970 UTC.
    """

    kind: ClassVar[str] = "start"

    at: Literal["earliest", "latest", "timestamp"]
    ms: int | None = None


# JSON allows a key twice, and Python uses the last: that would be a second text of one offset.
def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"{key!r} occurs twice")
        found[key] = value
    return found


def _check_form(cls: type[Offset], kind: object, version: object, value: object) -> None:
    if kind != cls.kind:
        raise OffsetError(
            f"an offset of kind {kind!r} instead of {cls.kind!r}: {_shorten(value)}; a "
            "checkpoint belongs to one query with one source"
        )
    # In Python, True equals the int 1; in JSON they have different texts.
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise OffsetError(f"damaged {cls.kind} offset {_shorten(value)}: no version")
    if version > cls.version:
        package = _package_of(cls)
        raise OffsetVersionError(
            f"{cls.kind} offset of version {version}, but this {package} supports versions up "
            f"to {cls.version}: upgrade {package}, or start the query with {NEW_CHECKPOINT}"
        )


def _package_of(cls: type[Offset]) -> str:
    """Return the distribution with an offset's class, which may be another package's."""
    from importlib.metadata import PackageNotFoundError, distribution, packages_distributions

    root = cls.__module__.partition(".")[0]
    usual = root.replace("_", "-")
    try:
        distribution(usual)
    except PackageNotFoundError:  # the files of all packages have to be read, which takes a second
        return next(iter(packages_distributions().get(root, ())), usual)
    return usual


def _shorten(value: object, limit: int = 200) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= limit else text[:limit] + "…"
