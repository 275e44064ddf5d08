"""The Delta source against real tables: versions, deletes, conditions, features."""

import datetime as dt
import os
from decimal import Decimal

import pyarrow as pa
import pytest
from delta_life import DeltaLife, numbered
from delta_reader import LogWriter, to_vector
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from pyspark.sql import datasource
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from krishiv_spark.errors import (
    DataLossError,
    OffsetError,
    OptionError,
    SchemaError,
    StorageError,
)
from krishiv_spark.sources.base import UNLIMITED, Limit
from krishiv_spark.sources.delta.data_skipping import skip_files
from krishiv_spark.sources.delta.reader import DeltaReader
from krishiv_spark.sources.delta.table_files import read_snapshot_table

pytestmark = pytest.mark.own_process


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "a b#c%@" / "tablé"


def reader(folder, *, streaming=True, schema=None, **given):
    options = DeltaReader.options_type.parse({"path": str(folder), **given}, "krishiv-delta")
    return DeltaReader(options, schema, streaming=streaming)


def rows_between(one, start, end):
    batches = [batch for task in one.plan(start, end) for batch in one.read(task)]
    return [row for batch in batches for row in batch.to_pylist()]


def follow(one, start=None, limit=UNLIMITED):
    """All rows of a stream, and its last offset."""
    start, rows = start or one.initial(), []
    while (end := one.latest(start, limit)) != start:
        rows += rows_between(one, start, end)
        start = end
    return rows, start


def read(folder, *filters, **given):
    one = reader(folder, streaming=False, **given)
    one.push(filters)
    start = one.initial()
    end = one.latest(start, UNLIMITED)
    return rows_between(one, start, end), one.plan(start, end)


def ids(rows):
    return sorted(row["id"] for row in rows)


# --- versions


def test_a_batch_travels_in_time(folder):
    life = DeltaLife(folder)
    for epoch in range(3):
        life.epoch(epoch, numbered(epoch, 1))
    assert ids(read(folder)[0]) == [0, 1, 2]
    assert ids(read(folder, versionAsOf="2")[0]) == [0, 1]
    for version in range(4):  # the time of a commit is that of its file
        os.utime(folder / "_delta_log" / f"{version:020}.json", (1000 + version, 1000 + version))
    assert ids(read(folder, timestampAsOf="1002000")[0]) == [0, 1]
    assert ids(read(folder, timestampAsOf="1001999")[0]) == [0]
    assert ids(read(folder, timestampAsOf="2000000")[0]) == [0, 1, 2]
    with pytest.raises(OptionError, match=r"00:16:39.*the first one is of 1970-01-01T00:16:40"):
        read(folder, timestampAsOf="999000")
    with pytest.raises(Exception, match="9"):
        read(folder, versionAsOf="9")


def set_times(folder):
    """Set the times of the commits to 1000 s and each second after."""
    for number, commit in enumerate(sorted((folder / "_delta_log").glob("*.json"))):
        os.utime(commit, (1000 + number, 1000 + number))


@pytest.mark.parametrize("given", [{"versionAsOf": "0"}, {"timestampAsOf": "1000500"}], ids=str)
def test_a_batch_has_the_columns_of_its_version(folder, given):
    old = pa.table({"id": [1], "x": ["a"], "n": pa.array([5], pa.int32())})
    write_deltalake(str(folder), old)
    for other in (pa.table({"id": [2], "y": ["b"]}), pa.table({"id": ["3"], "n": ["c"]})):
        write_deltalake(str(folder), other, mode="overwrite", schema_mode="overwrite")
    set_times(folder)
    assert reader(folder, streaming=False, **given).infer_schema().names == ["id", "x", "n"]
    assert read(folder, **given)[0] == old.to_pylist()
    assert read(folder, timestampAsOf="1001000")[0] == [{"id": 2, "y": "b"}]
    assert read(folder)[0] == [{"id": "3", "n": "c"}]


def test_a_batch_whose_column_was_dropped_since_it_was_loaded_is_refused(folder):
    write_deltalake(str(folder), pa.table({"id": [1], "x": ["a"]}))
    loaded = reader(folder, streaming=False).infer_schema()
    write_deltalake(str(folder), numbered(2, 1), mode="overwrite", schema_mode="overwrite")
    with pytest.raises(SchemaError, match=r"version 1 .* no column 'x'"):
        read(folder, schema=loaded)
    assert read(folder, schema=loaded, versionAsOf="0")[0] == [{"id": 1, "x": "a"}]


@pytest.mark.long
@pytest.mark.parametrize("limit", [UNLIMITED, Limit(files=1), Limit(rows=1), Limit(bytes=1)])
def test_a_stream_reads_each_row_once(folder, limit):
    life = DeltaLife(folder)
    life.epoch(0, numbered(0, 5), tasks=3)
    life.epoch(1, numbered(5, 5), tasks=2)
    one = reader(folder)
    rows, end = follow(one, limit=limit)
    assert ids(rows) == [*range(10)]
    life.epoch(2, numbered(10, 3), tasks=3)
    more, end = follow(reader(folder), end, limit)
    assert ids(more) == [10, 11, 12]
    assert follow(reader(folder), end) == ([], end)


@pytest.mark.long
@pytest.mark.parametrize(
    ("start", "wanted"), [("0", [0, 1, 2]), ("2", [1, 2]), ("3", [2]), ("4", []), ("latest", [])]
)
def test_a_stream_starts_at_a_version(folder, start, wanted):
    life = DeltaLife(folder)
    for epoch in range(3):
        life.epoch(epoch, numbered(epoch, 1))
    one = reader(folder, startingVersion=start)
    rows, end = follow(one)
    assert ids(rows) == wanted
    life.epoch(3, numbered(9, 1))
    assert ids(follow(reader(folder, startingVersion=start), end)[0]) == [9]


def test_a_compaction_has_no_new_rows(folder):
    life = DeltaLife(folder)
    life.epoch(0, numbered(0, 4), tasks=2)
    _, end = follow(reader(folder))
    DeltaTable(str(folder)).optimize.compact()
    life.epoch(1, numbered(4, 1))
    assert ids(follow(reader(folder), end)[0]) == [4]


def test_deletes_and_changes_are_errors_or_skipped(folder):
    life = DeltaLife(folder)
    life.epoch(0, numbered(0, 4))
    _, end = follow(reader(folder))
    life.epoch(1, numbered(4, 1))
    DeltaTable(str(folder)).delete("id = 0")  # rewrites a file: a change
    DeltaTable(str(folder)).delete("id = 4")  # removes a file: a delete
    life.epoch(2, numbered(5, 1))
    one = reader(folder)
    until = one.latest(end, UNLIMITED)
    assert ids(rows_between(one, end, until)) == [4]  # all before the change is read first
    with pytest.raises(OffsetError, match=r"version 3 .*'skipChangeCommits' = 'true' to skip"):
        one.latest(until, UNLIMITED)
    assert ids(follow(reader(folder, skipChangeCommits="true"), end)[0]) == [4, 5]
    assert ids(follow(reader(folder, ignoreChanges="true"), end)[0]) == [1, 2, 3, 4, 5]
    with pytest.raises(OffsetError, match="version 3"):
        follow(reader(folder, ignoreDeletes="true"), until)


def test_a_log_that_was_cleaned_up_is_a_loss(folder):
    life = DeltaLife(folder)
    life.epoch(0, numbered(0, 1))
    _, end = follow(reader(folder))
    for epoch in range(1, 4):
        life.epoch(epoch, numbered(epoch, 1))
    DeltaTable(str(folder)).create_checkpoint()
    for version in range(3):
        (folder / "_delta_log" / f"{version:020}.json").unlink()
    with pytest.raises(DataLossError, match=r"version 2 .* not in the log any more"):
        follow(reader(folder), end)


def test_another_table_in_the_folder_is_refused(folder):
    DeltaLife(folder).epoch(0, numbered(0, 1))
    _, end = follow(reader(folder))
    for file in (folder / "_delta_log").iterdir():
        file.unlink()
    write_deltalake(str(folder), numbered(5, 1))
    with pytest.raises(DataLossError, match="is another table"):
        reader(folder).latest(end, UNLIMITED)


def test_a_column_that_is_lost_is_an_error(folder):
    life = DeltaLife(folder)
    life.epoch(0, pa.table({"id": [1], "text": ["x"]}))
    one = reader(folder)
    _, end = follow(one)
    write_deltalake(str(folder), pa.table({"id": [2], "text": ["b"]}), mode="append")
    write_deltalake(str(folder), numbered(6, 1), mode="overwrite", schema_mode="overwrite")
    until = one.latest(end, UNLIMITED)
    assert rows_between(one, end, until) == [{"id": 2, "text": "b"}]  # all before it
    with pytest.raises(SchemaError, match=r"version 3 .* no column 'text' any more"):
        one.latest(until, UNLIMITED)
    rows, _ = follow(reader(folder, skipChangeCommits="true"), until)  # restarted without it
    assert rows == []


def test_a_column_that_differs_in_more_than_case_is_lost(folder):
    write_deltalake(str(folder), pa.table({"id": [1], "straße": ["x"]}))
    one = reader(folder)
    _, end = follow(one)
    other = pa.table({"id": [2], "STRASSE": ["y"]})
    write_deltalake(str(folder), other, mode="overwrite", schema_mode="overwrite")
    with pytest.raises(SchemaError, match="no column 'straße'"):
        one.latest(end, UNLIMITED)


def test_versions_before_a_column_was_added_are_read_without_it(folder):
    write_deltalake(str(folder), numbered(0, 1))
    one = reader(folder, startingVersion="0")
    _, end = follow(one)
    write_deltalake(str(folder), numbered(1, 1), mode="append")
    for name in ("a", "b"):
        rows = numbered(2, 1).append_column(name, [[name]])
        write_deltalake(str(folder), rows, mode="append", schema_mode="merge")
    wanted = [
        {"id": 1, "a": None, "b": None},
        {"id": 2, "a": "a", "b": None},
        {"id": 2, "a": None, "b": "b"},
    ]
    assert follow(reader(folder), end)[0] == wanted  # restarted, two columns later
    every = follow(reader(folder, startingVersion="0"))[0]
    assert every == [{"id": 0, "a": None, "b": None}, *wanted]


def test_a_first_load_goes_on_after_a_column_was_added(folder):
    DeltaLife(folder).epoch(0, numbered(0, 2), tasks=2)
    one = reader(folder)
    end = one.latest(one.initial(), Limit(files=1))
    assert end.spot.scan
    rows = numbered(2, 1).append_column("a", [["a"]])
    write_deltalake(str(folder), rows, mode="append", schema_mode="merge")
    assert [row["a"] for row in follow(reader(folder), end)[0]] == [None, "a"]


@pytest.mark.parametrize("limit", [UNLIMITED, Limit(files=1)])
@pytest.mark.parametrize("feed", [{}, {"readChangeFeed": "true"}])
def test_partition_values_stay_when_the_column_is_dropped_later(folder, limit, feed):
    for number in range(3):
        rows = pa.table({"id": [number], "p": ["abc"[number]]})
        write_deltalake(str(folder), rows, mode="append", partition_by=["p"])
    columns = pa.schema([("id", pa.int64()), ("p", pa.string())])
    given = {"schema": columns, "startingVersion": "1", **feed}
    one = reader(folder, **given)
    start, wanted = one.initial(), [("b", 1), ("c", 2)]
    first = one.latest(start, limit)
    before = rows_between(one, start, first)
    write_deltalake(
        str(folder), numbered(9, 1), mode="overwrite", schema_mode="overwrite", partition_by=[]
    )
    assert DeltaTable(str(folder)).metadata().partition_columns == []
    assert rows_between(reader(folder, **given), start, first) == before  # Spark's replay
    lagging, rows = reader(folder, **given), []
    while start.spot is None or start.spot.version < 2:
        end = lagging.latest(start, limit)
        rows += rows_between(lagging, start, end)
        start = end
    with pytest.raises(SchemaError, match=r"version 3 .* no column 'p'"):
        lagging.latest(start, limit)
    assert [(row["p"], row["id"]) for row in rows] == wanted


def test_partition_values_have_the_type_of_their_version(folder):
    rows = pa.table({"id": [0], "p": ["007"]})
    write_deltalake(str(folder), rows, partition_by=["p"])
    given = {"schema": rows.schema, "startingVersion": "0", "skipChangeCommits": "true"}
    other = pa.table({"id": [1], "p": pa.array([7], pa.int64())})
    overwrites = {"mode": "overwrite", "schema_mode": "overwrite"}
    write_deltalake(str(folder), other, partition_by=["p"], **overwrites)
    assert follow(reader(folder, **given))[0] == [{"id": 0, "p": "007"}]


def test_partition_values_stay_where_the_log_was_cleaned_up_before_them(folder):
    for number in range(4):
        rows = pa.table({"id": [number], "p": [f"0{number}"]})
        write_deltalake(str(folder), rows, mode="append", partition_by=["p"])
    given = {"schema": rows.schema, "startingVersion": "2"}
    one = reader(folder, **given)
    start = one.initial()
    end = one.latest(start, UNLIMITED)
    write_deltalake(
        str(folder), numbered(9, 1), mode="overwrite", schema_mode="overwrite", partition_by=[]
    )
    DeltaTable(str(folder)).create_checkpoint()
    for version in (0, 1):  # versions 2 and 3 are in the log, and cannot be opened
        (folder / "_delta_log" / f"{version:020}.json").unlink()
    with pytest.raises(DeltaError):
        DeltaTable(str(folder), 2)
    found = rows_between(reader(folder, **given), start, end)
    assert found == [{"id": 2, "p": "02"}, {"id": 3, "p": "03"}]


def test_a_type_that_changes_ends_the_batch_before(folder):
    write_deltalake(str(folder), pa.table({"id": [0]}))
    one = reader(folder, ignoreChanges="true")
    _, end = follow(one)
    write_deltalake(str(folder), pa.table({"id": [1]}), mode="append")
    other = pa.table({"id": ["x"]})
    write_deltalake(str(folder), other, mode="overwrite", schema_mode="overwrite")
    until = one.latest(end, UNLIMITED)
    assert ids(rows_between(one, end, until)) == [1]
    with pytest.raises(SchemaError, match=r"version 2 .*'id' of type string does not fit int64"):
        one.latest(until, UNLIMITED)
    assert ids(follow(reader(folder, ignoreChanges="true"), until)[0]) == ["x"]


def test_a_damaged_version_ends_the_batch_before(folder):
    table = LogWriter(folder, pa.schema([("id", pa.int64())]))
    one = reader(folder)
    _, end = follow(one)
    table.append(numbered(0, 1))
    add = table.write(numbered(1, 1))
    table.commit({"add": {**add, "path": "../x.parquet"}})
    until = one.latest(end, UNLIMITED)
    assert ids(rows_between(one, end, until)) == [0]
    with pytest.raises(OffsetError, match="within the table"):
        one.latest(until, UNLIMITED)


MAPPED = {"configuration": {"delta.columnMapping.mode": "name"}}


def require(feature):
    features = {"readerFeatures": [feature], "writerFeatures": [feature]}
    return {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}}


@pytest.mark.parametrize(
    ("action", "text"),
    [
        (lambda table: {"metaData": {**table.metadata, **MAPPED}}, "column mapping"),
        (lambda _: require("typeWidening"), "'typeWidening'"),
        (lambda _: require("variantType"), "'variantType'"),
    ],
    ids=["mapping", "widening", "variant"],
)
def test_versions_before_one_that_cannot_be_read_are_read(folder, action, text):
    table = LogWriter(folder, pa.schema([("id", pa.int64())]))
    one = reader(folder)
    _, end = follow(one)
    for number in range(3):
        table.append(numbered(number, 1))
    table.commit(action(table))
    table.append(numbered(3, 1))
    until = one.latest(end, UNLIMITED)
    assert ids(rows_between(one, end, until)) == [0, 1, 2]
    again = reader(folder, schema=pa.schema([("id", pa.int64())]))
    assert ids(rows_between(again, end, until)) == [0, 1, 2]
    with pytest.raises(OptionError, match=text):
        one.latest(until, UNLIMITED)


def test_a_file_outside_of_the_table_is_refused(folder):
    table = LogWriter(folder, pa.schema([("id", pa.int64())]))
    add = table.write(numbered(0, 1))
    for number, path in enumerate(["../x.parquet", "/etc/passwd", "s3://other/x.parquet"]):
        other = folder.with_name(f"t{number}")
        LogWriter(other, pa.schema([("id", pa.int64())])).commit({"add": {**add, "path": path}})
        for given in ({}, {"startingVersion": "0"}):
            with pytest.raises((OffsetError, DataLossError), match="within the table"):
                follow(reader(other, **given))


def test_a_file_with_fewer_rows_is_damaged(folder):
    table = LogWriter(folder, pa.schema([("id", pa.int64())]))
    table.commit({"add": {**table.write(numbered(0, 3)), "stats": '{"numRecords": 4}'}})
    with pytest.raises(DataLossError, match="3 rows, and 4"):
        read(folder)


# --- partitions, conditions


def test_partition_values_come_from_the_log(folder):
    rows = pa.table(
        {
            "id": pa.array([1, 2], pa.int64()),
            "ts": pa.array([1_700_000_000_123_456, None], pa.timestamp("us", "UTC")),
            "ntz": pa.array([1_700_000_000_123_456, None], pa.timestamp("us")),
            "day": [dt.date(2013, 1, 1), None],
            "text": ["a/b=c d%é", None],
            "n": pa.array([Decimal("1.50"), None], pa.decimal128(5, 2)),
            "flag": [True, None],
            "f": pa.array([float("inf"), None]),
            "raw": pa.array([7, None], pa.int8()),
        }
    )
    names = ",".join(rows.column_names[1:])
    DeltaLife(folder, partitionBy=names).epoch(0, rows)
    wanted = rows.to_pylist()
    by_id = lambda row: row["id"]  # noqa: E731
    assert sorted(read(folder)[0], key=by_id) == wanted
    assert sorted(follow(reader(folder, startingVersion="0"))[0], key=by_id) == wanted
    assert {tuple(row) for row in read(folder, columns="text,id")[0]} == {("text", "id")}


def files_of(tasks):
    return sum(len(task) for task in tasks)


@pytest.mark.long
@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        (EqualTo(("id",), 7), [7]),
        (GreaterThan(("id",), 6), [7, 8, 9]),
        (GreaterThanOrEqual(("id",), 9), [9]),
        (LessThan(("id",), 1), [0]),
        (LessThanOrEqual(("id",), 0), [0]),
        (In(("id",), (3, 5, 100)), [3, 5]),
        (EqualTo(("text",), "t3"), [3]),
        (EqualTo(("p",), "even"), [0, 2, 4, 6, 8]),
        (IsNull(("p",)), [1, 3, 5, 7, 9]),
        (IsNotNull(("p",)), [0, 2, 4, 6, 8]),
        (GreaterThan(("ts",), dt.datetime(1970, 1, 1, 0, 0, 9, 1, dt.timezone.utc)), [9]),
        (EqualTo(("s", "x"), 4), [4]),
        (Not(EqualTo(("id",), 7)), [0, 1, 2, 3, 4, 5, 6, 8, 9]),
        (Not(In(("id",), (0, 1, 2, 7, 8, 100))), [3, 4, 5, 6, 9]),
        (Not(EqualTo(("p",), "even")), []),  # null for others, in which Spark finds no row either
        (Not(EqualTo(("text",), "t3")), [0, 1, 2, 4, 5, 6, 7, 8, 9]),
        (Not(EqualNullSafe(("id",), 7)), [*range(10)]),
        (Not(IsNull(("p",))), [*range(10)]),
        (Not(datasource.StringContains(("text",), "3")), [*range(10)]),
        (datasource.StringStartsWith(("text",), "t3"), [*range(10)]),
        (EqualTo(("f",), 4.0), [*range(10)]),
        (EqualTo(("id",), "7"), [*range(10)]),
        (EqualTo(("other",), 7), [*range(10)]),
    ],
    ids=str,
)
def test_conditions_skip_files(folder, condition, wanted):
    life = DeltaLife(folder, partitionBy="p")
    for n in range(10):
        row = {"id": n, "text": f"t{n}", "p": None if n % 2 else "even", "f": float(n)}
        row |= {"ts": dt.datetime.fromtimestamp(n + 0.0005, dt.timezone.utc), "s": {"x": n}}
        table = pa.Table.from_pylist([row])
        at = table.schema.get_field_index("ts")
        times = table["ts"].cast(pa.timestamp("us", "UTC"))
        columns = table.set_column(at, "ts", times)
        at = columns.schema.get_field_index("p")
        life.epoch(n, columns.set_column(at, "p", columns["p"].cast(pa.string())))
    rows, tasks = read(folder, condition)
    assert ids(rows) == wanted
    assert files_of(tasks) == len(wanted)


VALUES = {
    "n": [None, 0, 5, 7, 7, 8],
    "text": [None, "a", "t3", "t7", "t7", "u"],
    "f": [None, float("nan"), 0.0, float("inf"), 7.0, 8.0],
    "day": [None, *(dt.date(2013, 1, day) for day in (1, 2, 2, 3, 4))],
    "flag": [None, True, False, True, True, False],
}
ASKED = {
    "n": [None, 7, 7.5, Decimal("7.5"), 2**70, Decimal(2**70), "7", -1, True],
    "text": [None, "t7", "", 7],
    "f": [None, float("nan"), 7.0, 0.5, float("inf")],
    "day": [None, dt.date(2013, 1, 2), dt.datetime(2013, 1, 2, 12)],  # noqa: DTZ001
    "flag": [None, True, 1],
}


def list_filters(column):
    """Return conditions of each class, for the values that a test asks for, and their negations."""
    path = (column,)
    for kind in datasource.Filter.__subclasses__():
        if kind in {IsNull, IsNotNull}:
            made = [kind(path)]
        elif kind is In:
            made = [In(path, (value, *ASKED[column][1:2])) for value in ASKED[column]] + [
                In(path, ())
            ]
        elif kind is not Not:
            made = [kind(path, value) for value in ASKED[column]]
        else:
            made = [Not(Not(IsNull(path)))]
        yield from made
        yield from map(Not, made)


def rank(value):
    """Return a value in the order of Spark: NaN is the greatest number, and a date is midnight."""
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return dt.datetime.combine(value, dt.time())
    return (value != value, 0 if value != value else value)  # noqa: PLR0124  NaN


def holds(item, value):
    """Return the result of Spark: True or False; None for null, and if it cannot compare."""
    kind = type(item).__name__
    if kind == "Not":
        found = holds(item.child, value)
        return None if found is None else not found
    if kind in {"IsNull", "IsNotNull"}:
        return (value is None) == (kind == "IsNull")
    if kind == "In":
        found = [holds(EqualTo(item.attribute, each), value) for each in item.value]
        return True if True in found else None if None in found else False
    if None in {value, item.value}:
        return value is item.value if kind == "EqualNullSafe" else None
    try:
        return COMPARED[kind](rank(value), rank(item.value))
    except (TypeError, AttributeError):
        return None


COMPARED = {
    "EqualTo": lambda a, b: a == b,
    "EqualNullSafe": lambda a, b: a == b,
    "GreaterThan": lambda a, b: a > b,
    "GreaterThanOrEqual": lambda a, b: a >= b,
    "LessThan": lambda a, b: a < b,
    "LessThanOrEqual": lambda a, b: a <= b,
    "StringStartsWith": lambda a, b: a[1].startswith(b[1]),
    "StringEndsWith": lambda a, b: a[1].endswith(b[1]),
    "StringContains": lambda a, b: b[1] in a[1],
}


@pytest.mark.parametrize("column", VALUES)
@pytest.mark.parametrize("is_partition", [True, False])
def test_no_condition_fails_or_skips_a_file_with_a_wanted_row(folder, column, is_partition):
    kind = pa.int32() if column == "n" else pa.array(VALUES[column]).type
    for number, value in enumerate(VALUES[column]):
        rows = pa.table({"id": [number], column: pa.array([value], kind)})
        partition_by = [column] if is_partition else None
        write_deltalake(str(folder), rows, mode="append", partition_by=partition_by)
    files = read_snapshot_table(DeltaTable(str(folder)))
    assert len(files) == len(VALUES[column])
    for item in list_filters(column):
        kept = {low["id"] for low in skip_files(files, [item])["min"].to_pylist()}
        asked = {n for n, value in enumerate(VALUES[column]) if holds(item, value)}
        assert asked <= kept, item


# --- deletion vectors and features


def make_table_with_vectors(folder, names, *, quoted):
    """Make a table with a file of rows 0 to 4 for each name, of which 1 and 3 are deleted."""
    table = LogWriter(folder, pa.schema([("id", pa.int64())]))
    feature = ["deletionVectors"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7}
    table.commit({"protocol": {**protocol, "readerFeatures": feature, "writerFeatures": feature}})
    for name in names:
        add = table.write(numbered(0, 5), name)
        path = add["path"] if quoted else name
        table.commit({"add": {**add, "path": path, "deletionVector": to_vector([1, 3])}})


def test_deleted_rows_stay_deleted_in_files_of_any_name(folder):
    names = ["a b.parquet", "é#1.parquet", "q?1.parquet", "p%3A;&+.parquet"]
    make_table_with_vectors(folder, names, quoted=True)
    wanted = sorted([0, 2, 4] * len(names))
    for given in ({}, {"startingVersion": "0"}):
        assert ids(follow(reader(folder, **given))[0]) == wanted
    assert ids(read(folder)[0]) == wanted


@pytest.mark.parametrize("name", ["é#1.parquet", "q?1.parquet"])
def test_deleted_rows_of_a_file_that_is_not_listed_are_an_error(folder, name):
    make_table_with_vectors(folder, [name], quoted=False)  # a path should be a URI
    with pytest.raises(StorageError, match=r"deleted rows .* is none of its files"):
        read(folder)
    with pytest.raises(StorageError, match=r"deleted rows .* is none of its files"):
        read(folder, LessThan(("id",), -1))  # also if no file is read
    for given in ({}, {"startingVersion": "0"}):
        with pytest.raises(StorageError, match=r"deleted rows .* is none of its files"):
            follow(reader(folder, **given))


@pytest.mark.parametrize(
    ("protocol", "text"),
    [
        ({"minReaderVersion": 4, "minWriterVersion": 7}, "reader version 4|not supported|version"),
        ({"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["variantType"],
          "writerFeatures": ["variantType"]}, "'variantType'"),
        ({"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["typeWidening"],
          "writerFeatures": ["typeWidening"]}, "'typeWidening'"),
    ],
)  # fmt: skip
def test_features_that_cannot_be_read_are_refused(folder, protocol, text):
    table = LogWriter(folder, pa.schema([("id", pa.int64())]))
    table.commit({"protocol": protocol})
    for streaming in (True, False):
        one = reader(folder, streaming=streaming)
        with pytest.raises(Exception, match=text):
            one.latest(one.initial(), UNLIMITED)


@pytest.mark.long
@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"versionAsOf": "1", "startingVersion": "1"}, "exclude each other"),
        ({"versionAsOf": "x"}, "versionAsOf"),
        ({"startingVersion": "newest"}, "'latest'"),
        ({"timestampAsOf": "2013-01-01"}, "with a zone"),
        ({"eventTime": "ts"}, "withWatermark"),
        ({"columns": "idd"}, "did you mean 'id'"),
        ({"maxFilesPerTrigger": "0"}, "maxFilesPerTrigger"),
        ({"startingVersion": "99"}, "is at version 1"),
        ({"versionAsOf": "0"}, "is for batch reads"),
        ({"path": "/nothing/here"}, "is no Delta table"),
    ],
)
def test_bad_options_are_refused(folder, given, text):
    DeltaLife(folder).epoch(0, numbered(0, 1))
    with pytest.raises(OptionError, match=text):
        follow(reader(folder, **given))
