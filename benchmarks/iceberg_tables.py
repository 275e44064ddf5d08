"""Tables of a SQLite catalog that both our connector and Iceberg's own can reach."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from benchmarks.bench import Run, scratch
from benchmarks.check import table_totals
from benchmarks.peer import ICEBERG

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog

__all__ = ["OURS", "TABLES", "THEIRS", "Warehouse", "names", "warehouse"]

OURS, THEIRS = "krishiv-iceberg", "iceberg"
TABLES = {OURS: "ours", THEIRS: "theirs"}
"""By the connector, the table that it writes to."""


def names(run: Run) -> tuple[str, ...]:
    """Return the connectors that can be measured."""
    return (OURS,) if ICEBERG in run.absent else (OURS, THEIRS)


@dataclass(frozen=True)
class Warehouse:
    """A folder with tables and their catalog.

    Attributes:
        folder: Of all of it.
        name: Of the catalog: tables of a SQL catalog belong to it, and Spark opens a catalog of
            one name once in a session.
    """

    folder: Path
    name: str

    @property
    def options(self) -> dict[str, str]:
        """Return the options by which our connector finds the table."""
        return {"warehouse": str(self.folder), "catalogName": self.name}

    @cached_property
    def catalog(self) -> SqlCatalog:
        """PyIceberg's own, with a namespace ``db``."""
        from pyiceberg.catalog.sql import SqlCatalog

        place = f"sqlite:///{self.folder}/catalog.db"
        catalog = SqlCatalog(self.name, uri=place, warehouse=str(self.folder))
        catalog.create_namespace("db")
        return catalog

    def given(self, name: str) -> dict[str, str]:
        """Return the options by which a connector finds the table that it writes to."""
        table = f"db.{TABLES[name]}"
        if name == OURS:
            return {**self.options, "path": table}
        return {"path": f"{self.name}.{table}"}

    def make(self, table: str, columns: pa.Schema, partition: str | None = None) -> None:
        """Create an empty table by PyIceberg, so that all connectors find the same.

        Args:
            table: Its name in the namespace ``db``.
            columns: Its columns; all of them can be null, as those of Spark.
            partition: Column whose values are its partitions.
        """
        columns = pa.schema([field.with_nullable(True) for field in columns])  # noqa: FBT003
        made = self.catalog.create_table(f"db.{table}", columns)
        if partition is not None:
            with made.update_spec() as update:
                update.add_identity(partition)

    def add(self, table: str, rows: pa.Table) -> None:
        """Append rows, by PyIceberg."""
        self.catalog.load_table(f"db.{table}").append(rows)

    def clear(self, table: str) -> None:
        """Take the rows out of a table, and their files off the disk."""
        opened = self.catalog.load_table(f"db.{table}")
        opened.delete()
        shutil.rmtree(f"{opened.location()}/data")

    def open_peer(self, spark: Any, *, is_new: bool = True) -> None:
        """Make it known to Spark, by its name, as a catalog of Iceberg's own connector.

        Args:
            spark: The session.
            is_new: Whether its file has to be created.
        """
        if is_new:
            _ = self.catalog
        given = {
            "": "org.apache.iceberg.spark.SparkCatalog",
            ".catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
            ".uri": f"jdbc:sqlite:{self.folder}/catalog.db",
            ".warehouse": str(self.folder),
        }
        for key, text in given.items():
            spark.conf.set(f"spark.sql.catalog.{self.name}{key}", text)

    def totals(self, table: str, column: str) -> tuple[int, int]:
        """Return the number of rows of a table and the sum of a column, by PyIceberg alone."""
        return table_totals(self.folder, column, f"db.{table}", self.name)


@contextmanager
def warehouse(run: Run, name: str) -> Iterator[Warehouse]:
    """Create a temporary warehouse; Spark knows it if Iceberg's connector is installed."""
    with scratch(run.folder) as folder:
        made = Warehouse(folder, name)
        with closing(made.catalog):
            if ICEBERG not in run.absent:
                made.open_peer(run.spark())
            yield made
