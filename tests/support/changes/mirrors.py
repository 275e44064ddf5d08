"""Mirrors of tables, as tables of Iceberg, compared row for row."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from changing_tables import Table
from iceberg_life import table_of

_SHOWN = 5


def make_job(
    bootstrap: str,
    folder: Path,
    tables: Sequence[Table],
    topics: Mapping[str, str],
    histories: Sequence[Table] = (),
) -> dict[str, Any]:
    """Return the job of ``mirror_copy.py`` for some tables.

    Args:
        bootstrap: Addresses of the brokers.
        folder: A folder for the warehouse and the checkpoints.
        tables: The tables.
        topics: The topic of each, by the table's name.
        histories: Tables that get a history, too: `history_name`.
    """
    mirrors = [_make_mirror(table, topics[table.name]) for table in tables]
    for table in histories:
        made = _make_mirror(table, topics[table.name])
        more = {"mode": "scd2", "partitionBy": "is_current"}
        options = {**made["options"], **more}
        mirrors.append({**made, "table": history_name(table), "options": options})
    return {
        "bootstrap": bootstrap,
        "warehouse": str(folder / "warehouse"),
        "checkpoints": str(folder / "checkpoints"),
        "drained": str(folder / "drained"),
        "mirrors": mirrors,
    }


def history_name(table: Table) -> str:
    return f"shop.{table.name}_history"


def _make_mirror(table: Table, topic: str) -> dict[str, Any]:
    options = {
        "changeFormat": "debezium",
        "mode": "upsert",
        "keyColumns": ", ".join(table.keys),
        "tableSchema": table.mirror_schema(),
        "compact": "auto",
    }
    if units := table.time_units():
        options["timeUnits"] = json.dumps(units)
    return {"topic": topic, "table": f"shop.{table.name}", "options": options}


def assert_mirror_equals(warehouse: Path, table: Table, rows: Iterable[tuple]) -> None:
    """Assert that a mirror has the types, and exactly the rows, of its table."""
    mirror = table_of(warehouse, f"shop.{table.name}")
    types = {field.name: str(field.field_type) for field in mirror.schema().fields}
    assert types == table.iceberg_types(), table.name
    found = [tuple(row[name] for name in types) for row in mirror.scan().to_arrow().to_pylist()]
    wanted = _by_key(table, rows)
    mirrored = _by_key(table, found)
    assert len(mirrored) == len(found), f"{table.name}: {len(found) - len(mirrored)} keys are twice"
    missing, more = wanted.keys() - mirrored.keys(), mirrored.keys() - wanted.keys()
    differing = [
        f"{key}: {name} is {_shorten(got)}, not {_shorten(value)}"
        for key in wanted.keys() & mirrored.keys()
        for name, value, got in zip(types, wanted[key], mirrored[key], strict=True)
        if (type(got), got) != (type(value), value)
    ]
    lists = {"missing": sorted(missing), "too many": sorted(more), "differing": sorted(differing)}
    wrong = {name: (len(some), some[:_SHOWN]) for name, some in lists.items() if some}
    assert not wrong, f"{table.name}, of {len(wanted)} rows: {wrong}"


def _by_key(table: Table, rows: Iterable[tuple[Any, ...]]) -> dict[tuple, tuple]:
    return {row[: len(table.keys)]: row for row in rows}


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"{text[:40]}… ({len(text)})"
