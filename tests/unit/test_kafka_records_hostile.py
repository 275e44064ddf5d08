"""Damaged or forged bytes: an error with their position, and never a wrong row."""

import struct
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
    read_with_kafka_python,
    record,
    rows,
    seal_batch,
    varint,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.errors import CorruptRecordError
from kafka.record.legacy_records import LegacyRecordBatchBuilder
from kafka.record.util import calc_crc32c, decode_varint

from krishiv_spark.errors import KrishivError
from krishiv_spark.kafka.records import (
    BatchPolicy,
    RecordError,
    RecordRange,
    checksum,
    codecs,
    decode,
)

GOOD = build([(1000, b"k", b"value", [])] * 3, base=40)


@pytest.fixture(params=PATHS, scope="module", autouse=True)
def path(request):
    with kernels(request.param):
        yield request.param


def refused(data, reason, *, at=40, **options):
    with pytest.raises(RecordError, match=rf"^clicks-7 at offset {at}: .*{reason}"):
        rows(data, **options)


# ---------------------------------------------------------------- headers of batches


@pytest.mark.parametrize("magic", [0, 1])
def test_old_message_formats_are_named(magic):
    builder = LegacyRecordBatchBuilder(magic, 0, 2**20)
    builder.append(0, 1000, b"k", b"v")
    refused(bytes(builder.build()), f"message format v{magic}.*0.11 and later", at=0)


@pytest.mark.parametrize(
    ("fields", "reason", "at"),
    [
        ({"magic": 3}, "message format v3, which is newer", 0),
        ({"magic": -1}, "message format v255", 0),
        ({"length": 48}, "shorter than its own header", 0),
        ({"length": 0}, "shorter than its own header", 0),
        ({"length": -1}, "shorter than its own header", 0),
        ({"length": -(2**31)}, "shorter than its own header", 0),
        ({"count": -1}, "number of records that its offsets have no place for", 0),
        ({"count": 4}, "number of records that its offsets have no place for", 0),
        ({"count": 2**31 - 1, "last_delta": 2**31 - 1}, "do not fit into its 39 bytes", 40),
        ({"count": 6, "last_delta": 9}, "6 records, which do not fit", 40),
        ({"count": 4, "last_delta": 3}, "record 3 of the batch is damaged", 40),
        ({"count": 2}, "bytes are left over", 40),
        ({"last_delta": -1}, "offsets that are negative or too large", 0),
        ({"last_delta": 1, "count": 2}, "bytes are left over", 40),
        ({"attributes": 5}, "codec that is not known", 0),
        ({"attributes": 7}, "codec that is not known", 0),
        ({"attributes": 1}, "cannot be decompressed with gzip", 40),
        ({"attributes": 2}, "snappy", 40),
        ({"attributes": 3}, "cannot be decompressed with lz4", 40),
        ({"attributes": 4}, "cannot be decompressed with zstd", 40),
        ({"base_timestamp": 2**63 - 1}, "the timestamp is", 40),
    ],
)
def test_a_header_that_lies_is_an_error(fields, reason, at):
    refused(changed(GOOD, **fields), reason, at=at)


@pytest.mark.parametrize("base", [-1, -(2**63), 2**63 - 1, 2**63 - 3])
def test_offsets_that_are_no_offsets_are_an_error(base):
    refused(struct.pack(">q", base) + GOOD[8:], "negative or too large", at=0)


def test_the_last_offsets_of_all_can_be_read():
    data = struct.pack(">q", 2**63 - 4) + GOOD[8:]
    wanted = RecordRange("clicks", 7, 0, 2**63 - 1)
    assert [row[0] for row in rows(data, wanted)] == [2**63 - 4 + i for i in range(3)]
    assert decode(data, wanted).next_offset == 2**63 - 1


@pytest.mark.parametrize("base", [40, 42, 0])
def test_batches_that_are_not_in_order_are_an_error(base):
    refused(
        GOOD + struct.pack(">q", base) + GOOD[8:], "before the end of the previous batch", at=43
    )


def test_a_batch_that_is_longer_than_the_response_is_as_good_as_cut_off():
    decoded = decode(changed(GOOD, length=2**31 - 1), ALL)
    assert (list(decoded.batches), decoded.next_offset, decoded.consumed) == ([], 0, 0)


@given(st.integers(21, len(GOOD) - 1), st.integers(1, 255))
def test_every_changed_byte_behind_the_checksum_is_seen(at, change):
    damaged = bytearray(GOOD)
    damaged[at] ^= change
    with pytest.raises(RecordError):
        rows(bytes(damaged))


def test_a_wrong_checksum_is_named():
    damaged = bytearray(GOOD + struct.pack(">q", 43) + GOOD[8:])
    damaged[-1] ^= 1
    refused(bytes(damaged), "the checksum of the batch is wrong", at=43)


# ---------------------------------------------------------------- records


def one(body, **fields):
    return changed(build([(1000, None, b"", [])], base=40), body, **fields)


NULL = varint(-1)
ENDLESS = b"\xff" * 11


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x80" * 7,
        ENDLESS,
        varint(-1) + bytes(7),
        varint(-(2**63)) + bytes(7),
        varint(5) + bytes(7),
        varint(1000) + bytes(7),
        varint(2**63 - 1) + bytes(7),
        record(b"\0" + ENDLESS + bytes(7)),
        record(b"\0\0" + ENDLESS + bytes(7)),
        record(b"\0\0\0" + ENDLESS + bytes(7)),
        record(b"\0\0\0" + varint(100) + bytes(7)),
        record(b"\0\0\0" + varint(-2) + NULL + b"\0"),
        record(b"\0\0\0" + varint(2**31) + bytes(7)),
        record(b"\0\0\0" + varint(2**63 - 1) + bytes(7)),
        record(b"\0\0\0" + varint(-(2**63)) + bytes(7)),
        record(b"\0\0\0" + NULL + varint(9) + b"12345678"),
        record(b"\0\0\0" + NULL + varint(-2) + b"\0"),
        record(b"\0\0\0" + NULL + NULL + varint(-1)),
        record(b"\0\0\0" + NULL + NULL + varint(1)),
        record(b"\0\0\0" + NULL + NULL + varint(2**62)),
        record(b"\0\0\0" + NULL + NULL + varint(1) + NULL + NULL),
        record(b"\0\0\0" + NULL + NULL + varint(1) + varint(1) + b"h" + varint(2) + b"v"),
        record(b"\0\0\0" + NULL + NULL + varint(2) + varint(1) + b"h" + NULL),
        record(b"\0\0\0" + NULL + NULL + varint(1) + varint(0) + varint(-2)),
        record(b"\0\0\0" + NULL + NULL + b"\0" + b"more"),
        record(b"\0\0\0" + b"\x81" + b"\x80" * 8 + b"\x02" + NULL + b"\0"),
    ],
)
def test_a_record_whose_lengths_lie_is_an_error(body):
    refused(one(body + bytes(max(0, 7 - len(body)))), "record 0 of the batch is damaged")


def test_a_length_may_not_reach_into_the_next_batch():
    first = one(record(b"\0\0\0" + NULL + varint(9) + b"1234567"))
    refused(first + build([(1, None, bytes(50), [])], base=41), "record 0 of the batch is damaged")


@pytest.mark.parametrize("deltas", [[0, 0, 1], [1, 0, 2], [0, 1, 3], [-1, 0, 1]])
def test_offsets_of_records_must_rise_within_those_of_the_batch(deltas):
    batch = build([(1000, None, b"", [])] * 3, base=40, deltas=[*deltas[:2], 2])
    batch = changed(batch, batch[61:-4] + varint(deltas[2]) + batch[-3:])
    refused(changed(batch, last_delta=2), "has an offset that is not after the one before it")


def test_an_offset_of_more_than_31_bits_is_an_error():
    body = b"".join(record(b"\0\0" + varint(d) + NULL + NULL + b"\0") for d in (0, 2**31))
    refused(one(body, count=2, last_delta=2**31 - 1), "has an offset that is not after")


@pytest.mark.parametrize("delta", [2**63 - 1, -(2**63)])
def test_a_timestamp_beyond_64_bits_is_an_error(delta):
    body = record(b"\0" + varint(delta) + b"\0" + NULL + NULL + b"\0")
    batch = one(body, base_timestamp=1 if delta > 0 else -2)
    refused(batch, "timestamp of more than 64 bits")


# ---------------------------------------------------------------- compression


def squeezed(codec, data):
    return changed(GOOD, data, attributes=CODECS.index(codec))


@pytest.mark.parametrize("codec", CODECS[1:])
def test_records_may_not_become_more_than_is_allowed(codec):
    batch = build([(1000, None, bytes(10_000), [])] * 20, base=40, codec=codec)
    assert len(rows(batch, policy=BatchPolicy(201_000))) == 20
    refused(batch, "becomes more than the 100000 bytes", policy=BatchPolicy(100_000))


def test_a_bomb_does_not_take_its_memory():
    bomb = squeezed("zstd", pa.compress(bytes(2**28), codec="zstd", asbytes=True))
    before = pa.total_allocated_bytes()
    refused(bomb, "becomes more than", policy=BatchPolicy(2**20))
    assert pa.total_allocated_bytes() - before < 2**22


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 5,
        b"\xff\xff\x7f" + bytes(100),
        b"\x82SNAPPY\0" + bytes(8) + struct.pack(">i", 100) + bytes(5),
        b"\x82SNAPPY\0" + bytes(8) + struct.pack(">i", -1),
        b"\x82SNAPPY\0" + bytes(8) + struct.pack(">i", 0),
        b"\x82SNAPPY\0" + bytes(8) + b"\0\0",
        b"\x14\x00",
    ],
)
def test_damaged_snappy_is_an_error(data):
    refused(squeezed("snappy", data), "snappy")


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_a_stream_that_is_cut_off_is_an_error(codec):
    batch = build([(1000, None, b"%d" % i * 50, []) for i in range(100)], base=40, codec=codec)
    with pytest.raises(RecordError, match="clicks-7 at offset 40"):
        rows(changed(batch, batch[61:-20]))


def test_snappy_may_come_without_the_frame_of_java():
    plain = build([(1000, b"k", b"v" * 100, [])] * 3, base=40)
    raw = changed(plain, pa.compress(plain[61:], codec="snappy", asbytes=True), attributes=2)
    assert rows(raw) == read_with_kafka_python(plain)


def test_a_snappy_block_of_another_size_than_it_says_is_an_error():
    block = pa.compress(bytes(100), codec="snappy", asbytes=True)
    with pytest.raises(codecs.InflateError):
        codecs.Inflation("snappy", memoryview(b"\x65" + block[1:]), 1000).read_into(bytearray(), 1)


def test_more_than_two_gigabytes_are_no_response():
    with pytest.raises(RecordError, match="2147483648 bytes are more than a response has"):
        decode(np.zeros(2**31, np.uint8), ALL)


# ---------------------------------------------------------------- anything at all

blobs = st.none() | st.binary(max_size=12)
headers = st.lists(st.tuples(st.text("ab", max_size=2), blobs), max_size=2)
records = st.tuples(st.integers(-1, 2**41), blobs, blobs, headers)
changes = st.lists(
    st.tuples(st.integers(0, 400), st.integers(0, 255) | st.sampled_from([0x7F, 0x80, 0xFF])),
    min_size=1,
    max_size=4,
)


@st.composite
def damaged(draw):
    """Batches with changed bytes whose checksums fit, so that the parser must see it."""
    codec = draw(st.sampled_from(["none", "none", *CODECS]))
    given = draw(st.lists(records, min_size=1, max_size=4))
    batch = bytearray(build(given, base=draw(st.integers(0, 50)), codec=codec))
    for at, value in draw(changes):
        batch[at % len(batch)] = value
    cut = draw(st.sampled_from([0, 0, 0, 1, 5]))
    return seal_batch(batch[: len(batch) - cut] + draw(st.binary(max_size=3)))


def outcome(data, path, **options):
    with kernels(path):
        try:
            return rows(data, **options)
        except KrishivError as error:
            return str(error)


@pytest.mark.long
@settings(max_examples=400)
@given(damaged(), st.booleans())
def test_with_and_without_numba_the_outcome_is_the_same(data, committed):
    options = {"aborted": [(1, 0), (-1, 0)] if committed else [], "policy": BatchPolicy(2**20)}
    assert outcome(data, "compiled", **options) == outcome(data, "interpreted", **options)


@pytest.mark.long
@settings(max_examples=200)
@given(st.binary(min_size=7, max_size=60), st.integers(0, 9))
def test_records_of_any_bytes_have_the_same_outcome(body, count):
    data = one(body, count=count, last_delta=9)
    assert outcome(data, "compiled") == outcome(data, "interpreted")


@settings(max_examples=200)
@given(records, changes)
def test_rows_of_a_changed_record_are_those_that_another_client_reads(given, found):
    plain = build([given])
    body = bytearray(plain[61:])
    for at, value in found:
        body[at % len(body)] = value
    batch = changed(plain, bytes(body))
    ours = outcome(batch, "compiled")
    try:
        expected = read_with_kafka_python(batch)
    except (CorruptRecordError, UnicodeDecodeError):
        return
    _, at = decode_varint(body)
    if (
        isinstance(ours, list) and body[at] < 0x80
    ):  # kafka-python reads two bytes of attributes then
        assert ours == expected


# ---------------------------------------------------------------- checksums


@pytest.mark.long
@pytest.mark.parametrize("load", ["_load_native", "_load_kernel", "_load_client"])
@given(data=st.binary(max_size=100), cut=st.integers(0, 100))
def test_all_checksums_are_the_same(load, data, cut):
    function = getattr(checksum, load)()
    if function is None:
        pytest.skip("nothing is compiled")
    assert function(data, 0) == calc_crc32c(data)
    assert function(data[cut:], function(data[:cut], 0)) == calc_crc32c(data)


def test_the_checksum_of_the_specification():
    assert checksum.crc32c(b"123456789") == 0xE3069283


def test_without_the_package_the_next_best_is_taken(monkeypatch, path):
    monkeypatch.setitem(sys.modules, "crc32c", None)
    assert checksum._load_native() is None
    found = checksum.choose_crc32c.__wrapped__()
    assert found(b"123456789", 0) == 0xE3069283
    assert found.__qualname__.startswith("_load_kernel" if path == "compiled" else "_load_client")
