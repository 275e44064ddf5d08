"""The options ``storage.…`` of a query, and the folders, files and uploads of its stores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field, model_validator
from typing_extensions import Self, override

from krishiv_spark.errors import OptionError
from krishiv_spark.messages.suggestions import suggest
from krishiv_spark.options import Options
from krishiv_spark.options.plain_secrets import warn_of_plain_http
from krishiv_spark.options.references import resolve_options
from krishiv_spark.storage.base import (
    BaseStore,
    StoreUrl,
    is_store_kind,
    store_kinds,
    store_type,
)
from krishiv_spark.storage.files import Files, Folder
from krishiv_spark.storage.settings import StoreSettings
from krishiv_spark.storage.uploads import Uploads

__all__ = [
    "ENVIRONMENT",
    "PREFIX",
    "Storage",
    "StorageOptions",
    "check_settings",
    "find_store_secrets",
    "secret_settings",
    "settings_for",
]

PREFIX = "storage."
"""Prefix of the options of stores."""


@dataclass(frozen=True)
class Storage:
    """The options ``storage.…`` of a query, and its stores. Pickles.

    Attributes:
        options: Values by name, in the order of the names. They are never shown, since some are
            secrets.
        places: Scheme and authority of each location in a store that the user has named. Other
            servers receive no credentials. None if the locations are unknown.
    """

    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    places: frozenset[str] | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Storage:
        """Return the storage of options named ``storage.<kind>.<setting>``."""
        return cls(tuple(sorted(options.items())))

    @classmethod
    def for_query(cls, options: Mapping[str, str]) -> Storage:
        """Return the storage for all options of a query, which also contain its locations.

        Raises:
            OptionError: If a reference in one of them cannot be resolved (`options.references`).
        """
        own = {key: text for key, text in options.items() if key.lower().startswith(PREFIX)}
        found = cls.of(resolve_options(own))
        others = [text for key, text in options.items() if key not in own]
        return found.also_at(*others) if any(map(_roots, others)) else found

    def also_at(self, *locations: object) -> Storage:
        """Return the same storage with locations that the user has named.

        No others receive credentials.

        Args:
            locations: Paths and URLs; other values are ignored.
        """
        roots = {root for location in locations for root in _roots(location)}
        return replace(self, places=(self.places or frozenset()) | roots)

    def secrets(self) -> set[str]:
        """Return the secrets among the options."""
        return find_store_secrets(dict(self.options))

    def folder(self, location: str | StoreUrl) -> Folder:
        """Return the folder at a path or URL, without a request to the store.

        Args:
            location: A path or URL, as for Spark.

        Raises:
            OptionError: If the URL or an option is unknown, or a setting is missing. Also if
                credentials would be sent to a server that the user has not named.
        """
        return self._store(location).folder()

    def uploads(self, location: str | StoreUrl) -> Uploads:
        """Return the uploads to paths below a URL, without a request to the store.

        Args:
            location: A path or URL, as for Spark.

        Raises:
            OptionError: As `folder`; or if the store has no uploads, or a package is missing.
        """
        return self._store(location).uploads()

    def files(self, location: str | StoreUrl) -> Files:
        """Return the files of the store of a path or URL, without a request to it.

        Raises:
            OptionError: As `folder`.
        """
        return self._store(location).files()

    def _store(self, location: str | StoreUrl) -> BaseStore:
        url = location if isinstance(location, StoreUrl) else StoreUrl.parse(location)
        if url.kind == "disk":  # a disk has no settings, and a validator takes long to build
            return store_type("disk")(url, _NO_SETTINGS)
        settings = settings_for(url, dict(self.options))
        _check_login(url.root, settings, self.places)
        return store_type(url.kind)(url, settings)


_NO_SETTINGS = StoreSettings.model_construct()


def _roots(location: object) -> set[str]:
    """Return scheme and authority of a location in a store; empty for a disk or another text."""
    if isinstance(location, StoreUrl):
        return {location.root} - {""}
    if not isinstance(location, str) or "://" not in location:
        return set()
    try:
        return {StoreUrl.parse(location).root} - {""}
    except OptionError:
        return set()


@lru_cache(maxsize=256)
def _check_login(root: str, settings: StoreSettings, places: frozenset[str] | None) -> None:
    """Refuse to log in at a server that no option names; warn of credentials sent unencrypted.

    A URL may come from a file in a table, which others can write. Credentials for the locations of
    a query must not follow it to another host.

    Args:
        root: Scheme and authority of the store.
        settings: Settings of the store.
        places: Scheme and authority of each location that the user has named; None if they are
            unknown.

    Raises:
        OptionError: If the credentials would be sent to another server.
    """
    url = StoreUrl.parse(root)
    store = store_type(url.kind)(url, settings)
    if places is not None and root not in places:
        named = [place for place in map(StoreUrl.parse, places) if place.kind == url.kind]
        if not store.is_named(named):
            raise OptionError(
                f"{root} is on a server that no option of yours names, so it is given no login: "
                f"name the place itself, as by 'epochLog', or set 'storage.{url.kind}.endpoint'. "
                "Whoever may write into a table's folder can put an address there"
            )
    for address, login in store.plain_logins():
        warn_of_plain_http(address, login)


ENVIRONMENT = Storage()
"""The stores with the settings of the environment only."""


# --- options


def settings_for(url: StoreUrl, given: Mapping[str, str]) -> StoreSettings:
    """Return the settings of the store of a URL.

    Args:
        url: A URL in the store; its kind and bucket select the options.
        given: Options ``storage.<kind>.<setting>``, or ``storage.<kind>.<bucket>.<setting>`` for
            one bucket, which take precedence.

    Raises:
        OptionError: If an option is unknown, or its value is invalid.
    """
    grouped = _group_by_bucket(given)
    own = grouped.get((url.kind, url.bucket.lower()), {})
    special = {name.lower() for name in own}
    general = {k: v for k, v in grouped.get((url.kind, ""), {}).items() if k.lower() not in special}
    return store_type(url.kind).settings_type.parse({**general, **own}, f"storage.{url.kind}")


def check_settings(given: Mapping[str, str]) -> None:
    """Refuse options that no store has, including those for stores that no URL names.

    Raises:
        OptionError: As `settings_for`.
    """
    for (kind, bucket), values in _group_by_bucket(given).items():
        path = ".".join(filter(None, ("storage", kind, bucket)))
        store_type(kind).settings_type.parse(values, path)


def secret_settings(given: Mapping[str, str]) -> set[str]:
    """Return the keys of the options of stores whose values are secrets.

    Raises:
        OptionError: If one belongs to no store.
    """
    found = set()
    for key, text in given.items():
        for (kind, _), values in _group_by_bucket({key: text}).items():
            is_secret = text and store_type(kind).settings_type.secret_keys(values)
            found |= {key} if is_secret else set()
    return found


def find_store_secrets(given: Mapping[str, str]) -> set[str]:
    """Return the secrets among the values of options of stores.

    Raises:
        OptionError: As `settings_for`.
    """
    parsed = (
        store_type(kind).settings_type.parse(values, kind)
        for (kind, _), values in _group_by_bucket(given).items()
    )
    return {secret for settings in parsed for secret in Options.secrets(settings)}


def _group_by_bucket(given: Mapping[str, str]) -> dict[tuple[str, str], dict[str, str]]:
    """Return the settings by kind and bucket; the bucket is empty for settings of all buckets."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for key, value in given.items():
        _, kind, *bucket = key.lower().split(".")[:-1] if key.count(".") > 1 else ("", "")
        if not is_store_kind(kind):
            kinds = store_kinds()
            near = suggest(kind, kinds)
            form = f"storage.<{'|'.join(kinds)}>.<setting>"
            hint = f"did you mean 'storage.{near}.…'?" if near else f"write {form}"
            raise OptionError(f"unknown option {key!r}: {hint}")
        found.setdefault((kind, ".".join(bucket)), {})[key.rpartition(".")[2]] = value
    return found


def _parse_storage(given: object) -> object:
    if not isinstance(given, Mapping):
        return given
    check_settings(given)
    return Storage.of(given)


class StorageOptions(Options):
    """Options of stores, for a connector whose checkpoint, epoch log or table may be in one.

    Attributes:
        storage: The settings of all stores.
    """

    storage: Annotated[Storage, BeforeValidator(_parse_storage)] = Field(
        default=ENVIRONMENT,
        validation_alias="storage.<kind>.<setting>",
        description="Settings of object stores and HDFS, where the environment does not specify "
        "them; [storage.md](storage.md).",
    )

    @model_validator(mode="after")
    def _bind_logins(self) -> Self:
        """Send credentials only to the locations that these options name."""
        named = (value for name, value in vars(self).items() if name != "storage")
        texts = (each for value in named for each in (value if type(value) is tuple else (value,)))
        vars(self)["storage"] = self.storage.also_at(*texts)  # the model is frozen for users
        return self

    @override
    @classmethod
    def secret_keys(cls, given: Mapping[str, str]) -> set[str]:
        of_stores = {key: text for key, text in given.items() if key.lower().startswith(PREFIX)}
        return super().secret_keys(given) | secret_settings(of_stores)

    collects_prefixes: ClassVar[Mapping[str, tuple[str, ...]]] = {"storage": (PREFIX,)}
