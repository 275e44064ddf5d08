"""Iceberg tables as DuckDB reads them, by an extension that knows nothing of us or PyIceberg."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import duckdb
from pyiceberg.table import Table


@contextmanager
def open_duckdb() -> Iterator[duckdb.DuckDBPyConnection]:
    """A DuckDB that reads Iceberg, with the signed extensions that packages of PyPI contain."""
    with duckdb.connect(config={"autoinstall_known_extensions": "false"}) as duck:
        for name in ("avro", "iceberg"):
            duck.execute(f"LOAD '{_find_extension(name)}'")
        yield duck


def read_by_duckdb(table: Table, columns: str) -> list[tuple]:
    """Return some columns of the newest snapshot, as rows."""
    with open_duckdb() as duck:
        return duck.sql(
            f"SELECT {columns} FROM iceberg_scan('{table.metadata_location}')"
        ).fetchall()


def _find_extension(name: str) -> Path:
    found = find_spec(f"duckdb_extension_{name}")
    assert found is not None, f"the package duckdb-extension-{name} is not installed"
    (folder,) = found.submodule_search_locations
    return Path(folder, "extensions", f"v{duckdb.__version__}", f"{name}.duckdb_extension")
