"""Partition folders: the same as a row-by-row reference, written as Spark writes them."""

import datetime as dt
from collections import defaultdict
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from krishiv_spark.errors import SchemaError
from krishiv_spark.parquet.partition_folders import NULL_VALUE, split_by_partition

EVERY_ESCAPE = "".join(map(chr, range(1, 32))) + "\"#%'*/:=?\\{[]^\x7f"
HEX = "".join(f"%{ord(char):02X}" for char in EVERY_ESCAPE)


def spark_text(value: object) -> str:
    """A value as Spark casts it to a string, for the types where that is obvious."""
    if value is None or value == "":
        return NULL_VALUE
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return "".join(f"%{ord(c):02X}" if c in EVERY_ESCAPE else c for c in text)


def reference(rows: list[dict], columns: list[str]) -> dict[str, list[dict]]:
    found = defaultdict(list)
    for row in rows:
        folder = "/".join(f"{spark_text(name)}={spark_text(row[name])}" for name in columns)
        found[folder].append({k: v for k, v in row.items() if k not in columns})
    return dict(found)


def folders(table: pa.Table, columns: list[str]) -> dict[str, list[dict]]:
    found = defaultdict(list)
    for folder, part in split_by_partition(table, columns):
        assert part.num_rows
        found[folder] += part.to_pylist()
    return dict(found)


SCHEMA = pa.schema(
    [
        ("a=b", pa.string()),
        ("n", pa.int32()),
        ("flag", pa.bool_()),
        ("price", pa.decimal128(10, 2)),
        ("day", pa.date32()),
        ("row", pa.int64()),
    ]
)
keys = st.fixed_dictionaries(
    {
        "a=b": st.none()
        | st.sampled_from(["", "x", "/", "a b", "é", "1", "None"])
        | st.text("x:%é", max_size=2),
        "n": st.none() | st.integers(-2, 2),
        "flag": st.none() | st.booleans(),
        "price": st.none() | st.sampled_from([Decimal("0.00"), Decimal("1.50"), Decimal("-1.05")]),
        "day": st.none() | st.sampled_from([dt.date(1969, 12, 31), dt.date(2013, 1, 1)]),
    }
)


@given(
    st.lists(keys, max_size=12),
    st.lists(st.sampled_from(SCHEMA.names[:-1]), max_size=3, unique=True),
    st.integers(1, 3),
)
def test_rows_are_split_as_a_reference_splits_them(rows, columns, pieces):
    numbered = [{**row, "row": number} for number, row in enumerate(rows)]
    whole = pa.Table.from_pylist(numbered, SCHEMA)
    step = max(1, len(rows) // pieces)
    table = pa.concat_tables([whole.slice(i, step) for i in range(0, len(rows), step)] or [whole])
    expected = reference(numbered, columns)
    found = folders(table, columns) if rows else {}
    for folder, part in found.items():
        # Null and the empty string share a folder, so order holds within each of the two.
        found[folder] = sorted(part, key=lambda row: row["row"])
    assert found == expected


@given(st.lists(st.sampled_from(["a", "b", None]), min_size=1, max_size=20))
def test_rows_of_a_partition_keep_their_order_and_come_in_one_piece(values):
    table = pa.table({"k": pa.array(values, pa.string()), "row": range(len(values))})
    pieces = list(split_by_partition(table, ["k"]))
    assert len(pieces) == len(set(values))
    for _, part in pieces:
        numbers = part.column("row").to_pylist()
        assert numbers == sorted(numbers)


@pytest.mark.parametrize("columns", [[], ["k"], ["k", "n"]])
def test_no_rows_make_no_folder(columns):
    empty = pa.table({"k": pa.array([], pa.string()), "n": pa.array([], pa.int64()), "x": []})
    assert list(split_by_partition(empty, columns)) == []


def test_without_partition_columns_everything_stays_together():
    table = pa.table({"x": [1, 2]})
    ((folder, part),) = split_by_partition(table, [])
    assert folder == ""
    assert part is table


UTC = dt.timezone.utc
at = dt.datetime.fromisoformat
TEXTS = [
    (pa.string(), "", NULL_VALUE),
    (pa.string(), None, NULL_VALUE),
    (pa.string(), EVERY_ESCAPE, HEX),
    (pa.string(), "a b,c;d&e<f>|g~é😀", "a b,c;d&e<f>|g~é😀"),
    (pa.string(), "..", ".."),
    (pa.bool_(), True, "true"),
    (pa.bool_(), False, "false"),
    (pa.int8(), -1, "-1"),
    (pa.int64(), 2**63 - 1, str(2**63 - 1)),
    (pa.decimal128(10, 2), Decimal("1.50"), "1.50"),
    (pa.decimal128(10, 0), Decimal(-7), "-7"),
    (pa.decimal128(38, 18), Decimal("0.000000000000000001"), "0.000000000000000001"),
    (pa.decimal128(38, 18), Decimal(0), "0.000000000000000000"),
    (pa.date32(), dt.date(2013, 1, 1), "2013-01-01"),
    (pa.date32(), dt.date(1, 1, 1), "0001-01-01"),
    (pa.timestamp("us"), at("2013-01-01T05:00:00"), "2013-01-01 05%3A00%3A00"),
    (pa.timestamp("us"), at("2013-01-01T05:00:00.120000"), "2013-01-01 05%3A00%3A00.12"),
    (pa.timestamp("us"), at("2013-01-01T05:00:10"), "2013-01-01 05%3A00%3A10"),
    (
        pa.timestamp("us"),
        at("1969-12-31T23:59:59.999999"),
        "1969-12-31 23%3A59%3A59.999999",
    ),
    (pa.timestamp("us", "UTC"), dt.datetime(2013, 1, 1, 5, tzinfo=UTC), "2013-01-01 05%3A00%3A00Z"),
    (
        pa.timestamp("us", "Asia/Tokyo"),
        dt.datetime(2013, 1, 1, 5, tzinfo=UTC),
        "2013-01-01 05%3A00%3A00Z",
    ),
    (pa.time64("ns"), dt.time(1, 2, 3, 450_000), "01%3A02%3A03.45"),
    (pa.float64(), float("inf"), "Infinity"),
    (pa.float32(), float("-inf"), "-Infinity"),
    (pa.float64(), float("nan"), "NaN"),
    (pa.float64(), -0.0, "-0.0"),
]


@pytest.mark.parametrize(
    ("kind", "value", "text"), TEXTS, ids=[f"{k} {v!r:.40}" for k, v, _ in TEXTS]
)
def test_values_are_written_as_spark_writes_them(kind, value, text):
    table = pa.table({"k": pa.array([value], kind), "x": [1]})
    assert [folder for folder, _ in split_by_partition(table, ["k"])] == [f"k={text}"]


@pytest.mark.parametrize(
    "value", [1.0, -0.5, 1e20, 1e-7, 123456789.125, float("nan"), float("inf")]
)
def test_floats_come_back_as_the_same_number(value):
    table = pa.table({"k": pa.array([value, value]), "x": [1, 2]})
    ((folder, part),) = split_by_partition(table, ["k"])
    assert float(folder.removeprefix("k=")) == pytest.approx(value, rel=0, abs=0, nan_ok=True)
    assert part.num_rows == 2


NO_FOLDERS = [
    (pa.array(["x" * 254]), "256 bytes, and file systems take 255"),
    (pa.array(["日" * 85]), "257 bytes"),
    (pa.array([b"\xff"]), "UTF8"),
    (pa.array([-719_163], pa.int32()).cast(pa.date32()), "before year 1 or after year 9999"),
    (pa.array([2_932_897], pa.int32()).cast(pa.date32()), "before year 1 or after year 9999"),
    (pa.array([2**60], pa.timestamp("us", "UTC")), "before year 1 or after year 9999"),
]


@pytest.mark.parametrize(("values", "reason"), NO_FOLDERS, ids=[str(r) for _, r in NO_FOLDERS])
def test_a_value_without_a_name_is_refused_before_the_first_row(values, reason):
    fine = pa.nulls(1, values.type)
    table = pa.table({"k": pa.concat_arrays([fine, values]), "x": [1, 2]})
    with pytest.raises(SchemaError, match=rf"column 'k' has the value .*{reason}.* 'partitionBy'"):
        next(split_by_partition(table, ["k"]))


@pytest.mark.parametrize("name", [".p", "a.b", "/p", "p[0]"])
def test_a_name_that_looks_like_a_path_is_a_name(name):
    table = pa.table({name: ["b", "a"], "x": [1, 2]})
    assert [folder.partition("=")[2] for folder, _ in split_by_partition(table, [name])] == [
        "a",
        "b",
    ]


def test_names_are_escaped_like_values():
    table = pa.table({"a/b=c": ["x"], "x": [1]})
    assert [folder for folder, _ in split_by_partition(table, ["a/b=c"])] == ["a%2Fb%3Dc=x"]


def test_folders_nest_in_the_order_of_the_columns():
    table = pa.table({"a": [1], "b": [2], "x": [3]})
    assert [folder for folder, _ in split_by_partition(table, ["b", "a"])] == ["b=2/a=1"]
