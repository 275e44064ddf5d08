"""The options of sinks that apply records of change data (``changeFormat``)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import pyarrow as pa
from pydantic import BeforeValidator, Field

from krishiv_spark.arrow.column_text import parse_fields
from krishiv_spark.errors import OptionError
from krishiv_spark.kafka.schemas.registry import RegistrySettings, is_secret
from krishiv_spark.messages.suggestions import did_you_mean
from krishiv_spark.options import Options

__all__ = ["PLACEHOLDER", "ChangeOptions", "TimestampUnit", "TruncateRule", "ValueRules"]

DecimalForm: TypeAlias = Literal["precise", "string"]
"""The meaning of a text that is a decimal: base64 of its digits, or the number itself."""

BinaryForm: TypeAlias = Literal["base64", "hex"]
"""The form of bytes as a text."""

TimestampUnit: TypeAlias = Literal["ms", "us", "ns"]

TruncateRule: TypeAlias = Literal["fail", "ignore", "apply"]
"""The action for the event of a `TRUNCATE`."""

PLACEHOLDER = "__debezium_unavailable_value"
"""Debezium's default for ``unavailable.value.placeholder``."""


@dataclass(frozen=True)
class ValueRules:
    """Rules for values that JSON does not determine.

    Attributes:
        decimals: The meaning of texts in decimal columns.
        binaries: The form of texts in binary columns.
        units: By name of a column, the unit of its numbers; `""` is for all others.
        placeholder: The text that stands for an unchanged value.
        numbers: Names of the text columns that have numbers with more digits than any decimal.
    """

    decimals: DecimalForm = "precise"
    binaries: BinaryForm = "base64"
    units: Mapping[str, TimestampUnit] = field(default_factory=dict)
    placeholder: str = PLACEHOLDER
    numbers: frozenset[str] = frozenset()

    def unit_of(self, name: str) -> TimestampUnit:
        """Return the unit of the times of a column."""
        return self.units.get(name) or self.units.get("") or "us"


_UNITS = ("ms", "us", "ns")


def _parse_units(given: object) -> object:
    """Parse ``us``, or JSON such as ``{"created": "ms"}``.

    Raises:
        ValueError: If it is neither, with an example.
    """
    if not isinstance(given, str):
        return given
    word = given.strip()
    if word in _UNITS:
        return {"": word}
    needed = 'write ms, us or ns, or JSON such as {"created_at": "ms"}'
    try:
        found = json.loads(word)
    except ValueError:
        raise ValueError(needed) from None
    if not isinstance(found, dict) or any(unit not in _UNITS for unit in found.values()):
        raise ValueError(needed)
    return found


def _parse_columns(given: object) -> object:
    if not isinstance(given, str):
        return given
    return parse_fields(given) if given.strip() else ()


def _parse_registry(given: object) -> object:
    """Parse the options of a registry.

    Raises:
        ValueError: If one is unknown, or names a schema: each event names its own.
    """
    if not isinstance(given, Mapping):
        return given
    for name in ("subject", "version", "message"):
        for key in (f"registry.{name}", f"registry.key.{name}"):
            if key in {each.lower() for each in given}:
                raise ValueError(
                    f"option {key!r} has no effect: each event is read with the schema that it "
                    "names; remove the option"
                )
    found = RegistrySettings.from_options(given)
    found.check_wire()
    return found


TimeUnits = Annotated[Mapping[str, TimestampUnit], BeforeValidator(_parse_units)]
Fields = Annotated[tuple[Any, ...], BeforeValidator(_parse_columns)]


class ChangeOptions(Options):
    """Options of records that tell how a row of a database has changed."""

    collects_prefixes: ClassVar[Mapping[str, tuple[str, ...]]] = {"registry": ("registry.",)}

    change_format: Literal["debezium"] | None = Field(
        default=None,
        description="`debezium`: the rows are Kafka's columns `key` and `value` (and `topic`, "
        "`partition`, `offset`), with change events in JSON or Avro. Needs `mode` = `upsert`, or "
        "`scd2` of krishiv-iceberg.",
    )
    registry: Annotated[RegistrySettings | None, BeforeValidator(_parse_registry)] = Field(
        default=None,
        validation_alias="registry.url",
        description="Address of the [schema registry](kafka-schemas.md#the-registry) of events in "
        "Avro, whose other settings have the prefix `registry.` too.",
    )
    table_schema: Fields = Field(
        default=(),
        description="Columns of a table that is created or gets new ones, as `id BIGINT, name "
        "STRING`. Default: those of the table; of krishiv-iceberg also [those of the "
        "events](change-data.md#tables-from-the-schemas-of-events).",
    )
    decimal_format: Literal["precise", "string"] = Field(
        default="precise",
        description="Texts in DECIMAL columns of events without a schema (Debezium's "
        "`decimal.handling.mode`): base64 of the digits (`precise`), or the number (`string`).",
    )
    binary_format: Literal["base64", "hex"] = Field(
        default="base64",
        description="Texts in BINARY columns: `base64` (Debezium's `binary.handling.mode` = "
        "`bytes`), or `hex`.",
    )
    time_units: TimeUnits = Field(
        default={},
        description="Unit of numbers in time columns of events without a schema: `ms`, `us` "
        '(default) or `ns`, or JSON for single columns, as `{"created_at": "ms"}`. Debezium '
        "writes `ms` for columns with up to three fractional digits.",
    )
    unavailable_placeholder: str = Field(
        default=PLACEHOLDER,
        min_length=1,
        description="Text for an unchanged value that the database did not send (Debezium's "
        "`unavailable.value.placeholder`): the table keeps its value.",
    )
    missing_values: Literal["fail", "null"] = Field(
        default="fail",
        description="Action for an unchanged value of a row that the table does not have: `fail`, "
        "or write `null`.",
    )
    unknown_fields: Literal["fail", "ignore"] = Field(
        default="fail",
        description="Action for columns of an event that the table lacks: `fail`, or `ignore` "
        "them.",
    )
    truncate_events: TruncateRule = Field(
        default="fail",
        description="Action for the event of a `TRUNCATE` ([when there is "
        "one](change-data.md#truncated-tables)): `fail`, `ignore` it, or `apply` it: delete all "
        "rows.",
    )

    @classmethod
    def secret_keys(cls, given: Mapping[str, str]) -> set[str]:
        """Return the keys of secrets of the registry too, as `Options.secret_keys`."""
        return super().secret_keys(given) | {k for k, text in given.items() if is_secret(k, text)}

    @property
    def value_rules(self) -> ValueRules:
        """The rules for values that JSON does not determine."""
        return ValueRules(
            self.decimal_format,
            self.binary_format,
            dict(self.time_units),
            placeholder=self.unavailable_placeholder,
        )

    @property
    def declared_columns(self) -> pa.Schema | None:
        """The columns of `tableSchema`; None if it is not given."""
        return pa.schema(list(self.table_schema)) if self.table_schema else None

    def check_units(self, columns: pa.Schema, format_name: str) -> None:
        """Refuse units of columns that the table does not have.

        Raises:
            OptionError: If there is such a column.
        """
        for name in self.time_units:
            if name and name not in columns.names:
                hint = did_you_mean(name, columns.names, f"there are {', '.join(columns.names)}")
                raise OptionError(
                    f"{format_name}: 'timeUnits' names {name!r}, which is no column; {hint}"
                )

    def check_records(self, records: pa.Schema, format_name: str) -> None:
        """Refuse rows that are not records of Kafka.

        Raises:
            OptionError: If `key` or `value` is missing or neither binary nor text.
        """
        for name in ("key", "value"):
            kind = records.field(name).type if name in records.names else None
            if kind is None or not (pa.types.is_binary(kind) or pa.types.is_string(kind)):
                found = "is missing" if kind is None else f"is {kind}"
                raise OptionError(
                    f"{format_name}: 'changeFormat' needs Kafka's columns key and value, and "
                    f"column {name!r} {found}: write the rows as krishiv-kafka or Spark's kafka "
                    "returns them, without valueFormat"
                )
