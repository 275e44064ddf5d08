"""Rows become batches that other clients read: whole, in order, and of a bounded size."""

import struct
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from batches import CODECS, PATHS, kernels, modules, move_batch, read_with_kafka_python, rows
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2
from kafka.record.default_records import DefaultRecordBatch

from krishiv_spark.errors import OptionError, SchemaError
from krishiv_spark.kafka.records import (
    Accumulator,
    RecordColumns,
    next_sequence,
    partition_rows,
    warm_up,
)

PAIR = pa.struct([("key", pa.string()), ("value", pa.binary())])
blobs = st.none() | st.binary(max_size=200)
pairs = st.none() | st.lists(st.tuples(st.text(max_size=5), blobs), max_size=3)
stamps = st.integers(-1, 2**42) | st.integers(-(2**50), 2**50)
given_rows = st.lists(st.tuples(stamps, blobs, blobs, pairs, st.integers(0, 3)), max_size=30)


@pytest.fixture(params=PATHS, scope="module", autouse=True)
def path(request):
    with kernels(request.param):
        yield request.param


def columns(found):
    """Columns of (timestamp, key, value, headers)."""
    lists = [h if h is None else [{"key": k, "value": v} for k, v in h] for _, _, _, h, *_ in found]
    return RecordColumns(
        value=pa.array([row[2] for row in found], pa.binary()),
        key=pa.array([row[1] for row in found], pa.binary()),
        headers=pa.array(lists, pa.list_(PAIR)),
        timestamps=np.array([row[0] for row in found], np.int64),
    )


def values(*found, **options):
    return RecordColumns(
        **{"value": pa.array(found, pa.binary()), "key": None, "headers": None, "timestamps": 7}
        | options
    )


def zeros(count):
    return np.zeros(count, np.int32)


def encoded(given, partitions=None, **options):
    accumulator = Accumulator(**options)
    partitions = zeros(len(given.value)) if partitions is None else partitions
    return [*accumulator.add(given, partitions), *accumulator.flush()]


def in_order(batches):
    """Return the rows that are read from batches of a partition with their offsets by a broker."""
    data, base = b"", 0
    for batch in batches:
        data += move_batch(batch.to_bytes(), base)
        base += batch.count
    return rows(data)


@given(given_rows, st.sampled_from(CODECS), st.integers(62, 600), st.integers(0, 30))
def test_rows_come_back_by_partition_in_their_order(found, codec, batch_bytes, split):
    accumulator = Accumulator(batch_bytes, codec)
    out = []
    for part in (found[:split], found[split:]):
        partitions = np.array([row[4] for row in part], np.int32)
        out += accumulator.add(columns(part), partitions)
    out += accumulator.flush()
    for partition in range(4):
        expected = [(*row[:3], row[3] or []) for row in found if row[4] == partition]
        read = in_order([batch for batch in out if batch.partition == partition])
        assert read == [(i, *row) for i, row in enumerate(expected)]


@given(given_rows.filter(bool), st.sampled_from(CODECS))
def test_another_client_reads_the_same(found, codec):
    (batch,) = encoded(columns(found), codec=codec)
    assert read_with_kafka_python(batch.to_bytes()) == [
        (i, *row[:3], row[3] or []) for i, row in enumerate(found)
    ]


def test_the_header_is_what_a_producer_sends():
    given = RecordColumns(pa.array(["a", None, "c"]), None, None, np.array([50, 10, 90]))
    (batch,) = encoded(given)
    data = batch.to_bytes(17, 3, 2**31 - 2, transactional=True)
    read = DefaultRecordBatch(data)
    assert read.validate_crc()
    assert (batch.partition, batch.count, batch.size) == (0, 3, len(data))
    assert struct.unpack_from(">qiib", data) == (0, len(data) - 12, -1, 2)
    assert (read.first_timestamp, read.max_timestamp, read.timestamp_type) == (50, 90, 0)
    assert (read.producer_id, read.producer_epoch, read.base_sequence) == (17, 3, 2**31 - 2)
    assert (read.is_transactional, read.is_control_batch, read.compression_type) == (True, False, 0)
    assert (read.last_offset, read.records_count) == (2, 3)


def test_timestamps_may_be_far_apart():
    far = [2**61 - 1, -(2**61) + 1, 0]
    (batch,) = encoded(values(b"", b"", b"", timestamps=np.array(far)))
    assert [row[1] for row in read_with_kafka_python(batch.to_bytes())] == far


def test_without_a_producer_the_header_says_so():
    (batch,) = encoded(values(b"a"))
    read = DefaultRecordBatch(batch.to_bytes())
    assert (read.producer_id, read.producer_epoch, read.base_sequence) == (-1, -1, -1)
    assert not read.is_transactional


def test_a_batch_can_be_stamped_more_than_once():
    (batch,) = encoded(values(b"a", b"b"))
    first = batch.to_bytes(1, 0, 0)
    assert batch.to_bytes(2, 5, 9) != first
    assert batch.to_bytes(1, 0, 0) == first


@pytest.mark.parametrize(
    ("base", "count", "following"),
    [(0, 5, 5), (2**31 - 2, 1, 2**31 - 1), (2**31 - 1, 1, 0), (2**31 - 2, 5, 3)],
)
def test_sequences_begin_again_behind_the_largest(base, count, following):
    assert next_sequence(base, count) == following


# ---------------------------------------------------------------- sizes


@given(st.lists(st.integers(0, 300), min_size=1, max_size=40), st.integers(1, 500))
def test_batches_keep_within_their_size_unless_one_record_is_larger(sizes, batch_bytes):
    out = encoded(values(*map(bytes, sizes)), batch_bytes=batch_bytes)
    assert sum(batch.count for batch in out) == len(sizes)
    for batch in out:
        assert batch.size <= batch_bytes or batch.count == 1
        assert len(batch.to_bytes()) == batch.size
    for first, second in pairwise(out):
        least = next(iter(read_with_kafka_python(second.to_bytes())))
        assert first.size + len(least[3]) + 6 >= batch_bytes - 10  # none was sealed too early


def test_many_small_arrow_batches_make_one_batch():
    accumulator = Accumulator()
    for i in range(50):
        assert not list(accumulator.add(values(b"%d" % i), zeros(1)))
    assert accumulator.buffered_bytes >= 50 * 8
    (batch,) = accumulator.flush()
    assert [row[3] for row in in_order([batch])] == [b"%d" % i for i in range(50)]
    assert accumulator.buffered_bytes == 0
    assert not list(accumulator.flush())


def test_a_batch_goes_on_growing_after_one_was_sealed():
    accumulator = Accumulator(batch_bytes=100_000)
    out = [b for _ in range(30) for b in accumulator.add(values(bytes(9_000)), zeros(1))]
    out += accumulator.flush()
    assert [batch.count for batch in out] == [11, 11, 8]


def test_what_does_not_shrink_is_sent_as_it_is():
    noise = np.random.default_rng(1).bytes(1000)
    for codec in CODECS:
        (batch,) = encoded(values(noise), codec=codec)
        assert batch.codec == 0
        assert [row[3] for row in in_order([batch])] == [noise]


@pytest.mark.long
@pytest.mark.parametrize("codec", CODECS[1:])
def test_what_shrinks_is_compressed(codec):
    (batch,) = encoded(values(*[b"abcdefgh" * 40] * 2000), codec=codec)
    assert batch.codec == CODECS.index(codec)
    assert batch.size < 100_000
    assert read_with_kafka_python(batch.to_bytes()) == in_order([batch])


def test_blocks_of_lz4_do_not_depend_on_each_other():
    (batch,) = encoded(values(*[b"abcdefgh" * 40] * 2000), codec="lz4")
    magic, flags = struct.unpack_from("<IB", batch.records)
    assert magic == 0x184D2204
    assert flags & 0x20  # or Java's client refuses it


@pytest.mark.long
@pytest.mark.parametrize(("codec", "level"), [("gzip", 1), ("lz4", 9), ("zstd", 12)])
def test_a_codec_may_be_told_how_hard_to_try(codec, level):
    words = np.random.default_rng(2).integers(0, 50, 20_000)
    given = values(*[b"word%d" % word for word in words])
    (usual,), (other,) = encoded(given, codec=codec), encoded(given, codec=codec, level=level)
    assert in_order([usual]) == in_order([other])
    assert usual.size != other.size


def test_a_codec_that_does_not_exist_is_named():
    with pytest.raises(OptionError, match=r"no codec 'brotli'.*none, gzip, snappy, lz4, zstd"):
        Accumulator(codec="brotli")


# ---------------------------------------------------------------- what is handed over


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.large_binary(), pa.binary()])
def test_text_and_bytes_of_any_kind_become_bytes(kind):
    given = pa.array(["", "ä", None], kind)
    assert [row[2:4] for row in in_order(encoded(values(value=given, key=given)))] == [
        (b"", b""),
        ("ä".encode(), "ä".encode()),
        (None, None),
    ]


@pytest.mark.long
@given(given_rows, st.integers(0, 30), st.integers(0, 30))
def test_columns_may_be_parts_of_longer_ones(found, start, end):
    whole = columns(found)
    part = RecordColumns(
        whole.value[start:end],
        whole.key[start:end],
        whole.headers[start:end],
        whole.timestamps[start:end],
    )
    expected = [(*row[:3], row[3] or []) for row in found[start:end]]
    assert [row[1:] for row in in_order(encoded(part))] == expected


def test_headers_may_be_large_lists_of_bytes():
    kind = pa.large_list(pa.struct([("key", pa.large_binary()), ("value", pa.large_string())]))
    given = pa.array([[{"key": b"a", "value": "1"}], None, []], kind)
    assert [row[4] for row in in_order(encoded(values(b"", b"", b"", headers=given)))] == [
        [("a", b"1")],
        [],
        [],
    ]


def test_a_header_without_a_key_is_an_error():
    given = pa.array(
        [[{"key": "a", "value": b""}], None, [{"key": None, "value": b"x"}]], pa.list_(PAIR)
    )
    with pytest.raises(SchemaError, match="a header of row 2 has no key"):
        encoded(values(b"", b"", b"", headers=given))
    assert len(encoded(values(b"", b"", headers=given[:2]))) == 1


def test_a_header_that_is_null_has_no_key():
    with pytest.raises(SchemaError, match="a header of row 0 has no key"):
        encoded(values(b"", headers=pa.array([[None]], pa.list_(PAIR))))


def test_only_keys_of_headers_that_belong_to_a_row_count():
    kind = pa.list_(PAIR)
    inside = pa.array([{"key": None, "value": None}, {"key": "b", "value": None}], PAIR)
    ends = pa.py_buffer(np.array([0, 1, 2], np.int32))
    given = pa.Array.from_buffers(kind, 2, [pa.py_buffer(b"\x02"), ends], children=[inside])
    assert given.to_pylist()[0] is None
    assert [row[4] for row in in_order(encoded(values(b"", b"", headers=given)))] == [
        [],
        [("b", None)],
    ]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (
            {"value": pa.array([1, 2])},
            "the column 'value' has the type int64, which is not a binary",
        ),
        ({"key": pa.array([1.5, 2])}, "the column 'key' has the type double"),
        ({"key": pa.array([b""])}, "the column 'key' has 1 rows, but 'value' has 2"),
        ({"headers": pa.array([1, 2])}, "the column 'headers' has the type int64"),
        ({"headers": pa.array([[]], pa.list_(PAIR))}, "'headers' has 1 rows"),
        ({"timestamps": np.array([1])}, "'timestamp' has 1 rows"),
        ({"timestamps": 2**62}, "row 0 has a timestamp of 4611686018427387904 ms"),
        ({"timestamps": np.array([0, -(2**62)])}, "row 1 has a timestamp"),
    ],
)
def test_columns_that_make_no_records_are_named(given, reason):
    with pytest.raises(SchemaError, match=reason):
        encoded(values(b"a", b"b", **given))


@pytest.mark.parametrize("ends", [[0, 9, 3], [0, -1, 3]])  # Arrow itself sees others
def test_an_array_whose_offsets_are_damaged_is_refused(ends):
    buffers = [None, pa.py_buffer(np.array(ends, np.int32)), pa.py_buffer(b"abc")]
    with pytest.raises(SchemaError, match="'value' is not a valid Arrow array"):
        encoded(values(value=pa.Array.from_buffers(pa.binary(), 2, buffers)))


@pytest.mark.parametrize("partition", [-1, 2**20, 2**31 - 1])
def test_a_partition_that_no_topic_has_is_refused(partition):
    with pytest.raises(SchemaError, match="a partition is not among 0 to 1048575"):
        encoded(values(b"a"), np.array([partition], np.int32))


def test_each_row_needs_a_partition():
    with pytest.raises(SchemaError, match="2 partitions are given for 1 rows"):
        encoded(values(b"a"), zeros(2))


def test_no_rows_make_no_batches():
    assert encoded(values()) == []


# ---------------------------------------------------------------- partitions


@given(st.lists(st.none() | st.binary(max_size=40), min_size=1, max_size=20), st.integers(1, 1000))
def test_keys_are_hashed_as_another_client_does(keys, count):
    expected = [999 if k is None else (murmur2(k) & 0x7FFFFFFF) % count for k in keys]
    assert partition_rows(pa.array(keys, pa.binary()), None, count, 999).tolist() == expected


@pytest.mark.parametrize(
    ("key", "hashed"),  # UtilsTest.testMurmur2 of Apache Kafka
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_keys_are_hashed_as_java_does(key, hashed):
    count = 2**31 - 1
    (partition,) = partition_rows(pa.array([key]), None, count, 0)
    assert partition == (hashed & 0x7FFFFFFF) % count


def test_a_given_partition_comes_before_the_key():
    keys = pa.array(["21", "21", None, None])
    given = pa.array([3, None, 2, None], pa.int32())
    by_key = (-973932308 & 0x7FFFFFFF) % 5
    assert partition_rows(keys, given, 5, 4).tolist() == [3, by_key, 2, 4]
    assert partition_rows(None, given, 5, 4).tolist() == [3, 4, 2, 4]
    assert partition_rows(keys[1:3], given[1:3], 5, 4).tolist() == [by_key, 2]


@pytest.mark.parametrize("partition", [-1, 5, 2**40])
def test_a_given_partition_must_exist(partition):
    given = pa.array([None, 0, partition])
    with pytest.raises(SchemaError, match=f"names partition {partition}.*partitions 0 to 4"):
        partition_rows(None, given, 5, 0)


def test_a_given_partition_must_be_a_number():
    with pytest.raises(SchemaError, match="'partition' has the type binary"):
        partition_rows(None, pa.array([b"x"]), 5, 0)


def test_without_columns_there_are_no_rows_to_place():
    with pytest.raises(ValueError, match="give keys or partitions"):
        partition_rows(None, None, 5, 0)


def test_warming_up_loads_every_kernel(path):
    warm_up()
    if path == "compiled":
        loaded = modules(path).values()
        found = [k for module in loaded for k in vars(module).values() if hasattr(k, "signatures")]
        assert {k.py_func.__name__ for k in found if k.signatures} >= {
            "walk_batches", "parse_records", "locate_headers", "gather",
            "append_records", "sort_by_partition", "choose_partitions",
        }  # fmt: skip


@pytest.mark.long
def test_warming_up_loads_the_kernels_of_each_form():
    """In a process of its own: tests before this one have loaded some."""
    program = """
import sys
from krishiv_spark.kafka.records import await_warm, warm_ahead
names = ("avro reader", "avro writer", "protobuf reader")
warm_ahead(*names)
await_warm(*names)
modules = [each for name, each in sys.modules.items() if ".kafka.schemas." in name]
kernels = [k for each in modules for k in vars(each).values() if hasattr(k, "signatures")]
print(*{k.py_func.__name__ for k in kernels if k.signatures})
"""
    command = [sys.executable, "-c", program]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert {*found.stdout.split()} >= {
        "decode_records", "encode_records", "decode_messages", "copy_octets",
    }  # fmt: skip


def test_each_kernel_is_compiled_for_one_kind_of_arguments(path):
    if path != "compiled":
        pytest.skip("nothing is compiled")
    kernels = modules("compiled")["krishiv_spark.kafka.records.write_kernels"]
    for kernel in (
        kernels.append_records,
        kernels.sort_by_partition,
        kernels.choose_partitions,
    ):
        assert len(kernel.signatures) == 1, kernel
