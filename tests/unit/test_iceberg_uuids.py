"""UUIDs in tables, which Spark has as text or as bytes."""

import uuid

import pyarrow as pa
import pytest
from iceberg_life import IcebergLife
from iceberg_reading import batch
from iceberg_tables import make_table, table_in
from pyiceberg.schema import Schema
from pyiceberg.types import (
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    UUIDType,
)

from krishiv_spark.errors import OptionError, SchemaError
from krishiv_spark.sinks.iceberg.table_layout import parse_partition_spec, parse_sort_order

UUIDS = [uuid.UUID(int=number) for number in (1, 2**127 + 5, 2**128 - 1)]
SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "u", UUIDType(), required=False),
)


def life(folder, **options):
    kept = {"keepSnapshots": "all", "keepMetadataFiles": "all"}
    return IcebergLife(folder, path="db.t", **kept, **options)


def rows_of(folder):
    return sorted(batch(folder).to_pylist(), key=lambda row: row["id"])


@pytest.mark.long
@pytest.mark.parametrize("partition", [None, "u", "bucket(4, u)"])
@pytest.mark.parametrize("sort", [None, "u desc"])
def test_texts_and_bytes_become_uuids(tmp_path, partition, sort):
    more = {} if partition is None else {"partition_spec": parse_partition_spec(partition, SCHEMA)}
    if sort is not None:
        more["sort_order"] = parse_sort_order(sort, SCHEMA)
    make_table(tmp_path, SCHEMA, **more)
    texts = [str(UUIDS[0]), str(UUIDS[1]).upper(), None]
    life(tmp_path).epoch(0, pa.table({"id": [1, 2, 3], "u": pa.array(texts, pa.string())}))
    raw = pa.array([UUIDS[2].bytes, None], pa.binary())
    life(tmp_path).epoch(1, pa.table({"id": [4, 5], "u": raw}))
    expected = [str(UUIDS[0]), str(UUIDS[1]), None, str(UUIDS[2]), None]
    assert [row["u"] for row in rows_of(tmp_path)] == expected
    by_pyiceberg = table_in(tmp_path).scan().to_arrow().sort_by("id")["u"].to_pylist()
    assert by_pyiceberg == [UUIDS[0], UUIDS[1], None, UUIDS[2], None]


def test_rows_without_the_column_have_null(tmp_path):
    make_table(tmp_path, SCHEMA)
    life(tmp_path).epoch(0, pa.table({"id": [1]}))
    assert rows_of(tmp_path) == [{"id": 1, "u": None}]


def test_uuids_inside_of_structs_lists_and_maps(tmp_path):
    inner = StructType(NestedField(5, "u", UUIDType(), required=False))
    of_uuids = MapType(7, StringType(), 8, UUIDType(), value_required=False)
    schema = Schema(
        NestedField(1, "id", LongType(), required=False),
        NestedField(2, "s", inner, required=False),
        NestedField(3, "l", ListType(6, UUIDType(), element_required=False), required=False),
        NestedField(4, "m", of_uuids, required=False),
    )
    make_table(tmp_path, schema)
    kinds = [
        ("id", pa.int64()),
        ("s", pa.struct([("u", pa.string())])),
        ("l", pa.list_(pa.string())),
        ("m", pa.map_(pa.string(), pa.binary())),
    ]
    one, two = str(UUIDS[1]), str(UUIDS[2])
    given = [
        {"id": 1, "s": {"u": one}, "l": [two, None, one], "m": [("k", UUIDS[0].bytes)]},
        {"id": 2, "s": None, "l": None, "m": None},
        {"id": 3, "s": {"u": None}, "l": [], "m": []},
    ]
    life(tmp_path).epoch(0, pa.Table.from_pylist(given, pa.schema(kinds)))
    given[0]["m"] = [("k", str(UUIDS[0]))]
    assert rows_of(tmp_path) == given


BAD = {
    "short": "f79c3e09-677c-4bbd-a479-3f349cb785e",
    "without hyphens": "f79c3e09677c4bbda4793f349cb785e7",
    "braces": "{f79c3e09-677c-4bbd-a479-3f349cb785e7}",
    "a line's end": "f79c3e09-677c-4bbd-a479-3f349cb785e7\n",
    "other letters": "g79c3e09-677c-4bbd-a479-3f349cb785e7",
    "nothing": "",
}


@pytest.mark.long
@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
@pytest.mark.parametrize("options", [{}, {"mode": "upsert", "keyColumns": "id"}])
def test_a_text_that_is_no_uuid_is_refused_by_value_and_column(tmp_path, text, options):
    make_table(tmp_path, SCHEMA)
    rows = pa.table({"id": [1, 2], "u": [str(UUIDS[0]), text]})
    with pytest.raises(SchemaError) as caught:
        life(tmp_path, **options).epoch(0, rows)
    assert "column 'u'" in str(caught.value)
    assert repr(text) in str(caught.value)
    assert "write it as 00000000-0000" in str(caught.value)
    assert table_in(tmp_path).current_snapshot() is None


def test_bytes_of_another_length_are_refused_by_value_and_column(tmp_path):
    make_table(tmp_path, SCHEMA)
    rows = pa.table({"id": [1], "u": pa.array([b"\0" * 15], pa.binary())})
    with pytest.raises(
        SchemaError, match=r"column 'u'.*x00.* is not a UUID: it must have 16 bytes"
    ):
        life(tmp_path).epoch(0, rows)


def test_other_types_are_refused_before_the_first_row(tmp_path):
    make_table(tmp_path, SCHEMA)
    with pytest.raises(
        SchemaError, match=r"column 'u' is int64, but .*uuid.* in the table: cast it"
    ):
        life(tmp_path).plan(pa.table({"id": [1], "u": [1]}))


@pytest.mark.long
@pytest.mark.parametrize("partition", [None, "u", "bucket(3, u)"])
@pytest.mark.parametrize("keys", ["u", "u,p", "p,u"])
def test_uuids_are_keys(tmp_path, partition, keys):
    schema = Schema(
        NestedField(1, "u", UUIDType(), required=False),
        NestedField(2, "p", StringType(), required=False),
        NestedField(3, "id", IntegerType(), required=False),
    )
    more = {} if partition is None else {"partition_spec": parse_partition_spec(partition, schema)}
    make_table(tmp_path, schema, **more)
    query = life(tmp_path, mode="upsert", keyColumns=keys, opColumn="op", orderColumn="u")

    def put(epoch, values, number, op):
        count = len(values)
        columns = {"u": pa.array(values), "p": ["p"] * count, "op": [op] * count}
        query.epoch(epoch, pa.table({**columns, "id": pa.array([number] * count, pa.int32())}))

    put(0, [str(one) for one in UUIDS], 1, "c")
    put(1, [str(one).upper() for one in UUIDS], 2, "u")
    assert [(row["u"], row["id"]) for row in sorted(batch(tmp_path).to_pylist(), key=str)] == [
        (str(one), 2) for one in UUIDS
    ]
    put(2, [one.bytes for one in UUIDS[1:]], 3, "d")
    assert batch(tmp_path).to_pylist() == [{"u": str(UUIDS[0]), "p": "p", "id": 2}]


# --- what else rows that change others are refused for


@pytest.mark.parametrize("keys", ["id,id", "id, u ,id"])
def test_a_key_that_is_there_twice_is_refused_at_once(tmp_path, keys):
    with pytest.raises(OptionError, match=r"keyColumns.*'id' occurs twice"):
        life(tmp_path, mode="upsert", keyColumns=keys).plan(pa.table({"id": [1], "u": ["x"]}))
