"""Record batches of Kafka become rows: all records, in order, and no others."""

import logging
import struct
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from batches import (
    ALL,
    CODECS,
    PATHS,
    build,
    changed,
    kernels,
    make_control_batch,
    modules,
    move_batch,
    read_with_kafka_python,
    rows,
    seal_batch,
)
from hypothesis import given
from hypothesis import strategies as st

from krishiv_spark.kafka.records import SCHEMA, RecordError, RecordRange, decode

OLD = -86_400_000
blobs = st.none() | st.binary(max_size=200)
headers = st.lists(st.tuples(st.text(max_size=5), blobs), max_size=3)
stamps = st.integers(-1, 2**42) | st.integers(-(2**50), 2**50)
records = st.lists(st.tuples(stamps, blobs, blobs, headers), min_size=1, max_size=20)


@pytest.fixture(params=PATHS, scope="module", autouse=True)
def path(request):
    with kernels(request.param):
        yield request.param


def some(count, start=0):
    return [(1000 + i, b"k%d" % i, b"v%d" % i, []) for i in range(start, start + count)]


def offsets(data, wanted=ALL, **options):
    return [row[0] for row in rows(data, wanted, **options)]


@given(records, st.sampled_from(CODECS), st.integers(0, 2**48))
def test_rows_are_those_that_another_client_reads(given, codec, base):
    batch = build(given, base=base, codec=codec)
    assert rows(batch) == read_with_kafka_python(batch)


@pytest.mark.long
@given(st.lists(records, min_size=1, max_size=5), st.data())
def test_batches_lie_one_behind_the_other(groups, data):
    base, batches, expected = data.draw(st.integers(0, 2**40)), [], []
    for group in groups:
        batches.append(build(group, base=base, codec=data.draw(st.sampled_from(CODECS))))
        expected += read_with_kafka_python(batches[-1])
        base += len(group) + data.draw(st.integers(0, 3))  # what compaction has removed
    assert rows(b"".join(batches)) == expected


@given(records, st.integers(0, 25), st.integers(0, 25))
def test_only_the_offsets_that_are_wanted_come(given, start, end):
    batch = build(given)
    wanted = RecordRange("clicks", 7, start, end)
    decoded = decode(batch, wanted)
    expected = [row for row in read_with_kafka_python(batch) if start <= row[0] < end]
    assert rows(batch, wanted) == expected
    assert decoded.next_offset == min(max(len(given), start), end)


@given(st.integers(0, 400))
def test_a_batch_that_is_cut_off_is_left_for_the_next_fetch(cut):
    first, second = build(some(3)), build(some(3), base=3)
    data = (first + second)[:cut]
    whole = cut // len(first)
    decoded = decode(data, ALL)
    assert decoded.next_offset == 3 * min(whole, 2)
    assert decoded.consumed == len(first) * min(whole, 2)
    assert offsets(data) == list(range(3 * min(whole, 2)))


def test_nothing_comes_of_nothing():
    decoded = decode(b"", RecordRange("clicks", 0, 12, 20))
    assert (list(decoded.batches), decoded.next_offset, decoded.consumed) == ([], 12, 0)


@pytest.mark.parametrize("lend", [bytes, bytearray, memoryview, pa.py_buffer, np.frombuffer])
def test_bytes_may_be_lent_by_anything(lend):
    batch = build(some(3))
    data = lend(batch, np.uint8) if lend is np.frombuffer else lend(batch)
    assert rows(data) == read_with_kafka_python(batch)


def test_columns_are_those_of_sparks_connector_in_its_order():
    (batch,) = decode(build([(5, b"k", b"v", [("a", b"1"), ("b", None)])], base=9), ALL).batches
    assert batch.schema == SCHEMA
    (row,) = batch.to_pylist()
    assert row.pop("timestamp").timestamp() == 0.005
    assert row == {
        "key": b"k",
        "value": b"v",
        "topic": "clicks",
        "partition": 7,
        "offset": 9,
        "timestampType": 0,
        "headers": [{"key": "a", "value": b"1"}, {"key": "b", "value": None}],
    }


def test_only_columns_that_are_wanted_are_made():
    (batch,) = decode(build(some(2)), ALL, {"offset", "value"}).batches
    assert batch.schema.names == ["value", "offset"]


def test_a_column_that_does_not_exist_cannot_be_wanted():
    with pytest.raises(ValueError, match="'offest'"):
        decode(b"", ALL, {"offest", "value"})


def test_nulls_stay_null_and_a_record_without_headers_has_null():
    given = [(1, None, b"", []), (1, b"", None, [("h", b"")]), (1, None, None, [])]
    (batch,) = decode(build(given), ALL, {"key", "value", "headers"}).batches
    assert batch.to_pylist() == [
        {"key": None, "value": b"", "headers": None},
        {"key": b"", "value": None, "headers": [{"key": "h", "value": b""}]},
        {"key": None, "value": None, "headers": None},
    ]


def test_header_keys_that_are_no_text_are_read_as_java_reads_them():
    batch = changed(build([(1, None, b"v", [("abc", b"x")])]))
    damaged = seal_batch(batch.replace(b"abc", b"a\xffc"))
    assert rows(damaged)[0][4] == [("a�c", b"x")]


@pytest.mark.parametrize("attributes", [0, 0x80, 0xFF])
def test_attributes_of_a_record_have_no_meaning(attributes):
    batch = build([(1, None, b"value", [])])
    at = 62
    damaged = seal_batch(batch[:at] + bytes([attributes]) + batch[at + 1 :])
    assert rows(damaged) == [(0, 1, None, b"value", [])]


# ---------------------------------------------------------------- time


@pytest.mark.parametrize("stamp", [OLD, -1, 0, 1_700_000_000_000])
def test_timestamps_before_1970_and_none_at_all(stamp):
    assert rows(build([(stamp, None, b"", []), (stamp - 7, None, b"", [])])) == [
        (0, stamp, None, b"", []),
        (1, stamp - 7, None, b"", []),
    ]


def test_the_brokers_time_replaces_that_of_every_record():
    batch = changed(build(some(3)), attributes=0x08, max_timestamp=99_000)
    (decoded,) = decode(batch + build(some(1), base=3), ALL).batches
    assert decoded.column("timestamp").cast(pa.int64()).to_pylist() == [99_000_000] * 3 + [
        1_000_000
    ]
    assert decoded.column("timestampType").to_pylist() == [1, 1, 1, 0]


@pytest.mark.parametrize("stamp", [2**60, -(2**60), 2**63 - 2])
def test_a_timestamp_that_spark_cannot_hold_is_an_error_only_where_it_is_wanted(stamp):
    batch = build([(1, None, b"a", []), (stamp, None, b"b", [])], base=5)
    with pytest.raises(RecordError, match=rf"clicks-7 at offset 6: the timestamp is {stamp} ms"):
        rows(batch)
    (decoded,) = decode(batch, ALL, {"value"}).batches
    assert decoded.column("value").to_pylist() == [b"a", b"b"]


# ---------------------------------------------------------------- compaction


@given(st.sets(st.integers(0, 1000), min_size=1, max_size=20), st.integers(0, 5))
def test_offsets_that_compaction_removed_are_missing(kept, behind):
    deltas = sorted(kept)
    batch = build(some(len(deltas)), base=50, deltas=deltas)
    last = deltas[-1] + behind  # the last record of a batch may be gone as well
    batch = changed(batch, last_delta=last)
    assert offsets(batch) == [50 + delta for delta in deltas]
    assert decode(batch, ALL).next_offset == 50 + last + 1


def test_a_batch_that_compaction_emptied_still_moves_on():
    empty = changed(build(some(1), base=10), b"", count=0, last_delta=9)
    assert offsets(empty + build(some(2), base=20)) == [20, 21]
    assert decode(empty, ALL).next_offset == 20


def test_what_begins_behind_the_range_ends_it():
    wanted = RecordRange("clicks", 7, 5, 30)
    decoded = decode(build(some(2), base=40), wanted)
    assert (list(decoded.batches), decoded.next_offset, decoded.consumed) == ([], 30, 0)


def test_what_ends_before_the_range_is_passed_over():
    data = build(some(5)) + build(some(5), base=5)
    wanted = RecordRange("clicks", 7, 7, 100)
    assert offsets(data, wanted) == [7, 8, 9]
    assert decode(build(some(5)), wanted).next_offset == 7


# ---------------------------------------------------------------- transactions


def transactional(base, producer, count=2, codec="none"):
    return build(some(count), base=base, codec=codec, producer=(producer, 0, 0), transactional=True)


def test_control_batches_have_no_rows_but_move_on():
    data = transactional(0, 1) + make_control_batch(2, 1, 1) + make_control_batch(3, 2, 0)
    assert offsets(data) == [0, 1]
    assert decode(data, ALL).next_offset == 4


def test_rows_of_aborted_transactions_are_left_out():
    data = b"".join([
        transactional(0, 1),  # aborted
        transactional(2, 2),  # committed
        build(some(2), base=4),  # no transaction
        transactional(6, 1, codec="gzip"),  # aborted
        make_control_batch(8, 1, 0),
        make_control_batch(9, 2, 1),
        transactional(10, 1),  # committed, by the same producer
        make_control_batch(12, 1, 1),
        transactional(13, 1),  # aborted again
        make_control_batch(15, 1, 0),
    ])  # fmt: skip
    assert offsets(data, aborted=[(1, 0), (1, 13)]) == [2, 3, 4, 5, 10, 11]
    assert offsets(data, aborted=[(1, 13), (1, 0)]) == [2, 3, 4, 5, 10, 11]
    assert offsets(data) == [0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 13, 14]
    assert decode(data, ALL, aborted=[(1, 0)]).next_offset == 16


def test_a_transaction_that_aborts_in_a_later_response_is_left_out_too():
    data = transactional(100, 1) + transactional(102, 2)
    assert offsets(data, aborted=[(1, 50)]) == [102, 103]
    assert offsets(data, aborted=[(2, 102), (1, 100)]) == []


def test_a_transaction_that_begins_later_in_the_response_leaves_earlier_rows():
    data = transactional(0, 1) + make_control_batch(2, 1, 1) + transactional(3, 1)
    assert offsets(data, aborted=[(1, 3)]) == [0, 1]


def test_a_commit_does_not_end_an_aborted_transaction():
    data = make_control_batch(0, 1, 1) + transactional(1, 1)
    assert offsets(data, aborted=[(1, 0)]) == []


def test_an_idempotent_producer_without_transactions_is_never_left_out():
    data = build(some(2), base=5, producer=(1, 0, 0))
    assert offsets(data, aborted=[(1, 0)]) == [5, 6]


@pytest.mark.parametrize(
    ("key", "reason"),
    [(None, "the key None"), (b"\0", "the key"), (struct.pack(">hh", -1, 0), "version -1")],
)
def test_a_control_record_that_makes_no_sense_is_an_error(key, reason):
    batch = build([(1, key, b"", [])], base=7, producer=(1, 0, -1), transactional=True)
    data = changed(batch, attributes=0x30)
    with pytest.raises(RecordError, match=f"clicks-7 at offset 7: a control record has {reason}"):
        rows(data, aborted=[(1, 0)])


def test_a_control_batch_without_records_ends_nothing():
    empty = changed(make_control_batch(0, 1, 0), b"", count=0)
    assert offsets(empty + transactional(1, 1), aborted=[(1, 0)]) == []


# ---------------------------------------------------------------- sizes


def test_many_rows_come_in_several_batches(path):
    count = 150_000 if path == "compiled" else 70_000
    one = build([(1, None, b"x", [])] * 1000)
    data = b"".join(move_batch(one, base) for base in range(0, count, 1000))
    sizes, seen = [], []
    for batch in decode(data, ALL, {"offset"}).batches:
        sizes.append(batch.num_rows)
        seen += batch.column("offset").to_pylist()
    assert max(sizes) <= 65_536
    assert seen == list(range(count))


@pytest.mark.long
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_large_values_come_in_several_batches(codec):
    data = b"".join(
        build([(1, None, bytes(5_000_000), [])] * 3, base=b, codec=codec) for b in (0, 3, 6)
    )
    batches = list(decode(data, ALL).batches)
    assert sum(batch.num_rows for batch in batches) == 9
    assert max(batch.nbytes for batch in batches) < 48 * 2**20


def test_tiny_batches_come_together():
    data = b"".join(build(some(1), base=base) for base in range(500))
    (batch,) = decode(data, ALL).batches
    assert batch.column("offset").to_pylist() == list(range(500))


def test_a_header_of_every_record_and_none_lie_side_by_side():
    given = [(1, None, b"", [(f"h{j}", b"%d" % j) for j in range(i % 4)]) for i in range(100)]
    assert rows(build(given)) == read_with_kafka_python(build(given))


# ---------------------------------------------------------------- with and without numba


def test_each_kernel_is_compiled_for_one_kind_of_arguments(path):
    if path != "compiled":
        pytest.skip("nothing is compiled")
    batch = build([(1, b"k", b"v", [("h", b"x")]), (1, None, None, [])])
    for data in (batch, bytearray(batch), np.array([*batch], np.uint8)):
        list(decode(data, ALL).batches)
    list(decode(build(some(3), codec="gzip"), ALL).batches)
    kernels = modules("compiled")["krishiv_spark.kafka.records.read_kernels"]
    for kernel in (
        kernels.walk_batches,
        kernels.parse_records,
        kernels.locate_headers,
        kernels.gather,
    ):
        assert len(kernel.signatures) == 1, kernel


@pytest.mark.long
def test_without_numba_one_line_says_how_to_be_faster():
    code = """
import sys
sys.modules["numba"] = None
from krishiv_spark.kafka.records import RecordRange, decode, warm_up
for _ in range(3):
    list(decode(bytes(5), RecordRange("t", 0, 0, 1)).batches)
warm_up()
print(sorted({"kafka", "pandas"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert len(done.stderr.splitlines()) == 1
    assert "pip install 'krishiv-spark[fast]'" in done.stderr


@pytest.mark.long
def test_importing_the_codec_imports_neither_numba_nor_kafka():
    code = """
import sys
import krishiv_spark.formats
import krishiv_spark.kafka.records
print(sorted({"numba", "kafka", "pandas", "pytest"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_numba_that_no_longer_has_the_option_is_used_without_it(monkeypatch):
    jit = modules("compiled")["krishiv_spark.kafka.records.jit"]

    def njit(**options):
        raise KeyError(f"Unrecognized options: {options}")

    monkeypatch.setattr(jit, "njit", njit)
    assert jit._find_uncounted_option() == {}
    assert logging.getLogger(jit.__name__).name == jit.__name__
