"""Access to the files of tables: only the user's options choose classes, hosts and credentials.

A table's metadata is written by everyone who may alter the table. PyIceberg merges
``metadata.properties`` into the settings of each FileIO and imports the classes that they name
(https://github.com/apache/iceberg-python/issues/3932), so that a table can run code and redirect
requests. This module is the only one that creates a `FileIO` or a `LocationProvider`. Both take
their settings from the user's options and from the catalog, and none from the table.

The files that a table names must be reachable without a host that only the table chose, and the
option `dataFilesWithin` restricts them further (`TableAccess.check`).
"""

from __future__ import annotations

import logging
import os
import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast
from urllib.parse import urlsplit

from pyiceberg.io import FileIO, InputFile, OutputFile, load_file_io
from pyiceberg.table.locations import LocationProvider, load_location_provider
from typing_extensions import override

from krishiv_spark.errors import OptionError
from krishiv_spark.iceberg.options import FORMAT, MAX_METADATA_BYTES
from krishiv_spark.once import warn_once
from krishiv_spark.storage.storage import PREFIX

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

    from krishiv_spark.iceberg.options import IcebergOptions

__all__ = [
    "PROVIDER",
    "FileAccess",
    "GuardedFileIO",
    "Location",
    "TableAccess",
    "Within",
    "access_of",
    "create_file_io",
    "drop_foreign_classes",
    "find_ignored",
    "guarded_io",
    "keep_store_settings",
    "merge_vended",
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


def names_class(key: str) -> bool:
    """Return True if PyIceberg imports and calls what this setting names."""
    return key.endswith(("-impl", ".impl"))


# --- settings


def create_file_io(settings: Mapping[str, Any], location: str) -> FileIO:
    """Create a FileIO. Driver.

    Args:
        settings: Of the user's options and the catalog; never of a table.
        location: The file or folder whose scheme selects the class, unless a setting names one.
    """
    return load_file_io(dict(settings), location)


def merge_vended(settings: Mapping[str, Any], vended: Mapping[str, Any]) -> dict[str, Any]:
    """Add the configuration and credentials that a REST catalog hands out with a table.

    The catalog's credentials take precedence, as in Iceberg's REST specification. Hosts and
    proxies that the user specified stay, and classes are the user's alone.

    Args:
        settings: Of the catalog's client.
        vended: Of ``loadTable``: ``config`` and the storage credentials.
    """
    accepted = {
        key: text
        for key, text in vended.items()
        if not names_class(key) and not (key in _HOSTS and _is_specified(settings, key))
    }
    return {**settings, **accepted}


def drop_foreign_classes(settings: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Remove the classes that a catalog's server added to the settings of its client.

    Nested settings are those of logins and of TLS: a login may name a class too.

    Args:
        settings: Of the client, with those of the server.
        given: The user's.
    """
    classes = {key: value for key, value in given.items() if names_class(key)}
    others = {
        key: value
        for key, value in settings.items()
        if key in given or (isinstance(value, str) and not names_class(key))
    }
    return {**others, **classes}


def _is_specified(settings: Mapping[str, Any], key: str) -> bool:
    """Return True if the user chose this host, by PyIceberg's name or by ours."""
    ours = {"s3.endpoint": "endpoint", "s3.proxy-uri": "proxy"}.get(key)
    return key in settings or (
        ours is not None
        and any(
            name.lower().startswith(f"{PREFIX}s3.") and name.lower().endswith(f".{ours}")
            for name in settings
        )
    )


def keep_store_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a worker needs to reach files; none of them is the catalog's."""
    needed = (*_STORES, _IO_CLASS, PREFIX)
    return {key: text for key, text in settings.items() if key.lower().startswith(needed)}


def find_ignored(properties: Mapping[str, str], access: FileAccess) -> list[str]:
    """Return the table properties that would choose a class, a host or a credential, sorted."""
    return sorted(
        key
        for key in properties
        if (key.lower().startswith((*_STORES, PREFIX)) or names_class(key))
        and not (key == PROVIDER and properties[key] == access.location_provider)
    )


def warn_of_ignored(name: str, metadata: TableMetadata, access: FileAccess) -> None:
    """Log, once in a process for each table, which of its properties are ignored. Driver."""
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


# --- locations


class Location(NamedTuple):
    """A location as its store understands it.

    Attributes:
        store: Kind of the store; all schemes of one kind are the same.
        host: The host that the location chooses; empty if only settings choose it.
        path: Absolute, with the bucket or container as its first part.
    """

    store: str
    host: str
    path: str

    @classmethod
    def parse(cls, text: str) -> Location:
        """Parse a URL or a path of a disk, as PyIceberg does: a URL ends at ``?`` or ``#``."""
        url = urlsplit(text)
        scheme = url.scheme.lower()
        store = _KINDS.get(scheme, scheme)
        if store == "disk":
            path = url.path if scheme else text
            return cls("disk", url.netloc.replace("localhost", ""), os.path.abspath(path))
        if store == "azure":
            container, _, account = url.netloc.rpartition("@")
            host = account.lower().replace(".blob.", ".dfs.")
            return cls(store, host, f"/{container}{url.path}")
        if store in {"s3", "gcs"}:
            return cls(store, "", f"/{url.netloc}{url.path}")
        return cls(store, url.netloc.lower(), url.path)

    def is_below(self, folder: Location) -> bool:
        """Return True if this is inside of a folder.

        A path of a store that has a part ``.`` or ``..`` is inside of none: stores and their
        clients disagree about its meaning.
        """
        inside, around = self.path, folder.path
        if self.store == "disk":
            inside, around = posixpath.normpath(inside), posixpath.normpath(around)
        elif {".", ".."} & set(inside.split("/")):
            return False
        same_store = (self.store, self.host) == (folder.store, folder.host)
        return same_store and inside.startswith(f"{around.rstrip('/')}/")


_KINDS = {
    **dict.fromkeys(("", "file"), "disk"),
    **dict.fromkeys(("s3", "s3a", "s3n", "oss"), "s3"),
    **dict.fromkeys(("gs", "gcs"), "gcs"),
    **dict.fromkeys(("abfs", "abfss", "wasb", "wasbs"), "azure"),
    **dict.fromkeys(("hdfs", "viewfs"), "hdfs"),
}


@dataclass(frozen=True)
class FileAccess:
    """The user's options about the files of tables.

    Attributes:
        warehouse: Path or URL of the warehouse; None if it is a name that the catalog knows.
        within: Option `dataFilesWithin`; None if it is not set.
        location_provider: Class of PyIceberg's `LocationProvider` from the option
            ``tableProperty.write.py-location-provider.impl``.
        max_metadata_bytes: The largest metadata file that is read, after decompression.
    """

    warehouse: str | None = None
    within: Within | None = None
    location_provider: str | None = None
    max_metadata_bytes: int = MAX_METADATA_BYTES

    @classmethod
    def of(cls, options: IcebergOptions) -> FileAccess:
        """Return what the options of a source or a sink specify."""
        warehouse = options.catalog_properties().get("warehouse")
        is_location = warehouse is not None and ("://" in warehouse or warehouse.startswith("/"))
        own: Mapping[str, str] = getattr(options, "table_properties", {})
        return cls(
            warehouse if is_location else None,
            options.data_files_within,
            own.get(PROVIDER),
            options.max_metadata_bytes,
        )

    def for_table(
        self, metadata: TableMetadata, metadata_location: str, settings: Mapping[str, Any]
    ) -> TableAccess:
        """Return the rules for the files of one table.

        Args:
            metadata: Of the table.
            metadata_location: The location of its metadata file, which the catalog named.
            settings: By which files are reached.
        """
        trusted = [metadata_location, *([self.warehouse] if self.warehouse else [])]
        named = ("adls.account-name", "adls.connection-string")
        account = any(settings.get(name) for name in named)
        return TableAccess(
            table=metadata.location,
            trusted=tuple(Location.parse(text) for text in trusted),
            chosen_stores=frozenset({"azure"} if account else ()),
            access=self,
        )


@dataclass(frozen=True)
class TableAccess:
    """The rules for the files of one table; travels to the tasks.

    Attributes:
        table: Location of the table.
        trusted: Locations that the user or the catalog named: their hosts may be asked.
        chosen_stores: Stores whose host the user's settings choose, whatever a location contains.
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
            OptionError: If it is outside.
        """
        within = self.access.within
        if within == "any":
            return
        found = Location.parse(text)
        if within is None:
            if not self._is_host_trusted(found):
                raise self._refusal(
                    text, "where a table may be only if the warehouse or the catalog names it"
                )
        elif not any(found.is_below(folder) for folder in self._folders(within)):
            raise self._refusal(text, f"outside of what 'dataFilesWithin' = {within!r} allows")

    def check_all(self, locations: Iterable[str]) -> None:
        """Refuse the first of several files that the table must not name. See `check`."""
        if self.access.within == "any":
            return
        # Nearly all files are in one of few folders: each folder is checked once.
        seen: set[str] = set()
        for text in locations:
            folder = text.rpartition("/")[0]
            if folder not in seen or "/.." in text:
                self.check(text)
                seen.add(folder)

    def location_provider(self, metadata: TableMetadata) -> LocationProvider:
        """Return the names of new files. Planner and driver.

        The table's own `write.data.path` and `write.metadata.path` count only below the table's
        location or the warehouse, unless the user allows any. A class is the user's alone.

        Raises:
            OptionError: If a property of the table names another folder, or the class that the
                user names cannot be created.
        """
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
                f"{FORMAT}: 'tableProperty.{PROVIDER}' = {self.access.location_provider!r} is no "
                f"location provider: {type(error).__name__}: {error}"
            ) from error

    def is_own_folder(self, folder: str) -> bool:
        """Return True if files in this folder may be deleted for the table's sake.

        That is below the table's location, and elsewhere only if the user allowed it by name.
        """
        own = ("table", *([self.access.within] if self.access.within else []))
        if "any" in own:
            return True
        found = Location.parse(f"{folder.rstrip('/')}/file")
        return any(found.is_below(one) for name in own for one in self._folders(name))

    def _check_folder(self, key: str, folder: str) -> None:
        within = self.access.within or "warehouse"
        found = Location.parse(f"{folder.rstrip('/')}/file")
        if within != "any" and not any(found.is_below(one) for one in self._folders(within)):
            raise OptionError(
                f"{FORMAT}: the table's property {key!r} = {folder!r} is outside of the table's "
                f"location {self.table!r}{' and of the warehouse' * (within != 'table')}. Nothing "
                "was written there: a table must not choose where your rows go. If the folder is "
                "yours, set the option 'dataFilesWithin' = 'any'"
            )

    def _folders(self, within: str) -> list[Location]:
        texts = [self.table]
        if within == "warehouse" and self.access.warehouse is not None:
            texts.append(self.access.warehouse)
        return [Location.parse(text) for text in texts]

    def _is_host_trusted(self, found: Location) -> bool:
        if found.store in self.chosen_stores or (found.store != "disk" and not found.host):
            return True
        return any((found.store, found.host) == (one.store, one.host) for one in self.trusted)

    def _refusal(self, text: str, reason: str) -> OptionError:
        return OptionError(
            f"{FORMAT}: the table at {self.table!r} names the file {text!r}, {reason}. It was not "
            "opened. If the table is to be trusted, set the option 'dataFilesWithin' = 'any'"
        )


class GuardedFileIO(FileIO):
    """A FileIO that opens and deletes only what the table may name. Driver and tasks; pickles.

    Attributes:
        inner: The FileIO that does it.
        access: The rules.
    """

    def __init__(self, inner: FileIO, access: TableAccess) -> None:
        super().__init__(inner.properties)
        self.inner = inner
        self.access = access

    @override
    def new_input(self, location: str) -> InputFile:
        """Return a file to read.

        Raises:
            OptionError: If the table must not name it.
        """
        self.access.check(location)
        return self.inner.new_input(location)

    @override
    def new_output(self, location: str) -> OutputFile:
        """Return a file to write.

        Raises:
            OptionError: If the table must not name it.
        """
        self.access.check(location)
        return self.inner.new_output(location)

    @override
    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Delete a file.

        Raises:
            OptionError: If the table must not name it.
        """
        self.access.check(location if isinstance(location, str) else location.location)
        self.inner.delete(location)


def guarded_io(table: Table) -> GuardedFileIO:
    """Return the FileIO of a table that a guarded catalog has loaded."""
    return cast("GuardedFileIO", table.io)


def access_of(table: Table) -> TableAccess:
    """Return the rules for the files of a table that a guarded catalog has loaded."""
    return guarded_io(table).access
