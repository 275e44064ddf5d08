"""A schema registry with Confluent's interface, through the vendor's own client. Driver, executor.

The client (`confluent-kafka[schemaregistry]`, extra `registry`) has the logins, TLS, retries of busy
servers and the redirects; here are the waiting for a registry that is away, what is believed of its
answers, and errors that name the registry, the subject or id, and what to do.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, TypeVar

from krishiv_spark.errors import KrishivError, OptionError, SchemaError
from krishiv_spark.messages.redaction import redact
from krishiv_spark.messages.suggestions import did_you_mean
from krishiv_spark.runtime.retry import Backoff

__all__ = ["RegisteredSchema", "RegistrySettings", "SchemaRegistry", "open_registry"]

_log = logging.getLogger(__name__)

Result = TypeVar("Result")

KNOWN_SETTINGS = (
    "url",
    "basic.auth.user.info",
    "bearer.auth.credentials.source",
    "bearer.auth.token",
    "bearer.auth.logical.cluster",
    "bearer.auth.identity.pool.id",
    "bearer.auth.client.id",
    "bearer.auth.client.secret",
    "bearer.auth.scope",
    "bearer.auth.issuer.endpoint.url",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.key.password",
    "proxy",
)
"""Settings of the client that users may give, each as an option ``registry.<name>``."""

SECRET_SETTINGS = ("basic.auth.user.info", "bearer.auth.token", "bearer.auth.client.secret", "ssl.key.password")

_REQUEST_S = 10.0
"""Seconds that one request may take: a registry that does not answer by then is away."""
_LONGEST_PAUSE_S = 5.0
_FIRST_PAUSE_S = 0.1
_NOT_FOUND = 404
_REFUSED = {400, 401, 403, 407, 409, 422}
_KINDS = {"AVRO": "avro", "PROTOBUF": "protobuf", "JSON": "json-schema"}


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema of the registry.

    Attributes:
        id: Its number, by which records name it.
        kind: "avro", "protobuf" or "json-schema".
        text: The schema.
        references: The texts of the schemas that it refers to, by name, each after those that it
            needs itself.
        version: Its version in the subject by which it was found; 0 if it was found by its id.
    """

    id: int
    kind: str
    text: str
    references: Mapping[str, str] = field(default_factory=dict)
    version: int = 0

    @property
    def fingerprint(self) -> str:
        """A digest of the schema with all that it refers to."""
        parts = [self.kind, self.text, *(f"{k}={v}" for k, v in self.references.items())]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class RegistrySettings:
    """Where a registry is, and how to log in.

    Attributes:
        values: Settings of the client, by name and sorted; with ``url``.
        timeout_s: How long a registry that is away is waited for.
    """

    values: tuple[tuple[str, str], ...] = field(repr=False)
    timeout_s: float

    @classmethod
    def from_options(cls, given: Mapping[str, str], timeout_s: float) -> RegistrySettings:
        """Check the settings.

        Raises:
            OptionError: If there is no ``url``, or a setting is unknown; it names the nearest.
        """
        for name in given:
            if name not in KNOWN_SETTINGS:
                known = did_you_mean(name, KNOWN_SETTINGS)
                raise OptionError(f"option 'registry.{name}' is unknown{known}")
        if not given.get("url"):
            raise OptionError("option 'registry.url' is missing: the address of the schema registry")
        return cls(tuple(sorted(given.items())), timeout_s)

    @property
    def url(self) -> str:
        """The address, without a login."""
        return redact(dict(self.values)["url"], self._secrets)

    @property
    def _secrets(self) -> tuple[str, ...]:
        given = dict(self.values)
        return tuple(given[name] for name in SECRET_SETTINGS if given.get(name))

    def hide(self, text: str) -> str:
        """Return a text without the secrets of the settings."""
        return redact(text, self._secrets)


class SchemaRegistry:
    """A registry, with the schemas that were found in it.

    Args:
        settings: Where it is.
    """

    def __init__(self, settings: RegistrySettings) -> None:
        self._settings = settings
        self._client = _create_client(settings)
        self._by_id: dict[int, RegisteredSchema] = {}

    def find(self, schema_id: int) -> RegisteredSchema:
        """Return the schema of an id; a registry that is away is waited for.

        Raises:
            SchemaError: If the registry has no such id.
            KrishivError: If it refuses the request, or is away for longer than the timeout.
        """
        found = self._by_id.get(schema_id)
        if found is None:
            raw = self._ask(f"the schema {schema_id}", lambda: self._client.get_schema(schema_id))
            found = self._by_id[schema_id] = self._read(schema_id, raw, 0)
        return found

    def find_version(self, subject: str, version: int | Literal["latest"]) -> RegisteredSchema:
        """Return a version of a subject.

        Raises:
            SchemaError: If the registry has no such subject or version.
            KrishivError: As for `find`.
        """
        what = f"version {version} of the subject {subject!r}"
        found = self._ask(what, lambda: self._client.get_version(subject, version))
        return self._read(found.schema_id, found.schema, found.version)

    def _read(self, schema_id: int, raw: Any, version: int) -> RegisteredSchema:
        references: dict[str, str] = {}
        self._collect(raw.references or [], references)
        kind = _KINDS.get((raw.schema_type or "AVRO").upper(), "")
        found = RegisteredSchema(schema_id, kind, raw.schema_str, references, version)
        known = self._by_id.get(schema_id)
        if known is not None and known.fingerprint != found.fingerprint:
            raise SchemaError(
                f"the schema registry {self._settings.url} has another schema for the id {schema_id} "
                "than before: an id never changes, so this is another registry, or one that was "
                "restored from an older copy"
            )
        return found

    def _collect(self, references: Any, found: dict[str, str]) -> None:
        """Add the texts of references, those that each needs first."""
        for each in references:
            if each.name in found:
                continue
            what = f"version {each.version} of the subject {each.subject!r}"
            raw = self._ask(what, lambda r=each: self._client.get_version(r.subject, r.version))
            self._collect(raw.schema.references or [], found)
            found[each.name] = raw.schema.schema_str

    def _ask(self, what: str, request: Callable[[], Result]) -> Result:
        """Send a request until the registry answers, or the time is up."""
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        backoff = Backoff(self._settings.timeout_s, _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        is_told = False
        while True:
            try:
                return request()
            except SchemaRegistryError as error:
                if error.http_status_code == _NOT_FOUND:
                    raise SchemaError(
                        f"the schema registry {self._settings.url} does not have {what}"
                    ) from None
                if error.http_status_code in _REFUSED:
                    raise self._refused(what, error) from None
                last = self._settings.hide(str(error))
            except Exception as error:  # the client has no base class  # noqa: BLE001
                last = self._settings.hide(f"{type(error).__name__}: {error}")
            if not is_told:
                _log.warning(
                    "waiting for the schema registry %s, to get %s: %s", self._settings.url, what, last
                )
                is_told = True
            if not backoff.pause():
                raise KrishivError(
                    f"the schema registry {self._settings.url} was asked for {what} for "
                    f"{self._settings.timeout_s:.0f} s in vain: {last}. The query continues from "
                    "its checkpoint when the registry answers; 'registry.timeout' is how long it waits"
                )

    def _refused(self, what: str, error: Any) -> KrishivError:
        message = self._settings.hide(str(error.error_message))
        login = ""
        if error.http_status_code in {401, 403}:
            login = ". Set 'registry.basic.auth.user.info' or 'registry.bearer.auth.…'"
        return KrishivError(
            f"the schema registry {self._settings.url} refuses to give {what} (HTTP "
            f"{error.http_status_code}): {message}{login}"
        )


def _create_client(settings: RegistrySettings) -> Any:
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient
    except ImportError as error:
        raise OptionError(
            f"the option 'registry.url' needs a library that is missing ({error}): "
            "pip install 'krishiv-spark[registry]'"
        ) from None
    conf: dict[str, Any] = {**dict(settings.values), "timeout": _REQUEST_S, "max.retries": 0}
    try:
        return SchemaRegistryClient(conf)
    except (OSError, TypeError, ValueError) as error:
        raise OptionError(
            f"the options of the schema registry are not valid: {settings.hide(str(error))}"
        ) from None


@lru_cache(maxsize=16)
def open_registry(settings: RegistrySettings) -> SchemaRegistry:
    """Return the registry of some settings, one per process: tasks share its schemas."""
    return SchemaRegistry(settings)
