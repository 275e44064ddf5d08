"""The handle by which tests and notebooks push rows that ``krishiv-memory`` streams."""

from __future__ import annotations

import math
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from krishiv_spark.arrow.conform import conform
from krishiv_spark.durable import exists
from krishiv_spark.errors import SchemaError
from krishiv_spark.memory.entry import EncodedRows, StoreEntry, encode, schema_of
from krishiv_spark.memory.log import Log
from krishiv_spark.memory.store import Store, open_store, quote_name
from krishiv_spark.messages.suggestions import did_you_mean

__all__ = ["MemorySource", "Pushed", "memory_source", "table_of"]


def table_of(rows: Sequence[Mapping[str, Any]], schema: pa.Schema | None) -> pa.Table:
    """Return rows in a schema, or with the types that Arrow infers.

    Arrow changes values to fit: 1.5 as a whole number becomes 1, a time as a date loses its hours,
    a time without a zone becomes one in UTC. So each value is read back and compared.

    Args:
        rows: The rows. A key that a row lacks is null.
        schema: The schema, or None.

    Raises:
        SchemaError: If a row has a key that the schema lacks, or a value does not fit.
    """
    if schema is None:
        names = list(dict.fromkeys(key for row in rows for key in row))
        columns = [_column([row.get(name) for row in rows], name, None) for name in names]
        return pa.Table.from_arrays(columns, names=names)
    _check_keys(rows, schema.names)
    fields = list(schema)
    columns = [
        _column([row.get(field.name) for row in rows], field.name, field) for field in fields
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _check_keys(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    for number, row in enumerate(rows):
        for key in row:
            if key not in names:
                hint = did_you_mean(key, names, f"there are {', '.join(names)}")
                raise SchemaError(f"row {number} has {key!r}, which is not a column; {hint}")


def _column(values: Sequence[Any], name: str, field: pa.Field | None) -> pa.Array:
    try:
        column = pa.array(values, None if field is None else field.type)
    except (ValueError, TypeError, OverflowError, NotImplementedError) as error:
        what = "one type" if field is None else f"its type {field.type}"
        raise SchemaError(f"the values of column {name!r} do not fit {what}: {error}") from error
    if field is not None and not field.nullable and column.null_count:
        raise SchemaError(f"column {name!r} has nulls, but is NOT NULL")
    for number, (given, held) in enumerate(zip(values, column.to_pylist(), strict=True)):
        if not _is_kept(given, held, column.type):
            raise SchemaError(
                f"row {number}: column {name!r} is {column.type}, which would make {held!r} of "
                f"{given!r}"
            )
    return column


def _is_kept(given: Any, held: Any, kind: pa.DataType) -> bool:
    if given is None or held is None:
        return given is held
    if pa.types.is_struct(kind):
        # Arrow drops keys that its struct has no field for.
        return given.keys() <= held.keys() and all(
            _is_kept(given.get(field.name), held[field.name], field.type) for field in kind
        )
    if pa.types.is_map(kind):
        pairs = list(given.items() if isinstance(given, Mapping) else given)
        parts = zip(pairs, held, strict=True)
        return all(
            _is_kept(mine[0], its[0], kind.key_type) and _is_kept(mine[1], its[1], kind.item_type)
            for mine, its in parts
        )
    if pa.types.is_nested(kind):
        parts = zip(given, held, strict=True)
        return all(_is_kept(mine, its, kind.value_type) for mine, its in parts)
    return _is_same(given, held, kind)


def _is_same(given: Any, held: Any, kind: pa.DataType) -> bool:
    """Return True if a value equals the given one; a short float may be rounded."""
    if isinstance(held, float) and isinstance(given, float):
        if not math.isfinite(given) or not math.isfinite(held):
            return repr(float(given)) == repr(held)
        return given == held or kind.bit_width < _DOUBLE_BITS
    # Arrow accepts text for binary, and returns bytes.
    as_bytes = [one.encode() if isinstance(one, str) else one for one in (given, held)]
    return bool(as_bytes[0] == as_bytes[1])


_DOUBLE_BITS = 64


Pushable: TypeAlias = pa.Table | pa.RecordBatch | Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class MemorySource:
    """Rows that a stream reads in the order in which they were pushed.

    Several processes on the driver's machine may push into one source; each push is atomic.

    Attributes:
        name: The name for ``spark.readStream.format("krishiv-memory").load(name)``.
    """

    name: str

    def add(self, rows: Pushable) -> None:
        """Push rows as one unit, which is never split over batches of a stream.

        Args:
            rows: A table, a batch, or a list of dicts. Columns are matched by name with the schema
                of the source; the first push sets it if none was given. A key that a dict lacks is
                null.

        Raises:
            SchemaError: If a column is missing or has a type that does not fit the source's (see
                `krishiv_spark.arrow.conform`), or if a dict has an unknown key or a value that does
                not fit.
        """
        pushed = Pushed(open_store(), self.name)
        table = _table(rows, pushed.schema())
        schema = pushed.pin(table.schema)
        body = encode([conform(batch, schema) for batch in table.to_batches()], schema)
        pushed.push(body)

    def clear(self) -> None:
        """Remove all pushes and the schema.

        Numbers continue: a new query starts after the cleared pushes, and one that had not read
        them all fails with `DataLossError`.
        """
        Pushed(open_store(), self.name).clear()

    def schema(self) -> pa.Schema | None:
        """Return the schema of the rows; None while it is unknown."""
        return Pushed(open_store(), self.name).schema()


def memory_source(name: str, schema: pa.Schema | None = None) -> MemorySource:
    """Return the source with a name, on the driver's machine. The first push creates it.

    Args:
        name: The name for ``.load(name)``.
        schema: Schema of the rows. By default, the first push sets it.

    Raises:
        SchemaError: If the source has another schema already.
    """
    source = MemorySource(name)
    if schema is not None:
        known = Pushed(open_store(), name).pin(schema)
        if not known.equals(schema):
            raise SchemaError(
                f"memory source {name!r} has another schema already: {_brief(known)}, not "
                f"{_brief(schema)}; call .clear() first, or use another name"
            )
    return source


class Pushed:
    """The pushes of one source in the store."""

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        self.log: Log = store.log("pushes", quote_name(name), "log")
        self._schema = f"{store.folder('pushes', name)}/schema"
        self._origin = f"{store.folder('pushes', name)}/origin"

    def schema(self) -> pa.Schema | None:
        """Return the schema of the rows; None while it is unknown."""
        try:
            with open(self._schema, "rb") as file:
                return schema_of(file.read())
        except FileNotFoundError:
            return None

    def origin(self) -> str:
        """Return the random id of this sequence of numbers; another or wiped store has another."""
        while not exists(self._origin):
            self._link(self._origin, uuid.uuid4().hex.encode())
        with open(self._origin, "rb") as file:
            return file.read().decode()

    def pin(self, schema: pa.Schema) -> pa.Schema:
        """Set the schema unless there is one, and return the current one."""
        while (known := self.schema()) is None:
            self._link(self._schema, encode([], schema).body)
        return known

    def push(self, rows: EncodedRows) -> None:
        """Add rows under the next number."""
        self.log.append(StoreEntry([rows.body], rows.count))

    def clear(self) -> None:
        """Replace all pushes by an empty one, which keeps the numbers."""
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
            # A link appears with its content, and never replaces another process's.
            os.link(aside, path)
        except FileExistsError:  # another process has set it, and its value applies
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
