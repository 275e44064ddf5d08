"""Parquet files with changed bytes, read by our reader in a process that may die of them.

    python -m parquet_fuzzing FOLDER SEED COUNT

reads changed files of this seed and the following ones, a line for each: before it is read, its
seed; then what came of it. The file that is read is ``FOLDER/changed.parquet``.
"""

import faulthandler
import random
import resource
import struct
import sys
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from krishiv_spark.errors import KrishivError
from krishiv_spark.parquet.footers import read_footer, read_schema
from krishiv_spark.sources.parquet.rows import FilePart, FileRange, ReadRules, read_part, split_file
from krishiv_spark.storage.disk import DISK

CODECS = ("none", "snappy", "gzip", "zstd", "lz4", "brotli")
MEMORY = 4 * 2**30
EDGES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**60, 2**63 - 1, 2**63)
ROWS = 40
_DELTAS = {"id": "DELTA_BINARY_PACKED", "text": "DELTA_BYTE_ARRAY"}


def rows():
    """Every kind of column that Spark has, with nulls, nested."""
    numbers = range(ROWS)
    moment = datetime(2013, 1, 1, tzinfo=timezone.utc)
    columns = {
        "id": pa.array(numbers, pa.int64()),
        "small": pa.array([n % 7 if n % 5 else None for n in numbers], pa.int8()),
        "text": pa.array([f"text {n % 3}" if n % 4 else None for n in numbers]),
        "bytes": pa.array([bytes([n]) * n for n in numbers], pa.binary()),
        "real": pa.array([n / 3 for n in numbers], pa.float64()),
        "flag": pa.array([n % 3 == 0 for n in numbers]),
        "day": pa.array([date(2013, 1, 1 + n % 28) for n in numbers]),
        "ts": pa.array([moment for _ in numbers], pa.timestamp("us", "UTC")),
        "price": pa.array([Decimal(n) / 4 for n in numbers], pa.decimal128(12, 2)),
        "list": pa.array([[n, None] if n % 3 else None for n in numbers], pa.list_(pa.int32())),
        "struct": pa.array([{"a": n, "b": [str(n)] * (n % 4)} if n % 6 else None for n in numbers]),
        "map": pa.array([[(str(n), n)] for n in numbers], pa.map_(pa.string(), pa.int64())),
    }
    return pa.table(columns)


def make_samples():
    """Small whole files: every codec, both kinds of pages, with and without dictionaries."""
    table = rows()
    shapes = (
        {"use_dictionary": ["text"], "data_page_size": 64},
        {"use_deprecated_int96_timestamps": True, "data_page_size": 64},
        {"write_page_checksum": True},
        {"write_page_index": True},
        {"use_dictionary": False, "column_encoding": _DELTAS},
        {"use_dictionary": False},
    )
    for codec, shape in zip(CODECS, shapes, strict=True):
        for version in ("1.0", "2.0"):
            sink = pa.BufferOutputStream()
            pq.write_table(
                table,
                sink,
                compression=codec,
                data_page_version=version,
                row_group_size=16,
                **shape,
            )
            yield sink.getvalue().to_pybytes()


def write_plain_file(folder, **columns):
    path = folder / "file.parquet"
    given = columns or {"n": pa.array(range(10), pa.int32())}
    pq.write_table(pa.table(given), path, compression="none", use_dictionary=False)
    return path


def with_footer(path, change, length=None):
    """Replace the footer of a file by what a function makes of it."""
    whole = path.read_bytes()
    (size,) = struct.unpack("<I", whole[-8:-4])
    footer = change(whole[-8 - size : -8])
    claimed = struct.pack("<I", len(footer) if length is None else length)
    path.write_bytes(whole[: -8 - size] + footer + claimed + b"PAR1")


def write_fatal_file(folder):
    """A file by which PyArrow ends the process: a histogram of three levels where there are two."""
    path = write_plain_file(folder, n=pa.array([[1], None], pa.list_(pa.int64())))
    with_footer(path, lambda text: text.replace(b"\x29\x26\x04\x00", b"\x29\x36\x04\x00\x00"))
    return path


def changed(whole, dice):
    """A file with some of its bytes changed, most often in its footer."""
    made = bytearray(whole)
    (length,) = struct.unpack("<I", whole[-8:-4])
    footer = len(whole) - 8 - length
    for _ in range(dice.choice((1, 1, 1, 2, 4, 16))):
        low, high = dice.choice(((footer, len(made) - 8), (4, footer), (0, len(made))))
        at = dice.randrange(min(low, len(made) - 1), max(low + 1, min(high, len(made))))
        kind = dice.randrange(8)
        if kind <= 2:
            made[at] = dice.randrange(256)
        elif kind == 3:
            made[at] ^= 1 << dice.randrange(8)
        elif kind == 4:
            size = dice.choice((1, 2, 4, 8))
            edge = dice.choice(EDGES) & (2 ** (8 * size) - 1)
            made[at : at + size] = edge.to_bytes(size, "little")
        elif kind == 5:
            made[at : at + 1] = varint(dice.choice(EDGES))
        elif kind == 6:
            del made[at : at + dice.randrange(1, 9)]
        else:
            other = dice.randrange(len(made))
            made[at : at + 8] = made[other : other + 8]
    if dice.random() < 0.1:
        made[-8:-4] = struct.pack("<I", dice.choice(EDGES) & 0xFFFFFFFF)
    elif dice.random() < 0.7:  # or a change of the footer's length would hide the others
        made[-8:-4] = struct.pack("<I", max(0, len(made) - 8 - footer))
    return bytes(made)


def varint(number):
    """A number as Thrift's compact protocol writes it."""
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*made, number])


def read(path):
    """Read a file as driver and tasks do; how many rows, in arrays of which all parts are there."""
    with DISK.open(path, None) as found:
        identity = found.identity
    for name in ("ts", "day", "text"):
        read_footer(path, name)
    schema = read_schema(path)
    count = 0
    whole = FileRange(path, 0, identity.size, identity)
    for part in (FilePart((whole,)), FilePart(tuple(split_file(whole, 1 + identity.size // 3)))):
        count = 0
        for batch in read_part(part, ReadRules(schema)):
            batch.validate()
            count += batch.num_rows
    return count


def outcome(path):
    """Return the outcome of a file: rows, an own error that names it, or another result."""
    try:
        return f"rows {read(path)}"
    except KrishivError as error:
        return "refused" if path in str(error) else f"UNNAMED {type(error).__name__}: {error}"
    except Exception as error:  # noqa: BLE001  what no reader of ours may raise
        return f"OTHER {type(error).__module__}.{type(error).__name__}: {error}"


def main(folder, seed, count):
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable()
    whole = list(make_samples())
    path = Path(folder, "changed.parquet")
    for number in range(int(seed), int(seed) + int(count)):
        dice = random.Random(number)
        path.write_bytes(changed(dice.choice(whole), dice))
        print(number, flush=True)
        print(" ", outcome(str(path)).replace("\n", " ")[:500], flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
