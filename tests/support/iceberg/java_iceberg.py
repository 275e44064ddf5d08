"""Iceberg's own library, in Java, as an oracle: it reads a table by its metadata file.

It runs in the JVM of PySpark without a session of Spark, so that one jar serves each line of
PySpark. Rows are chosen by Iceberg-Java's scan and by its residual filters.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Any

from pyspark import SparkConf
from pyspark.java_gateway import launch_gateway

from benchmarks.peer import ICEBERG, peer_jars

COMPARISONS = {
    "=": "equal",
    "!=": "notEqual",
    "<": "lessThan",
    "<=": "lessThanOrEqual",
    ">": "greaterThan",
    ">=": "greaterThanOrEqual",
    "in": "in",
    "not in": "notIn",
    "is null": "isNull",
    "is not null": "notNull",
}


class JavaTables:
    """A reader of tables by Iceberg-Java; use `open_java`."""

    def __init__(self, gateway: Any) -> None:
        self._jvm = gateway.jvm
        self._iceberg = gateway.jvm.org.apache.iceberg
        self._make = self._iceberg.expressions.Expressions

    def table(self, location: str) -> Any:
        """Return the table of a metadata file."""
        conf = self._jvm.org.apache.hadoop.conf.Configuration()
        io = self._iceberg.hadoop.HadoopFileIO(conf)
        return self._iceberg.BaseTable(self._iceberg.StaticTableOperations(location, io), "t")

    def open_table(self, warehouse: Path, name: str) -> Any:
        """Return a table of the embedded catalog of a warehouse, which Iceberg-Java may change."""
        catalog = self._iceberg.jdbc.JdbcCatalog()
        catalog.setConf(self._jvm.org.apache.hadoop.conf.Configuration())
        uri = f"jdbc:sqlite:{warehouse}/catalog.db?busy_timeout=20000"
        catalog.initialize("krishiv", {"uri": uri, "warehouse": str(warehouse)})
        return catalog.loadTable(self._iceberg.catalog.TableIdentifier.parse(name))

    def rows(self, location: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """Return some columns of the table of a metadata file, as rows."""
        rows = self._iceberg.data.IcebergGenerics.read(self.table(location)).build()
        return [tuple(row.getField(name) for name in columns) for row in _each(rows)]

    def condition(self, column: str, operator: str, *literals: Any) -> Any:
        """Return a condition with the meaning of `rowFilter`: null is in no list, and any other
        comparison with it is not true.
        """
        make = getattr(self._make, COMPARISONS[operator])
        if operator.startswith("is "):
            return make(column)
        if operator.endswith("in"):
            return make(column, list(literals))
        made = make(column, *literals)
        return getattr(self._make, "and")(made, self._make.notNull(column))

    def negate(self, condition: Any) -> Any:
        """Return a condition's negation."""
        return getattr(self._make, "not")(condition)

    def all_of(self, *conditions: Any) -> Any:
        """Return the conjunction of conditions."""
        return reduce(getattr(self._make, "and"), conditions)

    def any_of(self, *conditions: Any) -> Any:
        """Return the disjunction of conditions."""
        return reduce(getattr(self._make, "or"), conditions)

    def values(self, location: str, column: str) -> list[Any]:
        """Return all values of a column, of the table of a metadata file."""
        rows = self._iceberg.data.IcebergGenerics.read(self.table(location)).build()
        return [row.getField(column) for row in _each(rows)]

    def numbers(self, table: Any, condition: Any = None, column: str = "id") -> list[int]:
        """Return the sorted values of a column of integers, of the rows under a condition."""
        read = self._iceberg.data.IcebergGenerics.read(table)
        read = read if condition is None else read.where(condition)
        return sorted(row.getField(column) for row in _each(read.build()))


def _each(rows: Any) -> Iterator[Any]:
    found = rows.iterator()
    try:
        while found.hasNext():
            yield found.next()
    finally:
        rows.close()


@contextmanager
def open_java() -> Iterator[JavaTables]:
    """Start a JVM with Iceberg's library; it ends with the block."""
    (line,) = ICEBERG.lines
    jars = ":".join(map(str, peer_jars(ICEBERG, line)))
    before = os.environ.get("PYSPARK_SUBMIT_ARGS")
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--driver-class-path {jars} pyspark-shell"
    try:
        gateway = launch_gateway(SparkConf(loadDefaults=False))
    finally:
        del os.environ["PYSPARK_SUBMIT_ARGS"]
        if before is not None:
            os.environ["PYSPARK_SUBMIT_ARGS"] = before
    try:
        yield JavaTables(gateway)
    finally:
        gateway.shutdown()
        gateway.proc.stdin.close()  # the JVM ends when its standard input does
        gateway.proc.wait()
