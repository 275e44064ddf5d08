"""How a cluster is reached: Kafka's own settings, as users of Spark's connector write them.

Names are those of Kafka's Java clients, with ``kafka.`` in front or, as Krishiv has it, without.
TLS, SASL, back-off and time limits are those of kafka-python.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from krishiv_spark.nearest import nearest
from krishiv_spark.options import Options

__all__ = ["Connection", "KafkaOptions"]

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

_PEM_ONLY = (
    "only PEM files can be read here: convert the store (keytool, openssl) and name the file"
)


def _pem(text: str) -> None:
    if text.upper() != "PEM":
        raise ValueError(_PEM_ONLY)


def _path(text: str) -> str:
    if text.lower().endswith((".jks", ".p12", ".pfx")):
        raise ValueError(_PEM_ONLY)
    return text


def _checks_names(text: str) -> bool:
    return text.strip().lower() == "https"


def _servers(text: str) -> list[str]:
    servers = [server.strip() for server in text.split(",") if server.strip()]
    if not servers:
        raise ValueError("give at least one broker, as host:port")
    return servers


_Reading = Callable[[str], Any]
_NAMES: dict[str, tuple[str, _Reading]] = {
    "bootstrap.servers": ("bootstrap_servers", _servers),
    "client.id": ("client_id", str),
    "client.dns.lookup": ("client_dns_lookup", str),
    "security.protocol": ("security_protocol", str.upper),
    "ssl.truststore.location": ("ssl_cafile", _path),
    "ssl.cafile": ("ssl_cafile", _path),
    "ssl.ca.location": ("ssl_cafile", _path),
    "ssl.truststore.type": ("", _pem),
    "ssl.keystore.location": ("ssl_certfile", _path),
    "ssl.certfile": ("ssl_certfile", _path),
    "ssl.keystore.type": ("", _pem),
    "ssl.keyfile": ("ssl_keyfile", _path),
    "ssl.key.password": ("ssl_password", str),
    "ssl.crlfile": ("ssl_crlfile", str),
    "ssl.endpoint.identification.algorithm": ("ssl_check_hostname", _checks_names),
    "sasl.mechanism": ("sasl_mechanism", str.upper),
    "sasl.username": ("sasl_plain_username", str),
    "sasl.plain.username": ("sasl_plain_username", str),
    "sasl.password": ("sasl_plain_password", str),
    "sasl.plain.password": ("sasl_plain_password", str),
    "sasl.kerberos.service.name": ("sasl_kerberos_service_name", str),
    "request.timeout.ms": ("request_timeout_ms", int),
    "default.api.timeout.ms": ("default_api_timeout_ms", int),
    "reconnect.backoff.ms": ("reconnect_backoff_ms", int),
    "reconnect.backoff.max.ms": ("reconnect_backoff_max_ms", int),
    "connections.max.idle.ms": ("connections_max_idle_ms", int),
    "metadata.max.age.ms": ("metadata_max_age_ms", int),
    "socket.connection.setup.timeout.ms": ("socket_connection_setup_timeout_ms", int),
    "socket.connection.setup.timeout.max.ms": ("socket_connection_setup_timeout_max_ms", int),
}
"""By a setting's Java name: its name in kafka-python, and how its text is read."""

_DEFAULTS: dict[str, Any] = {
    "client_id": "krishiv-spark",
    "request_timeout_ms": 30_000,
    "default_api_timeout_ms": 60_000,
    "metadata_max_age_ms": 300_000,
    "reconnect_backoff_max_ms": 1_000,
    "receive_message_max_bytes": 2**30,
    "max_in_flight_requests_per_connection": 64,
}
_MODULES = re.compile(r"\.(Plain|Scram)LoginModule\s")
_JAAS = re.compile(r"""\b(username|password)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([^\s;]+))""")


@dataclass(frozen=True)
class Connection:
    """How one cluster is reached. Equal ones share a client; it travels to the executors.

    Attributes:
        settings: Kafka's settings as they were given; never shown, since some are secret.
    """

    settings: tuple[tuple[str, str], ...] = field(repr=False)

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> Connection:
        """Read settings by their names in Kafka, with or without ``kafka.`` in front.

        Raises:
            ValueError: If one is unknown, refused, or has a bad value; the text names it and
                never a value that may be secret.
        """
        plain = {key.lower().removeprefix("kafka."): text for key, text in settings.items()}
        made = cls(tuple(sorted(plain.items())))
        _ = made.values
        return made

    @cached_property
    def values(self) -> dict[str, Any]:
        """Keyword arguments for kafka-python; some are secret."""
        found = dict(_DEFAULTS)
        for key, text in self.settings:
            found.update(_read(key, text))
        if "bootstrap_servers" not in found:
            raise ValueError("option 'kafka.bootstrap.servers' is required")
        if found.get("sasl_mechanism") and "security_protocol" not in found:
            raise ValueError("option 'kafka.sasl.mechanism' needs 'kafka.security.protocol'")
        return found

    @property
    def bootstrap(self) -> str:
        """The brokers that are asked first, for messages."""
        return ",".join(self.values["bootstrap_servers"])

    @property
    def patience_s(self) -> float:
        """How long something is tried until it counts as failed (``default.api.timeout.ms``)."""
        return float(self.values["default_api_timeout_ms"]) / 1000

    @property
    def metadata_age_s(self) -> float:
        """How old may be what is known of the cluster (``metadata.max.age.ms``)."""
        return float(self.values["metadata_max_age_ms"]) / 1000

    def __getstate__(self) -> dict[str, Any]:
        return {"settings": self.settings}


def _read(key: str, text: str) -> dict[str, Any]:
    if key in _REFUSED:
        raise ValueError(f"option 'kafka.{key}' cannot be set: {_REFUSED[key]}")
    if key == "sasl.jaas.config":
        return _login(text)
    if key in _UNUSED:
        return {}
    if key not in _NAMES:
        raise ValueError(_unknown(key))
    name, reading = _NAMES[key]
    try:
        return {name: reading(text)} if name else dict(reading(text) or {})
    except ValueError as error:
        raise ValueError(f"option 'kafka.{key}': {_reason(error, reading)}") from None


def _reason(error: ValueError, reading: _Reading) -> str:
    return "a whole number is needed" if reading is int else str(error)


def _login(text: str) -> dict[str, str]:
    """User and password out of the configuration of a Java login module."""
    found = {match[1]: next(filter(None, match.groups()[1:]), "") for match in _JAAS.finditer(text)}
    if not _MODULES.search(text) or found.keys() != {"username", "password"}:
        raise ValueError(
            "option 'kafka.sasl.jaas.config': only PlainLoginModule and ScramLoginModule with "
            "username and password are understood here; its value is not shown"
        )
    unescaped = {key: re.sub(r"\\(.)", r"\1", value) for key, value in found.items()}
    return {f"sasl_plain_{key}": value for key, value in unescaped.items()}


def _unknown(key: str) -> str:
    known = [*_NAMES, *_REFUSED, *_UNUSED, "sasl.jaas.config"]
    near = nearest(key, known)
    hint = f"; did you mean 'kafka.{near}'?" if near else ""
    return f"unknown option 'kafka.{key}'{hint}"


def _connection(given: object) -> object:
    return Connection.of(given) if isinstance(given, Mapping) else given


class KafkaOptions(Options):
    """What source and sink have in common: the cluster."""

    gathers: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "kafka": ("kafka.", "bootstrap.servers", "security.protocol", "ssl.", "sasl."),
    }

    kafka: Annotated[Connection, BeforeValidator(_connection)] = Field(
        validation_alias="kafka.bootstrap.servers",
        description="Brokers that are asked first, `host:port,...`. Other settings of the cluster "
        "are given in the same way: `kafka.security.protocol`, `kafka.sasl.jaas.config`, ...",
    )
