"""Values as Spark's own reader has them, or refused.

What it reads is recorded in tests/golden/values/, by tests/support/parquet/record_values.py.
"""

import json
import zipfile
from pathlib import Path

import calendar_cases
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest
from name_cases import NAMES
from partition_cases import PARTITIONS, ZONES
from value_cases import (
    NESTINGS,
    STORED,
    UTC,
    WANTED,
    array_of,
    list_meanings,
    nested_type,
    texts,
    unnest_values,
    write,
)

from krishiv_spark.errors import SchemaError
from krishiv_spark.parquet import calendars as rebase
from krishiv_spark.parquet.calendars import TimeRules
from krishiv_spark.parquet.footers import read_footer
from krishiv_spark.parquet.partition_folders import from_partition_text, split_by_partition
from krishiv_spark.sources.base import UNLIMITED
from krishiv_spark.sources.parquet.reader import ParquetOffset, ParquetReader, ParquetSourceOptions
from krishiv_spark.sources.parquet.rows import partition_values

GOLDEN = Path(__file__).parent.parent / "golden" / "values"


def recorded(name):
    return json.loads((GOLDEN / f"{name}.json").read_text())


def read(path, wanted, **options):
    """The column `c` of a file, as it is read."""
    parsed = ParquetSourceOptions.parse({"path": str(path), **options}, "krishiv-parquet")
    source = ParquetReader(parsed, pa.schema([("c", wanted)]), streaming=False)
    parts = source.plan(ParquetOffset(), source.latest(ParquetOffset(), UNLIMITED))
    table = pa.Table.from_batches([rows for part in parts for rows in source.read(part)])
    table.validate(full=True)
    return table["c"].combine_chunks()


# --- types

CONVERSIONS = recorded("conversions")


def spark_reads(stored, wanted, nesting):
    plain = CONVERSIONS.get(stored.name, {}).get(wanted)
    return CONVERSIONS.get(f"{stored.name} in {nesting}", {}).get(wanted, plain)


STRICTER = {("binary that is no text", "string")}
"""Spark takes any bytes for text."""


def as_meant(stored):
    return stored.column.cast(UTC) if stored.name == "int96" else stored.column


def read_or_refused(folder, wanted, nesting):
    """The values; None if they are refused with the names of the file and the column."""
    try:
        return unnest_values(read(folder, wanted), nesting)
    except SchemaError as error:
        if f"{folder}/a.parquet: column 'c" in str(error):
            return None
        raise


@pytest.mark.long
@pytest.mark.parametrize("nesting", NESTINGS)
@pytest.mark.parametrize("stored", STORED, ids=lambda stored: stored.name)
def test_a_column_is_read_as_by_spark_where_that_loses_nothing(tmp_path, stored, nesting):
    write(stored, nesting, tmp_path / "a.parquet")
    values = list_meanings(as_meant(stored))
    for wanted, kind in WANTED.items():
        spark = spark_reads(stored, wanted, nesting)
        spark_keeps = (
            spark is not None
            and list_meanings(array_of(spark, kind)) == values
            and (stored.name, wanted) not in STRICTER
        )
        found = read_or_refused(tmp_path, nested_type(kind, nesting), nesting)
        if spark_keeps:
            assert found is not None, wanted
            assert texts(found) == spark, wanted
        elif found is not None and (stored.name, wanted) != ("uuid", "string"):  # as its text
            assert list_meanings(found) == values, wanted


# --- names

NAMED = recorded("names")
REFUSED = {"two spellings", "a number for a struct", "a list for a struct", "a struct for a list"}


@pytest.mark.parametrize("case", sorted(NAMES.keys() - REFUSED))
def test_fields_are_found_as_spark_finds_them(tmp_path, case):
    column, wanted = NAMES[case]
    pq.write_table(pa.table({"c": column}), tmp_path / "a.parquet")
    spark = NAMED[case]["false"] or NAMED[case]["true"]  # whether it tells names apart by case
    rows = read(tmp_path, wanted).to_pylist()
    if pa.types.is_map(wanted):
        rows = [None if row is None else dict(row) for row in rows]
    assert [{"c": row} for row in rows] == [json.loads(text) for text in spark]


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_a_field_that_could_be_another_is_refused_as_spark_refuses_it(tmp_path, case):
    column, wanted = NAMES[case]
    pq.write_table(pa.table({"c": column}), tmp_path / "a.parquet")
    assert NAMED[case]["false"] is None
    with pytest.raises(SchemaError, match=r"a\.parquet: column 'c"):
        read(tmp_path, wanted)


# --- partitions

FOLDERS = recorded("partitions")


@pytest.mark.parametrize("wanted", PARTITIONS)
def test_a_partition_is_the_same_value_for_spark_in_every_session_and_for_us(wanted):
    values = PARTITIONS[wanted]
    field = pa.field("p", values.type)
    for name, rows in split_by_partition(pa.table({"p": values, "x": values}), ["p"]):
        text = partition_values(f"{name}/a.parquet")["p"]
        found = from_partition_text(text, field, f"/t/{name}/a.parquet", "Asia/Tokyo")
        spark = array_of([FOLDERS["read"][wanted][name]], values.type)
        for value in rows["x"].combine_chunks():
            is_null = str(value) in {"", "__HIVE_DEFAULT_PARTITION__"}
            expected = list_meanings(pa.array([None if is_null else value], values.type))
            assert list_meanings(pa.array([found], values.type)) == list_meanings(spark) == expected


@pytest.mark.parametrize("zone", ZONES)
def test_times_in_folders_of_spark_are_of_the_zone_that_the_option_names(zone):
    field = pa.field("p", UTC)
    for name, micros in FOLDERS["written"][zone].items():
        path = f"/t/{name}/part-00000-0b6f.snappy.parquet"
        text = partition_values(f"{name}/a.parquet")["p"]
        if text.startswith("+"):  # Arrow knows no years of five digits
            continue
        assert from_partition_text(text, field, path, zone).value == micros
        with pytest.raises(SchemaError, match=r"p=.* 'timeZone'"):
            from_partition_text(text, field, path)


def test_a_folder_with_an_exponent_far_below_zero_is_no_decimal():
    """PyArrow ends the process, or reads another number."""
    field = pa.field("p", pa.decimal128(38, 2))
    for text in ("5E-77", "0e-00000000039", "5e-1000000000"):
        with pytest.raises(SchemaError, match="its exponent is below -38"):
            from_partition_text(text, field, f"/t/p={text}/a.parquet")
    assert from_partition_text("0E-38", field, "/t/p=0E-38/a.parquet").as_py() == 0


# --- calendars

MOVED = recorded("calendars")
FILES = [f"{version}, {zone}" for zone, version in calendar_cases.FILES]


def as_spark_moves(file, name):
    old = calendar_cases.numbers(calendar_cases.COLUMNS[name].values)
    unit = calendar_cases.COLUMNS[name].unit
    by = MOVED[file][name] or [0] * len(old)
    return [number + round(moved * unit) for number, moved in zip(old, by, strict=True)]


@pytest.mark.parametrize("name", calendar_cases.COLUMNS)
@pytest.mark.parametrize("file", FILES)
def test_old_dates_and_times_are_those_that_spark_reads(tmp_path, file, name):
    version, zone = file.split(", ")
    calendar_cases.write(name, version, zone, tmp_path / "a.parquet")
    found = read(tmp_path, WANTED[calendar_cases.COLUMNS[name].wanted])
    assert calendar_cases.numbers(found) == as_spark_moves(file, name)


@pytest.mark.parametrize("nesting", NESTINGS)
@pytest.mark.parametrize("name", ["date", "micros", "int96"])
def test_old_dates_and_times_are_moved_at_any_depth(tmp_path, name, nesting):
    file, wanted = "2.4.8, Asia/Manila", WANTED[calendar_cases.COLUMNS[name].wanted]
    calendar_cases.write(name, *file.split(", "), tmp_path / "a.parquet", nesting)
    found = unnest_values(read(tmp_path, nested_type(wanted, nesting)), nesting)
    assert calendar_cases.numbers(found) == as_spark_moves(file, name)


def put(path, column, **keys):
    table = pa.table({"c": column})
    pq.write_table(table.replace_schema_metadata(keys), path / "a.parquet")


EARLY = pa.array([-719_164, None], pa.int32()).cast(pa.date32())  # 0001-01-01 of Spark 2
BEFORE_1900 = pa.array([-(2**51), None], UTC)


def test_a_file_that_does_not_say_who_wrote_it_is_read_as_the_option_says(tmp_path):
    put(tmp_path, EARLY)
    assert texts(read(tmp_path, pa.date32())) == ["-719164", None]
    assert texts(read(tmp_path, pa.date32(), datetimeRebaseMode="legacy")) == ["-719162", None]
    with pytest.raises(
        SchemaError, match=r"a\.parquet: column 'c' has dates before 1582.*'LEGACY'"
    ):
        read(tmp_path, pa.date32(), datetimeRebaseMode="EXCEPTION")


def test_an_old_date_of_a_spark_that_did_not_say_its_version_needs_the_option(tmp_path):
    put(tmp_path, EARLY, **{"org.apache.spark.sql.parquet.row.metadata": "{}"})
    with pytest.raises(SchemaError, match=r"'LEGACY' if Spark 2 .* 'CORRECTED', as Spark 4"):
        read(tmp_path, pa.date32())
    assert texts(read(tmp_path, pa.date32(), datetimeRebaseMode="LEGACY")) == ["-719162", None]
    assert texts(read(tmp_path, pa.date32(), datetimeRebaseMode="CORRECTED")) == ["-719164", None]


@pytest.mark.parametrize(
    ("keys", "options", "reason"),
    [
        ({}, {}, "with the option 'timeZone'"),
        ({"org.apache.spark.timeZone": "Mars/Phobos"}, {}, "in the zone 'Mars/Phobos'"),
        ({"org.apache.spark.timeZone": "+08:00"}, {"timeZone": "UTC"}, "in the zone '.08:00'"),
    ],
)
def test_an_old_time_whose_zone_is_not_known_is_refused(tmp_path, keys, options, reason):
    put(tmp_path, BEFORE_1900, **{"org.apache.spark.version": "2.4.8", **keys})
    with pytest.raises(
        SchemaError, match=rf"a\.parquet: column 'c' has times before 1900.*{reason}"
    ):
        read(tmp_path, UTC, **options)


def test_the_option_gives_the_zone_of_an_old_time(tmp_path):
    put(tmp_path, BEFORE_1900, **{"org.apache.spark.version": "2.4.8"})
    put_zone = tmp_path / "zone"
    put_zone.mkdir()
    keys = {"org.apache.spark.version": "2.4.8", "org.apache.spark.timeZone": "Asia/Manila"}
    put(put_zone, BEFORE_1900, **keys)
    assert read(tmp_path, UTC, timeZone="Asia/Manila").equals(read(put_zone, UTC))


def test_times_of_a_file_in_the_old_calendar_that_are_settled_need_no_zone(tmp_path):
    put(tmp_path, pa.array([0, None], UTC), **{"org.apache.spark.version": "2.4.8"})
    assert texts(read(tmp_path, UTC)) == ["0", None]


def test_times_before_year_1_in_the_old_calendar_are_refused(tmp_path):
    keys = {"org.apache.spark.version": "2.4.8", "org.apache.spark.timeZone": "UTC"}
    put(tmp_path, pa.array([-(2**56)], UTC), **keys)
    with pytest.raises(SchemaError, match="column 'c' has times before year 1"):
        read(tmp_path, UTC)


def test_the_newest_event_time_is_in_our_calendar(tmp_path):
    put(tmp_path, EARLY, **{"org.apache.spark.version": "2.4.8"})
    assert read_footer(str(tmp_path / "a.parquet"), "c").newest_ms == -719_162 * 86_400_000
    put(tmp_path, BEFORE_1900, **{"org.apache.spark.version": "2.4.8"})
    footer = read_footer(str(tmp_path / "a.parquet"), "c")
    assert footer.newest_ms is None
    assert "'timeZone'" in footer.unknown
    known = read_footer(str(tmp_path / "a.parquet"), "c", TimeRules(zone="UTC"))
    assert known.newest_ms == read(tmp_path, UTC, timeZone="UTC")[0].value // 1000


def test_spark_has_a_table_of_zones_and_before_1582_it_is_what_is_computed():
    zones = rebase._load_zones()
    assert len(zones) > 500
    jar = next((Path(pyspark.__file__).parent / "jars").glob("spark-sql-api_*.jar"))
    with zipfile.ZipFile(jar) as content:
        entries = json.loads(content.read("julian-gregorian-rebase-micros.json"))
    for entry in entries:
        switches, diffs = (np.array(entry[key]) for key in ("switches", "diffs"))
        edges = np.concatenate([switches - 1, switches, switches + 1])[1:]
        edges = edges[edges >= switches[0]]
        expected = edges + diffs[np.searchsorted(switches, edges, side="right") - 1]
        found = rebase.rebase_micros(edges * 1_000_000, zones[entry["tz"]]) // 1_000_000
        assert (found == expected).all(), entry["tz"]
