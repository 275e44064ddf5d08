"""What tests and notebooks push rows into, for ``krishiv-memory`` to stream."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from krishiv_spark.arrow.schemas import conform
from krishiv_spark.durable import exists
from krishiv_spark.errors import SchemaError
from krishiv_spark.memory.entry import StoreEntry
from krishiv_spark.memory.log import Log
from krishiv_spark.memory.rows import EncodedRows, encode, schema_of
from krishiv_spark.memory.store import Store, open_store, quoted
from krishiv_spark.sources.memory.dicts import table_of

__all__ = ["MemorySource", "Pushed", "memory_source"]

Pushable: TypeAlias = pa.Table | pa.RecordBatch | Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class MemorySource:
    """Rows that a stream reads in the order in which they were pushed.

    Several processes on the driver's machine may push into one source; each push is whole.

    Attributes:
        name: What ``spark.readStream.format("krishiv-memory").load(name)`` reads.
    """

    name: str

    def add(self, rows: Pushable) -> None:
        """Push rows: they are one unit, never split over batches of a stream.

        Args:
            rows: A table, a batch, or a list of dicts. Columns are matched by name with the
                schema of the source; the first push sets it where none was given. A key that a
                dict lacks is null.

        Raises:
            SchemaError: If a column is missing, has a type that the source's does not hold (see
                `krishiv_spark.arrow.conform`), or a dict has another key or a value that does not
                fit.
        """
        pushed = Pushed(open_store(), self.name)
        table = _table(rows, pushed.schema())
        schema = pushed.pin(table.schema)
        body = encode([conform(batch, schema) for batch in table.to_batches()], schema)
        pushed.push(body)

    def clear(self) -> None:
        """Remove all pushes and the schema.

        Numbers go on: a new query begins after the cleared pushes, and one that had not read
        them all fails with `DataLossError`.
        """
        Pushed(open_store(), self.name).clear()

    def schema(self) -> pa.Schema | None:
        """The schema of the rows; None while it is not known."""
        return Pushed(open_store(), self.name).schema()


def memory_source(name: str, schema: pa.Schema | None = None) -> MemorySource:
    """The source of a name, on the driver's machine; made with the first push.

    Args:
        name: What ``.load(name)`` reads.
        schema: Schema of the rows. Without it the first push decides.

    Raises:
        SchemaError: If the source has another schema already.
    """
    source = MemorySource(name)
    if schema is not None:
        known = Pushed(open_store(), name).pin(schema)
        if not known.equals(schema):
            raise SchemaError(
                f"memory source {name!r} has another schema already: {_brief(known)}, not "
                f"{_brief(schema)}; .clear() it first, or take another name"
            )
    return source


class Pushed:
    """The pushes of one source in the store."""

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        self.log: Log = store.log("pushes", quoted(name), "log")
        self._schema = f"{store.folder('pushes', name)}/schema"
        self._origin = f"{store.folder('pushes', name)}/origin"

    def schema(self) -> pa.Schema | None:
        """The schema of the rows; None while it is not known."""
        try:
            with open(self._schema, "rb") as file:
                return schema_of(file.read())
        except FileNotFoundError:
            return None

    def origin(self) -> str:
        """A random id of this run of numbers: another store, or this one wiped, has another."""
        while not exists(self._origin):
            self._link(self._origin, uuid.uuid4().hex.encode())
        with open(self._origin, "rb") as file:
            return file.read().decode()

    def pin(self, schema: pa.Schema) -> pa.Schema:
        """Set the schema unless there is one; the one that holds is returned."""
        while (known := self.schema()) is None:
            self._link(self._schema, encode([], schema).body)
        return known

    def push(self, rows: EncodedRows) -> None:
        """Add rows under the next number."""
        self.log.append(StoreEntry([rows.body], rows.count))

    def clear(self) -> None:
        """Leave one empty push, which keeps the numbers going."""
        if self.log.newest() is not None and self.log.append(StoreEntry(replaces=True)):
            self.log.remove_below(self.log.first())
        if exists(self._schema):
            os.unlink(self._schema)

    def _link(self, path: str, body: bytes) -> None:
        aside = f"{self.store.aside}/{uuid.uuid4().hex}"
        for folder in (self.store.aside, os.path.dirname(path)):
            os.makedirs(folder, exist_ok=True)
        with open(aside, "xb") as file:
            file.write(body)
        try:
            # A link appears whole, and never in the place of another process's.
            os.link(aside, path)
        except FileExistsError:  # another process has set it: that one holds
            pass
        finally:
            os.unlink(aside)


def _table(rows: Pushable, schema: pa.Schema | None) -> pa.Table:
    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    return table_of(list(rows), schema)


def _brief(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
