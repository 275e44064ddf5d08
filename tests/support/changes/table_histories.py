"""The history of a table by the log that triggers keep in PostgreSQL, and by a table of Iceberg."""

import datetime as dt
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from changing_rows import connect
from changing_tables import Table
from iceberg_life import table_of

_SAME = frozenset({"smallint", "int", "bigint", "boolean", "uuid", "text"})
"""Types whose values are the same in the log and in a history."""

_SHOWN = 5


@dataclass(frozen=True)
class Version:
    """A version of a row.

    Attributes:
        key: The columns of its key, as JSON.
        values: The columns that have the same form in both; empty for a version from before the
            log.
        start: Time of the commit that made it; None if that was before the log.
        end: Time of the commit that ended it; None for the current version.
    """

    key: str
    values: tuple[Any, ...]
    start: dt.datetime | None
    end: dt.datetime | None


class _Log:
    """The versions of a table, change by change."""

    def __init__(self) -> None:
        self.versions: list[Version] = []
        self._open: dict[str, Version] = {}
        self._known: set[str] = set()

    def end(self, key: str, time: dt.datetime) -> None:
        """End the version of a key; one from before the log, if the log has none yet."""
        before = None if key in self._known else Version(key, (), None, None)
        found = self._open.pop(key, before)
        self._known.add(key)
        if found is not None:
            self.versions.append(Version(found.key, found.values, found.start, time))

    def start(self, key: str, values: tuple[Any, ...], time: dt.datetime) -> None:
        self._known.add(key)
        self._open[key] = Version(key, values, time, None)

    def finish(self, keys: set[str]) -> list[Version]:
        """Return all versions, given the keys that the table has at the end."""
        untouched = (Version(key, (), None, None) for key in keys - self._known)
        return [*self.versions, *self._open.values(), *untouched]


def read_logged_versions(uri: str, table: Table) -> list[Version]:
    """Return the versions by the log, in any order."""
    log = _Log()
    with connect(uri) as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT op, old_key, key, new_row, committed_at FROM audit.log "
            "WHERE table_name = %s ORDER BY number",
            [table.name],
        )
        for op, old, new, row, time in cursor:
            before, after = (None if each is None else _to_text(each) for each in (old, new))
            if before is not None:
                log.end(before, time)
            if op != "d":
                log.start(after, _select(table, row), time)
        names = ", ".join(f"'{name}', {name}" for name in table.keys)
        cursor.execute(f"SELECT jsonb_build_object({names}) FROM {table.name}")
        return log.finish({_to_text(key) for (key,) in cursor})


def read_versions(warehouse: Path, name: str, table: Table) -> list[Version]:
    """Return the versions of a history, in any order."""
    found = []
    for row in table_of(warehouse, name).scan().to_arrow().to_pylist():
        key = _to_text({each: row[each] for each in table.keys})
        is_read = row["change_position"].startswith("snapshot:")
        values, start = (), None
        if not is_read:
            values, start = _select(table, row), row["valid_from"]
        assert row["is_current"] == (row["valid_to"] is None)
        found.append(Version(key, values, start, row["valid_to"]))
    return found


def assert_history_equals(warehouse: Path, name: str, table: Table, uri: str) -> None:
    """Assert that a history has exactly the versions of the log, with its times."""
    wanted, found = read_logged_versions(uri, table), read_versions(warehouse, name, table)
    missing = [each for each in wanted if each not in found]
    more = [each for each in found if each not in wanted]
    assert not missing + more, f"missing {missing[:_SHOWN]}, too many {more[:_SHOWN]}"
    assert len(found) == len(wanted)
    print(f"{name}: {len(found)} versions")


def _to_text(key: Mapping[str, Any]) -> str:
    return json.dumps(key, sort_keys=True)


def _select(table: Table, row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name, sql in table.all_columns.items() if sql in _SAME)


def assert_current_equals(
    warehouse: Path, name: str, table: Table, rows: Iterable[tuple[Any, ...]], kind: str
) -> None:
    """Assert that the current versions are the rows of a table, and that no versions overlap.

    Args:
        warehouse: The warehouse of the history.
        name: The history.
        table: The table.
        rows: Its rows.
        kind: The kind of all positions.
    """
    names = list(table.all_columns)
    versions: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in table_of(warehouse, name).scan().to_arrow().to_pylist():
        assert row["change_position"].removeprefix("snapshot:").startswith(f"{kind}:")
        versions.setdefault(_get_key(table, row), []).append(row)
    for found in versions.values():
        found.sort(key=_order)
        assert all(one["valid_to"] is not None for one in found[:-1])
        assert all(one["valid_to"] <= other["valid_from"] for one, other in pairwise(found))
    current = [one for found in versions.values() for one in found if one["is_current"]]
    found = {_get_key(table, row): tuple(row[each] for each in names) for row in current}
    assert found == {row[: len(table.keys)]: row for row in rows}
    print(f"{name}: {sum(map(len, versions.values()))} versions, {len(current)} of them current")


def _get_key(table: Table, row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[each] for each in table.keys)


def _order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    never = dt.datetime.max.replace(tzinfo=dt.timezone.utc)
    return row["valid_from"], row["valid_to"] or never, row["change_position"]
