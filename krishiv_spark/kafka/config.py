"""How a cluster is reached: Kafka's own settings, as users of Spark's connector write them.

Names are those of Kafka's Java clients, with ``kafka.`` in front or, as Krishiv has it, without.
TLS, SASL, back-off and time limits are those of kafka-python.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from os.path import isfile
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from krishiv_spark.kafka.security import (
    PROTOCOLS,
    check_security,
    checks_names,
    file_name,
    login,
    mechanism,
    one_of,
    pem,
    pem_file,
)
from krishiv_spark.messages.suggestions import suggest
from krishiv_spark.options import Options

__all__ = ["KafkaConfig", "KafkaOptions"]

_REFUSED = {
    "auto.offset.reset": "use the option 'startingOffsets'",
    "key.deserializer": "keys are binary: use Spark's functions to read them",
    "value.deserializer": "values are binary: use Spark's functions to read them",
    "key.serializer": "keys are strings or binary: use Spark's functions to write them",
    "value.serializer": "values are strings or binary: use Spark's functions to write them",
    "enable.auto.commit": "Spark's checkpoint keeps the offsets",
    "interceptor.classes": "interceptors are Java classes, which cannot run here",
    "partitioner.class": "a partitioner is a Java class: use the column 'partition'",
    "acks": "every record is acknowledged by all in-sync replicas",
    "enable.idempotence": "the producer is always idempotent",
    "security.providers": "security providers are Java classes, which cannot run here",
}
_UNUSED = frozenset(
    {
        "auto.commit.interval.ms",
        "buffer.memory",
        "delivery.timeout.ms",
        "fetch.max.wait.ms",
        "fetch.min.bytes",
        "heartbeat.interval.ms",
        "linger.ms",
        "max.block.ms",
        "max.in.flight.requests.per.connection",
        "max.poll.interval.ms",
        "max.poll.records",
        "receive.buffer.bytes",
        "retries",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
        "send.buffer.bytes",
        "session.timeout.ms",
    }
)
"""Settings of the Java clients that change nothing here and harm nothing."""


_SECRET = re.compile(r"password$|^(kafka\.)?sasl\.jaas\.config$")


def _servers(text: str) -> list[str]:
    servers = [server.strip() for server in text.split(",") if server.strip()]
    if not servers:
        raise ValueError("give at least one broker, as host:port")
    return servers


def _millis(text: str) -> int:
    if not text.strip().isdecimal():
        raise ValueError(f"{text!r} is not a whole number of milliseconds: write a whole number")
    return int(text)


_Reading = Callable[[str], Any]
_LOOKUPS = ("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only")
_NAMES: dict[str, tuple[str, _Reading]] = {
    "bootstrap.servers": ("bootstrap_servers", _servers),
    "client.id": ("client_id", str.strip),
    "client.dns.lookup": ("client_dns_lookup", one_of(_LOOKUPS)),
    "security.protocol": ("security_protocol", one_of(PROTOCOLS, upper=True)),
    "ssl.truststore.location": ("ssl_cafile", pem_file),
    "ssl.cafile": ("ssl_cafile", pem_file),
    "ssl.ca.location": ("ssl_cafile", pem_file),
    "ssl.truststore.type": ("", pem),
    "ssl.keystore.location": ("ssl_certfile", pem_file),
    "ssl.certfile": ("ssl_certfile", pem_file),
    "ssl.keystore.type": ("", pem),
    "ssl.keyfile": ("ssl_keyfile", pem_file),
    "ssl.key.password": ("ssl_password", str),
    "ssl.crlfile": ("ssl_crlfile", file_name),
    "ssl.endpoint.identification.algorithm": ("ssl_check_hostname", checks_names),
    "sasl.mechanism": ("sasl_mechanism", mechanism),
    "sasl.username": ("sasl_plain_username", str),
    "sasl.plain.username": ("sasl_plain_username", str),
    "sasl.password": ("sasl_plain_password", str),
    "sasl.plain.password": ("sasl_plain_password", str),
    "sasl.kerberos.service.name": ("sasl_kerberos_service_name", str.strip),
    "request.timeout.ms": ("request_timeout_ms", _millis),
    "default.api.timeout.ms": ("default_api_timeout_ms", _millis),
    "reconnect.backoff.ms": ("reconnect_backoff_ms", _millis),
    "reconnect.backoff.max.ms": ("reconnect_backoff_max_ms", _millis),
    "connections.max.idle.ms": ("connections_max_idle_ms", _millis),
    "metadata.max.age.ms": ("metadata_max_age_ms", _millis),
    "socket.connection.setup.timeout.ms": ("socket_connection_setup_timeout_ms", _millis),
    "socket.connection.setup.timeout.max.ms": ("socket_connection_setup_timeout_max_ms", _millis),
}
"""By a setting's Java name: its name in kafka-python, and how its text is read."""

_AT_START_S = 10.0

# kafka-python gives up an answer of more than 1 MB, which one batch of records may have, lets 5
# requests be under way, and waits up to half a minute before it connects again.
_DEFAULTS: dict[str, Any] = {
    "client_id": "krishiv-spark",
    "request_timeout_ms": 30_000,
    "default_api_timeout_ms": 60_000,
    "metadata_max_age_ms": 300_000,
    "reconnect_backoff_max_ms": 1_000,
    "receive_message_max_bytes": 2**30,
    "max_in_flight_requests_per_connection": 64,
}


@dataclass(frozen=True)
class KafkaConfig:
    """How one cluster is reached. Equal ones share a client; it travels to the executors.

    Attributes:
        settings: Kafka's settings as they were given; never shown, since some are secret.
    """

    settings: tuple[tuple[str, str], ...] = field(repr=False)

    @classmethod
    def from_settings(cls, settings: Mapping[str, str]) -> KafkaConfig:
        """Read settings by their names in Kafka, with or without ``kafka.`` in front.

        Raises:
            ValueError: If one is unknown, refused, or has a bad value; the text names it and
                never a value that may be secret.
        """
        plain: dict[str, str] = {}
        for key, text in settings.items():
            name = key.lower().removeprefix("kafka.")
            if plain.setdefault(name, text) != text:
                raise ValueError(f"option 'kafka.{name}' is given twice, with different values")
        made = cls(tuple(sorted(plain.items())))
        # A bad value is refused here, and not when a task connects.
        _ = made.values
        return made

    @cached_property
    def values(self) -> dict[str, Any]:
        """Keyword arguments for kafka-python; some are secret."""
        given: dict[str, Any] = {}
        for key, text in self.settings:
            for name, value in _read(key, text).items():
                if given.setdefault(name, value) != value:
                    raise ValueError(f"option 'kafka.{key}' contradicts another name of it")
        found = {**_DEFAULTS, **given}
        if "bootstrap_servers" not in found:
            raise ValueError("option 'kafka.bootstrap.servers' is required")
        check_security(dict(self.settings), found)
        return found

    def secrets(self) -> set[str]:
        """Return the passwords among the settings, for texts that must not show them."""
        return {text for key, text in self.settings if _SECRET.search(key)} - {""}

    def find_missing_file(self) -> str | None:
        """The setting of a file that is not on this machine, with its name; None for none."""
        for key, text in self.settings:
            if _NAMES.get(key, ("", None))[1] in {pem_file, file_name} and not isfile(text.strip()):
                return f"'kafka.{key}' = {text.strip()}"
        return None

    @property
    def bootstrap(self) -> str:
        """The brokers that are asked first, for messages."""
        return ",".join(self.values["bootstrap_servers"])

    @property
    def api_timeout_s(self) -> float:
        """How long something is tried until it counts as failed (``default.api.timeout.ms``)."""
        return float(self.values["default_api_timeout_ms"]) / 1000

    def connect_timeout_s(self, *, at_start: bool) -> float:
        """How long the cluster is waited for until it counts as not to be reached.

        Args:
            at_start: Whether nothing is under way yet, so that a clear error soon helps more.
        """
        is_given = any(name == "default.api.timeout.ms" for name, _ in self.settings)
        return (
            min(self.api_timeout_s, _AT_START_S)
            if at_start and not is_given
            else self.api_timeout_s
        )

    @property
    def metadata_age_s(self) -> float:
        """How old may be what is known of the cluster (``metadata.max.age.ms``)."""
        return float(self.values["metadata_max_age_ms"]) / 1000

    def __getstate__(self) -> dict[str, Any]:
        # Without what was made of them, which every process makes for itself.
        return {"settings": self.settings}


def _read(key: str, text: str) -> dict[str, Any]:
    if key in _REFUSED:
        raise ValueError(f"option 'kafka.{key}' cannot be set: {_REFUSED[key]}")
    if key == "sasl.jaas.config":
        return login(text)
    if key in _UNUSED:
        return {}
    if key not in _NAMES:
        raise ValueError(_unknown(key))
    name, reading = _NAMES[key]
    try:
        return {name: reading(text)} if name else dict(reading(text) or {})
    except ValueError as error:
        raise ValueError(f"option 'kafka.{key}': {error}") from None


def _unknown(key: str) -> str:
    known = [*_NAMES, *_REFUSED, *_UNUSED, "sasl.jaas.config"]
    near = suggest(key, known)
    hint = f"; did you mean 'kafka.{near}'?" if near else ""
    return f"unknown option 'kafka.{key}'{hint}"


def _connection(given: object) -> object:
    return KafkaConfig.from_settings(given) if isinstance(given, Mapping) else given


class KafkaOptions(Options):
    """What source and sink have in common: the cluster."""

    gathers: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "kafka": ("kafka.", "bootstrap.servers", "security.protocol", "ssl.", "sasl."),
    }

    @classmethod
    def secret_keys(cls, given: Mapping[str, str]) -> set[str]:
        """See `Options`."""
        return super().secret_keys(given) | {key for key in given if _SECRET.search(key.lower())}

    kafka: Annotated[KafkaConfig, BeforeValidator(_connection)] = Field(
        validation_alias="kafka.bootstrap.servers",
        description="Kafka brokers to contact first, `host:port,...`. Other settings of the "
        "cluster are given in the same way: `kafka.security.protocol`, `kafka.sasl.jaas.config`, "
        "and so on.",
    )
