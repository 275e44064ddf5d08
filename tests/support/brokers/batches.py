"""Record batches made and read by kafka-python, and the codec's kernels compiled or not."""

import importlib
import struct
import sys
from contextlib import contextmanager
from functools import cache
from unittest import mock

import pyarrow as pa
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from kafka.record.util import calc_crc32c, encode_varint

import krishiv_spark.kafka.records as codec
from krishiv_spark.kafka.records import RecordRange, decode

PACKAGE = codec.__name__
KERNELS = ["jit", "read_kernels", "write_kernels"]
PATHS = ["compiled", "interpreted"]

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
ALL = RecordRange("clicks", 7, 0, 2**62)
HEADER = struct.Struct(">qiibIhiqqqhii")


@contextmanager
def _in_place(modules):
    """Let imports find other modules; what they import besides stays imported."""
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


@cache
def modules(path):
    """The modules of kernels, as they are with numba or without it."""
    ours = {f"{PACKAGE}.{name}": None for name in KERNELS}
    with _in_place(ours if path == "compiled" else {**ours, "numba": None}):
        for name in ours:
            del sys.modules[name]
        loaded = {name: importlib.import_module(name) for name in ours}
    assert (path == "compiled") == loaded[f"{PACKAGE}.jit"].COMPILED
    return loaded


@contextmanager
def kernels(path):
    """Let the codec use one kind of kernels."""
    names = {name.rpartition(".")[2]: module for name, module in modules(path).items()}
    with _in_place(modules(path)), mock.patch.multiple(codec, create=True, **names):
        yield


def build(
    records, *, base=0, codec="none", producer=(-1, -1, -1), transactional=False, deltas=None
):
    """A batch by kafka-python, of (timestamp, key, value, headers)."""
    builder = DefaultRecordBatchBuilder(2, CODECS.index(codec), transactional, *producer, 2**40)
    for delta, record in zip(deltas or range(len(records)), records, strict=True):
        builder.append(delta, *record)
    return move_batch(builder.build(), base)


def move_batch(batch, base):
    """A batch at another offset, which its checksum does not cover."""
    return struct.pack(">q", base) + bytes(batch[8:])


FIELDS = {
    "length": (8, ">i"),
    "magic": (16, ">b"),
    "attributes": (21, ">h"),
    "last_delta": (23, ">i"),
    "base_timestamp": (27, ">q"),
    "max_timestamp": (35, ">q"),
    "producer": (43, ">q"),
    "count": (57, ">i"),
}


def changed(batch, records=None, **fields):
    """A batch with other fields or records, and a checksum that fits again."""
    out = bytearray(batch if records is None else batch[:61] + records)
    struct.pack_into(">i", out, 8, len(out) - 12)
    for name, value in fields.items():
        at, kind = FIELDS[name]
        struct.pack_into(kind, out, at, value)
    return seal_batch(out)


def seal_batch(batch):
    """A batch with a checksum that fits."""
    out = bytearray(batch)
    struct.pack_into(">I", out, 17, calc_crc32c(memoryview(out)[21:]))
    return bytes(out)


def make_control_batch(base, producer, kind, version=0):
    """The record that ends a transaction: 0 aborts it, 1 commits it."""
    record = (1, struct.pack(">hh", version, kind), bytes(6), [])
    batch = build([record], base=base, producer=(producer, 0, -1), transactional=True)
    return changed(batch, attributes=0x30)


def varint(value):
    out = bytearray()
    encode_varint(value, out.append)
    return bytes(out)


def record(body):
    return varint(len(body)) + body


def read_with_kafka_python(data):
    """Rows of one batch as kafka-python reads them."""
    batch = DefaultRecordBatch(data)
    assert batch.validate_crc()
    return [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in batch]


def rows(data, wanted=ALL, **options):
    """Rows as our codec reads them."""
    batches = list(decode(data, wanted, **options).batches)
    for batch in batches:
        batch.validate(full=True)
    return [plain(row) for batch in batches for row in milliseconds(batch).to_pylist()]


def milliseconds(batch):
    index = batch.schema.get_field_index("timestamp")
    return batch.set_column(index, "timestamp", batch.column(index).cast(pa.int64()))


def plain(row):
    headers = [(h["key"], h["value"]) for h in row["headers"] or ()]
    return (row["offset"], row["timestamp"] // 1000, row["key"], row["value"], headers)
