"""The settings of a cluster: Kafka's own, as users of Spark's connector write them.

Names are those of Kafka's Java clients, with or without the prefix ``kafka.``. kafka-python
implements TLS, SASL, back-off and time limits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from os.path import isfile
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from krishiv_spark.kafka.jaas import parse_extensions, parse_login
from krishiv_spark.kafka.oauth_login import (
    KNOWN_CLASSES,
    OAuthLogin,
    parse_class,
    parse_command,
    parse_token_url,
    parse_yes_or_no,
)
from krishiv_spark.kafka.schemas.registry import is_secret
from krishiv_spark.kafka.security import (
    PROTOCOLS,
    check_security,
    check_store_type,
    parse_file_name,
    parse_host_check,
    parse_mechanism,
    parse_one_of,
    parse_store,
)
from krishiv_spark.messages.suggestions import suggest
from krishiv_spark.options import Options

__all__ = ["KafkaConfig", "KafkaOptions"]

_NO_ASSERTION = (
    "a login with a signed assertion does not work here: have "
    "'kafka.sasl.oauthbearer.token.command' print a token"
)
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
    "sasl.oauthbearer.assertion.algorithm": _NO_ASSERTION,
    "sasl.oauthbearer.assertion.file": _NO_ASSERTION,
    "sasl.oauthbearer.assertion.private.key.file": _NO_ASSERTION,
    "sasl.oauthbearer.assertion.template.file": _NO_ASSERTION,
    "security.providers": "security providers are Java classes, which cannot run here",
}
_UNUSED = frozenset(
    {
        "sasl.login.refresh.buffer.seconds",
        "sasl.login.refresh.min.period.seconds",
        "sasl.login.refresh.window.factor",
        "sasl.login.refresh.window.jitter",
        "sasl.login.retry.backoff.max.ms",
        "sasl.login.retry.backoff.ms",
        "sasl.oauthbearer.scope.claim.name",
        "sasl.oauthbearer.sub.claim.name",
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
"""Settings of the Java clients that have no effect here and do no harm."""


_SECRET = re.compile(r"password$|client\.secret$|^(kafka\.)?sasl\.jaas\.config$")


_SECRET_VALUES = (
    "oauth_client_secret",
    "sasl_plain_password",
    "ssl_keystore_password",
    "ssl_password",
    "ssl_truststore_password",
)
"""Names in kafka-python, and of this package, of values that are secrets."""


def _parse_servers(text: str) -> list[str]:
    servers = [server.strip() for server in text.split(",") if server.strip()]
    if not servers:
        raise ValueError("give at least one broker, as host:port")
    return servers


def _parse_millis(text: str) -> int:
    if not text.strip().isdecimal():
        raise ValueError(f"{text!r} is not a whole number of milliseconds: write a whole number")
    return int(text)


_Parser = Callable[[str], Any]
_LOOKUPS = ("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only")
_NAMES: dict[str, tuple[str, _Parser]] = {
    "bootstrap.servers": ("bootstrap_servers", _parse_servers),
    "client.id": ("client_id", str.strip),
    "client.dns.lookup": ("client_dns_lookup", parse_one_of(_LOOKUPS)),
    "security.protocol": ("security_protocol", parse_one_of(PROTOCOLS, upper=True)),
    "ssl.truststore.location": ("ssl_cafile", parse_store),
    "ssl.cafile": ("ssl_cafile", parse_store),
    "ssl.ca.location": ("ssl_cafile", parse_store),
    "ssl.truststore.type": ("", check_store_type),
    "ssl.keystore.location": ("ssl_certfile", parse_store),
    "ssl.certfile": ("ssl_certfile", parse_store),
    "ssl.keystore.type": ("", check_store_type),
    "ssl.truststore.password": ("ssl_truststore_password", str),
    "ssl.keystore.password": ("ssl_keystore_password", str),
    "ssl.keyfile": ("ssl_keyfile", parse_store),
    "ssl.key.password": ("ssl_password", str),
    "ssl.crlfile": ("ssl_crlfile", parse_file_name),
    "ssl.endpoint.identification.algorithm": ("ssl_check_hostname", parse_host_check),
    "sasl.mechanism": ("sasl_mechanism", parse_mechanism),
    "sasl.username": ("sasl_plain_username", str),
    "sasl.plain.username": ("sasl_plain_username", str),
    "sasl.password": ("sasl_plain_password", str),
    "sasl.plain.password": ("sasl_plain_password", str),
    "sasl.kerberos.service.name": ("sasl_kerberos_service_name", str.strip),
    "sasl.oauthbearer.token.endpoint.url": ("oauth_url", parse_token_url),
    "sasl.oauthbearer.token.command": ("oauth_command", parse_command),
    "sasl.oauthbearer.client.credentials.client.id": ("oauth_client_id", str.strip),
    "sasl.oauthbearer.client.credentials.client.secret": ("oauth_client_secret", str),
    "sasl.oauthbearer.scope": ("oauth_scope", str.strip),
    "sasl.oauthbearer.extensions": ("oauth_extensions", parse_extensions),
    "sasl.oauthbearer.header.urlencode": ("oauth_is_encoded", parse_yes_or_no),
    "sasl.login.connect.timeout.ms": ("oauth_connect_ms", _parse_millis),
    "sasl.login.read.timeout.ms": ("oauth_read_ms", _parse_millis),
    "https.ca.location": ("oauth_ca_file", parse_file_name),
    **{name: ("", partial(parse_class, name)) for name in KNOWN_CLASSES},
    "request.timeout.ms": ("request_timeout_ms", _parse_millis),
    "default.api.timeout.ms": ("default_api_timeout_ms", _parse_millis),
    "reconnect.backoff.ms": ("reconnect_backoff_ms", _parse_millis),
    "reconnect.backoff.max.ms": ("reconnect_backoff_max_ms", _parse_millis),
    "connections.max.idle.ms": ("connections_max_idle_ms", _parse_millis),
    "metadata.max.age.ms": ("metadata_max_age_ms", _parse_millis),
    "socket.connection.setup.timeout.ms": ("socket_connection_setup_timeout_ms", _parse_millis),
    "socket.connection.setup.timeout.max.ms": (
        "socket_connection_setup_timeout_max_ms",
        _parse_millis,
    ),
}
"""By a setting's Java name: its name in kafka-python, and the parser of its text."""

_AT_START_S = 10.0

# kafka-python's own defaults refuse a response of more than 1 MB, which one batch of records may
# have, allow 5 requests in flight, and wait up to half a minute before a new connection.
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
    """The settings of one cluster. Equal ones share a client. They are sent to the executors.

    Attributes:
        settings: Kafka's settings as the user gave them; never shown, because some are secret.
    """

    settings: tuple[tuple[str, str], ...] = field(repr=False)

    @classmethod
    def from_settings(cls, settings: Mapping[str, str]) -> KafkaConfig:
        """Read settings by their names in Kafka, with or without the prefix ``kafka.``.

        Raises:
            ValueError: If one is unknown, refused, or has a bad value; the text names it and
                never a value that may be secret.
        """
        plain: dict[str, str] = {}
        for key, text in settings.items():
            name = key.lower().removeprefix("kafka.")
            if plain.setdefault(name, text) != text:
                raise ValueError(f"option 'kafka.{name}' is given twice, with different values")
        config = cls(tuple(sorted(plain.items())))
        # A bad value is refused here, and not when a task connects.
        _ = config.values
        return config

    @cached_property
    def values(self) -> dict[str, Any]:
        """Keyword arguments for kafka-python; some are secret."""
        given: dict[str, Any] = {}
        for key, text in self.settings:
            for name, value in _parse(key, text).items():
                if given.setdefault(name, value) != value:
                    raise ValueError(f"option 'kafka.{key}' contradicts another name of it")
        found = {**_DEFAULTS, **given}
        if "bootstrap_servers" not in found:
            raise ValueError("option 'kafka.bootstrap.servers' is required")
        check_security(dict(self.settings), found)
        return found

    def secrets(self) -> set[str]:
        """Return the passwords among the settings, for texts that must not show them.

        A password in ``sasl.jaas.config`` is returned alone too, without quotes and escapes.
        """
        given = {text for key, text in self.settings if _SECRET.search(key)}
        parsed = {str(self.values[name]) for name in _SECRET_VALUES if name in self.values}
        login = set[str]() if self.login is None else self.login.secrets()
        return (given | parsed | login) - {""}

    @cached_property
    def login(self) -> OAuthLogin | None:
        """The source of the tokens of a login with OAUTHBEARER; None for another login."""
        return OAuthLogin.from_values(self.values)

    def find_missing_file(self) -> str | None:
        """Return a setting that names a file missing on this machine; None if there is none."""
        for key, text in self.settings:
            _, parse = _NAMES.get(key, ("", None))
            if parse in {parse_store, parse_file_name} and not isfile(text.strip()):
                return f"'kafka.{key}' = {text.strip()}"
        return None

    @property
    def bootstrap(self) -> str:
        """The brokers to contact first, for messages."""
        return ",".join(self.values["bootstrap_servers"])

    @property
    def api_timeout_s(self) -> float:
        """Time limit of a request with its repetitions (``default.api.timeout.ms``)."""
        return float(self.values["default_api_timeout_ms"]) / 1000

    def connect_timeout_s(self, *, at_start: bool) -> float:
        """Return the time limit for the first contact with the cluster.

        Args:
            at_start: True if no work is in progress yet: then an early error helps more.
        """
        is_given = any(name == "default.api.timeout.ms" for name, _ in self.settings)
        return (
            min(self.api_timeout_s, _AT_START_S)
            if at_start and not is_given
            else self.api_timeout_s
        )

    @property
    def metadata_age_s(self) -> float:
        """Maximum age of cached metadata (``metadata.max.age.ms``)."""
        return float(self.values["metadata_max_age_ms"]) / 1000

    def __getstate__(self) -> dict[str, Any]:
        # Without the cached values, which every process derives from the settings.
        return {"settings": self.settings}


def _parse(key: str, text: str) -> dict[str, Any]:
    if key in _REFUSED:
        raise ValueError(f"option 'kafka.{key}' cannot be set: {_REFUSED[key]}")
    if key == "sasl.jaas.config":
        return parse_login(text)
    if key in _UNUSED:
        return {}
    if key not in _NAMES:
        raise ValueError(_explain_unknown(key))
    name, parse = _NAMES[key]
    try:
        return {name: parse(text)} if name else dict(parse(text) or {})
    except ValueError as error:
        raise ValueError(f"option 'kafka.{key}': {error}") from None


def _explain_unknown(key: str) -> str:
    known = [*_NAMES, *_REFUSED, *_UNUSED, "sasl.jaas.config"]
    near = suggest(key, known)
    hint = f"; did you mean 'kafka.{near}'?" if near else ""
    return f"unknown option 'kafka.{key}'{hint}"


def _to_config(given: object) -> object:
    return KafkaConfig.from_settings(given) if isinstance(given, Mapping) else given


class KafkaOptions(Options):
    """The options that source and sink share: those of the cluster."""

    collects_prefixes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "kafka": ("kafka.", "bootstrap.servers", "security.protocol", "ssl.", "sasl."),
    }

    @classmethod
    def secret_keys(cls, given: Mapping[str, str]) -> set[str]:
        """Return the keys of passwords too, as `Options.secret_keys`."""
        found = {key for key, text in given.items() if is_secret(key, text)}
        return (
            super().secret_keys(given)
            | found
            | {key for key in given if _SECRET.search(key.lower())}
        )

    kafka: Annotated[KafkaConfig, BeforeValidator(_to_config)] = Field(
        validation_alias="kafka.bootstrap.servers",
        description="Kafka brokers to contact first, `host:port,...`.",
    )
