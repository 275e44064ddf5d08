"""``krishiv-fanout`` without Spark: rows by route, what is given wrong, files in an intent."""

import threading
from collections.abc import Mapping

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from krishiv_spark.errors import OptionError, SchemaError
from krishiv_spark.sinks.base import OutputMode, Task
from krishiv_spark.sinks.fanout.options import routed
from krishiv_spark.sinks.fanout.writer import FanoutWriter, split
from krishiv_spark.sinks.iceberg.route import read_intent_files, write_intent_files
from krishiv_spark.sinks.iceberg.writer import IcebergWriter

NUMBER = pa.struct([("n", pa.int64())])


def batch(*routes):
    """Rows by number, each with what it goes: "l", "r", "lr" or nothing."""
    columns = [
        pa.array([{"n": n} if side in ways else None for n, ways in enumerate(routes)], NUMBER)
        for side in "lr"
    ]
    return pa.record_batch(columns, names=["l", "R"])


def numbers(batches):
    return [n for batch in batches for n in batch.column("n").to_pylist()]


@given(st.lists(st.lists(st.sampled_from(["l", "r", "lr"]), max_size=20), max_size=5), st.data())
def test_each_route_has_its_rows_in_order(parts, data):
    batches = [batch(*ways) for ways in parts]
    batches = [
        found.slice(data.draw(st.integers(0, found.num_rows))) if found.num_rows else found
        for found in batches
    ]
    staged = split(iter(batches), {"l": numbers, "r": numbers}, drops=False)
    for side in "lr":
        wanted = [
            row["n"]
            for found in batches
            for row in found.column("lr".index(side)).to_pylist()
            if row is not None
        ]
        assert staged[side] == wanted


def test_rows_without_a_route_are_refused_or_dropped():
    batches = [batch("l", "", "r", "")]
    with pytest.raises(SchemaError, match="2 of 4 rows have no route"):
        split(iter(batches), {"l": numbers, "r": numbers}, drops=False)
    assert split(iter(batches), {"l": numbers, "r": numbers}, drops=True) == {"l": [0], "r": [2]}


def test_a_route_that_fails_has_the_others_undo_what_they_have_begun():
    undone = []

    def careful(batches):
        try:
            return numbers(batches)
        except Exception:
            undone.append(True)
            raise

    def fails(batches):
        next(batches)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        split(iter([batch("lr"), batch("lr")]), {"l": careful, "r": fails}, drops=False)
    assert undone == [True]
    assert not [one for one in threading.enumerate() if one.name.startswith("route ")]


def test_rows_that_fail_are_undone_everywhere():
    def rows():
        yield batch("lr")
        raise ValueError("a task failed")

    with pytest.raises(ValueError, match="a task failed"):
        split(rows(), {"l": numbers, "r": numbers}, drops=False)


def test_a_route_that_wants_no_more_rows_stops_nobody():
    def first(batches):
        return numbers([next(batches)])

    batches = [batch("lr"), batch("lr", "lr")]
    staged = split(iter(batches), {"l": first, "r": numbers}, drops=False)
    assert staged == {"l": [0], "r": [0, 0, 1]}


# --- what is given


def check(given, schema=None):
    options = FanoutWriter.options_type.parse(given, "krishiv-fanout")
    schema = pa.schema([("good", NUMBER)]) if schema is None else schema
    FanoutWriter(options, schema, OutputMode.APPEND).check()


GOOD = {"route.good.format": "krishiv-parquet"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "give at least one route"),
        ({"route.good": "x"}, r"'route.good': write 'route.<name>.<option>'"),
        ({"route.good.format": "krishiv-parqet"}, "did you mean 'krishiv-parquet'"),
        ({"route.good.format": "os:nothing"}, "cannot be imported"),
        ({"route.good.format": "os:getcwd"}, "is not a LoggedWriter"),
        ({**GOOD, "route.good.txnAppId": "a"}, "a batch has one number"),
        ({**GOOD, "route.good.path": "/a", "route.Good.path": "/b"}, "route.Good.path' is .*twice"),
        ({**GOOD, "route.good.path": "/x", "unroutd": "drop"}, "did you mean 'unrouted'"),
    ],
)
def test_options_that_are_wrong_are_refused(given, said):
    with pytest.raises(OptionError, match=said):
        check(given)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (pa.schema([("goood", NUMBER)]), "did you mean the route 'good'"),
        (pa.schema([("good", pa.int64())]), "is int64, not a struct"),
        (pa.schema([]), "no column 'good'"),
        (pa.schema([("good", NUMBER), ("Good", NUMBER)]), "'good' and 'Good' differ only in case"),
    ],
)
def test_columns_that_are_no_routes_are_refused(schema, said, tmp_path):
    with pytest.raises(SchemaError, match=said):
        check({**GOOD, "route.good.path": str(tmp_path)}, schema)


def test_routes_whose_names_differ_in_case_only_are_refused():
    """The rows of both would go one way, into one target."""
    with pytest.raises(OptionError, match="routes 'good' and 'Good' differ only in case"):
        routed(None, good="n > 0", bad="n = 0", Good="n < 0")


def test_what_a_store_needs_is_said_once_for_all_routes(tmp_path):
    given = {
        **GOOD,
        "route.good.path": str(tmp_path),
        "route.other.format": "krishiv-parquet",
        "route.other.path": str(tmp_path),
        "route.other.storage.s3.region": "of its own",
        "storage.s3.region": "of all",
    }
    options = FanoutWriter.options_type.parse(given, "krishiv-fanout")
    writer = FanoutWriter(options, pa.schema([]), OutputMode.APPEND)
    storages = {name: route.options.storage for name, route in writer._routes.items()}
    assert storages["good"] == options.storage
    assert storages["other"] != options.storage


# --- an Iceberg table


def test_files_that_an_intent_names_are_read_back_as_tasks_told_them(tmp_path):
    rows = pa.table(
        {
            "id": [1, 2, 3],
            "day": pa.array([0, 1, None], pa.date32()),
            "price": pa.array(["1.50", None, "-7.25"]).cast(pa.decimal128(9, 2)),
            "blob": pa.array([b"\x00", b"", None], pa.binary()),
        }
    )
    given = {
        "path": "db.rows",
        "warehouse": str(tmp_path),
        "partitionBy": "day, truncate(4, id), price, bucket(3, blob)",
    }
    options = IcebergWriter.options_type.parse(given, "krishiv-iceberg")
    writer = IcebergWriter(options, rows.schema, OutputMode.APPEND)
    plan = writer.plan(None)
    staged = [
        writer.stage(iter(rows.slice(part, 2).to_batches()), Task("q", 0, part, part), plan)
        for part in range(2)
    ]
    table = writer.committer().table()
    prepared = write_intent_files(table, staged, writer.committer().mode)
    found = read_intent_files(table, type(prepared).model_validate_json(prepared.model_dump_json()))
    told = [file for item in staged for file in item.files]
    assert [vars_of(file) for file in found.files] == [vars_of(file) for file in told]
    assert (found.table, found.spec_id, found.after) == (staged[0].table, staged[0].spec_id, 0)


def vars_of(file):
    """A map without entries is none."""
    maps = [dict(value) or None if isinstance(value, Mapping) else value for value in file._data]
    return [repr(value) for value in maps]
