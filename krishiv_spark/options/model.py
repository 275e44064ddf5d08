"""Typed options: one model per connector and direction, parsed once; unknown keys are refused.

Times, sizes and lists of names have their own types (`Duration`, `ByteSize`, `Names`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar, get_args, get_origin

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
)
from pydantic.alias_generators import to_camel
from typing_extensions import Self

from krishiv_spark.errors import OptionError
from krishiv_spark.messages.exception_chains import raise_alone
from krishiv_spark.messages.suggestions import suggest
from krishiv_spark.options.references import has_reference, resolve

__all__ = [
    "ByteSize",
    "DistinctNames",
    "Duration",
    "LateModel",
    "Names",
    "OptionFault",
    "Options",
    "SecretStr",
    "build_models",
    "parse_bytes",
    "parse_duration",
]

_MILLISECONDS = {
    unit: size
    for size, units in (
        (1, ("ms", "millisecond", "milliseconds")),
        (1_000, ("s", "second", "seconds")),
        (60_000, ("m", "min", "mins", "minute", "minutes")),
        (3_600_000, ("h", "hour", "hours")),
        (86_400_000, ("d", "day", "days")),
        (604_800_000, ("w", "week", "weeks")),
    )
    for unit in units
}
_BYTES = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
# Python converts at most 4 300 digits; these patterns match at most 18.
_QUANTITY = re.compile(r"\s*(\d{1,18})\s*([a-zA-Z]*)\s*")


def parse_duration(text: object) -> object:
    """Turn ``"10 minutes"``, ``"7d"`` or ``"500 ms"`` into milliseconds.

    Args:
        text: A whole number and a unit; an int is a number of milliseconds.

    Raises:
        ValueError: If the number or the unit cannot be read; a bare number has no unit.
    """
    if not isinstance(text, str):
        return text
    number, unit = _quantity(text, "a number and a unit, such as '10 minutes', '30 s' or '7d'")
    if unit not in _MILLISECONDS:
        raise ValueError(f"{text!r} needs a unit of time: ms, s, min, h, d or w")
    return number * _MILLISECONDS[unit]


def parse_bytes(text: object) -> object:
    """Turn ``"128m"``, ``"1 GiB"`` or ``"65536"`` into bytes; units are powers of 1024.

    Raises:
        ValueError: If the number or the unit cannot be read.
    """
    if not isinstance(text, str):
        return text
    number, unit = _quantity(text, "a number of bytes, such as '134217728', '128m' or '1 GiB'")
    unit = re.sub(r"(?<=[kmgt])i?b$", "", unit)
    if unit not in _BYTES:
        raise ValueError(f"{text!r} needs a unit of size: b, k, m, g or t")
    return number * _BYTES[unit]


def _quantity(text: str, wanted: str) -> tuple[int, str]:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not {wanted}")
    return int(match[1]), match[2].lower()


def _check_distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    twice = next((name for place, name in enumerate(names) if name in names[:place]), None)
    if twice is not None:
        raise ValueError(f"{twice!r} occurs twice: name each column once")
    return names


def _split(text: object) -> object:
    if isinstance(text, str):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    return text


Duration = Annotated[int, BeforeValidator(parse_duration)]
"""Milliseconds, written with a unit."""

ByteSize = Annotated[int, BeforeValidator(parse_bytes)]
"""Bytes, written with or without a unit."""

Names = Annotated[tuple[str, ...], BeforeValidator(_split)]
"""Names separated by commas."""

DistinctNames = Annotated[Names, AfterValidator(_check_distinct)]
"""Distinct names separated by commas."""

_NEEDED = {
    "bool": "write true or false",
    "float": "write a number",
    "int": "write a whole number",
}
"""Texts by the prefix of pydantic's error type."""


def reason_of(kind: str, said: str, value: object) -> str:
    """Return the reason why a value is refused, in this package's wording.

    Args:
        kind: Pydantic's type of the problem.
        said: Its message.
        value: The given value.
    """
    if kind == "literal_error":
        known = re.findall(r"'([^']*)'", said)
        near = suggest(str(value), known)
        return f"{f'did you mean {near!r}? There' if near else 'there'} are {', '.join(known)}"
    needed = _NEEDED.get(kind.partition("_")[0])
    return needed or said.removeprefix("Value error, ").replace("Input should", "it must")


_OF_STORES = "storage."
"""Prefix of the options of stores, which each connector receives (`krishiv_spark.storage`)."""

OptionsT = TypeVar("OptionsT", bound="Options")


class OptionFault(NamedTuple):
    """A mistake in the given options.

    Attributes:
        key: The option, as it was written; None if none or several are the cause.
        text: The mistake, and its correction.
    """

    key: str | None
    text: str


class LateModel(BaseModel):
    """A model whose validator is built by the first process that validates; most never do.

    The models of other packages are built at once. They may be pickled by value, as from a
    notebook; a second copy makes cloudpickle reset the existing class to its first state, and
    pydantic would wait permanently for a validator that it has built already.
    """

    model_config = ConfigDict(defer_build=True)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Build the model, unless it is one of this package's."""
        super().__pydantic_init_subclass__(**kwargs)
        if not cls.__module__.startswith("krishiv_spark."):
            cls.model_rebuild(raise_errors=False)


def build_models(of: type[LateModel] = LateModel) -> None:
    """Build the validators of all models that were imported, for the forks of this process."""
    for model in of.__subclasses__():
        model.model_rebuild(raise_errors=False)
        build_models(model)


class Options(LateModel):
    """The options of one connector in one direction.

    Users write a field ``max_files_per_trigger`` as ``maxFilesPerTrigger``, in any case, as for
    Spark's options, or with the name of the field. Further spellings go into
    ``Field(validation_alias=AliasChoices(...))``. Use ``SecretStr`` for values that must not be
    shown.

    A field named in `collects_prefixes` receives all keys that start with one of its prefixes and
    are not fields themselves, as a mapping; its values are never shown.

    Attributes:
        log_level: The lowest level of log lines that Spark's Python processes write.
    """

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="warning",
        description="Lowest level of the [log lines](operate.md#logs) of Spark's Python processes.",
    )

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=True,
        hide_input_in_errors=True,
        arbitrary_types_allowed=True,
    )

    spark_keys: ClassVar[frozenset[str]] = frozenset({"path", "checkpointlocation", "queryname"})
    """Keys that Spark adds. They are not an error in a model without a field for them."""

    collects_prefixes: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """The prefixes of keys that a field collects, in lower case, by the name of the field."""

    unsupported: ClassVar[Mapping[str, str]] = {}
    """Reasons and alternatives for fields of a base class that this connector cannot honour, by the
    name of the field. They are not options of the connector; using one is an error with this
    text."""

    foreign: ClassVar[Mapping[str, str]] = {}
    """Alternatives to options that users know from another connector and this one does not have, by
    their names in lower case; using one is an error with this text."""

    @classmethod
    def parse(cls, given: Mapping[str, str], format_name: str) -> Self:
        """Parse the user's options, or return the cached result: options do not change.

        Args:
            given: The options as Spark passes them; keys in any case.
            format_name: The name of the connector, for the message.

        Raises:
            OptionError: If a key is unknown (the nearest one is named), unsupported, given twice
                under two spellings, or missing, or if its value is invalid. Also if a table is
                created in SQL.
        """
        if all(type(text) is str and not has_reference(text) for text in given.values()):
            return cls._read_cached(tuple(given.items()), format_name)
        # The value of a reference may have changed. And values from Python may be numbers, of which
        # 1 and True are equal as keys.
        return cls._read(given, format_name)

    # Spark creates a reader or a writer for each epoch, in processes that are reused.
    @classmethod
    @lru_cache(maxsize=64)
    def _read_cached(cls, given: tuple[tuple[str, str], ...], format_name: str) -> Self:
        return cls._read(dict(given), format_name)

    @classmethod
    def _read(cls, given: Mapping[str, str], format_name: str) -> Self:
        _refuse_table(given, cls._spellings(), format_name)
        values, faults = cls._classify(given, format_name)
        for fault in faults:
            raise OptionError(fault.text)
        return cls._build(values, format_name)

    @classmethod
    def find_errors(cls, given: Mapping[str, str], format_name: str) -> list[OptionFault]:
        """Return all errors that `parse` would raise; empty if there are none."""
        values, faults = cls._classify(given, format_name)
        keys = {cls._spellings().get(key.lower()): key for key in given}
        try:
            cls.model_validate(values, by_name=True, by_alias=False)
        except ValidationError as error:
            explained = _explain(error, cls, values, format_name)
            faults += [OptionFault(keys.get(field), text) for field, text in explained]
        return faults

    @classmethod
    def _classify(
        cls, given: Mapping[str, str], format_name: str
    ) -> tuple[dict[str, Any], list[OptionFault]]:
        """Return the given values by field, and the errors of keys that no field accepts."""
        spellings = cls._spellings()
        values: dict[str, Any] = {}
        faults: list[OptionFault] = []
        for key, text in given.items():
            field = spellings.get(key.lower())
            try:
                value = _without_reference(text) if key.lower() in cls.spark_keys else resolve(text)
            except ValueError as error:
                faults.append(OptionFault(key, f"{format_name}: option {key!r}: {error}"))
                continue
            if field is None and (gatherer := cls._gatherer(key.lower())) is not None:
                values.setdefault(gatherer, {})[key] = value
            elif field is None and key.lower() in cls.foreign:
                why = f"{format_name}: there is no option {key!r}: {cls.foreign[key.lower()]}"
                faults.append(OptionFault(key, why))
            elif field is None:
                faults += _unknown(key, cls, format_name)
            elif field in cls.unsupported:
                why = f"{format_name}: option {key!r} cannot be had: {cls.unsupported[field]}"
                faults.append(OptionFault(key, why))
            elif field in values and values[field] != value:
                twice = f"{format_name}: option {key!r} is given under two names"
                faults.append(OptionFault(key, twice))
            else:
                values[field] = value
        return values, faults

    @classmethod
    def select(cls, given: Mapping[str, str]) -> dict[str, str]:
        """Return those of the given options that belong to this model, unchanged."""
        spellings = cls._spellings()
        return {
            key: text
            for key, text in given.items()
            if key.lower() in spellings or cls._gatherer(key.lower())
        }

    @classmethod
    def secret_keys(cls, given: Mapping[str, str]) -> set[str]:
        """Return the keys, among some that `parse` accepts, whose values must not be shown.

        Override it to add secret keys that a field collects.
        """
        fields = ((key, cls._spellings().get(key.lower())) for key in given)
        return {
            key
            for key, field in fields
            if field is not None and _is_secret(cls.model_fields[field].annotation)
        }

    def secrets(self) -> set[str]:
        """Return the secrets in these options, for texts that must not contain them.

        These are the values of fields of type ``SecretStr``, and the results of a method `secrets`
        of the values of collecting fields.
        """
        found: set[str] = set()
        for value in vars(self).values():
            if isinstance(value, SecretStr):
                found.add(value.get_secret_value())
            elif (own := getattr(value, "secrets", None)) is not None:
                found |= own()
        return found - {""}

    @classmethod
    def user_options(cls) -> dict[str, str]:
        """Return the fields of the options for users, by the names of the options."""
        return {
            _choose_spelling(cls, field): field
            for field in cls.model_fields
            if field not in cls.unsupported
        }

    @classmethod
    def names(cls) -> list[str]:
        """Return the names of all options, as users write them."""
        return list(cls.user_options())

    @classmethod
    @lru_cache(maxsize=64)
    def _spellings(cls) -> dict[str, str]:
        return {
            spelling.lower(): field
            for field in cls.model_fields.keys() - cls.collects_prefixes.keys()
            for spelling in (*_all_spellings(cls, field), field)
        }

    @classmethod
    @lru_cache(maxsize=1024)  # each role of each epoch parses the same keys
    def _gatherer(cls, key: str) -> str | None:
        """Return the field that collects a key, unless the key is nearly another field's name."""
        if suggest(key, cls._spellings(), likeness=0.93):
            return None
        return next(
            (name for name, starts in cls.collects_prefixes.items() if key.startswith(starts)), None
        )

    @classmethod
    def _build(cls, values: dict[str, Any], format_name: str) -> Self:
        try:
            # `parse` has matched the fields already, in any case and spelling.
            return cls.model_validate(values, by_name=True, by_alias=False)
        except ValidationError as error:
            # The error is raised without its cause, which contains the given values, including
            # secrets.
            lines = [text for _, text in _explain(error, cls, values, format_name)]
            raise_alone(OptionError("; ".join(lines)))


def _without_reference(text: str) -> str:
    if has_reference(text):
        raise ValueError("Spark reads it too, and knows no references: write the value itself")
    return text


def _refuse_table(given: Mapping[str, str], known: Mapping[str, str], format_name: str) -> None:
    # CREATE TABLE shows its properties while the schema is inferred. But then each SELECT passes no
    # option at all (observed on 4.0 to 4.3), so the table could never be read.
    if {"owner", "provider"} <= given.keys() - known.keys():
        raise OptionError(
            f"{format_name}: Spark does not keep the options of CREATE TABLE for a Python format; "
            "use CREATE TEMPORARY VIEW ... USING ... OPTIONS (...)"
        )


def _unknown(key: str, model: type[Options], format_name: str) -> list[OptionFault]:
    if key.lower() in model.spark_keys or key.lower().startswith(_OF_STORES):
        return []
    fields = model.user_options().values()
    written = {field: _choose_spelling(model, field) for field in fields}
    known = {s.lower(): s for field in fields for s in _all_spellings(model, field)}
    known |= {field: name for field, name in written.items() if field != name}
    near = suggest(key.lower(), known)
    hint = f"did you mean {known[near]!r}?" if near else f"known: {_listing(model.names())}"
    return [OptionFault(key, f"{format_name}: unknown option {key!r}; {hint}")]


def _listing(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _all_spellings(model: type[Options], field: str) -> list[str]:
    alias = model.model_fields[field].validation_alias
    if isinstance(alias, AliasChoices):
        return [choice for choice in alias.choices if isinstance(choice, str)]
    return [alias] if isinstance(alias, str) else [field]


def _choose_spelling(model: type[Options], field: str) -> str:
    return _all_spellings(model, field)[0]


def _explain(
    error: ValidationError, model: type[Options], values: Mapping[str, Any], format_name: str
) -> list[tuple[str, str]]:
    """Return the errors by field; the field is empty if several fields disagree."""
    lines = []
    for problem in error.errors(include_url=False, include_input=False, include_context=False):
        field = str(problem["loc"][0]) if problem["loc"] else ""
        name = _choose_spelling(model, field) if field in model.model_fields else field
        reason = reason_of(problem["type"], problem["msg"], values.get(field))
        if problem["type"] == "missing":
            text = f"{format_name}: option {name!r} is required"
        elif not field or field in model.collects_prefixes:
            text = f"{format_name}: {reason}"
        else:
            text = f"{format_name}: option {name!r}{_shown(model, field, values)}: {reason}"
        lines.append((field, text))
    return lines


def _shown(model: type[Options], field: str, values: Mapping[str, Any]) -> str:
    secret = _is_secret(model.model_fields[field].annotation)
    return "" if secret else f" = {values.get(field)!r}"


def _is_secret(kind: object) -> bool:
    """Return True if a type is one of pydantic's secrets, is derived from one, or contains one."""
    bases = getattr(get_origin(kind) or kind, "__mro__", ())
    named = any("Secret" in base.__name__ for base in bases)
    return named or any(_is_secret(part) for part in get_args(kind))
