"""Batches that become too large or cannot be decoded: an error, or skipped, in little memory."""

import struct
import subprocess
import sys

import bombs
import lz4.frame
import pytest
import snappy
from batches import ALL, CODECS, PATHS, build, changed, kernels, make_control_batch, rows, varint
from hypothesis import example, given
from hypothesis import strategies as st
from wheels import ROOT

from krishiv_spark.kafka.records import (
    BatchPolicy,
    DeadBatch,
    RecordError,
    RecordRange,
    decode,
    scanner,
)

SQUEEZED = CODECS[1:]
MIB = 2**20


@pytest.fixture(params=PATHS, scope="module", autouse=True)
def path(request):
    with kernels(request.param):
        yield request.param


def some(count, base):
    return build([(1000, None, b"v%d" % n, []) for n in range(count)], base=base)


def around(bad):
    """A batch at offset 10, between good ones at 0 and 40."""
    return some(3, 0) + bombs.move_batch(bad, 10) + some(3, 40)


def skipped(data, wanted=ALL, limit=MIB, **options):
    """Offsets of the rows, and the dead letters."""
    dead = []
    found = rows(data, wanted, policy=BatchPolicy(limit, dead.append), **options)
    return [row[0] for row in found], dead


NEIGHBOURS = [0, 1, 2, 40, 41, 42]

BAD = {
    **{
        f"{codec} too large": bombs.batch(bombs.make_value_records(2, MIB), 2, codec=codec)
        for codec in SQUEEZED
    },
    **{
        f"{codec} too large, not announced": bombs.batch(
            b"",
            2,
            codec=codec,
            packed=bombs.compress_as_stream(bombs.make_value_records(2, MIB), codec),
        )
        for codec in ("gzip", "lz4", "zstd")
    },
    "snappy in blocks": bombs.batch(
        b"", 2, codec="snappy", packed=bombs.compress_as_xerial(bombs.make_value_records(2, MIB))
    ),
    "snappy that claims 4 GiB": bombs.batch(
        b"", 1, codec="snappy", packed=b"\xff\xff\xff\xff\x0f" + bytes(50)
    ),
    "zstd that claims 4 GiB": bombs.batch(
        b"",
        1,
        codec="zstd",
        packed=bytes.fromhex("28b52ffd80") + b"\x10\xff\xff\xff\xff" + bytes(20),
    ),
    **{
        f"{codec} cut off": bombs.batch(
            b"",
            1,
            codec=codec,
            packed=bombs.compress_at_once(bombs.make_value_records(1, 1000), codec)[:-3],
        )
        for codec in SQUEEZED
    },
    "headers": bombs.batch(bombs.headers(40_000), 1),
    "headers, compressed": bombs.batch(bombs.headers(40_000), 1, codec="zstd"),
    "keys of headers": bombs.batch(bombs.headers(1, b"k" * 600_000), 1),
    "a length that lies": bombs.batch(varint(50) + bytes(20), 1),
    "a length of 64 bits": bombs.batch(varint(2**63 - 1) + bytes(20), 1, codec="gzip"),
    "a length without end": bombs.batch(b"\xff" * 30, 1, codec="lz4"),
    "a record too few": bombs.batch(bombs.make_value_records(2, 9), 3, codec="zstd"),
    "bytes left over": bombs.batch(bombs.make_value_records(3, 9), 2),
    "2**31 - 1 records": bombs.batch(bombs.make_value_records(1, 9), 2**31 - 1, codec="gzip"),
    "an offset twice": bombs.batch(bombs.record(0) * 2, 2),
    "a time of nanoseconds": bombs.batch(bombs.record(0) + bombs.record(1, stamp=2**60), 2),
}


def last_of(name):
    """Of the batch at offset 10; one that claims 2**31 - 1 offsets has to be the last one."""
    (delta,) = struct.unpack_from(">i", BAD[name], 23)
    return 10 + delta


@pytest.mark.parametrize("name", BAD)
def test_a_bad_batch_fails_by_default_and_the_error_says_all(name):
    data = some(3, 0) + bombs.move_batch(BAD[name], 10)
    with pytest.raises(RecordError) as caught:
        rows(data, policy=BatchPolicy(MIB))
    text = str(caught.value)
    assert text.startswith("clicks-7 at offset 1")
    assert f"offsets 10 to {last_of(name)} and {len(BAD[name])} bytes" in text
    assert "'maxInflatedBytes'" in text
    assert "'badBatches'" in text


@pytest.mark.long
@pytest.mark.parametrize("name", BAD)
def test_a_bad_batch_is_skipped_whole_with_one_dead_letter(name):
    is_last = last_of(name) >= 40
    data = some(3, 0) + bombs.move_batch(BAD[name], 10) if is_last else around(BAD[name])
    found, (dead,) = skipped(data)
    assert found == (NEIGHBOURS[:3] if is_last else NEIGHBOURS)
    assert dead == DeadBatch("clicks", 7, 10, last_of(name), len(BAD[name]), dead.reason)
    assert decode(data, ALL).next_offset == (last_of(name) + 1 if is_last else 43)
    assert (found, [dead]) == skipped(data)  # a replay comes to the same


@pytest.mark.parametrize("name", ["zstd too large", "a time of nanoseconds", "bytes left over"])
@pytest.mark.parametrize("cut", [10, 11, 12])
def test_tasks_that_read_parts_of_a_batch_agree_about_it(name, cut):
    data = around(BAD[name])
    halves = [RecordRange("clicks", 7, 0, cut), RecordRange("clicks", 7, cut, 100)]
    found = [skipped(data, half) for half in halves]
    assert [offset for offsets, _ in found for offset in offsets] == NEIGHBOURS
    assert len({letter for _, dead in found for letter in dead}) == 1


def test_what_is_not_wanted_decides_nothing():
    data = around(BAD["headers"]) + bombs.move_batch(BAD["a time of nanoseconds"], 50)
    for columns in ({"value", "offset"}, {"offset"}):
        (batch,) = decode(data, ALL, columns, policy=BatchPolicy(MIB)).batches
        assert batch.column("offset").to_pylist() == [*NEIGHBOURS[:3], 10, *NEIGHBOURS[3:], 50, 51]


def test_bad_batches_in_a_row_are_skipped_each():
    parts = [
        bombs.move_batch(bad, 10 * n) for n, bad in enumerate(BAD.values(), 1) if last(bad) < 9
    ]
    found, dead = skipped(b"".join(parts) + some(1, 1000))
    assert found == [1000]
    starts = [10 * n for n, bad in enumerate(BAD.values(), 1) if last(bad) < 9]
    assert sorted(letter.first_offset for letter in dead) == starts


def last(bad):
    return struct.unpack_from(">i", bad, 23)[0]


def test_a_wrong_checksum_is_always_an_error():
    damaged = bytearray(around(BAD["bytes left over"]))
    damaged[-1] ^= 1
    with pytest.raises(RecordError, match="checksum"):
        skipped(bytes(damaged))


def test_a_marker_that_cannot_be_read_is_always_an_error():
    marker = changed(make_control_batch(5, 1, 0), varint(50) + bytes(20))
    with pytest.raises(RecordError, match="clicks-7 at offset 5: record 0 of the batch is damaged"):
        skipped(some(3, 0) + marker, aborted=[(1, 0)])


def test_an_aborted_batch_is_left_out_without_being_decompressed():
    bomb = changed(BAD["zstd too large"], attributes=0x14, producer=9)
    data = bombs.move_batch(bomb, 10) + make_control_batch(20, 9, 0) + some(3, 30)
    for policy in (BatchPolicy(MIB), BatchPolicy(MIB, pytest.fail)):
        assert [row[0] for row in rows(data, aborted=[(9, 10)], policy=policy)] == [30, 31, 32]


# ---------------------------------------------------------------- at the limit, and in pieces

blobs = st.none() | st.binary(max_size=200)
records = st.lists(
    st.tuples(
        st.integers(0, 2**41),
        blobs,
        blobs,
        st.lists(st.tuples(st.text("ab", max_size=3), blobs), max_size=2),
    ),
    min_size=1,
    max_size=12,
)


@pytest.mark.long
@given(records, st.sampled_from(SQUEEZED), st.integers(-40, 40), st.sampled_from([1, 64, 2**25]))
@example([(1000, None, b"v" * 500, [])], "zstd", 0, 1)
@example([(1000, None, b"v" * 500, [])], "snappy", -1, 1)
def test_around_the_limit_a_batch_is_whole_or_not_there(given, codec, more, room):
    plain = build(given, base=10)
    packed = bombs.compress_at_once(plain[61:], codec)
    squeezed = changed(plain, packed, attributes=CODECS.index(codec))
    limit = max(len(plain) - 61 + more, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scanner, "_ROOM", room)
        patch.setattr(scanner, "HEADER_MEMORY", 0)
        whole = rows(plain)
        data = some(3, 0) + squeezed + some(3, 100)
        found, dead = skipped(data, limit=limit)
        if more >= 0:
            assert rows(squeezed, policy=BatchPolicy(limit)) == whole
            assert (found, dead) == ([0, 1, 2, *(row[0] for row in whole), 100, 101, 102], [])
        else:
            assert (found, len(dead)) == ([0, 1, 2, 100, 101, 102], 1)
            with pytest.raises(RecordError, match="becomes more than"):
                rows(squeezed, policy=BatchPolicy(limit))


@pytest.mark.long
@given(
    st.lists(st.tuples(records, st.sampled_from(CODECS)), min_size=1, max_size=4),
    st.integers(1, 300),
    st.booleans(),
)
def test_pieces_of_any_size_give_the_same_rows(given, room, skips):
    data, base = b"", 0
    for group, codec in given:
        data += build(group, base=base, codec=codec)
        base += len(group)
    expected = rows(data)
    policy = BatchPolicy(skip=pytest.fail if skips else None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scanner, "_ROOM", room)
        assert rows(data, policy=policy) == expected


changes = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=3)


@pytest.mark.long
@given(records, st.sampled_from(CODECS), changes, st.integers(1, 300), st.booleans())
def test_pieces_of_any_size_find_the_same_faults(given, codec, found, room, before):
    body = bytearray(build(given)[61:])
    for at, value in found if before else ():
        body[at % len(body)] = value
    packed = bytearray(bombs.compress_at_once(bytes(body), codec))
    for at, value in () if before else found:
        packed[at % len(packed)] = value
    data = around(bombs.batch(b"", len(given), codec=codec, packed=bytes(packed), last_delta=19))
    whole = skipped(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scanner, "_ROOM", room)
        offsets, dead = skipped(data)
    assert (offsets, len(dead)) == (whole[0], len(whole[1]))


# ---------------------------------------------------------------- frames of all kinds


def framed(packed, codec):
    return bombs.batch(b"", 2, codec=codec, packed=packed)


RECORDS = bombs.record(0, b"a" * 100) + bombs.record(1, b"b" * 100)
SKIPPABLE = bytes.fromhex("502a4d18") + struct.pack("<I", 5) + b"12345"


@pytest.mark.parametrize("codec", ["gzip", "zstd", "lz4"])
def test_frames_one_after_the_other_are_one_batch(codec):
    packed = b"".join(
        bombs.compress_at_once(RECORDS[at : at + 10], codec) for at in range(0, 300, 10)
    )
    assert [row[3] for row in rows(framed(packed, codec))] == [b"a" * 100, b"b" * 100]


def test_a_frame_that_is_to_be_skipped_is_skipped():
    packed = SKIPPABLE + bombs.compress_at_once(RECORDS, "zstd") + SKIPPABLE
    assert len(rows(framed(packed, "zstd"))) == 2


def test_more_after_a_frame_that_announces_little_is_counted():
    packed = bombs.compress_at_once(bombs.record(0), "zstd") + bombs.compress_at_once(
        bytes(2 * MIB), "zstd"
    )
    with pytest.raises(RecordError, match="becomes more than the 1048576 bytes"):
        rows(framed(packed, "zstd"), policy=BatchPolicy(MIB))


@pytest.mark.parametrize("block", [4, 5, 6, 7])
@pytest.mark.parametrize("linked", [True, False])
@pytest.mark.parametrize("sums", [True, False])
def test_lz4_is_read_with_all_its_flags(block, linked, sums):
    packed = lz4.frame.compress(
        RECORDS,
        block_size=block,
        block_linked=linked,
        content_checksum=sums,
        block_checksum=sums,
        store_size=sums,
    )
    assert len(rows(framed(packed, "lz4"))) == 2
    for size in (0, 1, 2**31, 2**64 - 1):  # which the frame announces, and which is not true
        lying = bytearray(lz4.frame.compress(RECORDS, store_size=True, block_linked=linked))
        lying[6:14] = struct.pack("<Q", size)
        with pytest.raises(RecordError, match=r"cannot be decompressed|becomes more"):
            rows(framed(bytes(lying), "lz4"))


@pytest.mark.parametrize(
    "head", ["28b52ffd0088", "28b52ffd00f8", "28b52ffd0358ffffffff", "28b52ffdff"]
)
def test_frames_of_zstd_that_want_a_window_or_a_dictionary_are_errors(head):
    with pytest.raises(RecordError, match=r"cannot be decompressed|becomes more"):
        rows(framed(bytes.fromhex(head) + bytes(40), "zstd"))


@pytest.mark.long  # 45 MiB for each codec
@pytest.mark.parametrize("codec", SQUEEZED)
def test_a_large_batch_that_compaction_has_thinned_is_read_in_pieces(codec):
    deltas = [0, 7, 8, 500, 10_000]
    packed = b"".join(bombs.record(delta, bytes(9 * MIB)) for delta in deltas)
    data = bombs.move_batch(bombs.batch(packed, 5, codec=codec, last_delta=20_000), 100)
    for skip in (None, pytest.fail):
        found = decode(data + some(1, 30_000), ALL, {"offset", "value"}, (), BatchPolicy(skip=skip))
        parts = [batch.column("offset").to_pylist() for batch in found.batches]
        assert [offset for part in parts for offset in part] == [
            *(100 + delta for delta in deltas),
            30_000,
        ]
        assert len(parts) > 1


def test_many_empty_frames_are_no_endless_work():
    packed = bombs.compress_at_once(b"", "zstd") * 20_000 + bombs.compress_at_once(RECORDS, "zstd")
    assert len(rows(framed(packed, "zstd"))) == 2


def test_raw_snappy_and_blocks_are_both_read():
    assert len(rows(framed(snappy.compress(RECORDS), "snappy"))) == 2
    assert len(rows(framed(bombs.compress_as_xerial(RECORDS, 7), "snappy"))) == 2


def test_keys_of_headers_that_are_no_text_are_replaced_in_each_part():
    keys = [b"k%d" % n if n % 3 else b"k\xff%d" % n for n in range(9000)]
    packed = varint(len(keys)) + b"".join(varint(len(key)) + key + b"\x01" for key in keys)
    ((_, _, _, _, found),) = rows(bombs.batch(bombs.record(0, headers=packed), 1))
    assert [key for key, _ in found] == [key.decode(errors="replace") for key in keys]


# ---------------------------------------------------------------- memory

MEASURE = """
import os, sys
sys.path[:0] = [sys.argv[1] + "/tests/support/brokers"]
import bombs
from krishiv_spark.kafka.records import BatchPolicy, RecordError, RecordRange, decode, warm_up

MIB = 2**20
CASES = {
    **{f"rows {c}": (
        100, lambda c=c: bombs.batch(bombs.make_value_records(200, MIB), 200, codec=c), 512)
       for c in ("gzip", "snappy", "lz4", "zstd")},
    **{f"value {c}": (
        1, lambda c=c: bombs.batch(bombs.make_value_records(1, 120 * MIB), 1, codec=c), 128)
       for c in ("gzip", "snappy", "lz4", "zstd")},
    "many rows": (
        1,
        lambda: bombs.batch(
            bombs.make_value_records(1_000_000, 90), 1_000_000, codec="zstd"),
        128),
    "headers": (1, lambda: bombs.batch(bombs.headers(4 * MIB - 9), 1, codec="zstd"), 128),
    "headers that are no text": (
        1, lambda: bombs.batch(bombs.headers(3 * MIB, b"\\xff"), 1, codec="zstd"), 128),
    "a key of a header that is no text": (
        1, lambda: bombs.batch(bombs.headers(1, b"\\xff" * 60 * MIB), 1, codec="zstd"), 128),
    **{f"too large {c}": (
        0, lambda c=c: bombs.batch(bombs.make_value_records(1, 200 * MIB), 1, codec=c), 128)
       for c in ("gzip", "snappy", "lz4", "zstd")},
    "headers, too large": (0, lambda: bombs.batch(bombs.headers(16 * MIB), 1, codec="zstd"), 128),
    "stream": (
        0,
        lambda: bombs.batch(
            b"", 1, codec="zstd", packed=bombs.compress_as_stream(bytes(200 * MIB), "zstd")),
        128),
}

def memory(name):
    line = next(line for line in open("/proc/self/status") if line.startswith(name))
    return int(line.split()[1]) // 1024

if sys.argv[2] == "some":
    CASES = {name: CASES[name] for name in list(CASES)[1::2]}
warm_up()
for name, (least, make, limit) in CASES.items():
    for skips in (False, True):
        inward, outward = os.pipe()
        if os.fork() == 0:  # whose memory is measured: the bomb is made in another one
            reading, writing = os.pipe()
            if os.fork() == 0:
                with open(writing, "wb") as file:
                    file.write(make())
                os._exit(0)
            os.close(writing)
            data = open(reading, "rb").read()
            before, rows, dead = memory("VmRSS"), 0, []
            policy = BatchPolicy(limit * MIB, dead.append if skips else None)
            try:
                for batch in decode(data, RecordRange("t", 0, 0, 2**40), policy=policy).batches:
                    rows += len(batch)
            except RecordError:
                dead.append(name)
            assert bool(rows) == bool(least) != bool(dead), (name, rows, dead)
            print(name.replace(" ", "_"), limit, memory("VmHWM") - before, flush=True)
            os._exit(0)
        os.wait()
"""


@pytest.mark.long  # measures processes
@pytest.mark.parametrize("which", ["some", pytest.param("all", marks=pytest.mark.long)])
def test_the_memory_of_a_task_is_bounded_by_the_option(path, which):
    if path != "compiled":
        pytest.skip("takes minutes without numba")
    command = [sys.executable, "-c", MEASURE, str(ROOT), which]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    print(done.stdout)
    measured = [line.split() for line in done.stdout.splitlines()]
    assert len(measured) == 2 * {"some": 9, "all": 18}[which], done.stderr
    for name, limit, peak in measured:
        assert int(peak) < _bound_mib(name, int(limit)), name


def _bound_mib(name, limit):
    """Return the bound in docs/kafka-operations.md; many rows take no more than a few pieces."""
    is_in_pieces = name.startswith(("rows", "many")) and "snappy" not in name
    return 250 if is_in_pieces else 3 * limit + 200


STARVED = """
import os, resource
from krishiv_spark.kafka.records.codecs import InflateError, Inflation, deflate

for codec in ("gzip", "lz4", "zstd"):
    data = memoryview(deflate(codec, None, memoryview(b"abc" * 2**22)))
    for more in range(0, 2**20, 2**17):
        if os.fork() == 0:
            with open("/proc/self/statm") as file:
                now = int(file.read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (now + more, now + more))
            try:
                Inflation(codec, data, 2**29).read_into(bytearray(2**20), 2**25)
            except MemoryError:
                os._exit(0)
            except InflateError:
                os._exit(1)
            os._exit(0)
        assert os.wait()[1] == 0, (codec, more)
"""


@pytest.mark.long
def test_a_good_batch_is_not_called_damaged_where_memory_ends():
    subprocess.run([sys.executable, "-c", STARVED], check=True)
