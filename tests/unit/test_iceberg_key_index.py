"""The index of keys: it finds the positions that a comparison of all values finds."""

import datetime as dt
import random
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from krishiv_spark.sinks.iceberg.upserts import key_index
from krishiv_spark.sinks.iceberg.upserts.epoch_changes import to_sortable
from krishiv_spark.sinks.iceberg.upserts.key_index import FileKeys, WantedKeys, match_keys

DAY = dt.date(2024, 2, 29)
COLUMNS = {
    "long": pa.array([0, 1, -1, 2**63 - 1, -(2**63), 7], pa.int64()),
    "int": pa.array([0, 1, -1, 2**31 - 1, -(2**31), 7], pa.int32()),
    "bool": pa.array([True, False]),
    "date": pa.array([DAY, dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    "time": pa.array([0, 1, 86_399_999_999], pa.time64("us")),
    "stamp": pa.array([0, 1, -1, 2**50], pa.timestamp("us")),
    "instant": pa.array([0, 1, -1, 2**50], pa.timestamp("us", "UTC")),
    "text": pa.array(["", "a", "b", "ab", "ba", "a\0", "\0", "é", "x" * 100]),
    "large": pa.array(["", "a", "ab", "ba"], pa.large_string()),
    "bytes": pa.array([b"", b"\0", b"\0\0", b"ab", b"ba"]),
    "fixed": pa.array([b"0123", b"3210", b"\0\0\0\0"], pa.binary(4)),
    "decimal": pa.array([Decimal("0.00"), Decimal("-1.00"), Decimal("9.99")], pa.decimal128(38, 2)),
    "uuid": pa.ExtensionArray.from_storage(
        pa.uuid(), pa.array([b"0" * 16, b"1" * 16, bytes(16)], pa.binary(16))
    ),
}


def take(columns, rows, pick, *, nulls):
    """Random rows of some columns."""
    chosen = {}
    for name in columns:
        column = COLUMNS[name]
        indices = [pick.randrange(len(column)) for _ in range(rows)]
        gone = [nulls and pick.random() < 0.1 for _ in range(rows)]
        chosen[name] = column.take(pa.array(indices, pa.int64(), mask=np.array(gone, bool)))
    return pa.table(chosen)


def distinct(rows):
    found = to_sortable(rows)
    return found.group_by(found.column_names).aggregate([])


@pytest.mark.parametrize(
    "columns",
    [*([name] for name in COLUMNS), ["long", "text"], ["text", "bytes"], ["uuid", "date", "bool"]],
    ids="-".join,
)
def test_all_types_are_found_as_a_comparison_finds_them(columns):
    pick = random.Random(1)
    for count in (0, 1, 3, 40):
        pieces = [take(columns, rows, pick, nulls=True) for rows in (30, 1, 9)]
        wanted = WantedKeys(distinct(take(columns, count, pick, nulls=False)))
        found = FileKeys.build(pieces).find(wanted)
        whole = to_sortable(pa.concat_tables(pieces))
        assert found.tolist() == match_keys(whole, wanted.keys).tolist()
        named = set(map(str, wanted.keys.to_pylist()))
        assert found.tolist() == [n for n, row in enumerate(whole.to_pylist()) if str(row) in named]


def test_keys_with_the_same_hash_are_told_apart(monkeypatch):
    monkeypatch.setattr(key_index, "_hash_bytes", lambda array: np.zeros(len(array), np.uint64))
    rows = pa.table({"text": ["a", "b", "c", "b"]})
    found = FileKeys.build([rows]).find(WantedKeys(pa.table({"text": ["b", "d"]})))
    assert found.tolist() == [1, 3]


def test_texts_of_different_places_have_different_hashes():
    texts = [f"{first}{second}" for first in range(300) for second in range(300)]
    texts = list(dict.fromkeys(texts))
    hashes = key_index._hash_rows(pa.table({"text": texts}))
    assert len(np.unique(hashes)) == len(texts)


def test_a_file_without_rows():
    wanted = WantedKeys(pa.table({"id": [1]}))
    assert FileKeys.build([]).find(wanted).tolist() == []
