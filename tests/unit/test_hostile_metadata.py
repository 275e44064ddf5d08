"""Metadata that others write, which must use up no memory and no time, nor lose rows of tables."""

import collections
import itertools
import json
import struct
import traceback
import uuid
from decimal import Decimal
from pathlib import Path

import iceberg_reading
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hostile_tables import alter, set_properties
from iceberg_life import TABLE, IcebergLife, ids, table_of
from pyiceberg import manifest as manifests
from pyiceberg.avro.file import AvroFile
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    LongType,
    NestedField,
    StringType,
    UUIDType,
)

from krishiv_spark.errors import KrishivError, OptionError, SchemaError, SinkError, StorageError
from krishiv_spark.iceberg.avro_files import BoundedAvroFile, bound_avro_files
from krishiv_spark.iceberg.catalogs import open_table
from krishiv_spark.iceberg.file_access import redact_errors
from krishiv_spark.iceberg.options import FORMAT, IcebergOptions
from krishiv_spark.iceberg.planning import DeleteFile, TableFile, UnreadableError
from krishiv_spark.iceberg.property_keys import parse_count
from krishiv_spark.iceberg.scan_tasks import ScanProjection, choose_task_bytes, plan_tasks
from krishiv_spark.parquet.footers import BadFileError
from krishiv_spark.runtime.caches import LruCache
from krishiv_spark.sinks.iceberg import epoch_snapshot
from krishiv_spark.sinks.iceberg.epoch_properties import read_committed_epoch, read_epoch_of_rows
from krishiv_spark.sinks.iceberg.maintenance.expiry import Retention
from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions
from krishiv_spark.sources.iceberg.changelog.row_changes import plan_comparison

ROWS = pa.table({"id": pa.array([1, 2], pa.int64()), "text": ["a", "b"]})
IO = PyArrowFileIO()


@pytest.fixture
def warehouse(tmp_path):
    folder = tmp_path / "warehouse"
    IcebergLife(folder).epoch(0, ROWS)
    return folder


def opened(folder, table=TABLE):
    return open_table(IcebergOptions.parse({"warehouse": str(folder), "table": table}, FORMAT))


def numbers(folder, **given):
    return sorted(iceberg_reading.batch(folder, table=TABLE, **given)["id"].to_pylist())


# --- history


def test_snapshots_that_are_their_own_ancestors_end_nothing(warehouse):
    for epoch in (1, 2):
        IcebergLife(warehouse).epoch(epoch, ROWS)

    def change(metadata):
        ids = [one["snapshot-id"] for one in metadata["snapshots"]]
        for one, parent in zip(metadata["snapshots"], [ids[-1], *ids], strict=False):
            one["parent-snapshot-id"] = parent
        metadata["refs"]["other"] = {"snapshot-id": ids[0], "type": "branch"}

    alter(warehouse, change)
    stream = iceberg_reading.Stream(warehouse, table=TABLE, startingOffsets="earliest")
    assert sum(map(len, stream.drain())) == 6
    keep = IcebergLife(warehouse, keepSnapshots="1", mode="upsert", keyColumns="id")
    keep.epoch(3, ROWS)
    assert read_epoch_of_rows(table_of(warehouse).metadata, "another") is None
    assert numbers(warehouse) == [1, 2]


@pytest.mark.long
@pytest.mark.parametrize(
    ("version", "key"),
    [
        ("1", "current-schema-id"),
        ("1", "default-spec-id"),
        ("2", "current-schema-id"),
        ("2", "default-spec-id"),
        ("2", "default-sort-order-id"),  # of version 1, it is unsorted then
    ],
)
def test_metadata_without_their_own_schema_are_an_error(tmp_path, key, version):
    """PyIceberg checks metadata of version 2, and raises StopIteration later."""
    life = IcebergLife(tmp_path, **{"tableProperty.format-version": version})
    life.epoch(0, ROWS)
    alter(tmp_path, lambda metadata: metadata.update({key: 77}))
    with pytest.raises(SchemaError, match=r"can't be found|they are damaged"):
        numbers(tmp_path)
    with pytest.raises(SchemaError, match=r"can't be found|they are damaged"):
        life.plan(ROWS)


def test_partitions_by_a_column_that_is_not_there_are_refused(warehouse):
    fields = [{"name": "x", "transform": "identity", "source-id": 77, "field-id": 1000}]
    spec = [{"spec-id": 0, "fields": fields}]
    alter(warehouse, lambda metadata: metadata.update({"partition-specs": spec}))
    with pytest.raises(SchemaError, match="partitioned or sorted by a column"):
        IcebergLife(warehouse).plan(ROWS)


# --- numbers


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *[("0", 0), ("12", 12), (12, 12), ("9" * 19, 10**19 - 1), ("9" * 5000, None)],
        *[("²", None), ("\u0661", None), ("-1", None), (-1, None), ("1 ", None), ("", None)],
        *[(None, None), (True, None), (1.5, None)],
    ],
)
def test_counts_in_metadata(text, number):
    assert parse_count(text) == number


@pytest.mark.parametrize("size", ["0", "9" * 5000, "²", "-1", "many"])
def test_a_file_size_that_no_file_can_have_is_refused_before_a_task_writes(warehouse, size):
    set_properties(warehouse, {"write.target-file-size-bytes": size})
    with pytest.raises(OptionError, match=r"write\.target-file-size-bytes.*'targetFileSize'"):
        IcebergLife(warehouse).plan(ROWS)
    IcebergLife(warehouse, targetFileSize="1 MB").epoch(1, ROWS)
    assert numbers(warehouse) == [1, 1, 2, 2]


@pytest.mark.long
@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("write.parquet.page-row-limit", "-1"),  # ends the process
        ("write.parquet.page-row-limit", "0"),
        ("write.parquet.row-group-limit", "0"),
        ("write.parquet.row-group-limit", "9" * 5000),
        ("write.parquet.page-size-bytes", "²"),
        ("write.parquet.dict-size-bytes", "x"),
        ("write.parquet.compression-level", "9" * 5000),
        ("write.parquet.compression-codec", "evil"),
        ("write.metadata.metrics.default", "evil"),
        ("write.metadata.metrics.column.id", "truncate(x)"),
    ],
)
def test_what_no_file_can_be_written_by_is_refused_before_a_task_writes(warehouse, key, text):
    set_properties(warehouse, {key: text})
    with pytest.raises(OptionError, match=r"table property 'write\."):
        IcebergLife(warehouse).plan(ROWS)


def test_what_makes_writers_slow_counts_as_the_least_that_does_not(warehouse):
    least = {"row-group-limit": "1", "page-row-limit": "1", "page-size-bytes": "1"}
    codec = {"compression-codec": "uncompressed", "dict-size-bytes": "0"}
    given = {f"write.parquet.{key}": text for key, text in {**least, **codec}.items()}
    set_properties(warehouse, {**given, "write.metadata.metrics.default": "counts"})
    rows = pa.table({"id": pa.array(range(5000), pa.int64()), "text": ["x"] * 5000})
    IcebergLife(warehouse).epoch(1, rows)
    files = {path: pq.ParquetFile(path) for path in warehouse.glob("db/rows/data/*.parquet")}
    assert sorted(file.num_row_groups for file in files.values()) == [1, 5]
    assert len(numbers(warehouse)) == 5002


def test_the_smallest_file_size_ends(warehouse):
    set_properties(warehouse, {"write.target-file-size-bytes": "1"})
    IcebergLife(warehouse).epoch(1, ROWS)
    assert numbers(warehouse) == [1, 1, 2, 2]


@pytest.mark.parametrize("number", ["9" * 5000, "²", "x"])
def test_numbers_of_a_table_that_are_none_are_named(warehouse, number):
    options = IcebergSinkOptions.parse({"warehouse": str(warehouse), "table": TABLE}, FORMAT)
    key = "history.expire.max-snapshot-age-ms"
    properties = {"krishiv.history.expire.max-snapshots-to-keep": "1", key: number}
    with pytest.raises(OptionError, match=key):
        Retention.of(options, properties)
    set_properties(warehouse, {"krishiv.epoch.query-1": number})
    with pytest.raises(SinkError, match=r"krishiv\.epoch\.query-1"):
        read_committed_epoch(table_of(warehouse).metadata, "query-1")


def test_numbers_of_a_summary_that_are_none_change_nothing(warehouse):
    def change(metadata):
        summary = metadata["snapshots"][-1]["summary"]
        summary |= {"added-data-files": "9" * 5000, "added-records": "²", "krishiv.parent": "²"}

    alter(warehouse, change)
    assert iceberg_reading.Stream(warehouse, table=TABLE).drain() == [[1, 2]]


# --- sizes and rows of files


SCAN = ScanProjection(IO, Schema(), 0, None, None)


@pytest.mark.long
def test_a_file_of_any_size_makes_a_bounded_number_of_tasks():
    files = [TableFile("x", 2**62, 2**62), TableFile("y", 1, 1)]
    parts = plan_tasks(files, SCAN, choose_task_bytes(files, 2**27))
    assert len(parts) <= 200_002
    assert sum(len(part.ranges) for part in parts) <= 200_002
    honest = [TableFile(str(n), 2**27, 1) for n in range(1000)]
    assert len(plan_tasks(honest, SCAN, 2**27)) == 1000


def test_rows_of_any_number_make_a_bounded_number_of_comparisons():
    parts = plan_comparison([TableFile("x", 2**62, 2**62)], [], SCAN, pa.schema([]), ("id",))
    assert len(parts) == 10_000


@pytest.mark.long
@pytest.mark.parametrize("size", [0, -5, 1, 2**31])
def test_rows_are_read_whatever_size_the_metadata_gives_their_file(warehouse, size):
    def change(file):
        file["file_size_in_bytes"] = size

    with_changed_files(warehouse, change)
    assert numbers(warehouse) == [1, 2]
    assert iceberg_reading.Stream(warehouse, table=TABLE).drain() == [[1, 2]]


@pytest.mark.parametrize(("size", "rows"), [(100, 1), (2**31, 2**62)])
def test_a_file_with_another_number_of_rows_than_its_metadata_is_refused(warehouse, size, rows):
    def change(file):
        file["file_size_in_bytes"], file["record_count"] = size, rows

    with_changed_files(warehouse, change)
    with pytest.raises(BadFileError, match=f"has 2 rows, and {rows} by the metadata"):
        numbers(warehouse)


def with_changed_files(folder, change):
    """Rewrite the manifest of the only snapshot with other data files."""
    table = table_of(folder)
    (listed,) = table.current_snapshot().manifests(table.io)
    path = str(folder / "db/rows/metadata" / f"{uuid.uuid4()}-m0.avro")
    metadata = table.metadata
    output = table.io.new_output(path)
    number = table.current_snapshot().snapshot_id
    with write_manifest(2, metadata.spec(), metadata.schema(), output, number, "null") as writer:
        for entry in listed.fetch_manifest_entry(table.io):
            names = [field.name for field in manifests.DATA_FILE_TYPE[2].fields]
            values = dict(zip(names, entry.data_file._data, strict=False))
            change(values)
            writer.add(
                ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED,
                    snapshot_id=number,
                    data_file=DataFile.from_args(**values),
                )
            )
    with_manifests(folder, [writer.to_manifest_file()])
    return path


def with_manifests(folder, listed, table=TABLE):
    """Change the manifests that the newest snapshot of a table names."""
    path = folder / "db" / table.partition(".")[2] / "metadata" / f"snap-{uuid.uuid4()}.avro"
    with write_manifest_list(2, IO.new_output(str(path)), 1, None, 1, "null") as writer:
        writer._writer.write_block(listed)  # without PyIceberg's checks

    def change(metadata):
        metadata["snapshots"][-1]["manifest-list"] = str(path)

    alter(folder, change, table.partition(".")[2])
    return path


# --- manifests


SCHEMA = Schema(
    NestedField(1, "l", LongType(), required=False),
    NestedField(2, "s", StringType(), required=False),
    NestedField(3, "f", FloatType(), required=False),
    NestedField(4, "d", DoubleType(), required=False),
    NestedField(5, "n", DecimalType(20, 2), required=False),
    NestedField(6, "u", UUIDType(), required=False),
    NestedField(7, "x", FixedType(5), required=False),
    NestedField(8, "b", BooleanType(), required=False),
    NestedField(9, "t", DateType(), required=False),
    NestedField(10, "y", BinaryType(), required=False),
)
SPEC = PartitionSpec(
    *(
        PartitionField(field.field_id, 1000 + field.field_id, IdentityTransform(), field.name)
        for field in SCHEMA.fields
    )
)
VALUES = [
    (-7, "ä", 1.5, -2.5, Decimal("12345678901.23"), uuid.UUID(int=5), b"12345", True, -3, b"\x80"),
    (None,) * 10,
    (2**62, "x" * 500, 0.0, 2.0**100, Decimal("-0.01"), uuid.UUID(int=0), bytes(5), False, 0, b""),
]


def data_file(n, partition=()):
    wide = dict.fromkeys((1, 63, 64, 100, 100000), b"w" * (n % 300))
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"s3://box/{n}.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(*partition),
        record_count=n,
        file_size_in_bytes=n * 1000,
        column_sizes={1: 5, 200: 2**40},
        value_counts={},
        null_value_counts=None,
        nan_value_counts={number: number for number in range(1, 300)},
        lower_bounds=wide if n % 2 else None,
        upper_bounds={1: struct.pack("<q", n)},
        key_metadata=b"key" if n % 3 else None,
        split_offsets=[4, 2**33] if n % 2 else None,
        equality_ids=None,
        sort_order_id=None,
    )


def written(path, count=7, codec="null", version=2, spec=SPEC, partitions=VALUES):
    output = IO.new_output(str(path))
    values = itertools.cycle(partitions if spec is SPEC else [()])
    with write_manifest(version, spec, SCHEMA, output, 5, codec) as writer:
        for n in range(count):
            file = data_file(n, next(values))
            entry = ManifestEntry.from_args(
                status=ManifestEntryStatus.EXISTING if n % 2 else ManifestEntryStatus.ADDED,
                snapshot_id=5,
                sequence_number=n if n % 2 else None,
                data_file=file,
            )
            writer.add_entry(entry)
    return str(path)


def entries_of(path, kind, monkeypatch):
    monkeypatch.setattr(manifests, "AvroFile", kind)
    listed = ManifestFile.from_args(
        manifest_path=path,
        manifest_length=0,
        partition_spec_id=0,
        content=ManifestContent.DATA,
        sequence_number=3,
        min_sequence_number=3,
        added_snapshot_id=5,
    )
    return [plain(entry) for entry in listed.fetch_manifest_entry(IO, discard_deleted=False)]


def plain(value):
    if isinstance(value, Record):
        return [plain(one) for one in value._data]
    return dict(value) if hasattr(value, "keys") else value


@pytest.mark.parametrize("codec", ["null", "gzip", "zstd", "bzip2"])
@pytest.mark.parametrize("version", [1, 2])
def test_manifests_are_decoded_as_pyiceberg_decodes_them(tmp_path, monkeypatch, codec, version):
    path = written(tmp_path / "m.avro", codec=codec, version=version)
    expected = entries_of(path, AvroFile, monkeypatch)
    assert len(expected) == 7
    assert entries_of(path, BoundedAvroFile, monkeypatch) == expected


def test_partitions_by_double_keep_their_precision(tmp_path, monkeypatch):
    """PyIceberg's compiled decoder rounds them to single precision."""
    values = (*VALUES[0][:3], 0.1, *VALUES[0][4:])
    path = written(tmp_path / "m.avro", count=1, partitions=[values])
    (entry,) = entries_of(path, BoundedAvroFile, monkeypatch)
    assert entry[4][3][3] == 0.1


def test_a_length_beyond_the_end_reads_no_memory_of_the_process(tmp_path, monkeypatch):
    path = Path(written(tmp_path / "m.avro", count=1, spec=PartitionSpec()))
    text = path.read_bytes()
    name = b"s3://box/0.parquet"
    at = text.index(name) - 1
    for length in (b"\x7e", b"\xfe\x7f", b"\xfe\xff\xff\x7f", b"\xff" * 9 + b"\x01", b"\x01"):
        path.write_bytes(text[:at] + length + text[at + 1 :])
        with pytest.raises(UnreadableError, match=r"m\.avro cannot be read"):
            entries_of(str(path), BoundedAvroFile, monkeypatch)


@pytest.mark.long
def test_a_manifest_that_ends_too_early_is_an_error_and_loses_no_file(tmp_path, monkeypatch):
    path = Path(written(tmp_path / "m.avro"))
    text = path.read_bytes()
    ends = [n for n in range(len(text)) if text.endswith(text[n:][:16]) and len(text) - n >= 16]
    for length in range(0, len(text), 7):
        path.write_bytes(text[:length])
        if length - 16 in ends:
            continue  # whole blocks
        with pytest.raises(UnreadableError, match="cannot be read"):
            entries_of(str(path), BoundedAvroFile, monkeypatch)


def avro(path, block, count=1, columns='{"type":"int","name":"a","field-id":1}'):
    """Write an Avro file of one block."""

    def long(n):
        n, out = (n << 1) ^ (n >> 63), b""
        while n > 0x7F:
            out, n = out + bytes([n & 0x7F | 0x80]), n >> 7
        return out + bytes([n])

    schema = f'{{"type":"record","name":"r","fields":[{columns}]}}'.encode()
    meta = b"\x04" + b"".join(
        long(len(text)) + text for text in (b"avro.schema", schema, b"avro.codec", b"null")
    )
    sync = b"s" * 16
    packed = long(count) + long(len(block)) + block + sync
    path.write_bytes(b"Obj\x01" + meta + b"\x00" + sync + packed)
    return str(path)


LISTS = '{"name":"a","field-id":1,"type":{"type":"array","element-id":2,"items":"long"}}'
NOTHING = '{"name":"a","field-id":1,"type":["null","int"],"default":null}'
HOSTILE = {
    "more records than bytes": (bytes(10), 2**60, NOTHING),
    "many records": (bytes(200_000), 200_000, NOTHING),
    "negative records": (b"\x00", -1, NOTHING),
    "more bytes than records": (bytes(9), 3, NOTHING),
    "a long list": (b"\x80\x80\x80\x80\x80\x80\x80\x80\x40", 1, LISTS),
    "a list of a block": (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00", 1, LISTS),
    "a number without an end": (b"\xff" * 100, 1, NOTHING),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_a_manifest_can_not_honestly_have_is_refused(tmp_path, name):
    block, count, columns = HOSTILE[name]
    path = avro(tmp_path / "m.avro", block, count, columns)
    with (
        pytest.raises(UnreadableError, match=r"m\.avro cannot be read"),
        BoundedAvroFile(IO.new_input(path)) as file,
    ):
        list(file)


@pytest.mark.long
def test_a_manifest_whose_blocks_are_small_and_many_takes_no_memory(tmp_path):
    """Each block is small; together they would be 4 GB."""
    import zlib

    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    value = b"\x80\x80\x80\x20" + bytes(2**25)  # 32 MiB and their length
    block = packer.compress(value) + packer.flush()
    path = Path(avro(tmp_path / "m.avro", b"", 0, '{"name":"a","field-id":1,"type":"bytes"}'))
    head = path.read_bytes()[:-18].replace(b"\x08null", b"\x0edeflate")
    size = len(block) << 1
    length = bytes([size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14])
    path.write_bytes(head + (b"\x02" + length + block + b"s" * 16) * 128)
    with BoundedAvroFile(IO.new_input(str(path))) as file:
        values = iter(file)
        assert len(next(values)[0]) == 2**25
        with pytest.raises(OptionError, match="a block of one of the table's manifests has more"):
            collections.deque(values, maxlen=0)


def test_a_deep_schema_of_a_manifest_is_an_error(tmp_path):
    deep = '{"type":"array","element-id":2,"items":' * 5000 + '"int"' + "}" * 5000
    path = avro(tmp_path / "m.avro", b"\x00", 1, f'{{"name":"a","field-id":1,"type":{deep}}}')
    with pytest.raises(UnreadableError, match=r"m\.avro"), BoundedAvroFile(IO.new_input(path)):
        pass


def test_a_source_names_the_manifest_that_is_damaged(warehouse):
    path = Path(table_of(warehouse).current_snapshot().manifests(IO)[0].manifest_path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UnreadableError, match=path.name):
        numbers(warehouse)
    with pytest.raises(UnreadableError, match=path.name):
        iceberg_reading.Stream(warehouse, table=TABLE).drain()


def test_a_manifest_of_an_unknown_partition_spec_is_an_error(warehouse):
    (listed,) = table_of(warehouse).current_snapshot().manifests(IO)
    copied = ManifestFile(*listed._data)
    copied[2] = 77
    with_manifests(warehouse, [copied])
    with pytest.raises(UnreadableError, match=r"KeyError: 77"):
        numbers(warehouse)


# --- tables that claim to be others, in one process


def other_table(folder, **changes):
    """Return a table that others may alter, in a process that also writes the victim's table."""
    IcebergLife(folder, path="db.other").epoch(0, ROWS)
    alter(folder, lambda metadata: metadata.update(changes), "other")


def test_a_list_of_another_table_says_nothing_of_a_manifest(warehouse, monkeypatch):
    """PyIceberg caches manifests by their paths, for all lists that name them."""
    bound_avro_files()
    (listed,) = table_of(warehouse).current_snapshot().manifests(IO)
    manifests.clear_manifest_cache()
    other_table(warehouse)
    lie = ManifestFile(*listed._data)
    names = [field.name for field in manifests.MANIFEST_LIST_FILE_SCHEMAS[3].fields]
    for name in ("added_files_count", "existing_files_count"):
        lie[names.index(name)] = 0
    with_manifests(warehouse, [lie], "db.other")
    found = opened(warehouse, "db.other")
    assert found.current_snapshot().manifests(found.io)[0].added_files_count == 0
    manifests_of_victim = opened(warehouse).current_snapshot().manifests(found.io)
    assert manifests_of_victim[0].added_files_count == 1
    monkeypatch.setattr(
        epoch_snapshot, "_LISTS", LruCache(1)
    )  # as in a driver that has not written
    IcebergLife(warehouse).epoch(1, ROWS)
    assert ids(warehouse) == [1, 1, 2, 2]


def test_a_snapshot_that_has_the_id_of_another_tables_has_its_own_manifests(warehouse):
    other_table(warehouse)
    victim = table_of(warehouse).metadata
    own = victim.current_snapshot_id

    def change(metadata):
        for one in (*metadata["snapshots"], *metadata["refs"].values(), *metadata["snapshot-log"]):
            one["snapshot-id"] = own
        metadata |= {"current-snapshot-id": own, "table-uuid": str(victim.table_uuid)}

    alter(warehouse, change, "other")
    IcebergLife(warehouse, path="db.other", query="query-2").epoch(0, ROWS)
    files = table_of(warehouse, "db.other").inspect.data_files()["file_path"].to_pylist()
    assert len(files) == 2
    assert all("/other/" in file for file in files)


def test_a_table_that_has_the_id_of_another_changes_none_of_its_manifests(warehouse):
    victim = table_of(warehouse).metadata
    changes = {"table-uuid": str(victim.table_uuid)}
    fields = [{"name": "text", "transform": "identity", "source-id": 2, "field-id": 1000}]
    other_table(warehouse, **changes, **{"partition-specs": [{"spec-id": 0, "fields": fields}]})
    IcebergLife(warehouse, path="db.other", query="query-2").epoch(0, ROWS)
    IcebergLife(warehouse).epoch(1, ROWS)
    table = table_of(warehouse)
    for listed in table.current_snapshot().manifests(IO):
        with AvroFile(IO.new_input(listed.manifest_path)) as file:
            assert json.loads(file.header.meta["partition-spec"]) == []
    assert ids(warehouse) == [1, 1, 2, 2]


# --- files with deleted positions


def deletes(path, rows, **given):
    pq.write_table(rows, path, **given)
    return DeleteFile(str(path), FileFormat.PARQUET)


def read_with(tmp_path, delete):
    data = tmp_path / "data.parquet"
    fields = [pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})]
    pq.write_table(pa.table([pa.array(range(10))], schema=pa.schema(fields)), data)
    wanted = Schema(NestedField(1, "id", LongType(), required=False))
    scan = ScanProjection(IO, wanted, 1, None, None)
    file = TableFile(str(data), data.stat().st_size, 10, deletes=(delete,))
    from krishiv_spark.iceberg.scan_tasks import read_task

    (part,) = plan_tasks([file], scan, 2**27)
    return [row for batch in read_task(part) for row in batch["id"].to_pylist()]


def test_deleted_positions_of_any_kind(tmp_path):
    data = str(tmp_path / "data.parquet")
    found = pa.table({"file_path": [data, "other", data, data], "pos": pa.array([3, 4, 3, 2**40])})
    assert read_with(tmp_path, deletes(tmp_path / "d", found)) == [0, 1, 2, *range(4, 10)]
    empty = deletes(tmp_path / "e", found.slice(0, 0))
    assert read_with(tmp_path, empty) == list(range(10))
    of_others = deletes(tmp_path / "o", found.slice(1, 1))
    assert read_with(tmp_path, of_others) == list(range(10))
    nulls = pa.table({"file_path": [data, None], "pos": pa.array([None, 4], pa.int64())})
    assert read_with(tmp_path, deletes(tmp_path / "n", nulls)) == list(range(10))


def test_a_file_that_names_many_others_is_read_in_linear_time(tmp_path):
    many = [str(n) for n in range(100_000)]
    found = pa.table({"file_path": many, "pos": pa.array(range(100_000))})
    assert read_with(tmp_path, deletes(tmp_path / "d", found)) == list(range(10))


@pytest.mark.parametrize("columns", [["file_path"], ["pos"], []])
def test_a_file_without_positions_is_an_error(tmp_path, columns):
    found = pa.table({"file_path": ["x"], "pos": pa.array([1]), "z": [1]}).select([*columns, "z"])
    with pytest.raises(KrishivError, match="lacks the columns"):
        read_with(tmp_path, deletes(tmp_path / "d", found))


# --- credentials in errors


class LeakingIO(PyArrowFileIO):
    """A FileIO whose errors show URLs, as those of Azure do."""

    def new_input(self, location):
        signature = self.properties["adls.sas-token.acct"].partition("sig=")[2]
        try:
            raise OSError(f"GET https://acct/{location}?sv=1&sig={signature} failed")
        except OSError as error:
            raise StorageError(f"cannot read {location}: {error}") from error


@pytest.mark.parametrize("sas", ["sv=1&sig=abc%2Fdef%3D&se=2", "?sig=abc/def=", "sig=abc%2Fdef%3D"])
def test_no_error_shows_a_credential_that_a_catalog_has_handed_out(sas):
    io = LeakingIO({"adls.sas-token.acct": sas, "s3.region": "eu-west-1"})
    with (
        pytest.raises(StorageError, match=r"cannot read x: GET") as caught,
        redact_errors(io, "read"),
    ):
        io.new_input("x")
    shown = "".join(traceback.format_exception(caught.value))
    assert "abc" not in shown
    assert "***" in shown
    assert caught.value.__cause__ is caught.value.__context__ is None


def test_an_error_of_a_library_becomes_ours_only_if_it_shows_a_credential():
    io = PyArrowFileIO({"s3.session-token": "hunter2"})
    with (
        pytest.raises(StorageError, match=r"cannot read: OSError: \*\*\* failed"),
        redact_errors(io, "read"),
    ):
        raise OSError("hunter2 failed")
    with pytest.raises(ZeroDivisionError), redact_errors(io, "read"):
        raise ZeroDivisionError
