"""Debezium's messages in a topic, compared with the log that triggers keep in PostgreSQL."""

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from changing_rows import connect
from changing_tables import Table
from kafka import KafkaConsumer
from kafka_topics import LIMITS, Onlooker
from patience import await_that

from servers.debezium import OFFSETS_TOPIC

_PLAIN = frozenset({"smallint", "int", "bigint", "boolean", "uuid"})
"""Types whose values are the same in a message and in ``to_jsonb`` of a row."""

_OPERATIONS = {"c": "i", "u": "u", "d": "d"}


@dataclass(frozen=True)
class Change:
    """One change of a row, as a message or the log has it.

    Attributes:
        op: "i", "u" or "d".
        key: Columns of the key.
        values: The columns of the new row that have the same form in both; empty for a deletion.
    """

    op: str
    key: dict[str, Any]
    values: dict[str, Any]


def topic_of(table: Table) -> str:
    """Return the topic that Debezium writes the changes of a table to."""
    return f"srv.public.{table.name}"


def read_changes(bootstrap: str, table: Table) -> tuple[list[Change], int]:
    """Return the changes of a table in the order of PostgreSQL's log, and the count of repeats.

    A message is a repeat if another has its position, operation and key: Debezium sends messages
    again after it was killed.
    """
    onlooker = Onlooker(bootstrap)
    records = onlooker.records(topic_of(table))
    onlooker.close()
    found: dict[tuple, Change] = {}
    repeats = 0
    for record in records:
        value = json.loads(record.value) if record.value else None  # a tombstone
        if value is None or value["op"] not in _OPERATIONS:  # a row of the snapshot
            continue
        change = _make_change(table, json.loads(record.key), value)
        position = (value["source"]["lsn"], change.op, json.dumps(change.key, sort_keys=True))
        repeats += position in found
        assert found.setdefault(position, change) == change, (position, change)
    return [found[position] for position in sorted(found, key=lambda each: each[0])], repeats


def _make_change(table: Table, key: dict[str, Any], value: dict[str, Any]) -> Change:
    op = _OPERATIONS[value["op"]]
    return Change(op, key, {} if op == "d" else _plain_values(table, value["after"]))


def read_log(uri: str, table: Table) -> list[Change]:
    """Return the changes that the triggers logged; a changed key is a deletion and an insert."""
    with connect(uri) as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT op, old_key, key, new_row FROM audit.log WHERE table_name = %s ORDER BY number",
            [table.name],
        )
        found = []
        for op, old, new, row in cursor:
            if op == "u" and old != new:
                found += [Change("d", old, {}), Change("i", new, _plain_values(table, row))]
            else:
                values = {} if op == "d" else _plain_values(table, row)
                found.append(Change(op, old if op == "d" else new, values))
        return found


def _plain_values(table: Table, row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name, sql in table.all_columns.items() if sql in _PLAIN}


def await_key(
    bootstrap: str,
    topic: str,
    wanted: dict[str, Any],
    read: Callable[[bytes], Any] = json.loads,
    count: int = 1,
) -> None:
    """Wait until a topic, which may not exist yet, has some messages with a key and a value."""
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        metadata_max_age_ms=500,  # it looks for the topic as often
        **LIMITS,
    )
    seen = []

    def has_key() -> bool:
        found = (record for some in consumer.poll(500).values() for record in some)
        whole = (record for record in found if record.key and record.value)
        seen.extend(record for record in whole if read(record.key) == wanted)
        return len(seen) >= count

    with closing(consumer):
        await_that(has_key, f"{topic} has no message with the key {wanted}")


def await_streamed_offset(bootstrap: str) -> None:
    """Wait until a worker that is killed continues behind its snapshot.

    It would read a second snapshot otherwise, and rows that were deleted between the two stay in
    a mirror: no message deletes them.
    """
    onlooker = Onlooker(bootstrap)

    def is_stored() -> bool:
        stored = [record.value or b"" for record in onlooker.records(OFFSETS_TOPIC)]
        return any(b"snapshot" not in value for value in stored if value)

    with closing(onlooker):
        await_that(is_stored, f"{OFFSETS_TOPIC} has no position behind the snapshot")
