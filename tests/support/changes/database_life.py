"""Random lives of a database table, and the events that Debezium writes of them."""

import itertools
import random
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from debezium_events import INT, PLACEHOLDER, TEXT, to_json, write_event, write_typed

RECORDS = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
    ]
)
"""Rows of krishiv-kafka."""

COLUMNS = "id INT, n BIGINT, text STRING"
"""The table, as option ``tableSchema``."""

_DELETED = object()

LATER_NAMES = ["n", "select", "Note", 'q"x', "a{b}", "place"]
"""Names of the columns that a table gets later."""


class Database:
    """A table with a large column, which writes the events of its changes to a topic.

    An update of the other columns leaves the large one out, as PostgreSQL does.

    Attributes:
        rows: The table now.
        records: Keys and values of the topic.
        effects: For each record, the rows afterwards of the keys that it changes.
    """

    def __init__(self, seed, *, moves=False, renames=False):
        self.random, self.moves, self.renames = random.Random(seed), moves, renames
        self.rows, self.records, self.lsn = {}, [], 0
        self.effects = []

    def emit(self, key, value, *also):
        self.records.append((to_json({"id": key}), value))
        touched = {key, *also}
        self.effects.append({one: self.rows.get(one, _DELETED) for one in touched})

    def event(self, op, before, after):
        self.lsn += 1
        key = (after or before)["id"]
        self.emit(key, write_event(op, before, after, self.lsn))
        if op == "d":
            self.emit(key, None)

    def insert(self, key):
        text = self.random.choice([None, "", "x" * self.random.randrange(30)])
        self.rows[key] = {"id": key, "n": self.random.randrange(100), "text": text}
        self.event("c", None, self.rows[key])

    def update(self, key):
        row = self.rows[key]
        if self.random.random() < 0.6 and row["text"] is not None:
            self.rows[key] = row | {"n": self.random.randrange(100)}
            self.event("u", None, self.rows[key] | {"text": PLACEHOLDER})
        else:
            self.rows[key] = row | {"text": f"new {self.random.random()}"}
            self.event("u", None, self.rows[key])

    def delete(self, key):
        row = self.rows.pop(key)
        self.event("d", {"id": row["id"], "n": None, "text": None}, None)

    def move(self, key):
        """Change a key: a delete and an insert at one position, without the large column."""
        row = self.rows.pop(key)
        new = next(n for n in itertools.count(self.random.randrange(8)) if n not in self.rows)
        self.event("d", {"id": key, "n": None, "text": None}, None)
        self.rows[new] = row | {"id": new}
        self.lsn -= 1
        kept = {} if row["text"] is None else {"text": PLACEHOLDER}
        self.event("c", None, self.rows[new] | kept)

    def rename(self, key):
        """Change a key in one event, as a connector does whose records have a key of their own."""
        row = self.rows.pop(key)
        new = next(n for n in itertools.count(self.random.randrange(8)) if n not in self.rows)
        self.rows[new] = row | {"id": new}
        kept = {} if row["text"] is None else {"text": PLACEHOLDER}
        self.lsn += 1
        before = {"id": key, "n": None, "text": None}
        self.emit(new, write_event("u", before, self.rows[new] | kept, self.lsn), key)

    def step(self):
        key = self.random.randrange(8)
        if key not in self.rows:
            self.insert(key)
        elif self.random.random() < 0.2:
            self.delete(key)
        elif self.moves and self.random.random() < 0.3:
            self.move(key)
        elif self.renames and self.random.random() < 0.2:
            self.rename(key)
        else:
            self.update(key)


class GrowingDatabase:
    """A table whose events have the schema that it has at their time.

    Texts that a statement does not change are left out, and a changed key is a delete and an insert
    at one position.

    Attributes:
        rows: The table now, by key.
        records: Keys and values of the topic.
    """

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.columns = {"id": INT, "text": TEXT}
        self.rows, self.records, self.lsn = {}, [], 0
        self._later = self.random.sample(LATER_NAMES, len(LATER_NAMES))

    def state(self):
        """Return the rows without nulls: a column that is not there yet is null."""
        return to_state(self.rows.values())

    def step(self):
        if self._later and self.random.random() < 0.06:
            name = self._later.pop()
            self.columns[name] = self.random.choice([INT, TEXT])
            self.rows = {key: {**row, name: None} for key, row in self.rows.items()}
        key = self.random.randrange(8)
        if key not in self.rows:
            self._write("c", {"id": key, **{name: self._draw(name) for name in self._others()}})
        else:
            chance = self.random.random()
            act = self._delete if chance < 0.15 else self._move if chance < 0.35 else self._update
            act(key)

    def _others(self):
        return [name for name in self.columns if name != "id"]

    def _draw(self, name):
        if self.columns[name] is INT:
            return self.random.choice([None, self.random.randrange(100)])
        return self.random.choice([None, "", f"text {self.random.random()}"])

    def _write(self, op, row, left_out=()):
        self.lsn += 1
        self.rows[row["id"]] = row
        self._emit(op, {n: PLACEHOLDER if n in left_out else value for n, value in row.items()})

    def _emit(self, op, row):
        event = write_typed(dict(self.columns), row, self.lsn, op)
        self.records.append((to_json({"id": row["id"]}), event))

    def _update(self, key):
        row = self.rows[key]
        changed = {name: self._draw(name) for name in self._others() if self.random.random() < 0.5}
        self._write("u", row | changed, self._find_large(row) - changed.keys())

    def _find_large(self, row):
        return {n for n in self._others() if self.columns[n] is TEXT and row[n] is not None}

    def _delete(self, key):
        self.lsn += 1
        del self.rows[key]
        self._emit("d", {**dict.fromkeys(self.columns), "id": key})

    def _move(self, key):
        row = self.rows[key]
        self._delete(key)
        self.lsn -= 1
        first = self.random.randrange(8)
        new = next(n for n in itertools.count(first) if n not in self.rows)
        self._write("c", row | {"id": new}, self._find_large(row))


def to_state(rows):
    """Return rows by their keys, without nulls."""
    found = ({name: value for name, value in row.items() if value is not None} for row in rows)
    return sorted(found, key=lambda row: row["id"])


def to_rows(records, first=0) -> pa.Table:
    """Return records, pairs of key and value, as rows of one partition from an offset on."""
    keys, values = zip(*records, strict=True)
    count = len(records)
    offsets = range(first, first + count)
    columns = [keys, values, ["t"] * count, [0] * count, offsets]
    return pa.table(
        [pa.array(list(column), kind) for column, kind in zip(columns, RECORDS.types, strict=True)],
        schema=RECORDS,
    )


class RecordRows:
    """The records of an endless life, as rows of a sink under the kit.

    Args:
        seed: Of the life.
    """

    def __init__(self, seed: int = 1, **kind: Any) -> None:
        self._database = Database(seed, **kind)

    def make_row(self, number: int) -> tuple[Any, ...]:
        """Return the record of a number, as a tuple of `RECORDS`."""
        self._live(number)
        return *self._database.records[number], "t", 0, number

    def result(self, numbers: Iterable[int]) -> list[dict[str, Any]]:
        """Return the rows of the table after the records of these numbers."""
        rows: dict[int, Any] = {}
        for number in numbers:
            self._live(number)
            rows |= self._database.effects[number]
        return [row for row in rows.values() if row is not _DELETED]

    def _live(self, number: int) -> None:
        while len(self._database.records) <= number:
            self._database.step()


def make_change_rows(seed: int = 1) -> dict[str, Any]:
    """Return arguments of `SinkUnderTest` for change data."""
    records = RecordRows(seed, renames=True)
    return {
        "schema": RECORDS,
        "row": records.make_row,
        "result": records.result,
        "complete": False,
        "overwrite": False,
        "several_queries": False,
        "batch": False,
    }
