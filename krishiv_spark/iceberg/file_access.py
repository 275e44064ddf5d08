"""Access to the files of tables: only the user's options choose classes, hosts and credentials.

A table's metadata is written by everyone who may alter the table. PyIceberg merges
``metadata.properties`` into the settings of each FileIO and imports the classes that they name
(https://github.com/apache/iceberg-python/issues/3932), so that a table can run code and redirect
requests. This module and `file_io` are the only ones that create a `FileIO` or a
`LocationProvider`. Both take their settings from the user's options and from the catalog, and none
from the table.

The files that a table names must be reachable without a host that only the table chose, and the
option `dataFilesWithin` restricts them further (`TableAccess.check`).

Errors of stores do not show the credentials of a table (`redact_errors`). Clients of stores show
URLs and responses in their errors, and with them the signature of a SAS token or a session token. A
catalog hands such credentials out with a table, so that no option contains them
(`IcebergOptions.redact`): here they are known by the properties of the table's FileIO.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import urlsplit

from krishiv_spark.errors import KrishivError, OptionError, StorageError
from krishiv_spark.iceberg.options import FORMAT, MAX_METADATA_BYTES, CatalogSettings
from krishiv_spark.messages.exception_chains import describe, raise_alone, scrub, shows_secret
from krishiv_spark.runtime.once import warn_once
from krishiv_spark.storage.storage import PREFIX, find_store_secrets

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table.locations import LocationProvider
    from pyiceberg.table.metadata import TableMetadata

    from krishiv_spark.iceberg.options import IcebergOptions

__all__ = [
    "FileAccess",
    "Location",
    "TableAccess",
    "Within",
    "keep_store_settings",
    "keep_users_choices",
    "merge_vended",
    "redact_errors",
    "warn_of_ignored",
]

_log = logging.getLogger(__name__)

Within = Literal["table", "warehouse", "any"]
"""Values of the option `dataFilesWithin`."""

PROVIDER = "write.py-location-provider.impl"
"""The table property that names a class of PyIceberg's `LocationProvider`."""

_STORES = ("adls.", "client.", "gcs.", "hdfs.", "hf.", "s3.")
"""Prefixes of the settings by which PyIceberg reaches object stores (``pyiceberg.io``)."""

_HOSTS = (
    "adls.account-host",
    "adls.blob-storage-authority",
    "adls.blob-storage-scheme",
    "adls.dfs-storage-authority",
    "adls.dfs-storage-scheme",
    "gcs.service.host",
    "hdfs.host",
    "hdfs.port",
    "hf.endpoint",
    "s3.endpoint",
    "s3.proxy-uri",
    "s3.signer.uri",
)
"""Settings that choose a host or a proxy, or the scheme by which it is reached."""

_IO_CLASS = "py-io-impl"
_PATHS = ("write.data.path", "write.metadata.path")


def is_class_setting(key: str) -> bool:
    """Return True if this setting names a class that PyIceberg imports and calls."""
    return key.endswith(("-impl", ".impl"))


# --- locations

_KINDS = {
    **dict.fromkeys(("", "file"), "disk"),
    **dict.fromkeys(("s3", "s3a", "s3n", "oss"), "s3"),
    **dict.fromkeys(("gs", "gcs"), "gcs"),
    **dict.fromkeys(("abfs", "abfss", "wasb", "wasbs"), "azure"),
    **dict.fromkeys(("hdfs", "viewfs"), "hdfs"),
}
_BUCKETS = frozenset({"s3", "gcs"})
"""Stores whose URLs name a bucket, and whose host only settings choose."""

# Names of buckets, also of outdated forms, and Amazon's ARNs of access points. Clients put the name
# before the endpoint's host, and obstore panics if the result is not a host.
_BUCKET = re.compile(r"[A-Za-z0-9._:-]+")
_DEFAULT_PORT = ":8020"
"""The default port of HDFS: with it and without it, a URL names the same NameNode."""

# Clients of stores remove or convert these, or end the path there, by different rules.
_AMBIGUOUS = re.compile(r"[\x00-\x1f\x7f\\]")
_AMBIGUOUS_IN_URL = re.compile(r"[?#]")


class Location(NamedTuple):
    """A location as its store interprets it, however a table's metadata writes it.

    Attributes:
        store: Kind of the store; all schemes of one kind are the same.
        host: The host that the location chooses; empty if only settings choose it.
        path: Absolute, with the bucket or container as its first part.
        is_plain: True if all clients of the store interpret the path in the same way.
    """

    store: str
    host: str
    path: str
    is_plain: bool = True

    @classmethod
    def parse(cls, text: str) -> Location:
        """Parse a URL or a path of a disk, as PyIceberg does: a URL ends at ``?`` or ``#``.

        Raises:
            OptionError: If it is not a URL, or its bucket has a name that no bucket can have.
        """
        try:
            url = urlsplit(text)
        except ValueError as error:
            raise OptionError(f"{FORMAT}: {text!r} is not a valid location: {error}") from error
        scheme = url.scheme.lower()
        store = _KINDS.get(scheme, scheme)
        is_plain = not _AMBIGUOUS.search(text) and not (scheme and _AMBIGUOUS_IN_URL.search(text))
        if store == "disk":
            path = os.path.abspath(url.path if scheme else text)
            return cls("disk", url.netloc.replace("localhost", ""), path, is_plain)
        is_plain = is_plain and not {".", ".."} & set(url.path.split("/"))
        if store == "azure":
            container, _, account = url.netloc.rpartition("@")
            host = account.lower().replace(".blob.", ".dfs.")
            return cls(store, host, f"/{container}{url.path}", is_plain)
        if store in _BUCKETS:
            if not _BUCKET.fullmatch(url.netloc):
                raise OptionError(
                    f"{FORMAT}: {text!r} names no bucket: {url.netloc!r} cannot be one"
                )
            return cls(store, "", f"/{url.netloc}{url.path}", is_plain)
        return cls(store, url.netloc.lower().removesuffix(_DEFAULT_PORT), url.path, is_plain)

    def is_below(self, folder: Location) -> bool:
        """Return True if this is inside of a folder; links on a disk are followed.

        A path that clients of a store interpret differently is inside of no folder, such as one
        with a part ``..``.
        """
        if not (self.is_plain and folder.is_plain) or (self.store, self.host) != (
            folder.store,
            folder.host,
        ):
            return False
        inside, around = self.path, folder.path
        if self.store == "disk":
            inside, around = os.path.realpath(inside), os.path.realpath(around)
        return inside.startswith(f"{around.rstrip('/')}/")


# --- settings


def merge_vended(
    settings: Mapping[str, Any], vended: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Add the configuration and credentials that a REST catalog hands out with a table.

    The catalog's settings take precedence, as in Iceberg's REST specification. Hosts and proxies
    that the user specified stay, and classes are the user's alone.

    Args:
        settings: Settings of the catalog's client, with those of the server.
        vended: ``config`` and the storage credentials of ``loadTable``.
        given: The user's settings.
    """
    return {
        **settings,
        **{key: text for key, text in vended.items() if _may_catalog_choose(given, key)},
    }


def keep_users_choices(settings: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a client's settings without those that the catalog's server must not choose.

    These are classes, and hosts that the user specified. Nested settings are those of logins and of
    TLS: a login may name a class too.

    Args:
        settings: Settings of the client, with those of the server.
        given: The user's settings.
    """
    chosen = {key: value for key, value in given.items() if key in _HOSTS or is_class_setting(key)}
    others = {
        key: value
        for key, value in settings.items()
        if key in given or (isinstance(value, str) and _may_catalog_choose(given, key))
    }
    return {**others, **chosen}


def _may_catalog_choose(given: Mapping[str, Any], key: str) -> bool:
    """Return True if a catalog may choose this setting: no class, no host that the user chose."""
    return not is_class_setting(key) and not (key in _HOSTS and _is_specified(given, key))


def _is_specified(given: Mapping[str, Any], key: str) -> bool:
    """Return True if the user chose this host, by PyIceberg's name or by krishiv-spark's."""
    option = {"s3.endpoint": "endpoint", "s3.proxy-uri": "proxy"}.get(key)
    return key in given or (
        option is not None
        and any(
            name.lower().startswith(f"{PREFIX}s3.") and name.lower().endswith(f".{option}")
            for name in given
        )
    )


def keep_store_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a worker needs to reach files, without those of the catalog."""
    needed = (*_STORES, _IO_CLASS, PREFIX)
    return {key: text for key, text in settings.items() if key.lower().startswith(needed)}


def find_ignored(properties: Mapping[str, str], access: FileAccess) -> list[str]:
    """Return the table properties that would choose a class, a host or a credential, sorted."""
    return sorted(
        key
        for key in properties
        if (key.lower().startswith((*_STORES, PREFIX)) or is_class_setting(key))
        and not (key == PROVIDER and properties[key] == access.location_provider)
    )


def warn_of_ignored(name: str, metadata: TableMetadata, access: FileAccess) -> None:
    """Log the properties of a table that are ignored, once per table and process. Driver."""
    if ignored := find_ignored(metadata.properties, access):
        warn_once(
            _log,
            (str(metadata.table_uuid), *ignored),
            "%s: properties of table %s are ignored, since a table must not choose code, hosts or "
            "credentials: %s. If they are yours, set them as options: 'catalog.%s' for stores, "
            "'tableProperty.%s' for a location provider",
            FORMAT,
            name,
            ", ".join(map(repr, ignored)),
            ignored[0],
            PROVIDER,
        )


# --- rules


@dataclass(frozen=True)
class FileAccess:
    """The user's options about the files of tables.

    Attributes:
        warehouse: Path or URL of the warehouse; None if it is a name that the catalog knows.
        within: Option `dataFilesWithin`; None if it is not set.
        location_provider: Class of PyIceberg's `LocationProvider` from the option
            ``tableProperty.write.py-location-provider.impl``.
        folders: Folders for tables that the user specified besides: the option `location`, and
            the paths of ``tableProperty.write.*.path``.
        max_metadata_bytes: The largest metadata file that is read, after decompression.
    """

    warehouse: str | None = None
    within: Within | None = None
    location_provider: str | None = None
    folders: tuple[str, ...] = ()
    max_metadata_bytes: int = MAX_METADATA_BYTES

    @classmethod
    def from_options(cls, options: IcebergOptions) -> FileAccess:
        """Return the rules that the options of a source or a sink specify."""
        own: Mapping[str, str] = getattr(options, "table_properties", {})
        folders = (getattr(options, "location", None), *(own.get(key) for key in _PATHS))
        return cls(
            _find_warehouse(options.catalog_properties()),
            options.data_files_within,
            own.get(PROVIDER),
            tuple(folder for folder in folders if folder is not None),
            options.max_metadata_bytes,
        )

    def for_table(
        self, metadata: TableMetadata, metadata_location: str, settings: Mapping[str, Any]
    ) -> TableAccess:
        """Return the rules for the files of one table.

        Args:
            metadata: Metadata of the table.
            metadata_location: The location of its metadata file, as the catalog names it; empty
                if the catalog names none.
            settings: Settings by which files are reached.
        """
        access = self._with_warehouse(settings)
        trusted = filter(None, (metadata_location, access.warehouse, *access.folders))
        accounts = ("adls.account-name", "adls.connection-string")
        has_account = any(settings.get(name) for name in accounts)
        return TableAccess(
            table=metadata.location,
            trusted=tuple(Location.parse(text) for text in trusted),
            chosen_stores=frozenset({"azure"} if has_account else ()),
            access=access,
        )

    def check_metadata_file(self, location: str, settings: Mapping[str, Any]) -> None:
        """Refuse a metadata file that is not in the warehouse's store. Driver.

        Where clients write metadata files (SQL, Glue, Hive), a client that may alter the table
        chooses their location, and the credentials would be sent there. A warehouse in a store
        shows which host the user means; without one, and with one on a disk, the catalog decides.

        Args:
            location: Location of the file, as the catalog names it.
            settings: Settings of the catalog's client.

        Raises:
            OptionError: If it is on another host, or on a disk.
        """
        access = self._with_warehouse(settings)
        if access.within == "any" or access.warehouse is None:
            return
        found = Location.parse(location)
        own = [Location.parse(folder) for folder in (access.warehouse, *access.folders)]
        is_accepted = own[0].store == "disk" or (found.store != "disk" and not found.host)
        if not is_accepted and all(
            (found.store, found.host) != (one.store, one.host) for one in own
        ):
            raise OptionError(
                f"{FORMAT}: the catalog names the metadata file {location!r}, which is not in the "
                f"store of the warehouse {access.warehouse!r}. It was not opened. If the table is "
                "to be trusted, set the option 'dataFilesWithin' = 'any'"
            )

    def _with_warehouse(self, settings: Mapping[str, Any]) -> FileAccess:
        """Return a copy with the catalog's warehouse, if the options specify none."""
        return self if self.warehouse else replace(self, warehouse=_find_warehouse(settings))


def _find_warehouse(settings: Mapping[str, Any]) -> str | None:
    """Return the warehouse of a catalog; None if it is a name and not a location."""
    found = settings.get("warehouse")
    return found if isinstance(found, str) and (":/" in found or found.startswith("/")) else None


@dataclass(frozen=True)
class TableAccess:
    """The rules for the files of one table, in the driver and in tasks; pickles.

    Attributes:
        table: Location of the table.
        trusted: Locations that the user or the catalog named: requests may go to their hosts.
        chosen_stores: Stores whose host the user's settings choose, regardless of a location.
        access: The user's options.
    """

    table: str
    trusted: tuple[Location, ...] = ()
    chosen_stores: frozenset[str] = frozenset()
    access: FileAccess = FileAccess()

    def check(self, text: str) -> None:
        """Refuse a file that the table must not name. Driver and tasks, before it is opened.

        Without the option `dataFilesWithin`, a file of a disk is accepted only if the table is on
        a disk too, and a location that contains a host (HDFS, Azure) only if the user or the
        catalog named that host.

        Args:
            text: Location of the file, as the metadata contains it.

        Raises:
            OptionError: If it is outside of the allowed locations.
        """
        within = self.access.within
        if within == "any":
            return
        found = Location.parse(text)
        if within is None:
            if not self._is_host_trusted(found):
                raise self._create_error(
                    text, "where a table may be only if the warehouse or the catalog names it"
                )
        elif not self._is_within(found, within):
            raise self._create_error(text, f"outside of what 'dataFilesWithin' = {within!r} allows")

    def check_all(self, locations: Iterable[str]) -> None:
        """Refuse the first of several files that `check` refuses."""
        if self.access.within == "any":
            return
        # Nearly all files are in a few folders: each folder is checked once.
        checked: set[str] = set()
        for text in locations:
            folder = text.rpartition("/")[0]
            if folder not in checked or "/.." in text:
                self.check(text)
                checked.add(folder)

    def location_provider(self, metadata: TableMetadata) -> LocationProvider:
        """Return the provider of names for new files. Planner and driver.

        The table's own `write.data.path` and `write.metadata.path` must be below the table's
        location or the warehouse, unless the user allows any. Only the user may choose a class.

        Raises:
            OptionError: If a property of the table names another folder, or the class that the
                user names cannot be created.
        """
        from pyiceberg.table.locations import load_location_provider

        properties = dict(metadata.properties)
        properties.pop(PROVIDER, None)
        self.check(f"{metadata.location.rstrip('/')}/data")
        for key in _PATHS:
            if (folder := properties.get(key)) is not None:
                self._check_folder(key, folder)
        if self.access.location_provider is not None:
            properties[PROVIDER] = self.access.location_provider
        try:
            return load_location_provider(metadata.location, properties)
        except (AttributeError, TypeError, ValueError) as error:
            raise OptionError(
                f"{FORMAT}: 'tableProperty.{PROVIDER}' = {self.access.location_provider!r} is "
                f"not a location provider: {type(error).__name__}: {error}"
            ) from error

    def is_own_folder(self, folder: str) -> bool:
        """Return True if files in this folder may be deleted for the table's sake.

        That is below the table's location and below folders that the user specified; elsewhere, as
        in the rest of the warehouse, only if `dataFilesWithin` is ``any``.
        """
        found = Location.parse(f"{folder.rstrip('/')}/file")
        return self.access.within == "any" or self._is_within(found, "table")

    def _check_folder(self, key: str, folder: str) -> None:
        within = self.access.within or "warehouse"
        found = Location.parse(f"{folder.rstrip('/')}/file")
        if within != "any" and not self._is_within(found, within):
            raise OptionError(
                f"{FORMAT}: the table's property {key!r} = {folder!r} is outside of the table's "
                f"location {self.table!r}{' and of the warehouse' * (within != 'table')}. Nothing "
                "was written there: a table must not choose where your rows go. If the folder is "
                "yours, set the option 'dataFilesWithin' = 'any'"
            )

    def _is_within(self, found: Location, within: str) -> bool:
        folders = [self.table, *self.access.folders]
        if within == "warehouse" and self.access.warehouse is not None:
            folders.append(self.access.warehouse)
        return any(found.is_below(Location.parse(folder)) for folder in folders)

    def _is_host_trusted(self, found: Location) -> bool:
        if found.store in self.chosen_stores or (found.store != "disk" and not found.host):
            return True
        return any((found.store, found.host) == (one.store, one.host) for one in self.trusted)

    def _create_error(self, text: str, reason: str) -> OptionError:
        return OptionError(
            f"{FORMAT}: the table at {self.table!r} names the file {text!r}, {reason}. It was not "
            "opened. If the table is to be trusted, set the option 'dataFilesWithin' = 'any'"
        )


# --- errors


_SHORTEST = 4
"""Shorter values occur in nearly every text, and are no secrets."""


@contextmanager
def redact_errors(io: FileIO, doing: str) -> Iterator[None]:
    """Replace an error that shows a credential of a FileIO, in any part of its chain.

    Other errors pass unchanged.

    Args:
        io: The FileIO that reaches the files.
        doing: The action that may fail, as "read table db.rows".

    Raises:
        KrishivError: Redacted and without a cause (`scrub`), of the same class.
        StorageError: Likewise, in the place of an error of another package.
    """
    try:
        yield
    except Exception as error:
        secrets = find_secrets(io.properties)
        if not shows_secret(error, secrets):
            raise
        if isinstance(error, KrishivError):
            raise_alone(scrub(error, secrets))
        raise_alone(StorageError(f"{FORMAT}: cannot {doing}: {describe(error, secrets)}"))


def find_secrets(properties: Mapping[str, Any]) -> set[str]:
    """Return the credentials among the properties of a FileIO.

    Errors may show other forms and parts of them, which `without_secrets` knows.
    """
    texts = {key: text for key, text in properties.items() if isinstance(text, str)}
    found = CatalogSettings.of(texts).secrets()
    found |= find_store_secrets(
        {k: text for k, text in texts.items() if k.lower().startswith(PREFIX)}
    )
    return {secret for secret in found if len(secret) >= _SHORTEST}
