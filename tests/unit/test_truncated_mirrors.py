"""Mirrors of tables that are truncated: all rows are deleted, at the place of the event."""

import random

import pyarrow as pa
import pytest
from database_life import COLUMNS, RECORDS
from debezium_events import PLACEHOLDER
from iceberg_life import IcebergLife, table_of
from truncated_table import TruncatedTable

from krishiv_spark.errors import CommitRejected, OptionError

NAME = "db.mirror"
MODES = pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])


class Mirror(IcebergLife):
    def __init__(self, folder, **more):
        given = {
            "path": NAME,
            "mode": "upsert",
            "changeFormat": "debezium",
            "keyColumns": "id",
            "tableSchema": COLUMNS,
            "truncateEvents": "apply",
        }
        super().__init__(folder, **{**given, **more})
        self.folder, self.next, self.first = folder, 0, 0

    def apply(self, *records, partitions=(0,), tasks=1):
        keys, values = zip(*records, strict=True)
        count, first = len(records), self.first
        numbers = [partitions[n % len(partitions)] for n in range(count)]
        columns = [keys, values, ["t"] * count, numbers, range(first, first + count)]
        pairs = zip(columns, RECORDS.types, strict=True)
        rows = pa.table([pa.array(list(one), kind) for one, kind in pairs], schema=RECORDS)
        self.epoch(self.next, rows, tasks=tasks)
        self.next, self.first = self.next + 1, self.first + count

    def rows(self):
        found = table_of(self.folder, NAME).scan().to_arrow().to_pylist()
        return sorted((row["id"], row["n"], row["text"]) for row in found)


@pytest.mark.long
@MODES
@pytest.mark.parametrize("with_positions", [True, False])
@pytest.mark.parametrize("seed", range(2))
def test_the_mirror_equals_the_database_after_each_epoch(tmp_path, mode, with_positions, seed):
    dice, table = random.Random(seed), TruncatedTable(with_positions=with_positions)
    mirror = Mirror(tmp_path, upsertMode=mode)
    for _ in range(8):
        for _ in range(dice.randrange(1, 25)):
            key = dice.randrange(8)
            if dice.random() < 0.1:
                table.truncate()
            elif key not in table.rows:
                table.put(key, dice.randrange(100), f"text {dice.random()}")
            elif dice.random() < 0.2:
                table.delete(key)
            else:
                table.put(key, dice.randrange(100), None if dice.random() < 0.6 else "new")
        mirror.apply(*table.take())
        assert mirror.rows() == table.state()


@MODES
def test_an_epoch_of_a_truncate_alone_empties_the_table(tmp_path, mode):
    table, mirror = TruncatedTable(), Mirror(tmp_path, upsertMode=mode)
    for key in range(5):
        table.put(key, key, "x")
    mirror.apply(*table.take())
    table.truncate()
    mirror.apply(*table.take())
    assert mirror.rows() == []
    snapshots = table_of(tmp_path, NAME).metadata.snapshots
    assert len(snapshots) == 2
    assert snapshots[-1].summary["total-data-files"] == "0"
    table.put(1, 1, "y")
    mirror.apply(*table.take())
    assert mirror.rows() == table.state()


def test_a_truncate_of_a_table_without_rows_is_no_error(tmp_path):
    table, mirror = TruncatedTable(), Mirror(tmp_path)
    table.truncate()
    mirror.apply(*table.take())
    assert mirror.rows() == []


@pytest.mark.long
def test_a_value_that_a_truncated_row_had_is_not_kept(tmp_path):
    """Such an event does not exist; if it did, the value of the deleted row would be wrong."""
    table, mirror = TruncatedTable(), Mirror(tmp_path)
    table.put(1, 1, "old")
    mirror.apply(*table.take())
    table.truncate()
    table.write("u", 1, None, {"id": 1, "n": 2, "text": PLACEHOLDER})
    with pytest.raises(CommitRejected, match="leaves out the unchanged value of column 'text'"):
        mirror.apply(*table.take())
    assert mirror.rows() == [(1, 1, "old")]


def test_events_of_several_partitions_have_no_order_beside_a_truncate(tmp_path):
    table, mirror = TruncatedTable(), Mirror(tmp_path)
    for key in range(4):
        table.put(key, key, "x")
    mirror.apply(*table.take(), partitions=(0, 1))
    table.truncate()
    table.put(1, 1, "y")
    with pytest.raises(CommitRejected, match="events of the partitions t-0, t-1"):
        mirror.apply(*table.take(), partitions=(0, 1))
    assert len(mirror.rows()) == 4


def test_rows_of_several_tasks_are_deleted_by_their_positions(tmp_path):
    table, mirror = TruncatedTable(), Mirror(tmp_path)
    for key in range(6):
        table.put(key, key, "before")
    table.truncate()
    table.put(2, 2, "after")
    mirror.apply(*table.take(), tasks=4)
    assert mirror.rows() == [(2, 2, "after")]


def test_a_history_has_no_such_events(tmp_path):
    with pytest.raises(OptionError, match="'truncateEvents' = 'apply' requires 'mode' = 'upsert'"):
        Mirror(tmp_path, mode="scd2").apply((None, b"{}"))
