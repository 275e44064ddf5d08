"""The rows that a reader of an Iceberg table yields: types, evolved columns, deletes, filters."""

import datetime as dt
import decimal
import pickle
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from iceberg_reading import Stream, batch, reader, rows_of
from iceberg_tables import (
    append,
    append_files,
    append_grouped,
    delete_by_vector,
    delete_equal,
    delete_rows,
    make_table,
    paths,
    table_in,
)
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.types import (
    DoubleType,
    FixedType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
    UUIDType,
)

from krishiv_spark.errors import DataLossError, SchemaError
from krishiv_spark.iceberg.planning import TableFile, UnreadableError
from krishiv_spark.iceberg.scan_tasks import (
    ScanProjection,
    choose_task_bytes,
    plan_tasks,
    select_row_groups,
)
from krishiv_spark.sources.base import UNLIMITED

NUMBERS = pa.schema([("id", pa.int64()), ("s", pa.string())])


def numbers(*ids):
    return pa.table({"id": ids, "s": [f"s{n}" for n in ids]}, schema=NUMBERS)


def plain(table):
    return sorted(table.to_pylist(), key=lambda row: str(row.get("id")))


def evolve(folder, change):
    with table_in(folder).update_schema(allow_incompatible_changes=True) as update:
        change(update)


# --- types


EVERY = pa.schema(
    [
        ("id", pa.int64()),
        ("b", pa.bool_()),
        ("i", pa.int32()),
        ("f", pa.float32()),
        ("d", pa.float64()),
        ("n", pa.decimal128(9, 2)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("s", pa.string()),
        ("x", pa.binary()),
        ("l", pa.list_(pa.int64())),
        ("ls", pa.list_(pa.struct([("a", pa.int32()), ("b", pa.string())]))),
        ("m", pa.map_(pa.string(), pa.struct([("a", pa.int32())]))),
        ("st", pa.struct([("a", pa.int32()), ("in", pa.struct([("b", pa.string())]))])),
    ]
)
UTC = dt.timezone.utc
FULL = {
    "id": 1,
    "b": True,
    "i": -7,
    "f": 0.5,
    "d": 1e300,
    "n": decimal.Decimal("-12.34"),
    "day": dt.date(2013, 1, 1),
    "at": dt.datetime(2013, 1, 1, 5, 15, tzinfo=UTC),
    "local": dt.datetime(2013, 1, 1, 5, 15),  # noqa: DTZ001  of a column without a zone
    "s": "é",
    "x": b"\0\xff",
    "l": [1, None, 3],
    "ls": [{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}],
    "m": [("k", {"a": 1}), ("l", None)],
    "st": {"a": 1, "in": {"b": "x"}},
}
NULLS = dict.fromkeys(EVERY.names) | {"id": 2}
EMPTY = NULLS | {"id": 3, "l": [], "ls": [], "m": [], "st": {"a": None, "in": None}}


def test_every_type_comes_back(tmp_path):
    make_table(tmp_path, EVERY)
    # PyIceberg itself writes empty lists and maps of structs where they are null.
    append_files(tmp_path, pa.Table.from_pylist([FULL, NULLS, EMPTY], EVERY))
    assert plain(batch(tmp_path)) == [FULL, NULLS, EMPTY]


def test_uuids_and_fixed_values_are_what_spark_knows(tmp_path):
    schema = Schema(
        NestedField(1, "id", LongType(), required=False),
        NestedField(2, "u", UUIDType(), required=False),
        NestedField(3, "x", FixedType(3), required=False),
    )
    table = make_table(tmp_path, schema)
    ids = [uuid.uuid4() for _ in range(3)]
    raw = [ids[0].bytes, None, ids[2].bytes]
    column = pa.ExtensionArray.from_storage(pa.uuid(), pa.array(raw, pa.binary(16)))
    fixed = pa.array([b"abc", None, b"xyz"], pa.binary(3))
    rows = pa.table([[1, 2, 3], column, fixed], schema=table.schema().as_arrow())
    append(tmp_path, rows)
    found = batch(tmp_path)
    assert found.schema.types == [pa.int64(), pa.string(), pa.binary()]
    assert [row["u"] for row in plain(found)] == [str(ids[0]), None, str(ids[2])]
    assert [row["x"] for row in plain(found)] == [b"abc", None, b"xyz"]


# --- columns


def test_columns_are_chosen_in_their_order_and_in_any_case(tmp_path):
    make_table(tmp_path, NUMBERS)
    append(tmp_path, numbers(1))
    assert batch(tmp_path, columns="s").to_pylist() == [{"s": "s1"}]
    given = pa.schema([("S", pa.string()), ("ID", pa.int64())])
    assert batch(tmp_path, given).to_pylist() == [{"S": "s1", "ID": 1}]


def test_a_column_that_is_not_there_is_named(tmp_path):
    make_table(tmp_path, NUMBERS)
    append(tmp_path, numbers(1))
    evolve(tmp_path, lambda update: update.rename_column("s", "text"))
    with pytest.raises(SchemaError, match="no column 's' any more: its name is now 'text'"):
        batch(tmp_path, NUMBERS)
    with pytest.raises(SchemaError, match="no column 'idd'; did you mean 'id'"):
        batch(tmp_path, pa.schema([("idd", pa.int64())]))


def test_columns_are_found_by_field_id(tmp_path):
    make_table(tmp_path, pa.schema([("id", pa.int32()), ("a", pa.string()), ("b", pa.float32())]))
    append(tmp_path, pa.table({"id": [1], "a": ["x"], "b": [0.5]}, table_arrow(tmp_path)))

    def change(update):
        update.rename_column("a", "c")
        update.update_column("id", LongType())
        update.update_column("b", DoubleType())
        update.move_first("a")

    evolve(tmp_path, change)
    evolve(tmp_path, lambda update: update.add_column("a", StringType()))
    row = {"c": "y", "id": 2**40, "b": 0.25, "a": "new"}
    append(tmp_path, pa.Table.from_pylist([row], table_arrow(tmp_path)))
    found = batch(tmp_path)
    assert found.schema.names == ["c", "id", "b", "a"]
    assert plain(found) == [{"c": "x", "id": 1, "b": 0.5, "a": None}, row]


def table_arrow(folder):
    return table_in(folder).schema().as_arrow()


def test_nested_columns_evolve_too(tmp_path):
    inner = pa.struct([("a", pa.int32()), ("b", pa.string())])
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("s", inner),
            ("l", pa.list_(inner)),
            ("m", pa.map_(pa.string(), inner)),
        ]
    )
    make_table(tmp_path, schema)
    value = {"a": 1, "b": "x"}
    old = [
        {"id": 1, "s": value, "l": [value, None], "m": [("k", value)]},
        {"id": 2, "s": None, "l": None, "m": None},
        {"id": 3, "s": value, "l": [], "m": []},
        {"id": 4, "s": value, "l": [value], "m": [("k", None)]},
    ]
    append_files(tmp_path, pa.Table.from_pylist(old, schema))

    def change(update):
        for place in ("s", "l.element", "m.value"):
            update.rename_column(f"{place}.b", "text")
            update.update_column(f"{place}.a", LongType())
            update.add_column((*place.split("."), "n"), LongType())

    evolve(tmp_path, change)
    now = {"a": 1, "text": "x", "n": None}
    assert plain(batch(tmp_path)) == [
        {"id": 1, "s": now, "l": [now, None], "m": [("k", now)]},
        {"id": 2, "s": None, "l": None, "m": None},
        {"id": 3, "s": now, "l": [], "m": []},
        {"id": 4, "s": now, "l": [now], "m": [("k", None)]},
    ]


def test_a_running_stream_keeps_its_columns_when_the_table_changes(tmp_path):
    make_table(tmp_path, pa.schema([("id", pa.int32()), ("s", pa.string())]))
    append(tmp_path, pa.table({"id": [1], "s": ["x"]}, table_arrow(tmp_path)))
    source = reader(tmp_path)
    first = source.latest(source.initial(), UNLIMITED)
    evolve(tmp_path, lambda update: update.rename_column("s", "t").add_column("n", LongType()))
    append(tmp_path, pa.table({"id": [2], "t": ["y"], "n": [3]}, table_arrow(tmp_path)))
    second = source.latest(first, UNLIMITED)
    assert rows_of(source, first, second).to_pylist() == [{"id": 2, "s": "y"}]
    evolve(tmp_path, lambda update: update.update_column("id", LongType()))
    append(tmp_path, pa.table({"id": [3], "t": ["z"], "n": [3]}, table_arrow(tmp_path)))
    third = source.latest(second, UNLIMITED)
    with pytest.raises(SchemaError, match=r"parquet: column 'id' is long .* restart the query"):
        rows_of(source, second, third)
    again = reader(tmp_path)
    assert rows_of(again, second, third).to_pylist() == [{"id": 3, "t": "z", "n": 3}]


def test_time_travel_has_the_schema_of_then(tmp_path):
    make_table(tmp_path, NUMBERS)
    first = append(tmp_path, numbers(1))
    evolve(tmp_path, lambda update: update.rename_column("s", "t").add_column("n", LongType()))
    assert batch(tmp_path, snapshot_id=first).to_pylist() == [{"id": 1, "s": "s1"}]
    found = batch(tmp_path, snapshot_id=first, rowFilter="s = 's1'")
    assert found.to_pylist() == [{"id": 1, "s": "s1"}]
    assert batch(tmp_path).to_pylist() == [{"id": 1, "t": "s1", "n": None}]


# --- files of other programs


MAPPING = '[{"field-id": 1, "names": ["id"]}, {"field-id": 2, "names": ["s", "alias"]}]'


def test_files_without_field_ids_are_read_by_the_name_mapping(tmp_path):
    make_table(tmp_path, NUMBERS, properties={"schema.name-mapping.default": MAPPING})
    append(tmp_path, numbers(1))
    pq.write_table(pa.table({"alias": ["x"], "id": [1], "more": [0]}), paths(tmp_path)[0])
    assert batch(tmp_path).to_pylist() == [{"id": 1, "s": "x"}]


def test_a_table_with_a_type_that_pyiceberg_does_not_know_is_refused_by_name(tmp_path):
    make_table(tmp_path, NUMBERS)
    (metadata,) = tmp_path.rglob("*.metadata.json")
    metadata.write_text(metadata.read_text().replace('"type":"string"', '"type":"variant"'))
    with pytest.raises(SchemaError, match=r"(?s)table db\.t .*Unsupported field type: 'variant'"):
        batch(tmp_path)


AT = dt.datetime(1, 1, 1, 12)  # noqa: DTZ001
INT96 = pa.table({"t": pa.array([AT, None]), "s": pa.array([{"t": AT}, None]), "n": [1, 2]})


@pytest.mark.parametrize(
    ("zone", "at"), [("UTC", AT.replace(tzinfo=dt.timezone.utc)), (None, AT)], ids=["UTC", "none"]
)
def test_int96_is_what_the_table_says_that_it_is(tmp_path, zone, at):
    kind = pa.timestamp("us", zone)
    schema = pa.schema([("t", kind), ("s", pa.struct([("t", kind)])), ("n", pa.int64())])
    names = '[{"field-id": 1, "names": ["t"]}, {"field-id": 3, "names": ["n"]}, {"field-id": 2, '
    names += '"names": ["s"], "fields": [{"field-id": 4, "names": ["t"]}]}]'
    make_table(tmp_path, schema, properties={"schema.name-mapping.default": names})
    rows = [{"t": at, "s": {"t": at}, "n": 1}, {"t": None, "s": None, "n": 2}]
    append(tmp_path, pa.Table.from_pylist(rows, schema))
    pq.write_table(INT96, paths(tmp_path)[0], use_deprecated_int96_timestamps=True)
    assert batch(tmp_path).to_pylist() == rows
    assert batch(tmp_path, columns="n").to_pylist() == [{"n": 1}, {"n": 2}]
    assert batch(tmp_path, rowFilter="t IS NOT NULL").to_pylist() == rows[:1]


def test_files_without_field_ids_and_without_names_are_an_error(tmp_path):
    make_table(tmp_path, NUMBERS)
    append(tmp_path, numbers(1))
    pq.write_table(pa.table({"id": [1], "s": ["x"]}), paths(tmp_path)[0])
    with pytest.raises(SchemaError, match=r"parquet: .*field-ids"):
        batch(tmp_path)


def test_a_column_that_is_only_in_the_partition_is_read_from_there(tmp_path):
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "day", LongType()))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "day"))
    make_table(tmp_path, schema, partition_spec=spec)
    append(tmp_path, pa.table({"id": [1, 2], "day": [7, 8]}))
    for path in paths(tmp_path):  # as Hive writes it
        kept = pq.read_table(path).drop_columns(["day"])
        pq.write_table(kept, path)
    assert plain(batch(tmp_path)) == [{"id": 1, "day": 7}, {"id": 2, "day": 8}]
    assert batch(tmp_path, rowFilter="day = 8").to_pylist() == [{"id": 2, "day": 8}]


def test_a_file_that_was_removed_is_an_error(tmp_path):
    make_table(tmp_path, NUMBERS)
    append(tmp_path, numbers(1))
    Path(paths(tmp_path)[0]).unlink()
    with pytest.raises(DataLossError, match=r"parquet has been removed.*keep them for longer"):
        batch(tmp_path)


def test_a_file_that_is_damaged_is_an_error(tmp_path):
    make_table(tmp_path, NUMBERS)
    append(tmp_path, numbers(1))
    Path(paths(tmp_path)[0]).write_bytes(b"PAR1 or not")
    with pytest.raises(DataLossError, match="cannot be read as Parquet"):
        batch(tmp_path)


# --- deletes


def test_deleted_positions_are_left_out_wherever_files_are_split(tmp_path):
    make_table(tmp_path, NUMBERS)
    append_grouped(tmp_path, numbers(*range(1000)), 70)
    append(tmp_path, numbers(1000, 1001))
    other, grouped = paths(tmp_path)
    gone = {0, 69, 70, 500, 501, 502, 999}
    delete_rows(tmp_path, {grouped: gone, other: [1]})
    expected = sorted({*range(1001)} - gone)
    for most in ("1k", "3k", "128m"):
        found = batch(tmp_path, maxPartitionBytes=most)
        assert sorted(found["id"].to_pylist()) == expected
    filtered = batch(tmp_path, rowFilter="id >= 499 and id < 510", maxPartitionBytes="1k")
    assert sorted(filtered["id"].to_pylist()) == [499, *range(503, 510)]


def test_deletion_vectors_are_applied(tmp_path):
    make_table(tmp_path, NUMBERS)
    append_grouped(tmp_path, numbers(*range(100)), 30)
    (path,) = paths(tmp_path)
    append(tmp_path, numbers(100, 101))
    delete_by_vector(tmp_path, path, [0, 31, 99])
    for most in ("1k", "128m"):
        found = batch(tmp_path, maxPartitionBytes=most)
        assert sorted(found["id"].to_pylist()) == sorted({*range(102)} - {0, 31, 99})


def test_deletes_count_only_for_older_files(tmp_path):
    make_table(tmp_path, NUMBERS)
    append(tmp_path, numbers(1, 2))
    delete_rows(tmp_path, {paths(tmp_path)[0]: [0]})
    delete_rows(tmp_path, {paths(tmp_path)[0]: [1]})
    append(tmp_path, numbers(3))
    assert batch(tmp_path)["id"].to_pylist() == [3]


@pytest.mark.long
@settings(max_examples=8)
@given(st.sets(st.integers(0, 99)), st.integers(1, 40), st.integers(100, 3000))
def test_any_rows_may_be_deleted(tmp_path_factory, gone, rows_per_group, most):
    folder = tmp_path_factory.mktemp("deleted")
    make_table(folder, NUMBERS)
    append_grouped(folder, numbers(*range(100)), rows_per_group)
    if gone:
        delete_rows(folder, {paths(folder)[0]: gone})
    found = batch(folder, maxPartitionBytes=most)
    assert sorted(found["id"].to_pylist()) == sorted({*range(100)} - gone)


def test_equality_deletes_are_refused_by_name(tmp_path):
    make_table(tmp_path, NUMBERS)
    append(tmp_path, numbers(1, 2))
    delete_equal(tmp_path, pa.table({"id": [1]}), [1])
    with pytest.raises(UnreadableError, match=r"equality deletes .*-deletes.parquet"):
        batch(tmp_path)


# --- filters


def test_a_filter_is_exact_and_opens_no_file_in_vain(tmp_path):
    make_table(tmp_path, NUMBERS)
    append_files(tmp_path, numbers(1, 2), numbers(3, 4), numbers(5, 6))
    source = reader(tmp_path, streaming=False, columns="s", rowFilter="id = 3 or s = 's6'")
    start = source.initial()
    parts = source.plan(start, source.latest(start, UNLIMITED))
    opened = [piece.file.path for part in parts for piece in part.ranges]
    assert len(opened) == 2
    assert plain(batch(tmp_path, columns="s", rowFilter="id = 3 or s = 's6'")) == [
        {"s": "s3"},
        {"s": "s6"},
    ]


def test_a_filter_passes_over_row_groups(tmp_path):
    make_table(tmp_path, NUMBERS)
    append_grouped(tmp_path, numbers(*range(100)), 10)
    evolve(
        tmp_path, lambda update: update.rename_column("id", "number").add_column("n", LongType())
    )
    source = reader(
        tmp_path, streaming=False, rowFilter="number > 34 and number < 52 and n is null"
    )
    start = source.initial()
    (part,) = source.plan(start, source.latest(start, UNLIMITED))
    shape, (piece,) = pickle.loads(part.scan), part.ranges
    held = pyarrow_to_schema(pq.read_schema(piece.file.path))
    with pa.OSFile(piece.file.path) as file:
        assert select_row_groups(file, held, piece.file, shape) == {3, 4, 5}
    found = batch(tmp_path, rowFilter="number > 34 and number < 52 and n is null")
    assert sorted(found["number"].to_pylist()) == [*range(35, 52)]


def test_a_filter_finds_nothing(tmp_path):
    make_table(tmp_path, NUMBERS)
    append(tmp_path, numbers(1))
    assert batch(tmp_path, rowFilter="id > 5").num_rows == 0
    assert batch(tmp_path, rowFilter="s is null").num_rows == 0


def test_a_filter_chooses_partitions(tmp_path):
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "at", TimestamptzType()))
    spec = PartitionSpec(PartitionField(2, 1000, DayTransform(), "day"))
    make_table(tmp_path, schema, partition_spec=spec)
    times = [dt.datetime(2013, 1, day, 5, tzinfo=UTC) for day in (1, 2, 3)]
    rows = pa.table({"id": [1, 2, 3], "at": pa.array(times, pa.timestamp("us", "UTC"))})
    append(tmp_path, rows)
    found = batch(tmp_path, rowFilter="at >= '2013-01-02T00:00:00+00:00'")
    assert sorted(found["id"].to_pylist()) == [2, 3]


def test_a_filter_survives_evolution(tmp_path):
    make_table(tmp_path, pa.schema([("id", pa.int32()), ("s", pa.string())]))
    append(tmp_path, pa.table({"id": [1, 2], "s": ["a", "b"]}, table_arrow(tmp_path)))
    evolve(
        tmp_path,
        lambda update: (
            update.rename_column("s", "t")
            .update_column("id", LongType())
            .add_column("n", LongType())
        ),
    )
    assert batch(tmp_path, rowFilter="t = 'b' and n is null and id < 3000000000")[
        "id"
    ].to_pylist() == [2]


THREE = pa.schema([("id", pa.int64()), ("a", pa.int64()), ("b", pa.int64())])


def swap_names(folder):
    for old, new in (("a", "c"), ("b", "a")):
        with table_in(folder).update_schema() as update:
            update.rename_column(old, new)


def test_a_filter_means_the_columns_of_the_snapshot_that_is_read(tmp_path):
    make_table(tmp_path, THREE)
    first = append(tmp_path, pa.table({"id": [1], "a": [1], "b": [7]}))
    swap_names(tmp_path)
    assert batch(tmp_path, snapshot_id=first, rowFilter="a = 1")["id"].to_pylist() == [1]
    assert batch(tmp_path, rowFilter="a = 1")["id"].to_pylist() == []


def test_a_filter_of_a_running_stream_keeps_its_columns(tmp_path):
    make_table(tmp_path, THREE)
    stream = Stream(tmp_path, rowFilter="a = 1")
    append(tmp_path, pa.table({"id": [1], "a": [1], "b": [7]}))
    assert stream.drain() == [[1]]
    swap_names(tmp_path)
    append(tmp_path, pa.table({"id": [2, 3], "c": [1, 7], "a": [7, 1]}))
    assert stream.drain() == [[2]]


@pytest.mark.parametrize("text", ["x != 5", "x is nan", "x not in (5, 9)"])
def test_a_filter_finds_nan_though_statistics_leave_it_out(tmp_path, text):
    make_table(tmp_path, pa.schema([("id", pa.int64()), ("x", pa.float64())]))
    rows = pa.table({"id": [1, 2, 3], "x": [5.0, float("nan"), 5.0]})
    append_grouped(tmp_path, rows, 2)
    assert batch(tmp_path, rowFilter=text)["id"].to_pylist() == [2]


def test_nested_fields_can_be_filtered(tmp_path):
    schema = pa.schema([("id", pa.int64()), ("s", pa.struct([("a", pa.int64())]))])
    make_table(tmp_path, schema)
    append(tmp_path, pa.Table.from_pylist([{"id": n, "s": {"a": n}} for n in (1, 2)], schema))
    assert batch(tmp_path, rowFilter="s.a = 2", columns="id").to_pylist() == [{"id": 2}]


# --- filters of Spark


spark_filters = pytest.importorskip("pyspark.sql.datasource")
needs_filters = pytest.mark.skipif(
    not hasattr(spark_filters, "EqualTo"), reason="PySpark 4.0 has no filters"
)

TYPED = pa.schema(
    [
        ("id", pa.int64()),
        ("s", pa.string()),
        ("f", pa.float64()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("n", pa.decimal128(9, 2)),
        ("b", pa.bool_()),
    ]
)


def kept(folder, *filters):
    source = reader(folder, streaming=False)
    source.push(filters)
    start = source.initial()
    return sorted(rows_of(source, start, source.latest(start, UNLIMITED))["id"].to_pylist())


@pytest.fixture
def typed(tmp_path):
    make_table(tmp_path, TYPED)
    rows = [
        {
            "id": n,
            "s": f"s{n}",
            "f": float("nan") if n == 3 else n / 2,
            "day": dt.date(2013, 1, n),
            "at": dt.datetime(2013, 1, n, tzinfo=UTC),
            "n": decimal.Decimal(n),
            "b": n % 2 == 0,
        }
        for n in (1, 2, 3, 4)
    ]
    nothing = dict.fromkeys(TYPED.names) | {"id": 5}
    append(tmp_path, pa.Table.from_pylist([*rows, nothing], TYPED))
    return tmp_path


@needs_filters
def test_filters_of_spark_leave_out_what_they_can(typed):
    f = spark_filters
    everything = [1, 2, 3, 4, 5]
    for pushed, expected in (
        (f.EqualTo(("id",), 3), [3]),
        (f.EqualTo(("S",), "s2"), [2]),
        (f.EqualNullSafe(("id",), 3), [3]),
        (f.Not(f.EqualTo(("id",), 3)), [1, 2, 4, 5]),
        (f.GreaterThan(("id",), 3), [4, 5]),
        (f.GreaterThanOrEqual(("day",), dt.date(2013, 1, 3)), [3, 4]),
        (f.LessThan(("at",), dt.datetime(2013, 1, 2, tzinfo=UTC)), [1]),
        (f.LessThanOrEqual(("n",), decimal.Decimal("2.00")), [1, 2]),
        (f.In(("id",), (1, 4, 9)), [1, 4]),
        (f.EqualTo(("b",), value=True), [2, 4]),
        (f.IsNull(("s",)), [5]),
        (f.IsNotNull(("s",)), [1, 2, 3, 4]),
        (f.StringStartsWith(("s",), "s4"), [4]),
        # What Iceberg sees otherwise, or not at all, is left to Spark.
        (f.EqualTo(("f",), float("nan")), everything),
        (f.GreaterThan(("f",), 100.0), everything),
        (f.EqualNullSafe(("s",), None), everything),
        (f.Not(f.EqualNullSafe(("s",), "s2")), everything),
        (f.In(("id",), (1, None)), everything),
        (f.StringContains(("s",), "2"), everything),
        (f.EqualTo(("s", "a"), 1), everything),
        (f.EqualTo(("id",), "x"), everything),
    ):
        assert kept(typed, pushed) == expected, pushed
    assert kept(typed, f.GreaterThan(("id",), 1), f.LessThan(("id",), 4)) == [2, 3]


def test_without_filters_every_row_is_read(typed):
    source = reader(typed, streaming=False)
    assert source._columns.combine_filters(()) is None


# --- tasks


def test_tasks_are_many_but_not_tiny():
    def sized(*sizes):
        return [TableFile("a", size, 1) for size in sizes]

    mib = 2**20
    assert choose_task_bytes(sized(mib), 128 * mib) == 16 * mib
    assert (
        choose_task_bytes(sized(*[100 * mib] * 100), 128 * mib) == 52 * mib
    )  # to open them counts
    assert choose_task_bytes(sized(2**40), 128 * mib) == 128 * mib
    assert choose_task_bytes(sized(2**40), mib) == mib


@pytest.mark.long
def test_small_files_share_tasks_however_many_they_are():
    files = [TableFile(f"{number}", 2_000, 10) for number in range(100_000)]
    scan = ScanProjection(None, Schema(), 0, None, None)
    tasks = plan_tasks(files, scan, choose_task_bytes(files, 128 * 2**20))
    assert sum(len(task.ranges) for task in tasks) == 100_000
    assert len(tasks) < 4_000  # of which each takes Spark and PySpark some milliseconds


def test_tasks_know_no_secret_of_the_catalog(tmp_path):
    make_table(tmp_path, NUMBERS)
    append(tmp_path, numbers(1))
    source = reader(tmp_path, streaming=False)
    start = source.initial()
    (part,) = source.plan(start, source.latest(start, UNLIMITED))
    assert b"catalog.db" not in part.scan
    assert part.ranges[0].file.path.endswith(".parquet")


def test_uuids_inside_of_lists_and_structs(tmp_path):
    inner = StructType(NestedField(5, "u", UUIDType(), required=False))
    schema = Schema(
        NestedField(1, "id", LongType(), required=False),
        NestedField(2, "l", ListType(4, inner, element_required=False), required=False),
        NestedField(3, "m", MapType(6, StringType(), 7, UUIDType()), required=False),
    )
    table = make_table(tmp_path, schema)
    one = uuid.uuid4()
    raw = pa.struct([("u", pa.binary(16))])
    rows = pa.table(
        {
            "id": pa.array([1, 2]),
            "l": pa.array([[{"u": one.bytes}, None], None], pa.list_(raw)),
            "m": pa.array([[("k", one.bytes)], []], pa.map_(pa.string(), pa.binary(16))),
        }
    )
    append_files(tmp_path, rows)
    assert table.schema() == schema
    assert plain(batch(tmp_path)) == [
        {"id": 1, "l": [{"u": str(one)}, None], "m": [("k", str(one))]},
        {"id": 2, "l": None, "m": []},
    ]
