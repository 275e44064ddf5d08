"""Tables of Iceberg whose metadata was changed at random, and what a driver and its tasks do then.

Each case runs in a process of its own, a fork of one that has only imported what it needs, with a
limit of memory and of time. ``python iceberg_fuzz.py FOLDER SEED`` runs one case and shows it.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import json
import os
import random
import resource
import signal
import sqlite3
import struct
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import iceberg_reading
import pyarrow as pa
import pyarrow.parquet as pq
from iceberg_life import IcebergLife
from iceberg_tables import (
    append,
    append_grouped,
    compact,
    delete_by_vector,
    delete_rows,
    make_table,
    paths,
    table_in,
)
from pyiceberg.manifest import ManifestFile, write_manifest, write_manifest_list
from pyiceberg.typedef import Record

from krishiv_spark.errors import KrishivError
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.operate.inspection.query_status import inspect_table
from krishiv_spark.sinks.iceberg.maintenance.orphans import find_orphans, make_deleter
from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions

MEMORY_BYTES = 3 * 2**30
"""Maximum memory that a case may add to its process; the metadata of its tables has 100 KB."""

TIME_S = 120
"""A case takes about a second, on a machine that does nothing else."""

TABLE = "db.t"
ROWS = pa.table({"id": pa.array(range(6), pa.int64()), "text": list("abcabc")})
_PRECIOUS = "precious.parquet"


# --- tables


class Variant(NamedTuple):
    """A kind of table."""

    version: str = "2"
    codec: str = "gzip"
    partition: str | None = None
    deletes: str | None = None
    compressed: bool = False


VARIANTS = [
    Variant(),
    Variant(version="1", codec="null"),
    Variant(codec="null", deletes="positions"),
    Variant(codec="zstd", partition="text", compressed=True),
    Variant(codec="null", partition="bucket(2, id), text"),
    Variant(codec="snappy", deletes="positions"),
    Variant(version="1", codec="gzip", partition="truncate(1, text)", compressed=True),
    Variant(codec="null", deletes="vector"),
]


def make(folder: Path, variant: Variant) -> None:
    """A table of several snapshots, and a file beside its warehouse that must stay."""
    folder.mkdir(parents=True)
    (folder / _PRECIOUS).write_text("years of work")
    warehouse = folder / "warehouse"
    properties = {
        "write.avro.compression-codec": variant.codec,
        "format-version": variant.version,
        "write.metadata.delete-after-commit.enabled": "true",
        "krishiv.history.expire.max-snapshots-to-keep": "3",
    }
    if variant.deletes:
        warehouse.mkdir()
        make_table(warehouse, ROWS.schema, properties=properties)
        append_grouped(warehouse, ROWS, 2)
        append(warehouse, ROWS)
        first, *_ = paths(warehouse)
        if variant.deletes == "vector":
            delete_by_vector(warehouse, first, [1, 3])
        else:
            delete_rows(warehouse, {path: [0, 4] for path in paths(warehouse)})
    else:
        given = {f"tableProperty.{key}": text for key, text in properties.items()}
        given |= {"partitionBy": variant.partition} if variant.partition else {}
        life = IcebergLife(warehouse, path=TABLE, **given)
        for epoch in range(2):
            life.epoch(epoch, ROWS, tasks=2)
        compact(warehouse) if variant.partition is None else None
    if variant.compressed:
        _compress(warehouse)


def _compress(warehouse: Path) -> None:
    old = Path(table_in(warehouse).metadata_location)
    new = old.with_name(old.name.replace(".metadata.json", ".gz.metadata.json"))
    new.write_bytes(gzip.compress(old.read_bytes()))
    old.unlink()
    with closing(sqlite3.connect(warehouse / "catalog.db")) as database, database:
        database.execute("update iceberg_tables set metadata_location = ?", (str(new),))


# --- changes


_NUMBERS = [0, 1, -1, 2, 7, 127, 128, 2**31 - 1, 2**31, -(2**31), 2**53, 2**62, 2**63 - 1, -(2**63)]
_BEYOND = [2**63, 2**64, 10**30, -(10**30)]
_TEXTS = ["", "x", "\0", "../../precious.parquet", "/etc/hostname", "s3://b/x", "hdfs://evil:1/x"]
_TEXTS += [
    "file:///etc/hostname",
    "é" * 3000,
    "9" * 5000,
    "²",
    "append",
    "delete",
    "replace",
    "main",
]
_TEXTS += ["http://127.0.0.1:1/x", "s3://a\\b/x", "s3://[x", "0", "-1", "true", "identity", "void"]
_TEXTS += ["bucket[0]", "truncate[0]", "bucket[99999999999]", "truncate[-1]", "list", "struct"]
_TEXTS += ["decimal(99,99)", "fixed[9999999999]", "timestamptz_ns", "variant", "geometry", "uuid"]


def change(folder: Path, draw: random.Random) -> str:
    """Change files of the table's metadata; returns what was changed."""
    told = []
    files = _metadata_files(folder / "warehouse")
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        path = draw.choice(files)
        kind = draw.choice(_changes_of(path))
        with contextlib.suppress(_NotPossibleError):
            kind(path, draw)
        told.append(f"{kind.__name__} {path.name}")
    return ", ".join(told)


class _NotPossibleError(Exception):
    """This file has not what would be changed: another change has damaged it."""


def _metadata_files(warehouse: Path) -> list[Path]:
    """The newest metadata file and what it leads to, the first as often as all others."""
    table = table_in(warehouse)
    newest = Path(table.metadata_location.removeprefix("file://"))
    manifests = sorted((warehouse / "db/t/metadata").glob("*.avro"))
    deletes = sorted({*(warehouse / "db/t/data").rglob("*deletes.parquet")})
    vectors = sorted((warehouse / "db/t/data").glob("*.puffin"))
    rest = [*manifests, *deletes * 3, *vectors * 4]
    return [*rest, *[newest] * max(1, len(rest))]


_Change = Callable[[Path, random.Random], None]


def _changes_of(path: Path) -> list[_Change]:
    if path.suffix == ".json":
        return [flip_bytes, cut, *[change_json] * 6]
    if path.suffix == ".avro":
        own = change_list if path.name.startswith("snap-") else change_entries
        return [*[flip_bytes] * 3, cut, insert, *[own] * 4]
    if path.suffix == ".parquet":
        return [*[flip_bytes] * 3, cut, *[change_deletes] * 3]
    return [*[flip_bytes] * 4, cut, insert]


def flip_bytes(path: Path, draw: random.Random) -> None:
    """Change some bytes, which lie together as often as not."""
    text = bytearray(path.read_bytes())
    start = draw.randrange(max(1, len(text)))
    for _ in range(draw.choice([1, 1, 2, 8, 40])):
        at = draw.randrange(max(1, len(text))) if draw.random() < 0.5 else start
        if at < len(text):
            text[at] = draw.choice([0, 1, 0x7F, 0x80, 0xFE, 0xFF, draw.randrange(256)])
        start += 1
    path.write_bytes(text)


def cut(path: Path, draw: random.Random) -> None:
    """Leave the end out."""
    text = path.read_bytes()
    path.write_bytes(text[: draw.randrange(len(text) + 1)])


def insert(path: Path, draw: random.Random) -> None:
    """Put bytes between others, or repeat some."""
    text = path.read_bytes()
    at = draw.randrange(len(text) + 1)
    long = struct.pack("<q", draw.choice(_NUMBERS))
    new = draw.choice([b"\xff" * 10, bytes(100), long, text[at : at + 50], b"\xfe\xff\xff\xff\x0f"])
    path.write_bytes(text[:at] + new + text[at:])


def change_json(path: Path, draw: random.Random) -> None:
    """Change values anywhere in a metadata file."""
    text = path.read_bytes()
    is_compressed = text.startswith(b"\x1f\x8b")
    try:
        found = json.loads(gzip.decompress(text) if is_compressed else text)
    except Exception as error:
        raise _NotPossibleError from error
    for _ in range(draw.choice([1, 1, 2, 5])):
        places = [*_places(found)]
        holder, key = draw.choice(places)
        _change_value(holder, key, draw)
    new = json.dumps(found).encode()
    if draw.random() < 0.05:
        new = new.replace(b"[]", b"[" * 30_000 + b"]" * 30_000, 1)
    path.write_bytes(gzip.compress(new) if is_compressed else new)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(items):
        yield value, key
        if isinstance(inner, (dict, list)):
            yield from _places(inner)


def _change_value(holder: Any, key: Any, draw: random.Random) -> None:
    old = holder[key]
    same: list[Any] = []
    if isinstance(old, (int, float)):
        same = [*_NUMBERS, old + 1, -old, *_BEYOND]
    elif isinstance(old, str):
        same = [*_TEXTS, old + "x", old[:-1], old[::-1]]
    elif isinstance(old, list):
        same = [[], old * 2, old[::-1], old[:1], old * 300]
    elif isinstance(old, dict):
        same = [{}, {**old, "x": 1}, [old], {"krishiv.epoch.query-1": "x", **old}]
    action = draw.random()
    if action < 0.6:
        holder[key] = draw.choice(same or [None])
    elif action < 0.75:
        del holder[key]
    else:
        holder[key] = draw.choice([None, [], {}, *_NUMBERS, *_TEXTS, *_BEYOND, 1.5, True])


def change_list(path: Path, draw: random.Random) -> None:
    """Change fields of a list of manifests."""
    table = _readable(path)
    listed = _in_list(path)
    for _ in range(draw.choice([1, 1, 3])):
        if listed:
            _change_record(draw.choice(listed), draw)
    if draw.random() < 0.2:
        listed += listed
    output = table.io.new_output(str(path))
    with write_manifest_list(2, _overwriting(output), 1, None, 1, "null") as writer:
        _write(writer, listed)


def change_entries(path: Path, draw: random.Random) -> None:
    """Change fields of the entries of a manifest."""
    table = _readable(path)
    listed = ManifestFile.from_args(
        manifest_path=str(path),
        manifest_length=1,
        partition_spec_id=0,
        content=0,
        sequence_number=1,
        min_sequence_number=1,
        added_snapshot_id=1,
    )
    entries = _try(lambda: listed.fetch_manifest_entry(table.io, discard_deleted=False))
    for _ in range(draw.choice([1, 1, 3])):
        if entries:
            entry = draw.choice(entries)
            _change_record(draw.choice([entry, entry.data_file, entry.data_file]), draw)
    if draw.random() < 0.1:
        entries += entries
    metadata, output = table.metadata, _overwriting(table.io.new_output(str(path)))
    version = metadata.format_version
    with write_manifest(version, metadata.spec(), metadata.schema(), output, 1, "null") as writer:
        _write(writer, entries)


def _write(writer: Any, records: list[Any]) -> None:
    """Write records without PyIceberg's own checks; as many as it can encode."""
    for record in records:
        with contextlib.suppress(Exception):
            writer._writer.write_block([record])
    writer._added_files = writer._added_rows = 1  # or it refuses to end
    writer._min_sequence_number = 1
    writer.closed = True


def _overwriting(output: Any) -> Any:
    create = output.create
    output.create = lambda **_: create(overwrite=True)
    return output


def _readable(path: Path) -> Any:
    return _try(lambda: table_in(next(one for one in path.parents if one.name == "warehouse")))


def _in_list(path: Path) -> list[Any]:
    from pyiceberg.io.pyarrow import PyArrowFileIO
    from pyiceberg.manifest import read_manifest_list

    return _try(lambda: list(read_manifest_list(PyArrowFileIO().new_input(str(path)))))


def _try(get: Callable[[], Any]) -> Any:
    try:
        return get()
    except Exception as error:
        raise _NotPossibleError from error


def _change_record(record: Record | None, draw: random.Random) -> None:
    if record is None:
        raise _NotPossibleError
    at = draw.randrange(len(record))
    old = record[at]
    if isinstance(old, bool) or old is None or isinstance(old, Record):
        new: Any = None if isinstance(old, Record) else draw.choice([None, *_NUMBERS])
    elif isinstance(old, int):
        new = draw.choice(_NUMBERS)
    elif isinstance(old, str):
        new = draw.choice([*_TEXTS, old + "x", old.replace("warehouse", "warehouse/..")])
    elif isinstance(old, bytes):
        new = draw.choice([b"", old[:-1], b"\xff" * 100])
    else:
        new = draw.choice(
            [None, {}, {draw.choice(_NUMBERS): draw.choice([b"", b"\xff", 0, 2**62])}]
        )
    record[at] = new


def change_deletes(path: Path, draw: random.Random) -> None:
    """Write a file of deletes with other columns or other values."""
    found = _try(lambda: pq.read_table(path))
    column = draw.choice(found.column_names)
    values: list[Any] = [
        pa.array(draw.choices([*_NUMBERS, None], k=found.num_rows), pa.int64()),
        pa.array(draw.choices([*_TEXTS[:8], None], k=found.num_rows), pa.string()),
        pa.array([[1]] * found.num_rows),
        pa.array([1.5] * found.num_rows),
        pa.nulls(found.num_rows),
    ]
    at = found.column_names.index(column)
    new: pa.Table = draw.choice(
        [
            found.drop_columns([column]),
            found.set_column(at, column, draw.choice(values)),
            found.set_column(at, column, draw.choice(values)),
            found.slice(0, 0),
            found.append_column(column, found[column]),
            pa.concat_tables([found] * 1000),
        ]
    )
    pq.write_table(new, path)


# --- what is done with a table


def _batch(folder: Path) -> Any:
    return iceberg_reading.batch(folder).num_rows


def _stream(folder: Path) -> Any:
    given = {"startingOffsets": "earliest", "streaming-skip-overwrite-snapshots": True}
    return _drained(folder, maxFilesPerTrigger=1, **given)


def _changes(folder: Path) -> Any:
    return _drained(folder, readChanges=True, startingOffsets="earliest")


def _drained(folder: Path, **options: Any) -> list[int]:
    """The numbers of rows of the first batches."""
    source, found = iceberg_reading.reader(folder, **options), []
    at = source.initial()
    while len(found) < 4 and (end := source.latest(at, source.options.limit())) != at:
        found.append(iceberg_reading.rows_of(source, at, end).num_rows)
        at = end
    return found


def _append(folder: Path) -> Any:
    return IcebergLife(folder, path=TABLE).epoch(7, ROWS)


def _upsert(folder: Path) -> Any:
    given = {"mode": "upsert", "keyColumns": "id", "keepSnapshots": "2"}
    return IcebergLife(folder, path=TABLE, query="query-2", **given).epoch(1, ROWS)


def _vacuum(folder: Path) -> Any:
    options = IcebergSinkOptions.parse({"warehouse": str(folder), "table": TABLE}, FORMAT)
    found = find_orphans(options, -60)
    remove = make_deleter(options)
    for file in found.files:
        remove(file)
    return len(found.files)


def _status(folder: Path) -> Any:
    return inspect_table({"warehouse": str(folder), "table": TABLE}, "query-1")


ACTIONS = [_batch, _stream, _changes, _status, _append, _upsert, _vacuum]


@dataclass(frozen=True)
class Found:
    """The failures of a case."""

    seed: int
    variant: Variant
    changed: str
    wrong: str

    def __str__(self) -> str:
        """Name the seed, by which it comes again."""
        return f"seed {self.seed}, {self.variant}, changed: {self.changed}\n{self.wrong}"


def run(folder: Path, seconds: float, first: int = 0, most: int = 2**40) -> tuple[int, list[Found]]:
    """Run cases for some time.

    Args:
        folder: An empty one.
        seconds: As long.
        first: Seed of the first case.
        most: No more cases.

    Returns:
        How many there were, and those that went wrong.
    """
    folder.mkdir(parents=True, exist_ok=True)
    bases = [folder / str(number) for number in range(len(VARIANTS))]
    for base, variant in zip(bases, VARIANTS, strict=True):
        text = in_fork(functools.partial(make, base, variant), folder / "made", 600)
        assert not text, text
    wrong, count, end = [], 0, time.monotonic() + seconds
    while time.monotonic() < end and count < most:
        seed = first + count
        number = seed % len(VARIANTS)
        before = _files(bases[number])
        changed, text = run_case(bases[number], seed)
        if text:
            wrong.append(Found(seed, VARIANTS[number], changed, text))
        _restore(bases[number], before)
        count += 1
    return count, wrong


def run_case(base: Path, seed: int) -> tuple[str, str]:
    """Change a table and use it. Returns what was changed, and what went wrong."""
    told = base / "told"
    told.write_text("")
    text = in_fork(lambda: _act(base, seed, told), base / "out", TIME_S)
    changed, _, wrong = told.read_text().partition("\n")
    if (base / _PRECIOUS).read_text() != "years of work":
        wrong += "a file outside of the table is gone"
    return changed, wrong + text


def _act(base: Path, seed: int, told: Path) -> None:
    os.chdir(base)  # where a location may be that is no absolute one
    draw = random.Random(seed)
    changed = change(base, draw)
    with told.open("a") as out:
        out.write(f"{changed}\n")
        for action in draw.sample(ACTIONS, len(ACTIONS)):
            try:
                action(base / "warehouse")
            except (KrishivError, OSError):  # the latter of stores, and with a path
                pass
            except BaseException:  # noqa: BLE001  whatever it is, it is written down
                out.write(f"{action.__name__}: {traceback.format_exc(-6)}\n")
            out.flush()


def in_fork(work: Callable[[], object], out: Path, limit_s: float) -> str:
    """Do something in a process of its own; returns how that ended, empty if it ended well."""
    sys.stdout.flush()
    child = os.fork()
    if not child:
        code = 1
        try:
            _limit(out)
            work()
            code = 0
        except BaseException:  # noqa: BLE001  the parent is told
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            if not status:
                return ""
            last = out.read_text(errors="replace")[-3000:]
            return f"ended with {os.waitstatus_to_exitcode(status)}: {last}"
        time.sleep(0.01)
    os.kill(child, signal.SIGABRT)  # faulthandler shows where it is
    os.waitpid(child, 0)
    return f"took more than {limit_s} s: {out.read_text(errors='replace')[-3000:]}"


def _limit(out: Path) -> None:
    import faulthandler

    file = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    faulthandler.enable(file)
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    most = used + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _restore(folder: Path, before: dict[Path, bytes]) -> None:
    for path in folder.rglob("*"):
        if path.is_file() and path not in before:
            path.unlink()
    for path, text in before.items():
        if not path.exists() or path.read_bytes() != text:
            path.write_bytes(text)


if __name__ == "__main__":
    place, first = Path(sys.argv[1]), int(sys.argv[2])
    seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 1e9
    cases, bad = run(place, seconds, first, 2**40 if len(sys.argv) > 3 else 1)
    for one in bad:
        print(one, "\n")
    print(f"{cases} cases, {len(bad)} went wrong")
