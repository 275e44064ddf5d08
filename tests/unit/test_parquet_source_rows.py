"""The rows that a stream reads from its files: types, partition columns, event time."""

import datetime as dt
import os
import re
import subprocess
import sys
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from krishiv_spark.errors import DataLossError, OptionError, SchemaError
from krishiv_spark.parquet.footers import (
    BadFileError,
    Footer,
    GoneError,
    Identity,
    read_footer,
    read_schema,
)
from krishiv_spark.parquet.row_groups import pack
from krishiv_spark.sources.base import UNLIMITED, Limit
from krishiv_spark.sources.parquet.reader import ParquetOffset, ParquetReader, ParquetSourceOptions
from krishiv_spark.sources.parquet.rows import (
    FilePart,
    FileRange,
    ReadRules,
    partition_values,
    read_part,
    split_file,
)

NOON = 1_700_000_000_000_000_000
FIRST = ParquetOffset()
UTC = dt.timezone.utc


def reader(path, *, schema=None, streaming=True, **options):
    given = {"path": str(path), **{key: str(value) for key, value in options.items()}}
    parsed = ParquetSourceOptions.parse(given, "krishiv-parquet")
    return ParquetReader(parsed, schema, streaming=streaming)


def put(path, table, *, at=NOON, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(table), path, **options)
    os.utime(path, ns=(at, at))
    return path


def identity(path):
    status = path.stat()
    return Identity(status.st_size, status.st_mtime_ns)


def whole(path, **changes):
    size = path.stat().st_size
    return FileRange(
        **{"path": str(path), "start": 0, "end": size, "identity": identity(path), **changes}
    )


def read_all(source, end=None):
    source.schema = source.schema or source.infer_schema()
    parts = source.plan(FIRST, end or source.latest(FIRST, UNLIMITED))
    found = [batch for part in parts for batch in source.read(part)]
    return pa.Table.from_batches(found, source.schema)


# --- splitting


@pytest.mark.long  # large files
def test_row_groups_fall_into_exactly_one_range(tmp_path):
    path = put(
        tmp_path / "a.parquet", {"n": list(range(1000)), "s": ["x" * 9] * 1000}, row_group_size=70
    )
    schema = read_schema(str(path))
    size = path.stat().st_size
    for most in (1, 7, 100, size // 3, size - 1, size, size + 1):
        parts = pack(split_file(whole(path), most), most)
        rules = ReadRules(schema)
        batches = [batch for part in parts for batch in read_part(FilePart(part), rules)]
        assert sorted(n for batch in batches for n in batch["n"].to_pylist()) == list(range(1000))


@given(st.integers(1, 10_000), st.integers(1, 3_000))
def test_ranges_cover_a_file_without_overlap(size, most):
    pieces = split_file(FileRange("a", 0, size, Identity(size, 0)), most)
    assert [piece.start for piece in pieces] == [0, *(piece.end for piece in pieces[:-1])]
    assert pieces[-1].end == size
    assert all(piece.end - piece.start <= most for piece in pieces)


@given(st.lists(st.integers(1, 200 * 2**20), max_size=50))
def test_packing_keeps_every_range_in_order(sizes):
    ranges = [
        FileRange(str(number), 0, size, Identity(size, 0)) for number, size in enumerate(sizes)
    ]
    parts = pack(ranges, 128 * 2**20)
    assert [piece for part in parts for piece in part] == ranges
    assert all(parts)


def test_many_small_files_share_few_tasks():
    ranges = [FileRange(str(number), 0, 1000, Identity(1000, 0)) for number in range(10_000)]
    assert len(pack(ranges, 128 * 2**20)) == 10_000 // 32 + 1


def test_a_batch_is_small_where_rows_are_wide(tmp_path):
    path = put(tmp_path / "a.parquet", {"s": [os.urandom(2**19).hex() for _ in range(20)]})
    rules = ReadRules(pa.schema([("s", pa.string())]))
    counts = [batch.num_rows for batch in read_part(FilePart(pack([whole(path)], 2**27)[0]), rules)]
    assert counts == [7, 7, 6]


@pytest.mark.long  # large files
def test_a_huge_row_group_is_read_in_little_memory(tmp_path):
    path = tmp_path / "a.parquet"
    text = pa.array([os.urandom(50).hex() for _ in range(100_000)])
    with pq.ParquetWriter(path, pa.schema([("s", pa.string()), ("n", pa.int64())])) as writer:
        pieces = [pa.table({"s": text, "n": pa.array(range(100_000))}) for _ in range(30)]
        writer.write_table(pa.concat_tables(pieces), row_group_size=3_000_000)
    assert pq.read_metadata(path).num_row_groups == 1
    assert path.stat().st_size > 250 * 2**20
    code = f"""
import resource
from krishiv_spark.parquet.footers import Identity, read_schema
from krishiv_spark.sources.parquet.rows import FilePart, FileRange, ReadRules, read_part
path, size, identity = {str(path)!r}, {path.stat().st_size}, {identity(path)!r}
rules = ReadRules(read_schema(path))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
rows = sum(b.num_rows for b in read_part(FilePart((FileRange(path, 0, size, identity),)), rules))
print(rows, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    rows, megabytes = map(int, done.stdout.split())
    assert rows == 3_000_000
    assert megabytes < 150


# --- types


def test_a_schema_is_taken_from_the_newest_file_and_the_folders(tmp_path):
    put(tmp_path / "day=2013-01-01/hour=7/a.parquet", {"n": [1]}, at=NOON)
    put(tmp_path / "day=2013-01-02/hour=x/b.parquet", {"n": [1], "s": ["x"]}, at=NOON + 1)
    expected = pa.schema(
        [("n", pa.int64()), ("s", pa.string()), ("day", pa.date32()), ("hour", pa.string())]
    )
    assert reader(tmp_path).infer_schema() == expected
    table = read_all(reader(tmp_path))
    assert table.schema == expected
    assert table.to_pylist() == [
        {"n": 1, "s": None, "day": dt.date(2013, 1, 1), "hour": "7"},
        {"n": 1, "s": "x", "day": dt.date(2013, 1, 2), "hour": "x"},
    ]


def test_folders_are_no_columns_in_a_recursive_read(tmp_path):
    put(tmp_path / "day=1/sub/a.parquet", {"n": [1]})
    assert read_all(reader(tmp_path, recursiveFileLookup="true")).to_pylist() == [{"n": 1}]


def test_partition_values_are_decoded_and_typed(tmp_path):
    put(tmp_path / "a%2Fb=x%3D1%20y/k=__HIVE_DEFAULT_PARTITION__/a.parquet", {"n": [1]}, at=NOON)
    put(tmp_path / "a%2Fb=z/k=-7/a.parquet", {"n": [2]}, at=NOON + 1)
    assert read_all(reader(tmp_path)).to_pylist() == [
        {"n": 1, "a/b": "x=1 y", "k": None},
        {"n": 2, "a/b": "z", "k": -7},
    ]


def test_a_partition_column_takes_the_place_of_one_in_the_file(tmp_path):
    put(tmp_path / "k=5/a.parquet", {"k": [1], "n": [2]})
    assert read_all(reader(tmp_path)).to_pylist() == [{"n": 2, "k": 5}]


def test_partition_columns_take_the_type_of_a_given_schema(tmp_path):
    schema = pa.schema([("T", pa.timestamp("us", tz="UTC")), ("d", pa.decimal128(5, 2))])
    put(tmp_path / "t=2013-01-01 10%3A00%3A00+02%3A00/d=1.50/a.parquet", {"n": [1]})
    assert read_all(reader(tmp_path, schema=schema)).to_pylist() == [
        {"T": dt.datetime(2013, 1, 1, 8, tzinfo=UTC), "d": Decimal("1.50")}
    ]


NO_OFFSET = "t=2013-01-01 10%3A00%3A00"
INSTANTS = pa.schema([("t", pa.timestamp("us", tz="UTC"))])


def test_a_time_in_a_folder_that_says_no_zone_needs_one(tmp_path):
    put(tmp_path / NO_OFFSET / "a.parquet", {"n": [1]})
    with pytest.raises(SchemaError, match=r"t=2013.*a\.parquet: .* 'timeZone'"):
        read_all(reader(tmp_path, schema=INSTANTS))
    given = reader(tmp_path, schema=INSTANTS, timeZone="Asia/Tokyo")
    assert read_all(given)["t"][0].as_py() == dt.datetime(2013, 1, 1, 1, tzinfo=UTC)
    wall = read_all(reader(tmp_path, schema=pa.schema([("t", pa.timestamp("us"))])))
    assert wall["t"][0].as_py() == dt.datetime(2013, 1, 1, 10)  # noqa: DTZ001


def test_a_time_in_a_folder_of_our_sink_is_in_utc_if_it_says_no_zone(tmp_path):
    name = f"part-0000000001-00000-000-{'a' * 12}-{'b' * 12}.parquet"
    put(tmp_path / NO_OFFSET / name, {"n": [1]})
    given = reader(tmp_path, schema=INSTANTS, timeZone="Asia/Tokyo")
    assert read_all(given)["t"][0].as_py() == dt.datetime(2013, 1, 1, 10, tzinfo=UTC)


def test_a_time_zone_that_there_is_not_is_refused_with_the_nearest():
    with pytest.raises(OptionError, match="no time zone 'Europe/Berln'; did you mean 'Europe/Berl"):
        reader("/t", timeZone="Europe/Berln")


def test_a_partition_value_that_does_not_fit_is_named(tmp_path):
    put(tmp_path / "k=x/a.parquet", {"n": [1]})
    with pytest.raises(SchemaError, match=r"k=x/a\.parquet: .*k=x, which is not a valid int64"):
        read_all(reader(tmp_path, schema=pa.schema([("k", pa.int64())])))


@given(st.dictionaries(st.text(min_size=1), st.text(), max_size=3))
def test_any_partition_value_is_read_back(values):
    def escaped(text):
        return "".join(f"%{byte:02X}" for byte in text.encode())

    path = "".join(f"{escaped(name)}={escaped(value)}/" for name, value in values.items())
    assert partition_values(path + "a.parquet") == values


def test_columns_are_pruned_and_unknown_ones_named(tmp_path):
    put(tmp_path / "k=1/a.parquet", {"first": [1], "second": [2], "a.b": [3]})
    table = read_all(reader(tmp_path, columns="k, second, a.b"))
    assert table.to_pylist() == [{"k": 1, "second": 2, "a.b": 3}]
    assert read_all(reader(tmp_path, columns="k")).to_pylist() == [{"k": 1}]
    with pytest.raises(OptionError, match="did you mean 'second'"):
        reader(tmp_path, columns="secnd").infer_schema()


def test_no_files_ask_for_a_schema(tmp_path):
    with pytest.raises(OptionError, match=re.escape(".schema(...)")):
        reader(tmp_path).infer_schema()


def test_columns_are_cast_found_in_any_case_and_null_where_missing(tmp_path):
    put(tmp_path / "a.parquet", {"ID": pa.array([1], pa.int32()), "s": ["5"], "n": [7]})
    schema = pa.schema([("id", pa.int64()), ("s", pa.string()), ("gone", pa.list_(pa.string()))])
    table = read_all(reader(tmp_path, schema=schema))
    assert table.to_pylist() == [{"id": 1, "s": "5", "gone": None}]


def test_a_file_without_any_wanted_column_has_as_many_rows_of_nulls(tmp_path):
    put(tmp_path / "a.parquet", {"n": [1, 2, 3]})
    table = read_all(reader(tmp_path, schema=pa.schema([("x", pa.int32())])))
    assert table.to_pylist() == [{"x": None}] * 3


def test_an_older_file_with_one_spelling_does_not_fill_two_columns(tmp_path):
    put(tmp_path / "1.parquet", {"ID": [1]}, at=NOON)
    put(tmp_path / "2.parquet", {"id": [2], "ID": [3]}, at=NOON + 1)
    assert read_all(reader(tmp_path)).to_pylist() == [{"id": None, "ID": 1}, {"id": 2, "ID": 3}]


def test_a_name_that_a_file_has_twice_is_refused_with_the_file_unless_it_is_not_read(tmp_path):
    columns = [pa.array([number]) for number in (1, 2, 3)]
    twice = pa.Table.from_arrays(columns, names=["a", "a", "b"])
    put(tmp_path / "f.parquet", twice)
    with pytest.raises(SchemaError, match=r"f\.parquet: .*'a' .*twice.*'columns'"):
        reader(tmp_path).infer_schema()
    assert read_all(reader(tmp_path, columns="b")).to_pylist() == [{"b": 3}]
    with pytest.raises(SchemaError, match=r"f\.parquet: column 'a' could be any of 'a' and 'a'"):
        read_all(reader(tmp_path, schema=pa.schema([("a", pa.int64())])))


def test_drifting_types_are_refused_with_file_path_and_types(tmp_path):
    put(tmp_path / "1.parquet", {"c": [{"deep": [1e300]}]}, at=NOON)
    narrow = pa.struct([("deep", pa.list_(pa.float32()))])
    put(tmp_path / "2.parquet", {"c": pa.array([{"deep": [1.0]}], narrow)}, at=NOON + 1)
    told = r"1\.parquet: column 'c\.deep\.element' of type double does not fit float: .* cast it"
    with pytest.raises(SchemaError, match=told):
        read_all(reader(tmp_path))


def test_a_time_without_zone_in_a_file_is_an_instant_where_its_zone_is_given(tmp_path):
    times = pa.array([dt.datetime(2013, 7, 1, 10)], pa.timestamp("us"))  # noqa: DTZ001
    put(tmp_path / "a.parquet", {"t": times})
    with pytest.raises(SchemaError, match=r"a\.parquet: column 't' .* with a zone and one without"):
        read_all(reader(tmp_path, schema=INSTANTS))
    source = reader(tmp_path, schema=INSTANTS, timeZone="Europe/Berlin", eventTime="t")
    moment = dt.datetime(2013, 7, 1, 8, tzinfo=UTC)
    assert read_all(source)["t"][0].as_py() == moment
    assert source.latest(FIRST, UNLIMITED).watermark.ms == moment.timestamp() * 1000


def test_a_column_that_does_not_fit_is_named_with_its_file_and_types(tmp_path):
    put(tmp_path / "a.parquet", {"n": [2**40]})
    with pytest.raises(SchemaError, match=r"a\.parquet: column 'n' of type int64 .* int32"):
        read_all(reader(tmp_path, schema=pa.schema([("n", pa.int32())])))


def test_nulls_are_refused_where_the_schema_has_none(tmp_path):
    put(tmp_path / "a.parquet", {"n": [None, 1]})
    for name in ("n", "missing"):
        schema = pa.schema([pa.field(name, pa.int64(), nullable=False)])
        with pytest.raises(SchemaError, match=rf"a\.parquet: .*column '{name}' .*NOT NULL"):
            read_all(reader(tmp_path, schema=schema))


def test_types_become_those_that_spark_has(tmp_path):
    table = pa.table(
        {
            "u": pa.array([2**64 - 1], pa.uint64()),
            "d": pa.array(["x"]).dictionary_encode(),
            "t": pa.array([1_000], pa.timestamp("ns")),
            "z": pa.array([1], pa.timestamp("ms", tz="Europe/Berlin")),
            "h": pa.array([b"ab"], pa.binary(2)),
            "l": pa.array([[1]], pa.large_list(pa.field("x", pa.int8(), nullable=False))),
            "m": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int32())),
        }
    )
    put(tmp_path / "a.parquet", table, version="2.6")
    found = read_all(reader(tmp_path))
    assert [str(field.type) for field in found.schema] == [
        "decimal128(20, 0)",
        "string",
        "timestamp[us]",
        "timestamp[us, tz=UTC]",
        "binary",
        "list<element: int8>",
        "map<string, int32>",
    ]
    assert found["u"][0].as_py() == 2**64 - 1
    assert found["l"][0].as_py() == [1]


def test_int96_is_an_instant_even_where_nested(tmp_path):
    moment = dt.datetime(2500, 1, 1)  # noqa: DTZ001  beyond what nanoseconds reach
    kind = pa.struct([("n", pa.int64()), ("t", pa.timestamp("us"))])
    table = {
        "t": pa.array([moment], pa.timestamp("us")),
        "n": pa.array([1]),
        "s": pa.array([{"n": 1, "t": moment}], kind),
    }
    put(tmp_path / "a.parquet", table, use_deprecated_int96_timestamps=True)
    assert read_all(reader(tmp_path)).to_pylist() == [
        {
            "t": moment.replace(tzinfo=UTC),
            "n": 1,
            "s": {"n": 1, "t": moment.replace(tzinfo=UTC)},
        }
    ]


# --- files that go wrong


def damage(path, position=0.5):
    content = bytearray(path.read_bytes())
    middle = int(len(content) * position)
    content[middle : middle + 200] = b"\xff" * 200
    path.write_bytes(content)


DAMAGED = b"PAR1" + b"\xff" * 200 + (200).to_bytes(4, "little") + b"PAR1"


@pytest.mark.parametrize(
    ("content", "streaming"), [(b"hello", False), (DAMAGED, False), (DAMAGED, True)]
)
def test_a_damaged_file_is_named_or_skipped(tmp_path, caplog, content, streaming):
    put(tmp_path / "a.parquet", {"n": [1]})
    (tmp_path / "b.parquet").write_bytes(content)
    options = {"schema": pa.schema([("n", pa.int64())]), "streaming": streaming}
    with pytest.raises(BadFileError, match=r"(?s)b\.parquet.*'badFiles' = 'skip'"):
        read_all(reader(tmp_path, failOnDataLoss="false", **options))
    assert read_all(reader(tmp_path, badFiles="skip", **options)).to_pylist() == [{"n": 1}]
    if not streaming:
        assert "skipped 1 of the 2 file ranges" in caplog.text


def test_damage_within_a_file_is_named(tmp_path):
    path = put(tmp_path / "a.parquet", {"s": [os.urandom(9).hex() for _ in range(9000)]})
    damage(path)
    with pytest.raises(BadFileError, match=r"a\.parquet"):
        read_all(reader(tmp_path))


def test_a_wrong_checksum_is_damage(tmp_path):
    plain = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    path = put(tmp_path / "a.parquet", {"n": list(range(9000))}, **plain)
    damage(path)
    with pytest.raises(BadFileError, match=r"a\.parquet"):
        read_all(reader(tmp_path))


def test_a_damaged_file_does_not_stop_the_choice_of_a_batch(tmp_path):
    put(tmp_path / "a.parquet", {"t": pa.array([5], pa.timestamp("ms"))}, at=NOON)
    put(tmp_path / "c.parquet", {"t": pa.array([7], pa.timestamp("ms"))}, at=NOON + 2)
    (tmp_path / "b.parquet").write_bytes(DAMAGED)
    os.utime(tmp_path / "b.parquet", ns=(NOON + 1, NOON + 1))
    end = reader(tmp_path, eventTime="t").latest(FIRST, Limit(rows=2))
    assert len(end.files) == 3
    assert end.watermark.ms == 7
    assert "b.parquet" in end.watermark.held
    end = reader(tmp_path, eventTime="t", badFiles="skip").latest(FIRST, Limit(rows=2))
    assert (len(end.files), end.watermark.ms, end.watermark.held) == (2, 7, None)


def test_a_file_that_vanished_is_named_or_skipped(tmp_path, caplog):
    gone = put(tmp_path / "a.parquet", {"n": [1]})
    put(tmp_path / "c.parquet", {"n": [3]})
    source = reader(tmp_path, badFiles="skip")
    source.schema = source.infer_schema()
    end = source.latest(FIRST, UNLIMITED)
    gone.unlink()
    with pytest.raises(GoneError, match=r"a\.parquet .*'failOnDataLoss' = 'false'"):
        read_all(source, end)
    skipping = reader(tmp_path, failOnDataLoss="false")
    assert read_all(skipping, end).to_pylist() == [{"n": 3}]
    assert "skipped 1 of the 2" in caplog.text
    assert issubclass(GoneError, DataLossError)


def test_a_machine_that_has_not_the_folder_skips_nothing(tmp_path):
    put(tmp_path / "folder" / "a.parquet", {"n": [1]})
    source = reader(tmp_path / "folder", failOnDataLoss="false")
    source.schema = source.infer_schema()
    end = source.latest(FIRST, UNLIMITED)
    (part,) = source.plan(FIRST, end)
    (tmp_path / "folder").rename(tmp_path / "elsewhere")
    with pytest.raises(OptionError, match="must be in a folder that all machines share"):
        list(source.read(part))
    (part,) = source.plan(FIRST, end)  # by a driver that has not the folder either: it is gone
    assert list(source.read(part)) == []


def test_a_damaged_newest_file_gives_no_schema(tmp_path):
    put(tmp_path / "a.parquet", {"n": [1]}, at=NOON)
    (tmp_path / "b.parquet").write_bytes(b"it is being written")
    assert reader(tmp_path).infer_schema().names == ["n"]
    (tmp_path / "b.parquet").write_bytes(DAMAGED)
    with pytest.raises(BadFileError, match=r"b\.parquet"):
        reader(tmp_path).infer_schema()
    assert reader(tmp_path, badFiles="skip").infer_schema().names == ["n"]


# --- event time


def times(*values, unit="us", tz="UTC"):
    return {"t": pa.array(values, pa.timestamp(unit, tz=tz))}


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([5_999, None, 3], pa.timestamp("us")), 5),
        (pa.array([-1], pa.timestamp("us")), -1),
        (pa.array([7], pa.timestamp("ms", tz="UTC")), 7),
        (pa.array([7_999_999], pa.timestamp("ns")), 7),
        (pa.array([2], pa.date32()), 2 * 86_400_000),
        (pa.array([None], pa.timestamp("us")), None),
        (pa.array([], pa.timestamp("us")), None),
    ],
)
def test_the_newest_event_time_comes_from_the_footer(tmp_path, column, expected):
    path = put(tmp_path / "a.parquet", {"t": column})
    assert read_footer(str(path), "t") == Footer(len(column), expected, None)
    assert read_footer(str(path), None) == Footer(len(column))


def test_all_row_groups_count(tmp_path):
    path = put(tmp_path / "a.parquet", times(9_000, 1_000, None, 4_000), row_group_size=1)
    assert read_footer(str(path), "t").newest_ms == 9


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"use_deprecated_int96_timestamps": True}, "stored as INT96"),
        ({"write_statistics": False}, "no statistics"),
    ],
)
def test_what_a_footer_does_not_tell_holds_the_watermark(tmp_path, options, reason):
    put(tmp_path / "a.parquet", times(5_000), **options)
    end = reader(tmp_path, eventTime="t").latest(FIRST, UNLIMITED)
    assert end.watermark.ms is None
    assert re.search(rf"a\.parquet: .*{reason}", end.watermark.held)


def test_the_watermark_never_moves_back_and_is_part_of_the_offset(tmp_path):
    source, end, seen = reader(tmp_path, eventTime="t", watermarkDelay="2 ms"), FIRST, []
    for number, newest in enumerate((9_000, 4_000, 12_000)):
        put(tmp_path / f"{number}.parquet", times(newest), at=NOON + number)
        end = ParquetOffset.from_json(source.latest(end, UNLIMITED).to_json())
        seen.append(end.watermark.ms)
    assert seen == [7, 7, 10]
    assert source.backlog()["watermark_ms"] == 10
    assert source.latest(end, UNLIMITED) == end


def test_a_partition_column_may_be_the_event_time(tmp_path):
    put(tmp_path / "day=1970-01-03/a.parquet", {"n": [1]})
    put(tmp_path / "day=__HIVE_DEFAULT_PARTITION__/a.parquet", {"n": [1]})
    source = reader(tmp_path, eventTime="day")
    source.schema = source.infer_schema()
    assert source.latest(FIRST, UNLIMITED).watermark.ms == 2 * 86_400_000


def test_a_batch_read_has_no_watermark(tmp_path):
    put(tmp_path / "a.parquet", times(5_000))
    source = reader(tmp_path, eventTime="t", streaming=False)
    assert source.latest(FIRST, UNLIMITED).watermark is None
