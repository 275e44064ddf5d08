"""Random lives of a database table that gets columns, and the events of its changes."""

import itertools
import random

from debezium_events import PLACEHOLDER, to_json, write_typed

INT, TEXT = {"type": "int32"}, {"type": "string"}
NAMES = ["n", "select", "Note", 'q"x', "a{b}", "place"]
"""Names of later columns."""


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
        self._later = self.random.sample(NAMES, len(NAMES))

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
