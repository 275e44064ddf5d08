"""A table of a database that is truncated, and the events that Debezium writes of it."""

from debezium_events import PLACEHOLDER, to_json, write_event


class TruncatedTable:
    """A table of a database, and the records of its changes."""

    def __init__(self, *, with_positions=True):
        self.rows, self.records, self.lsn = {}, [], 0
        self.with_positions = with_positions

    def write(self, op, key, before, after):
        self.lsn += 1
        found = write_event(op, before, after, self.lsn if self.with_positions else None)
        self.records.append((None if key is None else to_json({"id": key}), found))

    def put(self, key, n, text=None):
        """Insert or update a row; without a text it keeps the one that it has."""
        op = "u" if key in self.rows else "c"
        kept = self.rows[key][1] if text is None else text
        self.rows[key] = (n, kept)
        self.write(op, key, None, {"id": key, "n": n, "text": text or PLACEHOLDER})

    def delete(self, key):
        del self.rows[key]
        self.write("d", key, {"id": key, "n": None, "text": None}, None)
        self.records.append((to_json({"id": key}), None))

    def truncate(self):
        self.rows = {}
        self.write("t", None, None, None)

    def take(self, count=None):
        taken, self.records = self.records[:count], self.records[count:] if count else []
        return taken

    def state(self):
        return sorted((key, *row) for key, row in self.rows.items())
