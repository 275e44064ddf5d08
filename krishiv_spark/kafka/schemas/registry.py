"""A schema registry with Confluent's interface, through the vendor's own client. Driver, executor.

The client (`confluent-kafka[schemaregistry]`, extra `registry`) handles logins and TLS. This module
waits for a registry that is away, checks that ids do not change their meaning, and raises errors
that name the registry, the subject or id, and the remedy.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from pydantic import TypeAdapter, ValidationError

from krishiv_spark.errors import KrishivError, OptionError, SchemaError
from krishiv_spark.kafka.schemas.avro.avro_types import AvroType, parse_avro_schema
from krishiv_spark.kafka.schemas.frames import WireFormat
from krishiv_spark.kafka.schemas.registered_schemas import RegisteredSchema
from krishiv_spark.kafka.schemas.schema_folder import SchemaFolder, is_folder
from krishiv_spark.messages.redaction import redact
from krishiv_spark.messages.suggestions import did_you_mean
from krishiv_spark.options import Duration
from krishiv_spark.runtime.retry import Backoff

__all__ = [
    "REGISTERED_FORMS",
    "Part",
    "RegistrySettings",
    "SchemaRegistry",
    "is_secret",
    "open_registry",
]

_log = logging.getLogger(__name__)

Result = TypeVar("Result")
Part: TypeAlias = Literal["key", "value"]
"""The part of a record that a schema describes."""

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

_OWN_SETTINGS = (
    "subject",
    "version",
    "message",
    "key.subject",
    "key.version",
    "key.message",
    "timeout",
    "wire.format",
)
"""Options of this package, which the client does not get."""

SECRET_SETTINGS = (
    "basic.auth.user.info",
    "bearer.auth.token",
    "bearer.auth.client.secret",
    "ssl.key.password",
)

_WITH_LOGIN = ("url", "proxy")
"""Settings that are addresses, of which each may contain a password."""

_AT_START_S, _IN_TASK_S = 30.0, 300.0
_REQUEST_S = 10.0
"""Seconds that one request may take: a registry that does not answer by then is away."""
_LONGEST_PAUSE_S = 5.0
_FIRST_PAUSE_S = 0.1
_NOT_FOUND = 404
_SCHEMA_NOT_FOUND = 40403
_REPLICA_S = 0.5
"""Time after which a replica of the registry knows an id that another one has given."""
_BETWEEN_PAUSES_S = 10.0
_CONFLICT = 409
_REFUSED = {400, 401, 403, 407, 409, 422}
_KINDS = {"AVRO": "avro", "PROTOBUF": "protobuf", "JSON": "json-schema"}
REGISTERED_FORMS = ("avro", "protobuf", "json-schema")
"""Forms of values and keys whose schemas are in a registry, as options name them."""


@dataclass(frozen=True)
class RegistrySettings:
    """The address of a registry, its login, and the schema to read.

    Attributes:
        values: Settings of the client, by name and sorted; with ``url``.
        subject: Name of the subject of values; None takes that of the topic.
        version: Version of the subject of values; None takes the newest.
        timeout_s: How long a registry that is away is waited for; None takes half a minute at the
            start of a query, where a clear error soon helps more, and five minutes in a task.
        key_subject: Name of the subject of keys; None takes that of the topic.
        key_version: Version of the subject of keys; None takes the newest.
        message: Name of the Protobuf message of values; None takes the first one of the schema.
        key_message: Name of the Protobuf message of keys; None takes the first one of the schema.
        wire: The location of a schema's id in records.
    """

    values: tuple[tuple[str, str], ...] = field(repr=False)
    subject: str | None = None
    version: int | None = None
    timeout_s: float | None = None
    key_subject: str | None = None
    key_version: int | None = None
    message: str | None = None
    key_message: str | None = None
    wire: WireFormat = "confluent"

    @classmethod
    def from_options(cls, given: Mapping[str, str], others: Sequence[str] = ()) -> RegistrySettings:
        """Read options whose names begin with ``registry.``.

        Args:
            given: The options by name, with the prefix or without it.
            others: Names that the caller knows and reads itself.

        Raises:
            ValueError: If there is no ``registry.url``, or an option is unknown or has a bad value;
                the text names it and no secret.
        """
        found = {key.lower().removeprefix("registry."): text for key, text in given.items()}
        known = (*_OWN_SETTINGS, *others)
        own = {name: found.pop(name) for name in known if name in found}
        for name in found:
            if name not in KNOWN_SETTINGS:
                names = [f"registry.{each}" for each in (*known, *KNOWN_SETTINGS)]
                raise ValueError(f"unknown option 'registry.{name}'; {_nearest(name, names)}")
        if not found.get("url"):
            raise ValueError("option 'registry.url' is missing: the address of the schema registry")
        wire = _read_wire(own.get("wire.format", "confluent"))
        if (wire == "glue") != is_folder(found["url"]):
            raise ValueError(
                "options 'registry.wire.format' = 'glue' and 'registry.url' = 'file:///…' belong "
                "together: AWS Glue's registry is read from a folder with its schemas"
            )
        return cls(
            tuple(sorted(found.items())),
            own.get("subject"),
            _read_version("version", own.get("version", "latest")),
            _read_timeout(own["timeout"]) if "timeout" in own else None,
            own.get("key.subject"),
            _read_version("key.version", own.get("key.version", "latest")),
            own.get("message"),
            own.get("key.message"),
            wire,
        )

    def secrets(self) -> set[str]:
        """Return the secrets among the settings, for texts that must not show them.

        A password is returned alone too, without the user before it.
        """
        given = dict(self.values)
        found = {given[name] for name in SECRET_SETTINGS if name in given}
        found.add(given.get("basic.auth.user.info", "").partition(":")[2])
        for name in _WITH_LOGIN:
            found |= {_find_password(each) for each in given.get(name, "").split(",")}
        return found - {""}

    def choose(self, part: Part) -> tuple[str | None, int | None]:
        """Return the subject and the version of values or keys, if the user has named them."""
        if part == "key":
            return self.key_subject, self.key_version
        return self.subject, self.version

    def choose_message(self, part: Part) -> str | None:
        """Return the name of the Protobuf message of values or keys, if the user has named it."""
        return self.key_message if part == "key" else self.message

    def check_messages(self, value_form: str, key_form: str) -> None:
        """Refuse the name of a message for another form than Protobuf, and Protobuf of AWS Glue.

        Raises:
            ValueError: If there is one.
        """
        if self.wire == "glue" and "protobuf" in {value_form, key_form}:
            raise ValueError(
                "option 'registry.wire.format' = 'glue' is for Avro and JSON Schema, and not for "
                "Protobuf"
            )
        for prefix, part, name, form in (
            ("", "value", self.message, value_form),
            ("key.", "key", self.key_message, key_form),
        ):
            if name is not None and form != "protobuf":
                raise ValueError(
                    f"option 'registry.{prefix}message' needs the option '{part}Format' = "
                    "'protobuf'"
                )

    def check_wire(self) -> None:
        """Refuse another form than Confluent's, for users of the registry that have only that.

        Raises:
            ValueError: If there is one.
        """
        if self.wire != "confluent":
            raise ValueError(
                f"option 'registry.wire.format' = {self.wire!r} is for the source of krishiv-kafka "
                "only: leave it out"
            )

    @property
    def url(self) -> str:
        """The address, without a login and a query, which may contain a key."""
        return self.hide(re.sub(r"[?#][^,]*", "", dict(self.values)["url"]))

    def hide(self, text: str) -> str:
        """Return a text without the secrets of the settings."""
        return redact(text, self.secrets())


def is_secret(option: str, text: str) -> bool:
    """Return True if an option of the registry, with its prefix, contains a secret."""
    name = option.lower().removeprefix("registry.")
    if name == option.lower():
        return False
    passwords = (_find_password(each) for each in text.split(",") if name in _WITH_LOGIN)
    return name in SECRET_SETTINGS or any(passwords)


def _find_password(address: str) -> str:
    """Return the password in an address; empty if there is none."""
    return address.rpartition("@")[0].rpartition("//")[2].partition(":")[2]


def _nearest(name: str, names: list[str]) -> str:
    return did_you_mean(f"registry.{name}", names, f"there are {', '.join(names)}")


def _read_version(name: str, text: str) -> int | None:
    if text.strip().lower() == "latest":
        return None
    if not text.strip().isdecimal() or int(text) == 0:
        raise ValueError(
            f"option 'registry.{name}' = {text!r}: write 'latest', or the number of a version"
        )
    return int(text)


def _read_wire(text: str) -> WireFormat:
    try:
        return TypeAdapter(WireFormat).validate_python(text.strip().lower())
    except ValidationError:
        names = ", ".join(map(repr, get_args(WireFormat)))
        hint = did_you_mean(text, get_args(WireFormat), f"there are {names}")
        raise ValueError(f"option 'registry.wire.format' = {text!r}: {hint}") from None


def _read_timeout(text: str) -> float:
    try:
        return TypeAdapter(Duration).validate_python(text) / 1000
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ValueError(f"option 'registry.timeout' = {text!r}: {reason}") from None


class SchemaRegistry:
    """A registry, with the schemas that were found in it.

    Args:
        settings: Where it is.
    """

    def __init__(self, settings: RegistrySettings) -> None:
        self._settings = settings
        self._client = _create_client(settings)
        self._by_id: dict[int, RegisteredSchema] = {}
        self._by_guid: dict[str, RegisteredSchema] = {}
        self._by_text: dict[tuple[str, str, str], RegisteredSchema] = {}
        self._next_pause_s = 0.0  # by the monotonic clock

    def find(self, schema_id: int) -> RegisteredSchema:
        """Return the schema of an id; a registry that is away is waited for.

        Raises:
            SchemaError: If the registry has no such id.
            KrishivError: If it refuses the request, or is away for longer than the timeout.
        """
        found = self._by_id.get(schema_id)
        if found is None:
            raw = self._ask(
                f"the schema {schema_id}", lambda: self._client.get_schema(schema_id), _IN_TASK_S
            )
            found = self._by_id[schema_id] = self._read(schema_id, raw, 0)
        return found

    def find_guid(self, guid: str) -> RegisteredSchema:
        """Return the schema of a GUID, as `find`; its id is 0.

        Raises:
            SchemaError: If the registry has no such GUID; not every registry has GUIDs.
            KrishivError: As for `find`.
        """
        found = self._by_guid.get(guid)
        if found is None:
            what = f"the schema with the GUID {guid}"
            raw = self._ask(what, lambda: self._client.get_schema_by_guid(guid), _IN_TASK_S)
            found = self._by_guid[guid] = self._read(0, raw, 0)
        return found

    def find_version(self, subject: str, version: int | None) -> RegisteredSchema:
        """Return a version of a subject; None is the newest.

        Raises:
            SchemaError: If the registry has no such subject or version.
            KrishivError: As for `find`.
        """
        found = self._ask_version(subject, version)
        return self._read(found.schema_id, found.schema, found.version)

    def _ask_version(self, subject: str, version: int | None) -> Any:
        which = "latest" if version is None else version
        what = f"version {which} of the subject {subject!r}"
        return self._ask(what, lambda: self._client.get_version(subject, which), _AT_START_S)

    def find_newest(self, subject: str) -> RegisteredSchema | None:
        """Return the newest version of a subject; None if the registry has no such subject.

        Raises:
            SchemaError: If the registry lacks a schema that it refers to.
            KrishivError: As for `find`.
        """
        try:
            found = self._ask_version(subject, None)
        except SchemaError:
            return None
        return self._read(found.schema_id, found.schema, found.version)

    def register(self, subject: str, text: str, kind: str = "avro") -> RegisteredSchema:
        """Register a schema in a subject, unless it has it, and return it. Planner.

        A schema has the same id in each subject, and each subject must have it: consumers look it
        up there. So results are cached by both.

        Args:
            subject: The subject.
            text: The schema.
            kind: Its form, as `RegisteredSchema.kind`.

        Raises:
            SchemaError: If it is not compatible with the versions of the subject.
            KrishivError: As for `find`.
        """
        return self._place(subject, text, kind, self._client.register_schema, "register")

    def look_up(self, subject: str, text: str, kind: str = "avro") -> RegisteredSchema:
        """Return a schema that a subject has, and register nothing. Planner.

        Raises:
            SchemaError: If the subject does not have it.
            KrishivError: As for `find`.
        """

        def request(subject: str, schema: Any) -> int:
            found: int = self._client.lookup_schema(subject, schema).schema_id
            return found

        return self._place(subject, text, kind, request, "look up")

    def _place(
        self, subject: str, text: str, kind: str, request: Callable[[str, Any], int], verb: str
    ) -> RegisteredSchema:
        from confluent_kafka.schema_registry import Schema

        known = self._by_text.get((subject, text, kind))
        if known is None:
            what = f"the schema of the rows in the subject {subject!r}"
            schema = Schema(text, next(name for name, one in _KINDS.items() if one == kind))
            given = self._ask(what, partial(request, subject, schema), _AT_START_S, verb)
            known = self.find(given)
            if known.kind != kind or not _SAME[kind](known.text, text):
                raise SchemaError(
                    f"the schema registry {self._settings.url} has the id {given} for {what}, but "
                    f"returns another schema for this id: {known.text[:200]}"
                )
            self._by_text[subject, text, kind] = known
        return known

    def _read(self, schema_id: int, raw: Any, version: int) -> RegisteredSchema:
        references: dict[str, str] = {}
        self._collect(raw.references or [], references)
        kind = _KINDS.get((raw.schema_type or "AVRO").upper(), "")
        found = RegisteredSchema(
            schema_id, kind, raw.schema_str, tuple(references.items()), version
        )
        known = self._by_id.get(schema_id)
        if known is not None and known.fingerprint != found.fingerprint:
            raise SchemaError(
                f"the schema registry {self._settings.url} has another schema for the id "
                f"{schema_id} than before: an id never changes, so this is another registry, "
                "or one that was restored from an older copy"
            )
        return found

    def _collect(self, references: Any, found: dict[str, str]) -> None:
        """Add the texts of references, those that each needs first."""
        for each in references:
            if each.name in found:
                continue
            what = f"version {each.version} of the subject {each.subject!r}"
            request = partial(self._client.get_version, each.subject, each.version)
            raw = self._ask(what, request, _IN_TASK_S)
            self._collect(raw.schema.references or [], found)
            found[each.name] = raw.schema.schema_str

    def _ask(
        self, what: str, request: Callable[[], Result], usual_s: float, verb: str = "give"
    ) -> Result:
        """Send a request until the registry answers, or the time is up.

        Raises:
            SchemaError: If the registry does not have it, or refuses to register it.
            KrishivError: As for `find`.
        """
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        given_s = self._settings.timeout_s
        timeout_s = usual_s if given_s is None else given_s
        backoff = Backoff(timeout_s, _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        is_told = is_confirmed = False
        while True:
            try:
                return request()
            except SchemaRegistryError as error:
                if error.error_code == _SCHEMA_NOT_FOUND and not is_confirmed:
                    is_confirmed = True
                    self._pause_for_replicas()
                    continue
                if _is_absent(error):
                    raise SchemaError(
                        f"the schema registry {self._settings.url} does not have {what}"
                    ) from None
                if error.http_status_code in _REFUSED:
                    raise self._refused(f"{verb} {what}", error) from None
                last = self._settings.hide(str(error))
            except SchemaError:  # two files of a folder
                raise
            except Exception as error:  # the client has no base class  # noqa: BLE001
                last = self._settings.hide(f"{type(error).__name__}: {error}")
            if not is_told:
                _log.warning(
                    "waiting for the schema registry %s, to get %s: %s",
                    self._settings.url,
                    what,
                    last,
                )
                is_told = True
            if not backoff.pause():
                raise KrishivError(
                    f"the schema registry {self._settings.url} was asked for {what} for "
                    f"{timeout_s:.0f} s in vain: {last}. The query continues from "
                    "its checkpoint when the registry answers; 'registry.timeout' specifies how "
                    "long it waits"
                )

    def _pause_for_replicas(self) -> None:
        """Give a replica the time to learn a new id, but not again for each of many bad ids."""
        if time.monotonic() >= self._next_pause_s:
            time.sleep(_REPLICA_S)
            self._next_pause_s = time.monotonic() + _BETWEEN_PAUSES_S

    def _refused(self, what: str, error: Any) -> KrishivError:
        if error.http_status_code == _CONFLICT:
            return SchemaError(
                f"the schema registry {self._settings.url} refuses to {what}: it is not compatible "
                f"with the subject's versions ({self._settings.hide(str(error.error_message))}). "
                "Change the columns or the option 'valueSchema', or the subject's compatibility"
            )
        message = self._settings.hide(str(error.error_message))
        login = ""
        if error.http_status_code in {401, 403}:
            login = ". Set 'registry.basic.auth.user.info' or 'registry.bearer.auth.…'"
        return KrishivError(
            f"the schema registry {self._settings.url} refuses to {what} (HTTP "
            f"{error.http_status_code}): {message}{login}"
        )


def _is_absent(error: Any) -> bool:
    """Return True if the registry itself has answered that it does not have something.

    Its answers have a number in ``error_code``: 40401 to 40403, and 404 or 0 from a registry that
    does not know the address, as of GUIDs. Those of a proxy, as while it restarts, are HTML or
    other JSON, for which the client gives -1 or None.
    """
    code = error.error_code
    return error.http_status_code == _NOT_FOUND and isinstance(code, int) and code >= 0


def _is_same_avro(known: str, text: str) -> bool:
    if _to_canonical(known) != _to_canonical(text):
        return False
    return _to_meaning(parse_avro_schema(known)) == _to_meaning(parse_avro_schema(text))


def _is_same_protobuf(known: str, text: str) -> bool:
    """Compare the descriptors: a registry may write the text in another way."""
    from krishiv_spark.kafka.schemas.protobuf.protobuf_files import compile_proto

    one, other = (compile_proto(RegisteredSchema(0, "protobuf", each)) for each in (known, text))
    return bool(one.serialized_pb == other.serialized_pb)


def _is_same_json(known: str, text: str) -> bool:
    return bool(json.loads(known) == json.loads(text))


_SAME: Mapping[str, Callable[[str, str], bool]] = {
    "avro": _is_same_avro,
    "protobuf": _is_same_protobuf,
    "json-schema": _is_same_json,
}
"""By form, the function that returns True if two schemas describe the same bytes."""


def _to_canonical(text: str) -> str:
    """Return the parsing canonical form of an Avro schema, which determines the bytes."""
    from fastavro.schema import parse_schema, to_parsing_canonical_form

    return str(to_parsing_canonical_form(parse_schema(json.loads(text))))


def _to_meaning(of: AvroType) -> tuple[object, ...]:
    """Return the parts that the canonical form leaves out: the units and scales of numbers."""
    inner = (*of.items, *(each.type for each in of.fields))
    return of.kind, of.logical, of.scale, *map(_to_meaning, inner)


def _create_client(settings: RegistrySettings) -> Any:
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient
    except ImportError as error:
        raise OptionError(
            f"the option 'registry.url' needs a library that is missing ({error}): "
            "pip install 'krishiv-spark[registry]'"
        ) from None
    if is_folder(dict(settings.values)["url"]):
        return SchemaFolder(dict(settings.values)["url"])
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
