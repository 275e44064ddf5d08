"""Equality of rows of all types."""

import datetime as dt
import decimal
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from krishiv_spark.sources.iceberg.changelog.row_changes import (
    assign_shares,
    find_unmatched,
    number_rows,
)

INNER = pa.struct([("a", pa.int32()), ("b", pa.string())])
DIFFERENT = {
    pa.float64(): [0.0, -0.0, float("nan"), 1.5, None],
    pa.float32(): [0.0, -0.0, float("nan"), 1.5, None],
    pa.string(): ["", "a", "b", None],
    pa.binary(): [b"", b"\0", b"\0\0", None],
    pa.bool_(): [True, False, None],
    pa.decimal128(9, 2): [decimal.Decimal("1.10"), decimal.Decimal(1), None],
    pa.date32(): [dt.date(2013, 1, 1), dt.date(1, 1, 1), None],
    pa.timestamp("us", "UTC"): [0, 1, None],
    pa.time64("ns"): [0, 1000, None],
    INNER: [{"a": 1, "b": None}, {"a": None, "b": "1"}, {"a": None, "b": None}, None],
    pa.list_(pa.int64()): [[], [None], [1, 2], [1], [2], [2, 1], None],
    pa.list_(pa.list_(pa.string())): [[], [[]], [[], []], [["a"], ["b"]], [["a", "b"]], [None]],
    pa.list_(INNER): [[], [None], [{"a": 1, "b": "x"}], None],
    pa.map_(pa.string(), INNER): [[], [("k", None)], [("k", {"a": 1, "b": "x"})], None],
}


@pytest.mark.parametrize("kind", DIFFERENT, ids=str)
def test_rows_are_the_same_if_their_values_are(kind):
    values = pa.array(DIFFERENT[kind], kind)
    places = pa.array([*range(len(values)), *reversed(range(len(values)))])
    pieces = values.take(places)
    whole = pa.table({"v": pa.chunked_array([pieces[1:4], pieces[4:], pieces[:1]])})
    order = [*range(1, len(pieces)), 0]
    found = number_rows(whole.append_column("w", whole["v"]))
    same = {(places[order[i]].as_py(), int(number)) for i, number in enumerate(found)}
    assert len(same) == len(values) == len(set(found.tolist()))
    shares = [assign_shares(part, 3).tolist() for part in whole.to_batches()]
    by_value = {(n, share) for n, share in zip(found, sum(shares, []), strict=True)}  # noqa: RUF017  few
    assert len(by_value) == len(values)


@given(st.lists(st.integers(0, 4)), st.lists(st.integers(0, 4)))
def test_each_row_takes_one_other_away(own, others):
    left = number_rows(pa.table({"v": pa.array([*own, *others], pa.int64())}))
    kept = find_unmatched(left[: len(own)], left[len(own) :])
    found = Counter(value for value, stays in zip(own, kept, strict=True) if stays)
    assert found == Counter(own) - Counter(others)


def test_shares_are_about_equal():
    many = pa.record_batch({"n": range(10_000), "s": [f"name {n % 97}" for n in range(10_000)]})
    for column in (many, many.select(["n"])):
        sizes = Counter(assign_shares(column, 8).tolist()).values()
        assert max(sizes) < 2 * min(sizes)
