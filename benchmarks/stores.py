"""An S3 of its own for the benchmarks, places in it, and what they should hold."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from servers.stores import OPENED, Store

__all__ = ["Bucket", "Place", "open_bucket"]


@dataclass(frozen=True)
class Bucket:
    """A bucket of an S3 on loopback.

    Attributes:
        store: The server.
    """

    store: Store

    @property
    def endpoint(self) -> str:
        """The server's URL."""
        return self.store.options["storage.s3.endpoint"]

    def options(self, endpoint: str | None = None) -> dict[str, str]:
        """Return our options for the bucket, perhaps by the URL of a proxy before it."""
        return {**self.store.options, "storage.s3.endpoint": endpoint or self.endpoint}

    def tell(self, spark: Any) -> None:
        """Tell a session how Hadoop's client reaches it."""
        for name, value in self.store.hadoop.items():
            spark.conf.set(name, value)

    def place(self) -> Place:
        """Create a new empty location."""
        url = f"{self.store.url}/{uuid.uuid4().hex[:8]}"
        said = {name.rpartition(".")[2]: value for name, value in self.store.options.items()}
        return Place(url, said)


@dataclass(frozen=True)
class Place:
    """All keys of a bucket that begin alike.

    Attributes:
        url: Of it.
        said: Endpoint and login.
    """

    url: str
    said: Mapping[str, str]

    @property
    def bucket(self) -> str:
        """The bucket's name."""
        return urlsplit(self.url).netloc

    @property
    def prefix(self) -> str:
        """Return the beginning of the keys."""
        return urlsplit(self.url).path.lstrip("/")

    def client(self) -> Any:
        """Amazon's own."""
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.said["endpoint"],
            region_name=self.said["region"],
            aws_access_key_id=self.said["accessKeyId"],
            aws_secret_access_key=self.said["secretAccessKey"],
        )

    def sizes(self) -> dict[str, int]:
        """Bytes of each object, by its key."""
        pager = self.client().get_paginator("list_objects_v2")
        pages = pager.paginate(Bucket=self.bucket, Prefix=f"{self.prefix}/")
        return {item["Key"]: item["Size"] for page in pages for item in page.get("Contents", ())}

    def read(self, name: str) -> bytes:
        """Return an object, by its key below the location."""
        found = self.client().get_object(Bucket=self.bucket, Key=f"{self.prefix}/{name}")
        return bytes(found["Body"].read())

    def totals(self, column: str) -> tuple[int, int]:
        """Return the number of rows and the sum of a column of all files, by PyArrow's S3 client.

        As `benchmarks.check.totals`, hidden folders are read as well.
        """
        import pyarrow.compute as pc
        import pyarrow.dataset as ds
        from pyarrow.fs import S3FileSystem

        s3 = S3FileSystem(
            endpoint_override=urlsplit(self.said["endpoint"]).netloc,
            scheme="http",
            region=self.said["region"],
            access_key=self.said["accessKeyId"],
            secret_key=self.said["secretAccessKey"],
        )
        files = [f"{self.bucket}/{key}" for key in self.sizes() if key.endswith(".parquet")]
        found = ds.dataset(files, filesystem=s3).to_table(columns=[column])[column]
        return len(found), pc.sum(found).as_py() or 0

    def clear(self) -> None:
        """Remove every object."""
        client = self.client()
        for key in self.sizes():
            client.delete_object(Bucket=self.bucket, Key=key)


@contextmanager
def open_bucket(folder: Path) -> Iterator[Bucket]:
    """Start versitygw, the fastest of the servers that tests know.

    Args:
        folder: Its objects lie there: in memory, where what is asked of it is to be measured.

    Raises:
        NotInstalledError: If it cannot be had.
    """
    home = folder / f"s3-{uuid.uuid4().hex[:8]}"
    home.mkdir()
    with OPENED["versity"](home) as store:
        yield Bucket(store)
