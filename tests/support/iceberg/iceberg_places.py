"""Tables of Iceberg in buckets, in each kind of catalog, and who knows nothing of the sink.

The onlooker asks by boto3: neither PyArrow's client of S3 nor obstore survives the kit's forks.
"""

import sqlite3
import uuid
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from urllib.parse import urlsplit

import boto3
import requests
from iceberg_life import TABLE, IcebergLife
from pyiceberg.io import FileIO
from pyiceberg.table import StaticTable

from servers.stores import SECRET, USER, Store

GLUE_SECRET = "hunter4-very-secret"


@dataclass(frozen=True)
class IcebergPlace:
    """A table in a bucket, which nobody has made yet.

    Attributes:
        kind: Of the catalog.
        url: Of the warehouse.
        store: With the bucket.
        catalog: Its settings, as a user gives them.
        name: Of the table.
    """

    kind: str
    url: str
    store: Store
    catalog: Mapping[str, str] = field(repr=False)
    name: str = TABLE

    @property
    def options(self) -> dict[str, str]:
        """Return the options that a user gives, besides the table's name and the warehouse."""
        return {**self.catalog, **self.store.options}

    def life(self, **given) -> IcebergLife:
        return IcebergLife(self.url, **{"path": self.name, **self.options, **given})

    def ids(self) -> list[int]:
        return sorted(self.rows()["id"].to_pylist())

    def rows(self):
        """Return the rows that PyIceberg alone reads, by boto3; none if there is no table."""
        table = self.table()
        return [] if table is None else table.scan().to_arrow()

    def table(self):
        """The table as it is now; None if there is none."""
        place = self.metadata()
        if place is None:
            return None
        io = "iceberg_places.ByBoto3"
        return StaticTable.from_metadata(place, {"py-io-impl": io, "endpoint": self.endpoint})

    def metadata(self) -> str | None:
        """Return the location of the table's metadata by the catalog; None if there is no table."""
        return _IN_CATALOG[self.kind](self)

    @property
    def endpoint(self) -> str:
        return self.store.options["storage.s3.endpoint"]

    def keys(self) -> set[str]:
        """Of all objects in the warehouse, with the bucket."""
        url = urlsplit(self.url)
        pages = client("s3", self.endpoint).get_paginator("list_objects_v2")
        found = pages.paginate(Bucket=url.netloc, Prefix=url.path[1:] + "/")
        return {f"{url.netloc}/{o['Key']}" for page in found for o in page.get("Contents", ())}

    def unnamed(self) -> set[str]:
        """Data files that are not in the table."""
        named = {
            task.file.file_path.partition("://")[2] for task in self.table().scan().plan_files()
        }
        return {key for key in self.keys() if key.endswith(".parquet")} - named


class Onlooker:
    """A reader of a table, which reads again only after a change of the table or a deletion.

    Args:
        place: The location of the table.
    """

    def __init__(self, place: IcebergPlace) -> None:
        self._place = place
        self._seen, self._needed, self._rows = None, set(), []

    def rows(self):
        seen = self._place.metadata()
        if seen != self._seen or not self._needed <= self._place.keys():
            self._rows, self._needed = self._place.rows(), self._place.keys()
            self._seen = seen
        return self._rows


@lru_cache
def client(kind: str, endpoint: str):
    login = {"aws_access_key_id": USER, "aws_secret_access_key": SECRET}
    return boto3.client(kind, endpoint_url=endpoint, region_name="us-east-1", **login)


class ByBoto3(FileIO):
    """Reads objects as a whole."""

    def new_input(self, location):
        url = urlsplit(location)
        s3 = client("s3", self.properties["endpoint"])
        data = s3.get_object(Bucket=url.netloc, Key=url.path[1:])["Body"].read()
        return _Object(location, data)

    def new_output(self, location):
        raise NotImplementedError

    def delete(self, location):
        raise NotImplementedError


@dataclass(frozen=True)
class _Object:
    location: str
    data: bytes

    def open(self, **_):
        return BytesIO(self.data)


def new_place(kind: str, store: Store, folder: Path, uri: str = "") -> IcebergPlace:
    """An empty place in a catalog of a kind; a REST catalog has been started at `uri`."""
    unique = f"n{uuid.uuid4().hex[:12]}"
    url = f"{store.url}/{unique}"
    if kind == "sql":
        file = f"sqlite:///{folder}/{unique}.db?timeout=0.1"  # others hold its lock, asleep
        return IcebergPlace(kind, url, store, {"catalog.type": "sql", "catalog.uri": file})
    name = f"{unique}.rows"
    if kind == "rest":
        return IcebergPlace(kind, url, store, {"catalog.uri": uri}, name)
    glue = {
        "endpoint": store.options["storage.s3.endpoint"],
        "region": "us-east-1",
        "access-key-id": "anybody",
        "secret-access-key": GLUE_SECRET,
    }
    said = {f"catalog.glue.{key}": value for key, value in glue.items()}
    return IcebergPlace(kind, url, store, {"catalog.type": "glue", **said}, name)


def _in_sqlite(place: IcebergPlace) -> str | None:
    file = place.catalog["catalog.uri"].removeprefix("sqlite:///").partition("?")[0]
    if not Path(file).exists():
        return None
    with closing(sqlite3.connect(file)) as catalog:
        text = "SELECT 1 FROM sqlite_master WHERE name = 'iceberg_tables'"
        if not catalog.execute(text).fetchone():
            return None
        table = place.name.partition(".")[2]
        text = "SELECT metadata_location FROM iceberg_tables WHERE table_name = ?"
        found = catalog.execute(text, [table]).fetchone()
    return found and found[0]


def _in_glue(place: IcebergPlace) -> str | None:
    database, table = place.name.split(".")
    glue = client("glue", place.endpoint)
    try:
        found = glue.get_table(DatabaseName=database, Name=table)
    except glue.exceptions.EntityNotFoundException:
        return None
    return found["Table"]["Parameters"]["metadata_location"]


def _in_rest(place: IcebergPlace) -> str | None:
    namespace, table = place.name.split(".")
    url = f"{place.catalog['catalog.uri']}/v1/namespaces/{namespace}/tables/{table}"
    answer = requests.get(url, timeout=60)
    return answer.json()["metadata-location"] if answer.ok else None


_IN_CATALOG = {"sql": _in_sqlite, "glue": _in_glue, "rest": _in_rest}
