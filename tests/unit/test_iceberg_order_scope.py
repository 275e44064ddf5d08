"""Upserts whose order is compared with that of the rows in the table (`orderScope` = `table`)."""

import random

import pyarrow as pa
import pytest
from iceberg_life import IcebergLife, at_next_commit, table_of

from krishiv_spark.errors import OptionError
from krishiv_spark.sinks.iceberg.route import (
    StagedForTable,
    read_mode,
    write_intent_files,
)

NAME = "db.rows"
MODES = pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("text", pa.string())])


class Table(IcebergLife):
    """A table of rows; epochs are numbered automatically."""

    def __init__(self, folder, **more):
        given = {"mode": "upsert", "keyColumns": "id", "orderColumn": "n", "orderScope": "table"}
        super().__init__(folder, **{**given, **more})
        self.folder, self.next = folder, 0

    def put(self, *rows):
        columns = ["id", "n", "text", *(["op"] if "opColumn" in self.options else [])]
        fields = [*SCHEMA, *([pa.field("op", pa.string())] if len(columns) > 3 else [])]
        found = [dict(zip(columns, row, strict=True)) for row in rows]
        self.epoch(self.next, pa.Table.from_pylist(found, pa.schema(fields)), tasks=2)
        self.next += 1

    def rows(self):
        found = table_of(self.folder, NAME).scan().to_arrow().to_pylist()
        return sorted(tuple(row.values()) for row in found)


@MODES
@pytest.mark.parametrize(
    # a random life has ten epochs
    "seed",
    [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 4))],
)
def test_the_newest_row_of_each_key_wins_in_whatever_epoch_it_arrives(tmp_path, mode, seed):
    dice = random.Random(seed)
    rows = [(dice.randrange(9), n, f"text {n}") for n in range(90)]
    wanted = {key: (key, n, text) for key, n, text in rows}
    dice.shuffle(rows)
    table = Table(tmp_path, upsertMode=mode, partitionBy="bucket(2, id)")
    while rows:
        size = dice.randrange(1, 20)
        table.put(*rows[:size])
        del rows[:size]
    assert table.rows() == sorted(wanted.values())


@MODES
def test_an_older_delete_deletes_nothing_and_one_of_the_same_order_does(tmp_path, mode):
    table = Table(tmp_path, upsertMode=mode, opColumn="op")
    table.put((1, 5, "a", "u"), (2, 5, "b", "u"), (3, None, "c", "u"), (4, 1, "d", "u"))
    table.put((1, 4, None, "d"), (2, 5, None, "d"), (3, 0, "C", "u"), (4, None, "D", "u"))
    assert table.rows() == [(1, 5, "a"), (3, 0, "C"), (4, 1, "d")]
    table.put((1, 1, "old", "u"))
    assert table.rows()[0] == (1, 5, "a")


@pytest.mark.long
@MODES
def test_rows_are_compared_with_those_of_a_commit_that_was_faster(tmp_path, mode, monkeypatch):
    table, other = Table(tmp_path, upsertMode=mode), Table(tmp_path, query="query-2")
    table.put((1, 1, "a"), (2, 1, "a"), (3, 1, "a"))

    def interfere(commit):
        other.put((1, 9, "newest"), (2, 2, "between"))
        return commit()

    at_next_commit(monkeypatch, interfere)
    table.put((1, 5, "older"), (2, 5, "newer"))
    assert table.rows() == [(1, 9, "newest"), (2, 5, "newer"), (3, 1, "a")]


def test_without_the_option_the_later_epoch_wins(tmp_path):
    table = Table(tmp_path, orderScope="epoch")
    table.put((1, 5, "a"))
    table.put((1, 4, "b"))
    assert table.rows() == [(1, 4, "b")]


def test_an_intent_has_the_scope(tmp_path):
    table = Table(tmp_path)
    rows = pa.Table.from_pylist([{"id": 1, "n": 1, "text": "a"}], SCHEMA)
    staged = table.stage(0, rows)
    committer = table.writer(rows).committer()
    item = write_intent_files(committer.table(), staged, committer.mode)
    item = StagedForTable.model_validate_json(item.model_dump_json())
    assert read_mode(item) == committer.mode


@pytest.mark.parametrize("given", [{"orderColumn": ""}, {"mode": "append"}])
def test_the_option_needs_an_order(tmp_path, given):
    table = Table(tmp_path, **given)
    if given.get("mode") == "append":
        del table.options["keyColumns"], table.options["orderColumn"]
    else:
        del table.options["orderColumn"]
    with pytest.raises(OptionError, match="'orderScope' = 'table' requires 'mode' = 'upsert'"):
        table.put((1, 1, "a"))
