"""Filters on values that are in no file, on null structs and on UUIDs; without Spark and Java."""

import datetime as dt
import json
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from iceberg_life import IcebergLife
from iceberg_reading import Stream, batch, reader, rows_of
from iceberg_tables import append, append_files, make_table, paths, table_in
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    DateType,
    FixedType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

from krishiv_spark.sinks.iceberg.table_layout import parse_partition_spec
from krishiv_spark.sources.base import UNLIMITED

ID = pa.schema([("id", pa.int64())])
DAY = dt.date(2024, 2, 29)
UUIDS = [uuid.UUID(int=1), uuid.UUID(int=2**127 + 1), uuid.UUID(int=2**128 - 1)]
DEFAULTS = {
    "int": (34, "34"),
    "long": (35, "35"),
    "date": ("2024-02-29", "'2024-02-29'"),
    "decimal(9, 2)": ("1.25", "1.25"),
    "uuid": (str(UUIDS[2]), f"'{UUIDS[2]}'"),
    "timestamptz": ("2024-01-01T00:00:00+00:00", "'2024-01-01T00:00:00+00:00'"),
    "timestamp": ("2024-01-01T00:00:00.123456", "'2024-01-01T00:00:00.123456'"),
    "string": ("é", "'é'"),
    "boolean": (True, "true"),
    "double": (1.5, "1.5"),
    "float": (1.5, "1.5"),
    "time": ("12:30:00.000001", "'12:30:00.000001'"),
}


def ids(folder, text, **options):
    return sorted(batch(folder, ID, rowFilter=text, **options)["id"].to_pylist())


def rewrite_metadata(folder, change):
    """Change the newest metadata file as a writer of format version 3 would write it."""
    location = Path(table_in(folder).metadata_location.removeprefix("file://"))
    metadata = json.loads(location.read_text())
    metadata |= {"format-version": 3, "next-row-id": 100, "last-column-id": 200}
    change(metadata["schemas"][-1]["fields"])
    location.write_text(json.dumps(metadata))


def with_default(number, name, kind, default):
    field = {"id": number, "name": name, "required": False, "type": kind}
    return field | {"initial-default": default, "write-default": default}


# --- defaults of format version 3


@pytest.mark.long
@pytest.mark.parametrize("kind", DEFAULTS)
def test_a_default_is_compared_as_values_of_files_are(tmp_path, kind):
    default, literal = DEFAULTS[kind]
    make_table(tmp_path, ID)
    append(tmp_path, pa.table({"id": [1, 2, 3]}))
    rewrite_metadata(tmp_path, lambda fields: fields.append(with_default(100, "c", kind, default)))
    assert ids(tmp_path, f"c = {literal}") == [1, 2, 3]
    assert ids(tmp_path, f"not (c != {literal})") == [1, 2, 3]
    assert ids(tmp_path, "c is not null") == [1, 2, 3]
    assert ids(tmp_path, f"c != {literal} or c is null") == []
    assert ids(tmp_path, f"c != {literal} or id = 2") == [2]
    if kind != "boolean":
        assert ids(tmp_path, f"c in ({literal})") == [1, 2, 3]
        assert ids(tmp_path, f"c >= {literal}") == [1, 2, 3]
        assert ids(tmp_path, f"c < {literal}") == []


def test_conditions_of_spark_find_defaults(tmp_path):
    filters = pytest.importorskip("pyspark.sql.datasource")
    if not hasattr(filters, "EqualTo"):
        pytest.skip("PySpark 4.0 has no filters")
    make_table(tmp_path, ID)
    append(tmp_path, pa.table({"id": [1, 2, 3]}))
    local, utc = dt.datetime(2024, 1, 1), dt.timezone.utc  # noqa: DTZ001  of a column without a zone
    values = {
        "date": (DAY, DAY.isoformat()),
        "timestamp": (local, local.isoformat()),
        "timestamptz": (local.replace(tzinfo=utc), f"{local.isoformat()}+00:00"),
    }
    rewrite_metadata(
        tmp_path,
        lambda fields: fields.extend(
            with_default(number, kind, kind, text)
            for number, (kind, (_, text)) in enumerate(values.items(), 100)
        ),
    )
    for kind, (value, _) in values.items():
        source = reader(tmp_path, streaming=False, columns=f"id,{kind}")
        source.push((filters.EqualTo((kind,), value),))
        start = source.initial()
        assert rows_of(source, start, source.latest(start, UNLIMITED)).num_rows == 3, kind


def test_a_default_is_null_where_its_struct_is(tmp_path):
    inner = pa.struct([("a", pa.int32())])
    schema = pa.schema([("id", pa.int64()), ("s", inner)])
    make_table(tmp_path, schema)
    rows = [{"id": 1, "s": {"a": 1}}, {"id": 9, "s": None}]
    append_files(tmp_path, pa.Table.from_pylist(rows, schema))
    rewrite_metadata(
        tmp_path,
        lambda fields: fields[1]["type"]["fields"].append(with_default(100, "i", "int", 34)),
    )
    assert ids(tmp_path, "s.i is null") == [9]
    assert ids(tmp_path, "s.i is not null") == [1]
    assert ids(tmp_path, "s.i = 34") == [1]
    assert ids(tmp_path, "not (s.i = 34) or s.i is null") == [9]


def test_a_required_field_is_null_where_its_struct_is(tmp_path):
    inner = StructType(NestedField(3, "a", IntegerType(), required=True))
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "s", inner, required=False))
    make_table(tmp_path, schema)
    rows = [{"id": 1, "s": {"a": 1}}, {"id": 9, "s": None}]
    append_files(tmp_path, pa.Table.from_pylist(rows, table_in(tmp_path).schema().as_arrow()))
    assert ids(tmp_path, "s.a is null") == [9]
    assert ids(tmp_path, "s.a is not null") == [1]


def test_a_column_whose_name_has_a_dot_is_filtered(tmp_path):
    schema = Schema(
        NestedField(1, "id", LongType(), required=False),
        NestedField(2, "a.b", LongType(), required=False),
    )
    make_table(tmp_path, schema)
    append(tmp_path, pa.table({"id": [1, 2], "a.b": [10, 20]}))
    assert ids(tmp_path, "a.b = 20") == [2]


# --- UUIDs


def uuids_of(*values):
    raw = [None if value is None else value.bytes for value in values]
    return pa.ExtensionArray.from_storage(pa.uuid(), pa.array(raw, pa.binary(16)))


def test_uuids_are_compared_by_their_bytes(tmp_path):
    schema = Schema(
        NestedField(1, "id", LongType(), required=False),
        NestedField(2, "u", UUIDType(), required=False),
    )
    table = make_table(tmp_path, schema)
    column = uuids_of(*UUIDS, None)
    append(tmp_path, pa.table([[1, 2, 3, 4], column], schema=table.schema().as_arrow()))
    shown = str(UUIDS[1])
    assert ids(tmp_path, f"u = '{shown}'") == ids(tmp_path, f"u = '{shown.upper()}'") == [2]
    assert ids(tmp_path, f"u >= '{shown}'") == [2, 3]
    assert ids(tmp_path, f"u < '{shown}'") == [1]
    assert ids(tmp_path, f"u in ('{UUIDS[0]}', '{UUIDS[2]}') and id < 3") == [1]
    assert ids(tmp_path, "u is null") == [4]


def test_partitions_by_uuid_are_filtered(tmp_path):
    schema = Schema(
        NestedField(1, "id", LongType(), required=False),
        NestedField(2, "u", UUIDType(), required=False),
    )
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "u"))
    make_table(tmp_path, schema, partition_spec=spec)
    rows = pa.table({"id": [1, 2, 3], "u": [str(one) for one in UUIDS]})
    IcebergLife(tmp_path, path="db.t", keepSnapshots="all", keepMetadataFiles="all").epoch(0, rows)
    assert ids(tmp_path, f"u = '{UUIDS[1]}'") == [2]
    assert ids(tmp_path, f"u > '{UUIDS[1]}' or id = 1") == [1, 3]
    for path in paths(tmp_path):  # as Hive writes it
        pq.write_table(pq.read_table(path).drop_columns(["u"]), path)
    assert ids(tmp_path, f"u = '{UUIDS[1]}'") == [2]
    assert batch(tmp_path, rowFilter="id = 3").to_pylist() == [{"id": 3, "u": str(UUIDS[2])}]
    upserts = IcebergLife(
        tmp_path, path="db.t", query="q2", mode="upsert", keyColumns="id", keepSnapshots="all"
    )
    upserts.epoch(0, pa.table({"id": [3], "u": [str(UUIDS[0])]}))
    found = {row["id"]: row["u"] for row in batch(tmp_path).to_pylist()}
    assert found == {1: str(UUIDS[0]), 2: str(UUIDS[1]), 3: str(UUIDS[0])}


def _nested(kind):
    inner = StructType(NestedField(5, "a", IntegerType(), required=False))
    return {
        "list": (ListType(6, inner, element_required=False), ("c", "element")),
        "map": (MapType(6, StringType(), 7, inner, value_required=False), ("c", "value")),
        "struct": (inner, ("c",)),
    }[kind]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["list", "map", "struct"])
@pytest.mark.parametrize("added", [UUIDType(), FixedType(3), StringType()])
def test_a_field_that_came_later_is_read_of_batches_that_have_only_nulls(tmp_path, kind, added):
    outer, path = _nested(kind)
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "c", outer, required=False))
    table = make_table(tmp_path, schema)
    append_files(tmp_path, pa.Table.from_pylist([{"id": 1}, {"id": 2}], table.schema().as_arrow()))
    with table_in(tmp_path).update_schema() as update:
        update.add_column((*path, "x"), added)
    assert batch(tmp_path).to_pylist() == [{"id": 1, "c": None}, {"id": 2, "c": None}]
    assert ids(tmp_path, "id = 2") == [2]
    stream = Stream(tmp_path)
    assert stream.trigger() == [1, 2]


def test_bytes_that_a_table_calls_uuids_are_read_as_such_in_lists(tmp_path):
    schema = Schema(
        NestedField(1, "id", LongType(), required=False),
        NestedField(2, "l", ListType(3, UUIDType(), element_required=False), required=False),
    )
    make_table(tmp_path, schema)
    kind = pa.list_(pa.binary(16))
    rows = pa.table({"id": [1, 2], "l": pa.array([[UUIDS[1].bytes, None], None], kind)})
    append_files(tmp_path, rows)
    assert batch(tmp_path).to_pylist() == [
        {"id": 1, "l": [str(UUIDS[1]), None]},
        {"id": 2, "l": None},
    ]


# --- partitions


def by_day(folder, kind, *days, **properties):
    """Return a table whose files have their day in the partition alone, as Hive writes them."""
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "day", kind, required=False))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "day"))
    table = make_table(folder, schema, partition_spec=spec, properties=properties)
    column = pa.array(days, table.schema().as_arrow().field("day").type)
    append(folder, pa.table({"id": range(1, len(days) + 1), "day": column}))
    for path in paths(folder):
        pq.write_table(pq.read_table(path).drop_columns(["day"]), path)


def test_a_null_in_the_partition_takes_precedence_over_a_default(tmp_path):
    by_day(tmp_path, DateType(), DAY, None)
    rewrite_metadata(
        tmp_path,
        lambda fields: fields[1].update({"initial-default": "1999-01-01"}),
    )
    found = {row["id"]: row["day"] for row in batch(tmp_path).to_pylist()}
    assert found == {1: DAY, 2: None}
    assert ids(tmp_path, "day is null") == [2]
    assert ids(tmp_path, "day = '1999-01-01'") == []


def test_the_event_time_of_a_file_may_be_in_its_partition_alone(tmp_path):
    moments = [dt.datetime(2024, 1, day, tzinfo=dt.timezone.utc) for day in (1, 3)]
    # Files that Hive wrote have no bounds of such a column.
    properties = {"write.metadata.metrics.default": "none"}
    by_day(tmp_path, TimestamptzType(), *moments, None, **properties)
    stream = Stream(tmp_path, eventTime="day", watermarkDelay="0 s")
    stream.trigger()
    assert stream.at.watermark.ms == moments[1].timestamp() * 1000
    assert stream.at.watermark.held is None


def test_changes_are_filtered_by_what_partitions_have(tmp_path):
    by_day(tmp_path, DateType(), DAY, dt.date(2024, 3, 1))
    source = reader(tmp_path, streaming=False, rowFilter="day = '2024-02-29'", readChanges="true")
    start = source.initial()
    found = rows_of(source, start, source.latest(start, UNLIMITED)).to_pylist()
    assert [(row["id"], row["day"], row["_weight"]) for row in found] == [(1, DAY, 1)]


# --- the ends of a type, in tables that are partitioned by them


def table_of_three(folder, kind, values, partition):
    schema = Schema(
        NestedField(1, "id", LongType(), required=False),
        NestedField(2, "c", kind, required=False),
    )
    make_table(folder, schema, partition_spec=parse_partition_spec(partition, schema))
    column = pa.array(values, schema.as_arrow().field("c").type)
    append(folder, pa.table({"id": pa.array(range(len(values)), pa.int64()), "c": column}))


DAYS = [dt.date(1, 1, 1), dt.date(2024, 2, 29), dt.date(9999, 12, 31)]
AT = [dt.datetime.fromisoformat(f"{day}T23:59:59.999999") for day in DAYS]


@pytest.mark.long
@pytest.mark.parametrize("partition", ["year(c)", "month(c)", "day(c)"])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("c <= '9999-12-31'", [0, 1, 2]),
        ("c > '9999-12-31'", []),
        ("c >= '0001-01-01'", [0, 1, 2]),
        ("c < '0001-01-01'", []),
        ("not (c < '9999-12-31')", [2]),
        ("c >= '2024-01-01' and c <= '9999-12-31'", [1, 2]),
    ],
)
def test_the_first_and_the_last_day_may_be_asked_for(tmp_path, partition, text, expected):
    table_of_three(tmp_path, DateType(), DAYS, partition)
    assert ids(tmp_path, text) == expected


def test_the_last_microsecond_may_be_asked_for(tmp_path):
    table_of_three(tmp_path, TimestampType(), AT, "year(c)")
    assert ids(tmp_path, "c <= '9999-12-31T23:59:59.999999'") == [0, 1, 2]
    assert ids(tmp_path, "c > '2024-12-31T00:00:00'") == [2]


@pytest.mark.parametrize(("kind", "bits"), [(IntegerType(), 32), (LongType(), 64)])
def test_partitions_of_the_least_integers_have_wrapped_and_are_found(tmp_path, kind, bits):
    least, most = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    table_of_three(tmp_path, kind, [least, least + 4, 5, most], "truncate(5, c)")
    for text, expected in {
        f"c = {least}": [0],
        f"c in ({least}, 5)": [0, 2],
        "c < 0": [0, 1],
        f"c <= {least}": [0],
        f"not (c > {least + 4})": [0, 1],
        f"c > {least}": [1, 2, 3],
        "c = 5": [2],
    }.items():
        assert ids(tmp_path, text) == expected, text


def test_upserts_find_the_last_day_as_a_key(tmp_path):
    table_of_three(tmp_path, DateType(), DAYS, "year(c)")
    life = IcebergLife(tmp_path, path="db.t", mode="upsert", keyColumns="c")
    # More than are compared one by one, so that the first and the last one are.
    days = [DAYS[2] - dt.timedelta(days) for days in range(250)] + [DAYS[0]]
    life.epoch(0, pa.table({"id": range(10, 10 + len(days)), "c": days}))
    assert ids(tmp_path, "id >= 0") == [1, *range(10, 10 + len(days))]
