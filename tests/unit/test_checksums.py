"""Checksums of rows: the same rows have the same one, however they come; others have another."""

import datetime as dt
from decimal import Decimal
from functools import reduce
from operator import add

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from krishiv_spark.arrow.checksums import RowChecksum, row_checksum

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("ratio", pa.float64()),
        ("text", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("tags", pa.list_(pa.string())),
        ("pair", pa.struct([("x", pa.int32()), ("y", pa.binary())])),
        ("by_name", pa.map_(pa.string(), pa.decimal128(10, 2))),
        ("flag", pa.bool_()),
    ]
)
DAYS = st.datetimes(timezones=st.just(dt.UTC))
PAIRS = st.fixed_dictionaries({"x": st.integers(-9, 9), "y": st.none() | st.binary(max_size=3)})
CENTS = st.integers(-999, 999).map(lambda n: Decimal(n) / 100)
ROWS = st.lists(
    st.tuples(
        st.none() | st.integers(-9, 9),
        st.none() | st.floats(allow_nan=False, width=16),
        st.none() | st.text(max_size=3),
        st.none() | DAYS,
        st.none() | st.lists(st.none() | st.text(max_size=2), max_size=3),
        st.none() | PAIRS,
        st.none() | st.dictionaries(st.text(max_size=1), CENTS, max_size=2).map(dict.items),
        st.none() | st.booleans(),
    ),
    max_size=8,
)


def of(rows):
    columns = zip(*rows, strict=True) if rows else [[] for _ in SCHEMA]
    arrays = [
        pa.array(list(map(_listed, column)), kind)
        for column, kind in zip(columns, SCHEMA.types, strict=True)
    ]
    return row_checksum(pa.record_batch(arrays, schema=SCHEMA))


def _listed(value):
    return list(value) if isinstance(value, type({}.items())) else value


@pytest.mark.long
@given(ROWS, st.randoms(use_true_random=False), st.integers(0, 8))
def test_neither_order_nor_batches_matter(rows, random, cut):
    whole = of(rows)
    mixed = random.sample(rows, len(rows))
    parts = [of(mixed[:cut]), of(mixed[cut:])]
    assert reduce(add, parts) == whole
    assert whole.rows == len(rows)
    assert 0 <= whole.checksum < 2**64


def test_it_is_the_same_in_each_release():
    row = (1, 0.5, "é", dt.datetime(2013, 1, 1, tzinfo=dt.UTC), ["a", None], {"x": 1, "y": b"z"})
    rows = [(*row, {"k": Decimal("1.50")}.items(), True), (None,) * len(SCHEMA)]
    assert of(rows) == RowChecksum(2, EXPECTED)


EXPECTED = 11346947717762273020

DIFFERENT = [
    [1, 2],
    [1, None],
    [1, 0],
    [2, 2],
    [-1, 2],
    [1],
    [1, 2, 2],
    ["1", "2"],
    ["12", ""],
    ["12", None],
    [b"1\0", b"2"],
    [1.0, 2.0],
    [0.0],
    [-0.0],
    [["a", "b"]],
    [["b", "a"]],
    [["ab"]],
    [["a"], ["b"]],
    [["a", "b"], []],
    [["a", "b"], None],
    [["a", "b", None]],
    [[["a"], ["b"]]],
    [[["a", "b"]]],
    [{"x": 1, "y": 2}],
    [{"x": 2, "y": 1}],
    [{"x": None, "y": None}],
    [{"x": None, "y": None}, None],
    [Decimal("1.50")],
    [Decimal("1.51")],
]


def test_other_rows_have_another_one():
    found = {row_checksum(pa.record_batch([pa.array(rows)], ["a"])) for rows in DIFFERENT}
    assert len(found) == len(DIFFERENT)


def test_columns_are_told_apart():
    swapped = [([1, 2], [3, 4]), ([3, 4], [1, 2]), ([1, 4], [3, 2])]
    found = {row_checksum(pa.record_batch([*map(pa.array, pair)], ["a", "b"])) for pair in swapped}
    assert len(found) == len(swapped)


@pytest.mark.parametrize(
    "kind",
    [
        *(pa.int8(), pa.uint8(), pa.int16(), pa.int32(), pa.uint64(), pa.float16(), pa.float32()),
        *(pa.date32(), pa.date64(), pa.time64("us"), pa.duration("us"), pa.timestamp("us")),
        *(pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(4), pa.decimal128(9, 2)),
        *(pa.decimal256(50, 2), pa.null(), pa.list_(pa.int8(), 2), pa.large_list(pa.string())),
        pa.dictionary(pa.int8(), pa.string()),
    ],
    ids=str,
)
def test_every_type_can_be_told_apart_from_null(kind):
    nulls = pa.nulls(3, kind)
    assert row_checksum(pa.record_batch([nulls], ["a"])).rows == 3
    if not pa.types.is_null(kind):
        some = pa.array([SAMPLES.get(kind, 1), None, None], kind)
        blank, other = (pa.record_batch([column], ["a"]) for column in (nulls, some))
        assert row_checksum(blank) != row_checksum(other)


SAMPLES = {
    pa.large_string(): "a",
    pa.binary(): b"a",
    pa.large_binary(): b"a",
    pa.binary(4): b"abcd",
    pa.decimal128(9, 2): Decimal("1.00"),
    pa.decimal256(50, 2): Decimal("1.00"),
    pa.list_(pa.int8(), 2): [1, 2],
    pa.large_list(pa.string()): ["a"],
    pa.dictionary(pa.int8(), pa.string()): "a",
}


def test_a_slice_is_what_it_shows():
    rows = pa.record_batch([pa.array(["a", "b", "c"]), pa.array([[1], [2, 3], []])], ["a", "b"])
    alone = pa.record_batch([pa.array(["b"]), pa.array([[2, 3]])], ["a", "b"])
    assert row_checksum(rows.slice(1, 1)) == row_checksum(alone)
