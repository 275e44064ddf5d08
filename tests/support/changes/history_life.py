"""Random lives of a database table whose transactions overlap, and its history."""

import datetime as dt
import random
from collections.abc import Iterable
from typing import Any, NamedTuple

import pyarrow as pa
from database_life import RECORDS
from debezium_events import PLACEHOLDER, to_json, write_event

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
COLUMNS = "id INT, n BIGINT, text STRING, tags ARRAY<STRING>"
"""The table, as option ``tableSchema``."""

TIMED_RECORDS = RECORDS.append(pa.field("timestamp", pa.timestamp("us", tz="UTC")))
"""Rows of krishiv-kafka with the time of each record."""


def at(micros):
    return None if micros is None else EPOCH + dt.timedelta(microseconds=micros)


class Effect(NamedTuple):
    """The effect of a record.

    Attributes:
        op: Its operation.
        row: The row after the change, or before its deletion.
        time: Time of the commit, microseconds.
        lsn: Its position.
        keeps: Whether the record leaves out the text of the row.
    """

    op: str
    row: dict[str, Any]
    time: int
    lsn: int
    keeps: bool


class Versions:
    """The history of a table, kept change by change."""

    def __init__(self):
        self.rows, self.open, self.newest = [], {}, {}

    def apply(self, effect: Effect | None) -> None:
        """Apply the effect of a record, unless it is a repeated one."""
        if effect is None or effect.lsn <= self.newest.get(effect.row["id"], -1):
            return
        op, row, time, lsn, keeps = effect
        before = self.open.get(row["id"])
        if op == "r" and before is not None and all(before[name] == row[name] for name in row):
            return
        self.newest[row["id"]] = lsn
        position = f"{'snapshot:' if op == 'r' else ''}lsn:{lsn:020}"
        if before is not None:
            before["valid_to"] = time
            if op == "d":
                before["change_position"] += f"/{position}"
            del self.open[row["id"]]
        if op == "d":
            return
        text = {"text": before["text"]} if keeps and before is not None else {}
        span = {"valid_from": time, "valid_to": None, "change_position": position}
        self.open[row["id"]] = {**row, **text, **span}
        self.rows.append(self.open[row["id"]])

    def sorted(self):
        found = [
            {
                **row,
                "valid_from": at(row["valid_from"]),
                "valid_to": at(row["valid_to"]),
                "is_current": row["valid_to"] is None,
            }
            for row in self.rows
        ]
        return sort_versions(found)


NOW = dt.datetime.max.replace(tzinfo=dt.timezone.utc)


def sort_versions(rows, *keys):
    def order(row):
        own = [row[name] for name in keys or ["id"]]
        return *own, row["valid_from"], row["valid_to"] or NOW, row["change_position"]

    return sorted(rows, key=order)


class Database:
    """A table that writes the events of its transactions, two of which may be open at once.

    An event has the position of its statement, and the time of its commit; events follow one
    another in the order of the commits.
    """

    def __init__(self, seed, *, moves=False):
        self.random, self.moves = random.Random(seed), moves
        self.rows, self.history, self.transactions = {}, Versions(), []
        self.records, self.effects = [], []
        self.lsn, self.clock = 0, 0

    def snapshot(self):
        for key in range(0, 8, 2):
            self.rows[key] = self.draw(key)
        self.clock += 1000
        events = [(key, "r", None, row, self.lsn) for key, row in self.rows.items()]
        self.commit(events, snapshot="true")
        self.transactions.append(self.records[:])

    def draw(self, key):
        text = self.random.choice([None, "", "x" * self.random.randrange(30)])
        tags = self.random.choice([None, [], ["a"], ["b", None]])
        return {"id": key, "n": self.random.randrange(100), "text": text, "tags": tags}

    def read_again(self):
        """Read some rows, as an incremental snapshot does: none of them has changed."""
        self.clock += 1
        for key in self.random.sample(sorted(self.rows), min(2, len(self.rows))):
            event = write_event("r", None, self.rows[key], self.lsn, ts_us=self.clock)
            self.emit(key, event, Effect("r", self.rows[key], self.clock, self.lsn, keeps=False))

    def run(self):
        """Run one or two transactions, on even and on odd keys."""
        first, both = len(self.records), self.random.random() < 0.4
        buffers = [[], []] if both else [[]]
        for _ in range(self.random.choice([1, 1, 2, 5])):
            for parity, events in enumerate(buffers):
                step = 2 if both else 1
                self.change(events, self.random.randrange(parity, 8, step), step)
        for events in reversed(buffers):
            self.clock += self.random.randrange(1, 1000)
            self.commit(events)
        if self.random.random() < 0.05:
            self.read_again()
        self.transactions.append(self.records[first:])

    def change(self, events, key, step):
        self.lsn += 1
        row, dice = self.rows.get(key), self.random.random()
        if row is None:
            self.rows[key] = self.draw(key)
            events.append((key, "c", None, self.rows[key], self.lsn))
        elif dice < 0.2:
            del self.rows[key]
            events.append((key, "d", {**row, "n": None}, None, self.lsn))
        elif self.moves and dice < 0.4:
            free = [n for n in range(key % step, 40, step) if n not in self.rows]
            new = self.random.choice(free[:5])
            del self.rows[key]
            self.rows[new] = {**row, "id": new}
            events.append((key, "d", {**row, "n": None}, None, self.lsn))
            events.append((new, "c", None, self.rows[new], self.lsn))
        else:
            self.rows[key] = {**row, "n": self.random.randrange(100)}
            if dice < 0.6:
                self.rows[key] |= {"text": f"new {dice}"}
            events.append((key, "u", None, self.rows[key], self.lsn))

    def commit(self, events, **source):
        """Write the events of a transaction; values that an update leaves are left out."""
        for key, op, before, after, lsn in events:
            known = self.history.open.get(key)
            sent = after
            if op in ("u", "c") and after["text"] is not None:
                before_text = known and known["text"]
                is_moved = op == "c" and any(e[1] == "d" and e[4] == lsn for e in events)
                if is_moved or (op == "u" and before_text == after["text"]):
                    sent = {**after, "text": PLACEHOLDER}
            value = write_event(op, before, sent, lsn, ts_us=self.clock, **source)
            self.emit(key, value, Effect(op, after or before, self.clock, lsn, sent is not after))
            if op == "d":
                self.emit(key, None, None)

    def emit(self, key, value, effect):
        self.records.append((to_json({"id": key}), value))
        self.effects.append(effect)
        self.history.apply(effect)


class HistoryRows:
    """The records of an endless life, as rows of a sink under the kit.

    Args:
        seed: Of the life.
    """

    def __init__(self, seed: int = 1) -> None:
        self._database = Database(seed)
        self._database.snapshot()

    def make_row(self, number: int) -> tuple[Any, ...]:
        """Return the record of a number, as a tuple of `TIMED_RECORDS`."""
        self._live(number)
        return *self._database.records[number], "t", 0, number, EPOCH

    def result(self, numbers: Iterable[int]) -> list[dict[str, Any]]:
        """Return the versions after the records of these numbers."""
        versions = Versions()
        for number in numbers:
            self._live(number)
            versions.apply(self._database.effects[number])
        return versions.sorted()

    def _live(self, number: int) -> None:
        """Live on, and sometimes write records again, as Debezium does."""
        database = self._database
        while len(database.records) <= number:
            database.run()
            if database.random.random() < 0.2:
                count = database.random.randrange(1, 12)
                database.records += database.records[-count:]
                database.effects += database.effects[-count:]
