"""Real catalogs on loopback: each test has one, or a namespace, of its own.

A server that the machine lacks skips its tests by name.
"""

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psycopg2
import pytest
from cutting_proxy import CuttingProxy
from iceberg_life import IcebergLife
from postgres import open_postgres, require_programs
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError

from krishiv_spark.errors import KrishivError
from servers.rest_catalog import open_rest_catalog

# In one process of xdist each, or every one would bring and start its own.
POSTGRESQL, REST = (
    pytest.param(kind, marks=pytest.mark.xdist_group(kind)) for kind in ("postgresql", "rest")
)
REMOTE = (POSTGRESQL, REST)
ALL = ("sqlite", *REMOTE)


@dataclass(frozen=True)
class Place:
    """A table in a catalog.

    Attributes:
        kind: Of the catalog.
        warehouse: Where its files are.
        uri: Of the catalog.
        name: Of the table.
    """

    kind: str
    warehouse: Path
    uri: str
    name: str = "db.rows"

    @property
    def options(self) -> dict[str, str]:
        """Return the options that a user gives."""
        kind = "rest" if self.kind == "rest" else "sql"
        return {"path": self.name, "catalog.type": kind, "catalog.uri": self.uri}

    def life(self, **given) -> IcebergLife:
        return IcebergLife(self.warehouse, **self.options, **given)

    def rows(self):
        """Return the rows that PyIceberg alone reads; none if there is no table."""
        try:
            with self.table() as table:
                return table.scan().to_arrow()
        except NoSuchTableError:
            return []

    def ids(self) -> list[int]:
        return sorted(self.rows()["id"].to_pylist())

    @contextmanager
    def table(self):
        """The table as it is now."""
        kind = {"type": self.options["catalog.type"], "uri": self.uri}
        with closing(load_catalog("krishiv", **kind, warehouse=str(self.warehouse))) as catalog:
            yield catalog.load_table(self.name)

    def is_commit(self, request: bytes) -> bool:
        """Return True if bytes sent to the catalog request a commit."""
        if self.kind == "postgresql":
            return b"COMMIT\0" in request
        namespace, table = self.name.split(".")
        return request.startswith(f"POST /v1/namespaces/{namespace}/tables/{table} ".encode())

    @contextmanager
    def behind_proxy(self) -> Iterator[tuple[CuttingProxy, dict[str, str]]]:
        """A proxy, and what a user gives to go through it."""
        port = urlsplit(self.uri).port
        with CuttingProxy(port) as proxy:
            there = self.uri.replace(f":{port}", f":{proxy.port}")
            yield proxy, {**self.options, "catalog.uri": there}


@pytest.fixture(scope="session")
def postgresql():
    """The URI of a server."""
    with open_postgres(require_programs()) as uri:
        yield uri


@pytest.fixture(scope="session")
def rest(tmp_path_factory):
    """The URI of a server."""
    with ExitStack() as stack:
        try:
            uri = stack.enter_context(open_rest_catalog(tmp_path_factory.mktemp("rest")))
        except KrishivError as error:
            pytest.skip(f"Iceberg's REST catalog: {str(error).splitlines()[0]}")
        yield uri


@pytest.fixture
def place(request, tmp_path):
    """A place of the kind that a test is parametrized with."""
    return new_place(request.param, tmp_path, request.getfixturevalue)


def new_place(kind: str, folder: Path, fixture) -> Place:
    """An empty place; its server is a fixture."""
    name = f"n{uuid.uuid4().hex}"
    if kind == "sqlite":
        return Place(kind, folder, f"sqlite:///{folder}/catalog.db")
    if kind == "rest":
        return Place(kind, folder, fixture("rest"), f"{name}.rows")
    return Place(kind, folder, _new_database(fixture("postgresql"), name))


def _new_database(uri: str, name: str) -> str:
    with closing(psycopg2.connect(uri.replace("+psycopg2", ""))) as connection:
        connection.autocommit = True
        connection.cursor().execute(f"CREATE DATABASE {name}")
    return uri.removesuffix("postgres") + name
