"""Unusual Parquet files of others: the right rows, or one of three errors.

A damaged file may be skipped, a file that is not supported never is, and a column that nobody asks
for does no harm. The files are made of plain ones by changes of their footers.
"""

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from iceberg_reading import batch
from iceberg_tables import append, delete_rows, make_table, paths
from parquet_forms import encrypted
from parquet_fuzzing import with_footer
from parquet_reading import FIRST, UNLIMITED, drain, reader
from pyspark.sql.types import StructType

from krishiv_spark.arrow.schemas import arrow_schema
from krishiv_spark.errors import DataLossError, SchemaError
from krishiv_spark.parquet.footers import BadFileError, UnsupportedFileError
from krishiv_spark.parquet.inputs import _int96_times
from krishiv_spark.parquet.thrift import BINARY, I32, LIST, STRUCT, Field, Items, decode, encode
from krishiv_spark.sinks.iceberg.upserts.epoch_changes import EpochChanges
from krishiv_spark.sinks.iceberg.upserts.upsert_staging import UpsertSpec
from krishiv_spark.sinks.parquet.checks import check_same_types
from krishiv_spark.sinks.parquet.disk_table import DiskTable

INT96, FIXED = 3, 7
MAP, LZO = 1, 3

INT128 = (
    b"/////6cAAAAEAAAA8v///xQAAAAEAAEAAAAKAAsACAAKAAQA+P///wwAAAAIAAgAAAAEAAIAAAA0AAAABAAAAMD///8g"
    b"AAAAEAAAAAgAAAABAgAAAAAAALj///+AAAAAAQAAAAEAAABoAAAA7P///zgAAAAgAAAAGAAAAAECAAAQABIABAAQABEA"
    b"CAAAAAwAAAAAAPT///9AAAAAAQAAAAgACQAEAAgAAgAAAGlkAA=="
)
"""The Arrow schema that Polars adds to a file with the columns id (Int64) and h (Int128)."""


def edit(path, change):
    """Change the footer of a file, as a tree of Thrift's fields."""

    def changed(footer):
        tree, _ = decode(footer)
        change(tree)
        return encode(tree)

    with_footer(Path(path), changed)


def elements(tree):
    return {element[4].value.decode(): element for element in tree[2].value.values}


def chunks(tree, group=0):
    return tree[4].value.values[group][1].value.values


def read(path, wanted=None, **options):
    """The rows of a batch read; the schema is inferred if none is wanted."""
    source = reader(path, schema=None, streaming=False, **options)
    end = source.latest(FIRST, UNLIMITED)
    source.schema = wanted or source.infer_schema()
    found = [rows for part in source.plan(FIRST, end) for rows in source.read(part)]
    return pa.Table.from_batches(found, source.schema).to_pylist()


def refusal(path, error, **options):
    with pytest.raises(error) as caught:
        read(path, **options)
    return str(caught.value)


# --- rows by the footer


@pytest.fixture
def short(tmp_path):
    """A row group of three rows, of which column `b` has two."""
    path = tmp_path / "short.parquet"
    table = pa.table({"a": [1, 2, 3, 4, 5], "b": [1, 2, 3, 4, 5]})
    pq.write_table(table, path, row_group_size=3)

    def change(tree):
        chunks(tree)[1] = chunks(tree, 1)[1]

    edit(path, change)
    return path


@pytest.mark.parametrize("columns", ["b", "a,b"])
def test_a_row_group_with_fewer_rows_than_its_footer_says_is_damaged(short, columns):
    """PyArrow ends where a column ends, without an error."""
    said = refusal(short, BadFileError, columns=columns)
    assert re.search("row group 0 has 3 rows by the footer|columns do not have the same size", said)


def test_columns_of_the_right_length_are_read_beside_a_short_one(short):
    assert read(short, columns="a") == [{"a": n} for n in (1, 2, 3, 4, 5)]


def test_a_short_row_group_is_skipped_where_damaged_files_are(short):
    pq.write_table(pa.table({"a": [9], "b": [9]}), short.parent / "whole.parquet")
    assert {"a": 9, "b": 9} in read(short.parent, badFiles="skip")


NUMBERS = pa.schema([("a", pa.int64()), ("b", pa.int64())])


def table_of(tmp_path):
    make_table(tmp_path, NUMBERS)
    append(tmp_path, pa.table({"a": [1, 2, 3], "b": [4, 5, 6]}, schema=NUMBERS))
    return paths(tmp_path)[0]


@pytest.mark.parametrize("rows", [[1, 2], [1, 2, 3, 4], []])
def test_a_data_file_with_other_rows_than_the_table_knows_is_an_error(tmp_path, rows):
    path = table_of(tmp_path)
    held = pq.read_schema(path)
    pq.write_table(pa.table({"a": rows, "b": rows}, schema=held), path)
    with pytest.raises(DataLossError, match=rf"has {len(rows)} rows, and 3 by the metadata"):
        batch(tmp_path)


def test_a_short_row_group_of_a_table_is_an_error(tmp_path):
    path = table_of(tmp_path)
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({"a": [1, 2, 3], "b": [4, 5, 6]}, schema=pq.read_schema(path)), other)

    def change(tree):
        # The chunk of two rows comes from another row group.
        chunks(tree)[1] = chunks(tree, 1)[1]
        tree[4].value.values[0][3] = tree[4].value.values[0][3]._replace(value=3)
        del tree[4].value.values[1:]

    pq.write_table(pq.read_table(other), path, row_group_size=2)
    edit(path, change)
    with pytest.raises(DataLossError, match="row group 0 has 3 rows by the footer"):
        batch(tmp_path, pa.schema([("b", pa.int64())]))


def test_a_short_delete_file_is_an_error(tmp_path):
    table_of(tmp_path)
    (data,) = paths(tmp_path)
    delete_rows(tmp_path, {data: [0]})
    (deletes,) = {*map(str, tmp_path.rglob("*.parquet"))} - {data}

    def change(tree):
        tree[4].value.values[0][3] = tree[4].value.values[0][3]._replace(value=5)

    edit(deletes, change)
    with pytest.raises(DataLossError, match="row group 0 has 5 rows by the footer"):
        batch(tmp_path)


def test_a_short_file_of_staged_changes_is_an_error(short):
    class Disk:
        def new_input(self, path):
            class Input:
                def open(self):
                    return pa.OSFile(path)

            return Input()

    changes = EpochChanges(Disk(), [str(short)], UpsertSpec(("a",), None, None), pa.schema([]))
    with pytest.raises(pa.ArrowInvalid, match="row group 0 has 3 rows by the footer"):
        list(changes.read_batches(["b"]))


# --- columns that PyArrow refuses


def int128(path):
    """As Polars writes it: 16 bytes, and an Arrow schema that PyArrow cannot read."""
    numbers = [n.to_bytes(16, "little") for n in (1, 2, 2**100)]
    table = pa.table({"id": [1, 2, 3], "h": pa.array(numbers, pa.binary(16))})
    pq.write_table(table, path)

    def change(tree):
        (pair,) = tree[5].value.values
        pair[2] = pair[2]._replace(value=INT128)

    edit(path, change)
    with pytest.raises(pa.ArrowNotImplementedError, match="more than 64 bits"):
        pq.ParquetFile(path)


def entries_to_map(tree, name):
    """Make a map of a list: its elements, which are required, take no level of their own."""
    named = elements(tree)
    tree.pop(5, None)  # the Arrow schema
    named[name][6], named[name][10] = Field(I32, MAP), Field(STRUCT, {2: Field(STRUCT, {})})
    tree[2].value.values.remove(named["element"])
    named["list"][5] = named["element"][5]


def entries_of(*names):
    parts = pa.struct([(name, pa.string()) for name in names])
    return pa.list_(pa.field("element", parts, nullable=False))


def presto(path, *entries, names=("key", "value")):
    """A map whose keys are declared as optional; PyArrow refuses it, and one of three parts too."""
    found = [dict(zip(names, entry, strict=True)) for entry in entries]
    column = pa.array([found, None], entries_of(*names))
    pq.write_table(pa.table({"id": [1, 2], "m": column}), path)
    edit(path, lambda tree: entries_to_map(tree, "m"))
    with pytest.raises(pa.ArrowInvalid):
        pq.ParquetFile(path)


def three_parts(path):
    presto(path, ("k", "v", "w"), names=("key", "value", "third"))


def test_numbers_of_128_bits_are_their_bytes_as_for_spark(tmp_path):
    int128(tmp_path / "a.parquet")
    assert read(tmp_path) == [
        {"id": i, "h": n.to_bytes(16, "little")} for i, n in ((1, 1), (2, 2), (3, 2**100))
    ]
    assert read(tmp_path, columns="id") == [{"id": 1}, {"id": 2}, {"id": 3}]


def test_a_map_of_presto_is_a_map_as_for_spark(tmp_path):
    presto(tmp_path / "a.parquet", ("parent", "another"), ("name", "report"))
    right = [("parent", "another"), ("name", "report")]
    assert read(tmp_path) == [{"id": 1, "m": right}, {"id": 2, "m": None}]
    assert read(tmp_path, columns="id") == [{"id": 1}, {"id": 2}]


def test_a_sink_compares_its_columns_with_those_of_an_unusual_file(tmp_path):
    presto(tmp_path / "a.parquet", ("k", "v"))
    table = DiskTable(tmp_path)
    assert table.schema_of("a.parquet").names == ["id", "m"]
    assert pa.types.is_map(table.schema_of("a.parquet").field("m").type)
    with pytest.raises(SchemaError, match="column 'id' is string, but int64 in"):
        check_same_types(table, pa.schema([("id", pa.string())]))


def test_a_map_with_a_null_as_a_key_does_not_fit(tmp_path):
    presto(tmp_path / "a.parquet", (None, "x"))
    said = refusal(tmp_path, SchemaError, badFiles="skip")
    assert "a.parquet: column 'm' has a map with a null as a key" in said


@pytest.mark.parametrize("bad_files", ["fail", "skip"])
@pytest.mark.parametrize("streaming", [False, True])
def test_a_column_that_is_not_supported_is_named_and_its_file_is_not_skipped(
    tmp_path, bad_files, streaming
):
    three_parts(tmp_path / "a.parquet")
    schema = pa.schema([("id", pa.int64()), ("m", pa.string())])
    source = reader(tmp_path, schema=schema, streaming=streaming, badFiles=bad_files)
    end = source.latest(FIRST, UNLIMITED)
    with pytest.raises(UnsupportedFileError, match=r"a\.parquet: column 'm' is not supported"):
        [list(source.read(part)) for part in source.plan(FIRST, end)]
    assert "column 'm'" in refusal(tmp_path, UnsupportedFileError, badFiles=bad_files)


@pytest.mark.parametrize("bad_files", ["fail", "skip"])
def test_a_column_that_is_not_supported_does_no_harm_where_it_is_not_wanted(tmp_path, bad_files):
    three_parts(tmp_path / "a.parquet")
    assert read(tmp_path, columns="id", badFiles=bad_files) == [{"id": 1}, {"id": 2}]
    schema = pa.schema([("id", pa.int64()), ("other", pa.string())])
    assert read(tmp_path, wanted=schema, badFiles=bad_files, columns="id") == [
        {"id": n, "other": None} for n in (1, 2)
    ]


def test_a_codec_that_is_not_supported_is_no_damage(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": [1, 2]}), path, compression="snappy")

    def change(tree):
        chunks(tree)[0][3].value[4] = Field(I32, LZO)

    edit(path, change)
    assert "LZO" in refusal(tmp_path, UnsupportedFileError, badFiles="skip")


def test_a_column_of_a_table_that_is_not_supported_is_refused_only_where_it_is_wanted(tmp_path):
    schema = pa.schema([("id", pa.int64()), ("m", entries_of("x", "y", "z"))])
    make_table(tmp_path, schema)
    append(tmp_path, pa.table({"id": [1], "m": [[{"x": "a", "y": "b", "z": "c"}]]}, schema=schema))
    edit(paths(tmp_path)[0], lambda tree: entries_to_map(tree, "m"))
    with pytest.raises(UnsupportedFileError, match="column 'm' is not supported"):
        batch(tmp_path)
    assert batch(tmp_path, pa.schema([("id", pa.int64())])).to_pylist() == [{"id": 1}]


# --- variants


def variant(path, *, shredded=True):
    parts = [("metadata", pa.binary()), ("value", pa.binary())]
    parts += [("typed_value", pa.int32())] * shredded
    values = [{"metadata": b"m", "value": b"v"}, None]
    pq.write_table(pa.table({"id": [1, 2], "v": pa.array(values, pa.struct(parts))}), path)


VARIANT = arrow_schema(StructType().add("id", "long").add("v", "variant"))


def test_a_shredded_variant_is_not_supported_unless_it_is_left_out(tmp_path):
    variant(tmp_path / "a.parquet")
    for options in ({}, {"badFiles": "skip"}, {"wanted": VARIANT}):
        said = refusal(tmp_path, UnsupportedFileError, **options)
        assert "a.parquet: column 'v' is not supported: it is a variant" in said
    assert read(tmp_path, columns="id") == [{"id": 1}, {"id": 2}]
    assert read(tmp_path, wanted=pa.schema([("id", pa.int64())])) == [{"id": 1}, {"id": 2}]
    parts = pa.struct([("value", pa.binary()), ("typed_value", pa.int64())])
    assert read(tmp_path, wanted=pa.schema([("v", parts)])) == [
        {"v": {"value": b"v", "typed_value": None}},
        {"v": None},
    ]


def test_a_variant_that_is_not_shredded_is_a_struct(tmp_path):
    variant(tmp_path / "a.parquet", shredded=False)
    assert read(tmp_path) == [
        {"id": 1, "v": {"metadata": b"m", "value": b"v"}},
        {"id": 2, "v": None},
    ]


# --- encryption


@pytest.mark.parametrize("bad_files", ["fail", "skip"])
def test_columns_that_are_not_encrypted_are_read_behind_a_plain_footer(tmp_path, bad_files):
    """PyArrow ends the process when it is asked about an encrypted column."""
    encrypted(tmp_path / "a.parquet", plaintext_footer=True)
    options = {"badFiles": bad_files}
    assert read(tmp_path, columns="open,last", **options) == [
        {"open": 1, "last": 7},
        {"open": 2, "last": 8},
    ]
    for column in ("secret", "inside"):
        said = refusal(tmp_path, UnsupportedFileError, columns=column, **options)
        assert f"column '{column}' is not supported: it is encrypted" in said
    assert "column 'secret'" in refusal(tmp_path, UnsupportedFileError, **options)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_file_that_is_encrypted_as_a_whole_is_not_skipped(tmp_path, streaming):
    encrypted(tmp_path / "a.parquet", plaintext_footer=False)
    with pytest.raises(UnsupportedFileError, match=r"a\.parquet.*is encrypted"):
        drain(reader(tmp_path, streaming=streaming, badFiles="skip"))


# --- columns of nulls alone


def test_a_column_of_nulls_alone_has_the_type_in_which_it_is_stored(tmp_path):
    """Arrow's null type; Spark reads it as an int, and so fit the files before it."""
    older, newer = tmp_path / "a.parquet", tmp_path / "b.parquet"
    pq.write_table(pa.table({"id": [1], "x": pa.array([5], pa.int32()), "l": [[7]]}), older)
    nulls = pa.array([[None]], pa.list_(pa.null()))
    pq.write_table(pa.table({"id": [2], "x": pa.nulls(1), "l": nulls}), newer)
    source = reader(newer, schema=None, streaming=False)
    assert [str(kind) for kind in source.infer_schema().types] == [
        "int64",
        "int32",
        "list<element: int32>",
    ]
    assert read(newer) == [{"id": 2, "x": None, "l": [None]}]
    wanted = pa.schema([("id", pa.int64()), ("x", pa.string()), ("l", pa.list_(pa.int64()))])
    assert read(newer, wanted=wanted) == [{"id": 2, "x": None, "l": [None]}]


# --- INT96

DAY_US, EPOCH_DAY = 86_400_000_000, 2_440_588
TIMES = {
    "-5000-01-01": -219_951_936_000_000_000,
    "-4714-11-23": -210_898_425_600_000_000,
    "-4713-11-23": -210_866_889_600_000_000,
    "-4713-11-25": -210_866_716_800_000_000,
    "0001-01-01": -62_135_596_800_000_000,
    "1600-06-06T06:06:06.123456": -11_661_904_433_876_544,
    "1970-01-01": 0,
    "2262-04-11T23:47:17": 9_223_372_037_000_000,
    "9999-12-31T23:59:59.999999": 253_402_300_799_999_999,
    "+250000-01-01": 7_827_071_817_600_000_000,
    "+290000-01-01": 9_089_348_860_800_000_000,
    "+290300-01-01": 9_098_815_968_000_000_000,
    "+292278-01-01": 9_161_235_648_000_000_000,
    "the first": -(2**63),
    "the last": 2**63 - 1,
}
"""Texts, and the microseconds that Spark reads where it has written them."""


def int96(micros):
    """A time as Spark writes it (``DateTimeUtils.toJulianDay``): days are added modulo 2^64."""
    julian = (micros + EPOCH_DAY * DAY_US + 2**63) % 2**64 - 2**63
    day, rest = divmod(julian, DAY_US)
    return (rest * 1000).to_bytes(8, "little") + day.to_bytes(4, "little", signed=True)


def put_int96(path, values):
    kind = pa.binary(12)
    inside = pa.struct({"t": kind, "n": pa.int32()})
    columns = {
        "t": pa.array(values, kind),
        "l": pa.array([[value, None] for value in values], pa.list_(kind)),
        "s": pa.array([{"t": value, "n": 1} for value in values], inside),
        "m": pa.array([[("k", value)] for value in values], pa.map_(pa.string(), kind)),
    }
    pq.write_table(pa.table(columns), path, row_group_size=4, store_schema=False)

    def change(tree):
        for element in tree[2].value.values:
            if element.get(1, Field(I32, 0)).value == FIXED:
                element[1] = Field(I32, INT96)
                element.pop(2)
        for group in tree[4].value.values:
            for chunk in group[1].value.values:
                if chunk[3].value[1].value == FIXED:
                    chunk[3].value[1] = Field(I32, INT96)
                    chunk[3].value.pop(12, None)  # statistics, which INT96 has not

    edit(path, change)


def numbers(path):
    """All times of a file in microseconds, by column."""
    source = reader(path, schema=None, streaming=False)
    end = source.latest(FIRST, UNLIMITED)
    source.schema = source.infer_schema()
    parts = [rows for part in source.plan(FIRST, end) for rows in source.read(part)]
    table = pa.Table.from_batches(parts, source.schema).combine_chunks()
    found = {
        "t": table["t"].chunk(0),
        "l": table["l"].chunk(0).flatten(),
        "s": table["s"].chunk(0).field("t"),
        "m": table["m"].chunk(0).items,
    }
    return {name: array.cast(pa.int64()).drop_null().to_pylist() for name, array in found.items()}


def test_times_of_int96_are_those_of_spark_flat_and_nested(tmp_path):
    path = tmp_path / "a.parquet"
    put_int96(path, [int96(time) for time in TIMES.values()])
    assert numbers(path) == {column: [*TIMES.values()] for column in "tlsm"}


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20))
def test_every_time_that_spark_has_comes_back_from_int96(tmp_path_factory, times):
    path = tmp_path_factory.mktemp("times") / "a.parquet"
    put_int96(path, [int96(time) for time in times])
    assert numbers(path) == dict.fromkeys("tlsm", times)


def test_nanoseconds_below_zero_are_taken_from_the_day_as_spark_does(tmp_path):
    """As older versions of Spark wrote times; rounded towards zero, as Java's division does."""
    nanos = [-1_500, -1, 1_999]
    values = [n.to_bytes(8, "little", signed=True) + EPOCH_DAY.to_bytes(4, "little") for n in nanos]
    put_int96(tmp_path / "a.parquet", values)
    assert numbers(tmp_path / "a.parquet")["t"] == [-1, 0, 1]


@pytest.mark.parametrize("day", [-(2**31), -106_751_993, 106_751_992, 2**31 - 1])
@pytest.mark.parametrize("column", ["t", "l", "s", "m"])
def test_a_time_of_int96_that_microseconds_cannot_reach_is_refused(tmp_path, day, column):
    value = bytes(8) + day.to_bytes(4, "little", signed=True)
    put_int96(tmp_path / "a.parquet", [int96(0), value])
    said = refusal(tmp_path, SchemaError, columns=column, badFiles="skip")
    assert f"a.parquet: column '{column}" in said
    assert f"out of range: the Julian day {day}" in said


def test_nulls_of_int96_have_no_time(tmp_path):
    path = tmp_path / "a.parquet"
    put_int96(path, [None, int96(5), None])
    assert [row["t"] is None for row in read(path)] == [True, False, True]
    assert numbers(path)["t"] == [5]


@pytest.mark.long
def test_the_footer_of_a_file_with_int96_may_be_of_any_size(tmp_path):
    times = pa.table({"t": pa.array([5], pa.timestamp("us"))})
    large = times.replace_schema_metadata({"about": "x" * 17 * 2**20})
    pq.write_table(large, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    (row,) = read(tmp_path, badFiles="skip")
    assert row["t"].microsecond == 5


def test_times_of_int96_after_others_keep_their_nulls():
    """A slice, as of a list, begins within a byte of the bits of nulls."""
    values = [None, int96(1), None, int96(-1), int96(2), None]
    array = pa.array(values, pa.binary(12))
    for begin in range(len(values)):
        found = _int96_times(array.slice(begin), "t")
        found.validate(full=True)
        assert found.cast(pa.int64()).to_pylist() == [None, 1, None, -1, 2, None][begin:]
        assert found.null_count == values[begin:].count(None)


# --- Thrift


@given(st.integers(-(2**63), 2**63 - 1), st.binary(max_size=300), st.integers(0, 40))
def test_a_struct_of_thrift_comes_back(number, text, count):
    items = [{1: Field(6, number)}] * count
    struct = {1: Field(6, number), 20: Field(BINARY, text), 21: Field(1, None)}
    struct[2] = Field(LIST, Items(STRUCT, items))
    found, end = decode(encode(struct))
    assert found == struct
    assert end == len(encode(struct))


@given(st.binary(max_size=60))
def test_any_bytes_are_a_struct_or_an_error(data):
    try:
        decode(data)
    except ValueError:
        return
