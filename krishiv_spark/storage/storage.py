"""How the stores of a query are reached, and folders in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from krishiv_spark.errors import OptionError
from krishiv_spark.references import resolved_options
from krishiv_spark.storage.disk import DiskFolder
from krishiv_spark.storage.disk_files import DISK
from krishiv_spark.storage.files import Files
from krishiv_spark.storage.folder import Folder
from krishiv_spark.storage.uploads import Uploads
from krishiv_spark.storage.urls import StoreUrl

__all__ = ["ENVIRONMENT", "PREFIX", "Storage"]

PREFIX = "storage."
"""Options of how stores are reached begin with it."""


@dataclass(frozen=True)
class Storage:
    """How stores are reached: what the options ``storage.…`` of a query say. Pickles.

    Attributes:
        options: By name, in the order of their names; never shown, for there are secrets in them.
    """

    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Storage:
        """From options named ``storage.<kind>.<setting>``."""
        return cls(tuple(sorted(options.items())))

    @classmethod
    def given(cls, options: Mapping[str, str]) -> Storage:
        """From all options of a query; others are passed over.

        Raises:
            OptionError: If what one of them names cannot be looked up (`krishiv_spark.references`).
        """
        own = {key: text for key, text in options.items() if key.lower().startswith(PREFIX)}
        return cls.of(resolved_options(own))

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
        from krishiv_spark.storage.settings import HdfsSettings, settings_for

        settings = settings_for(url, dict(self.options))
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
            settings_for,
        )

        settings = settings_for(url, dict(self.options))
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
        from krishiv_spark.storage.settings import HdfsSettings, settings_for

        settings = settings_for(url, dict(self.options))
        if isinstance(settings, HdfsSettings):
            from krishiv_spark.storage.hdfs_files import HdfsFiles

            return HdfsFiles(url, settings)
        from krishiv_spark.storage.object_files import ObjectFiles
        from krishiv_spark.storage.objects import Bucket

        return ObjectFiles(Bucket(url, settings))


def _parsed(location: str | StoreUrl) -> StoreUrl:
    return location if isinstance(location, StoreUrl) else StoreUrl.parse(location)


ENVIRONMENT = Storage()
"""Whatever the environment says, and nothing else."""
