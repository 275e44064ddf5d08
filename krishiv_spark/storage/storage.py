"""How the stores of a query are reached, and folders in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from krishiv_spark.errors import OptionError
from krishiv_spark.options.references import resolved_options
from krishiv_spark.storage.disk import DiskFolder
from krishiv_spark.storage.disk_files import DISK
from krishiv_spark.storage.files import Files
from krishiv_spark.storage.folder import Folder
from krishiv_spark.storage.uploads import Uploads
from krishiv_spark.storage.urls import StoreUrl

if TYPE_CHECKING:
    from krishiv_spark.storage.settings import StoreSettings

__all__ = ["ENVIRONMENT", "PREFIX", "Storage"]

PREFIX = "storage."
"""Options of how stores are reached begin with it."""


@dataclass(frozen=True)
class Storage:
    """How stores are reached: what the options ``storage.…`` of a query say. Pickles.

    Attributes:
        options: By name, in the order of their names; never shown, for there are secrets in them.
        places: Scheme and authority of each place in a store that the user has named: other servers
            are given no login. None if nothing is known of them.
    """

    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    places: frozenset[str] | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Storage:
        """From options named ``storage.<kind>.<setting>``."""
        return cls(tuple(sorted(options.items())))

    @classmethod
    def given(cls, options: Mapping[str, str]) -> Storage:
        """From all options of a query; of others, those count that name a place in a store.

        Raises:
            OptionError: If a reference in one of them cannot be resolved (`options.references`).
        """
        own = {key: text for key, text in options.items() if key.lower().startswith(PREFIX)}
        found = cls.of(resolved_options(own))
        others = [text for key, text in options.items() if key not in own]
        return found.also_at(*others) if any(map(_roots, others)) else found

    def also_at(self, *locations: object) -> Storage:
        """Return the same for places that the user has named; others are given no login then.

        Args:
            locations: Paths and URLs; what is neither is ignored.
        """
        roots = {root for location in locations for root in _roots(location)}
        return replace(self, places=(self.places or frozenset()) | roots)

    def secrets(self) -> set[str]:
        """Return the secrets among the options."""
        from krishiv_spark.storage.settings import secrets_in

        return secrets_in(dict(self.options))

    def folder(self, location: str | StoreUrl) -> Folder:
        """A folder of whichever store a path or URL lies in. Nothing is asked yet.

        Args:
            location: As Spark takes it.

        Raises:
            OptionError: If the URL, or an option, is not known, or says too little.
        """
        url = _parsed(location)
        if url.kind == "disk":
            return DiskFolder(Path(url.path))
        from krishiv_spark.storage.settings import HdfsSettings

        settings = self._settings(url)
        if isinstance(settings, HdfsSettings):
            from krishiv_spark.storage.hdfs import HdfsFolder

            return HdfsFolder(url, settings)
        from krishiv_spark.storage.objects import ObjectFolder

        return ObjectFolder(url, settings)

    def uploads(self, location: str | StoreUrl) -> Uploads:
        """Uploads to places below one in a store. Nothing is asked yet.

        Args:
            location: As Spark takes it.

        Raises:
            OptionError: As `folder`; or if files are not written there in this way, or a package
                is missing by which they are.
        """
        url = _parsed(location)
        if url.kind not in {"s3", "azure", "gcs", "hdfs"}:
            raise OptionError(
                f"tables cannot be written to {url}: only to disks, s3:, abfss:, gs: and hdfs:"
            )
        from krishiv_spark.storage.settings import (
            AzureSettings,
            HdfsSettings,
            S3Settings,
        )

        settings = self._settings(url)
        if isinstance(settings, S3Settings):
            from krishiv_spark.storage.s3_uploads import S3Uploads

            return S3Uploads(url, settings)
        if isinstance(settings, AzureSettings):
            from krishiv_spark.storage.azure_uploads import AzureUploads

            return AzureUploads(url, settings)
        from krishiv_spark.storage.aside import AsideUploads

        if isinstance(settings, HdfsSettings):
            from krishiv_spark.storage.hdfs_aside import HdfsAside

            return AsideUploads(url, HdfsAside(url, settings))
        from krishiv_spark.storage.object_aside import ObjectAside

        return AsideUploads(url, ObjectAside(url, settings))

    def files(self, location: str | StoreUrl) -> Files:
        """The files of the store that a path or URL lies in. Nothing is asked yet.

        Raises:
            OptionError: As `folder`.
        """
        url = _parsed(location)
        if url.kind == "disk":
            return DISK
        from krishiv_spark.storage.settings import HdfsSettings

        settings = self._settings(url)
        if isinstance(settings, HdfsSettings):
            from krishiv_spark.storage.hdfs_files import HdfsFiles

            return HdfsFiles(url, settings)
        from krishiv_spark.storage.object_files import ObjectFiles
        from krishiv_spark.storage.objects import Bucket

        return ObjectFiles(Bucket(url, settings))

    def _settings(self, url: StoreUrl) -> StoreSettings:
        """Return how a store is reached.

        Raises:
            OptionError: As `settings_for`; or if the login would go to a server that the user has
                not named.
        """
        from krishiv_spark.storage.logins import check_login
        from krishiv_spark.storage.settings import settings_for

        settings = settings_for(url, dict(self.options))
        check_login(url.root, settings, self.places)
        return settings


def _parsed(location: str | StoreUrl) -> StoreUrl:
    return location if isinstance(location, StoreUrl) else StoreUrl.parse(location)


def _roots(location: object) -> set[str]:
    """Return scheme and authority of a place in a store; nothing for a disk or no place."""
    if isinstance(location, StoreUrl):
        return {location.root} - {""}
    if not isinstance(location, str) or "://" not in location:
        return set()
    try:
        return {StoreUrl.parse(location).root} - {""}
    except OptionError:
        return set()


ENVIRONMENT = Storage()
"""Whatever the environment says, and nothing else."""
