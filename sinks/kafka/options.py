"""Options of the sink."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator
from typing_extensions import Self

from krishiv_spark.kafka.config import KafkaOptions
from krishiv_spark.kafka.schemas.registry import REGISTERED_FORMS, Part, RegistrySettings
from krishiv_spark.sinks.options import LogPlaceOptions

__all__ = ["KafkaSinkOptions", "SinkRegistry"]

_MAX_TIMEOUT_MS = 900_000
"""A broker's own default for ``transaction.max.timeout.ms``."""


_STRATEGIES = ("topic", "record", "topic-record")
_CLASSES = {
    "TopicNameStrategy": "topic",
    "RecordNameStrategy": "record",
    "TopicRecordNameStrategy": "topic-record",
}
"""Names of Confluent's classes, which users may paste."""

_STRATEGY, _REGISTERS = "subject.name.strategy", ("auto.register", "auto.register.schemas")


@dataclass(frozen=True)
class SinkRegistry:
    """A schema registry, and how the sink uses it.

    Attributes:
        registry: Its address and login.
        strategy: How subjects are named: "topic", "record" or "topic-record".
        registers: True if the planner registers schemas.
        versioned: The parts whose schema is a version that the subject has.
    """

    registry: RegistrySettings
    strategy: str = "topic"
    registers: bool = True
    versioned: tuple[Part, ...] = ()

    @classmethod
    def from_options(cls, given: Mapping[str, str]) -> SinkRegistry:
        """Read options whose names begin with ``registry.``.

        Raises:
            ValueError: As `RegistrySettings.from_options`.
        """
        own = (_STRATEGY, *_REGISTERS)
        found = {key.lower().removeprefix("registry."): text for key, text in given.items()}
        strategy = found.get(_STRATEGY, "topic").strip()
        strategy = _CLASSES.get(strategy.rpartition(".")[2], strategy.lower())
        if strategy not in _STRATEGIES:
            raise ValueError(
                f"option 'registry.{_STRATEGY}' = {found[_STRATEGY]!r}: there are "
                f"{', '.join(_STRATEGIES)}"
            )
        texts = {found[name].strip().lower() for name in _REGISTERS if name in found} or {"true"}
        if not texts <= {"true", "false"} or len(texts) > 1:
            raise ValueError("option 'registry.auto.register': write true or false")
        versioned: list[Part] = ["value"] if "version" in found else []
        if "key.version" in found:
            versioned.append("key")
        settings = RegistrySettings.from_options(given, own)
        settings.check_wire()
        return cls(settings, strategy, texts == {"true"}, tuple(versioned))

    def secrets(self) -> set[str]:
        """Return the secrets of the login."""
        return self.registry.secrets()


def _parse_registry(given: object) -> object:
    return SinkRegistry.from_options(given) if isinstance(given, Mapping) else given


class KafkaSinkOptions(KafkaOptions, LogPlaceOptions):
    """Options of the sink. Rows have the columns value, key, headers, topic, partition, timestamp.

    Attributes:
        topic: Topic of all rows; takes precedence over the column.
        delivery: Name of one of the two writers.
        id_prefix: Prefix of transactional ids.
        timeout_ms: Time-out of a transaction, which must cover the longest batch.
        compression: Codec of batches.
        batch_bytes: Size of a batch before compression.
        value_format: Form of values.
        key_format: Form of keys.
        registry: The schema registry.
        value_schema: Schema of values.
        key_schema: Schema of keys.
        on_lost_transactions: Action after brokers have aborted a part of a committed epoch.
    """

    collects_prefixes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **KafkaOptions.collects_prefixes,
        **LogPlaceOptions.collects_prefixes,
        "registry": ("registry.",),
    }

    topic: str | None = Field(
        default=None,
        min_length=1,
        description="Topic for all rows. Takes precedence over a `topic` column.",
    )
    delivery: Literal["exactly-once", "at-least-once"] = Field(
        default="exactly-once",
        description="Transactions that the driver ends (`exactly-once`), or an idempotent "
        "producer (`at-least-once`).",
    )
    id_prefix: str = Field(
        default="krishiv",
        min_length=1,
        validation_alias="kafka.transactional.id",
        description="Prefix of the transactional ids: `<prefix>.<query id>.<task>.<slot>`.",
    )
    timeout_ms: int = Field(
        default=_MAX_TIMEOUT_MS,
        gt=0,
        validation_alias="kafka.transaction.timeout.ms",
        description="Transaction time-out in milliseconds, longer than the longest batch. The "
        "brokers' `transaction.max.timeout.ms` limits it.",
    )
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = Field(
        default="none",
        validation_alias="kafka.compression.type",
        description="Compression codec of the batches.",
    )
    batch_bytes: int = Field(
        default=1_000_000,
        ge=0,
        validation_alias="kafka.batch.size",
        description="Maximum size of a batch in bytes, before compression, within the topic's "
        "`max.message.bytes`.",
    )
    value_format: Literal["raw", "avro", "protobuf", "json-schema"] = Field(
        default="raw",
        description="Write the column `value` as bytes (`raw`), or as a record of a schema "
        "registry (the other forms): [kafka-schemas.md](kafka-schemas.md#write).",
    )
    key_format: Literal["raw", "avro", "protobuf", "json-schema"] = Field(
        default="raw", description="The same for the column `key`."
    )
    registry: Annotated[SinkRegistry | None, BeforeValidator(_parse_registry)] = Field(
        default=None,
        validation_alias="registry.url",
        description="Address of a [schema registry](kafka-schemas.md#the-registry), whose other "
        "settings have the prefix `registry.` too.",
    )
    value_schema: str | None = Field(
        default=None,
        description="Schema of the values: JSON, or the text of a `.proto` file. Default: derived "
        "from the columns.",
    )
    key_schema: str | None = Field(
        default=None, description="Schema of the keys. Default: derived from the column."
    )
    on_lost_transactions: Literal["repair", "error"] = Field(
        default="repair",
        description="Action if brokers aborted a part of a committed epoch: write it again if "
        "its rows are the same (`repair`), or fail (`error`); see "
        "[time-outs](kafka-operations.md#time-outs).",
    )

    @property
    def registered_parts(self) -> tuple[Part, ...]:
        """The parts of a record that are written with schemas of a registry."""
        parts: tuple[Part, Part] = ("value", "key")
        return tuple(part for part in parts if self.form_of(part) != "raw")

    def form_of(self, part: Part) -> str:
        """Return the form of values or keys."""
        return self.key_format if part == "key" else self.value_format

    def given_schema(self, part: Part) -> str | None:
        """Return the schema of a part that the user has given."""
        return self.key_schema if part == "key" else self.value_schema

    @model_validator(mode="after")
    def _agree(self) -> Self:
        parts: tuple[Part, Part] = ("value", "key")
        for part in parts:
            given = self.given_schema(part) is not None
            versioned = self.registry is not None and part in self.registry.versioned
            version = "registry.version" if part == "value" else "registry.key.version"
            if part in self.registered_parts and self.registry is None:
                raise ValueError(
                    f"option '{part}Format' = {self.form_of(part)!r} needs the option "
                    "'registry.url'"
                )
            if given and part not in self.registered_parts:
                raise ValueError(
                    f"option '{part}Schema' needs the option '{part}Format', of "
                    f"{', '.join(REGISTERED_FORMS)}"
                )
            if given and versioned:
                raise ValueError(
                    f"option '{part}Schema' and '{version}' both name the schema: set one of them"
                )
        if self.registry is not None and not self.registered_parts:
            raise ValueError(
                "option 'registry.url' needs the option 'valueFormat' or 'keyFormat', of "
                f"{', '.join(REGISTERED_FORMS)}"
            )
        if self.registry is not None:
            self.registry.registry.check_messages(self.value_format, self.key_format)
        return self
