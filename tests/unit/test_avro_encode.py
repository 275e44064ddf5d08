"""Arrow columns as Avro records, read by fastavro over generated schemas and values."""

import io
import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from avro_cases import encode, of, record, schemas, values_of
from hypothesis import given
from hypothesis import strategies as st

from krishiv_spark.errors import SchemaError
from krishiv_spark.kafka.schemas.avro.avro_decode import AvroDecoder
from krishiv_spark.kafka.schemas.avro.avro_derive import DERIVED_TYPES, derive_schema
from krishiv_spark.kafka.schemas.avro.avro_encode import AvroEncoder
from krishiv_spark.kafka.schemas.avro.avro_types import parse_avro_schema


def read(schema, values):
    parsed, found = fastavro.parse_schema(schema), []
    for value in values:
        source = io.BytesIO(value)
        found.append(fastavro.schemaless_reader(source, parsed))
        assert source.read() == b"", "bytes are left"
    return found


def write(schema, column, **more):
    out = AvroEncoder(parse_avro_schema(json.dumps(schema)), column.type, **more).encode(column)
    out.validate(full=True)
    return out.to_pylist()


def columns_of(schema, encoded):
    """Records as our own decoder has them in columns."""
    kind = parse_avro_schema(json.dumps(schema))
    ends = np.cumsum([len(each) for each in encoded]).astype(np.int64)
    starts = np.concatenate(([0], ends[:-1])).astype(np.int64)
    data = np.frombuffer(b"".join(encoded) or b"\0", np.uint8)
    return AvroDecoder(kind, kind).decode(data, starts[: len(encoded)], ends).values


@given(st.data())
def test_fastavro_reads_the_values_that_were_written(data):
    schema = data.draw(schemas())
    given_values = [value for value, _ in data.draw(st.lists(values_of(schema), max_size=4))]
    encoded = encode(schema, *given_values)
    column = columns_of(schema, encoded)
    written = write(schema, column)
    assert read(schema, written) == read(schema, encoded)
    first = data.draw(st.integers(0, len(column)))
    assert write(schema, column.slice(first)) == written[first:]


# --- derived schemas: one case for each type of the table in the documentation

VALUES = {
    "BOOLEAN": [True, False],
    "TINYINT": [-128, 127],
    "SMALLINT": [-(2**15), 2**15 - 1],
    "INT": [-(2**31), 2**31 - 1],
    "BIGINT": [-(2**63), 2**63 - 1, 0, -1, 63, 64, -64, -65],
    "FLOAT": [0.5, -1.25],
    "DOUBLE": [1e300, -0.1],
    "STRING": ["", "ä😀"],
    "BINARY": [b"", b"\0\xff"],
    "DATE": [-719162, 2932896],
    "TIMESTAMP": [-62135596800000000, 1700000000123456],
    "TIMESTAMP_NTZ": [-62135596800000000, 1700000000123456],
    "VOID": [None],
}


@pytest.mark.parametrize(("name", "kind", "avro"), DERIVED_TYPES, ids=lambda v: str(v)[:20])
@pytest.mark.parametrize("nullable", [False, True])
def test_each_type_has_a_derived_schema_and_is_read_back(name, kind, avro, nullable):
    is_number = pa.types.is_date(kind) or pa.types.is_timestamp(kind)
    base = pa.int32() if pa.types.is_date(kind) else pa.int64()
    values = [*VALUES[name], *([None] if nullable else [])]
    column = pa.array(values, base).view(kind) if is_number else pa.array(values, kind)
    rows = pa.StructArray.from_arrays(
        [column], fields=[pa.field("a", kind, nullable or name == "VOID")]
    )
    schema = json.loads(derive_schema(rows.type, "R"))
    shown = schema["fields"][0]["type"]
    assert shown == (["null", avro] if nullable and avro != "null" else avro)
    assert ("default" in schema["fields"][0]) == (nullable or avro == "null")
    back = columns_of(schema, write(schema, rows))
    assert back.field(0).cast(kind).equals(column)  # Avro has no numbers of 8 and 16 bits
    bare = json.loads(json.dumps(schema).replace('"logicalType"', '"was"'))
    assert read(bare, write(schema, rows)) == [{"a": each} for each in values]


@pytest.mark.parametrize("digits", [1, 9, 18, 19, 38])
@pytest.mark.parametrize("size", [None, 17])
def test_decimals_of_all_sizes(digits, size):
    numbers = [0, 1, -1, 127, 128, -128, -129, 255, 256, 2**63, -(2**63) - 1, 10**digits - 1]
    numbers = [n for n in [*numbers, -(10**digits) + 1] if abs(n) < 10**digits]
    column = pa.array([Decimal(n) for n in numbers], pa.decimal128(digits, 0))
    kind = {"type": "bytes"} if size is None else {"type": "fixed", "name": "F", "size": size}
    logical = {"logicalType": "decimal", "precision": digits, "scale": 0}
    schema = record(of("a", {**kind, **logical}))
    written = write(schema, pa.StructArray.from_arrays([column], ["a"]))
    assert [int(each["a"]) for each in read(schema, written)] == numbers
    if size is None:  # the shortest form, as Java's BigInteger has it
        sizes = [max((n if n >= 0 else ~n).bit_length() // 8 + 1, 1) for n in numbers]
        assert [each[0] // 2 for each in written] == sizes


def test_nested_records_have_names_of_their_paths():
    inner = pa.struct([pa.field("x", pa.int32())])
    kind = pa.struct(
        [
            pa.field("a", inner, nullable=False),
            pa.field("b", pa.list_(pa.field("element", pa.struct([pa.field("a", inner)])))),
            pa.field("m", pa.map_(pa.string(), inner)),
        ]
    )
    text = derive_schema(kind, "orders_value")
    for name in ('"a","namespace":"orders_value"', '"a","namespace":"orders_value.b"'):
        assert name in text
    rows = [{"a": {"x": 1}, "b": [{"a": {"x": 2}}, None], "m": [("k", {"x": None})]}]
    written = write(json.loads(text), pa.array(rows, kind))
    want = [{"a": {"x": 1}, "b": [{"a": {"x": 2}}, None], "m": {"k": {"x": None}}}]
    assert read(json.loads(text), written) == want


# --- rows and types that do not fit


def struct(**columns):
    return pa.StructArray.from_arrays(list(columns.values()), names=list(columns))


def test_a_null_that_the_schema_does_not_allow_names_the_column():
    column = struct(a=struct(b=pa.array([1, None], pa.int64())))
    schema = record(of("a", record(of("b", "long"), name="S")))
    with pytest.raises(SchemaError, match=r"column 'value\.a\.b': a row has null, and the Avro"):
        write(schema, column, path="value")


def test_nulls_of_a_nullable_struct_are_not_those_of_its_fields():
    inner = pa.array([{"b": 1}, None], pa.struct([pa.field("b", pa.int64())]))
    schema = record(of("a", ["null", record(of("b", "long"), name="S")]))
    assert read(schema, write(schema, struct(a=inner))) == [{"a": {"b": 1}}, {"a": None}]


def test_rows_without_a_value_stay_null():
    column = pa.array([None, {"a": 1}, None], pa.struct([pa.field("a", pa.int32())]))
    written = write(record(of("a", "int")), column, header=b"\0\0\0\0\x07")
    assert written == [None, b"\0\0\0\0\x07\x02", None]


def test_an_enum_takes_its_symbols_only():
    schema = record(of("e", {"type": "enum", "name": "E", "symbols": ["A", "B"]}))
    assert read(schema, write(schema, struct(e=pa.array(["B", "A"])))) == [{"e": "B"}, {"e": "A"}]
    with pytest.raises(SchemaError, match="column 'e': a row has 'C', which is no symbol"):
        write(schema, struct(e=pa.array(["A", "C"])))


def test_a_fixed_takes_its_size_only():
    schema = record(of("f", {"type": "fixed", "name": "F", "size": 2}))
    with pytest.raises(
        SchemaError, match="column 'f': a row has a value of another size than the 2"
    ):
        write(schema, struct(f=pa.array([b"ab", b"abc"])))


def test_times_before_1970_are_rounded_down_to_milliseconds():
    schema = record(of("t", {"type": "long", "logicalType": "timestamp-millis"}))
    times = pa.array([-1, 1999], pa.int64()).view(pa.timestamp("us", "UTC"))
    bare = record(of("t", "long"))
    assert read(bare, write(schema, struct(t=times))) == [{"t": -1}, {"t": 1}]


def test_a_missing_column_takes_its_default():
    schema = record(
        of("a", "int"), of("b", ["null", "string"], default=None), of("c", "int", default=-5)
    )
    found = read(schema, write(schema, struct(a=pa.array([1], pa.int32()))))
    assert found == [{"a": 1, "b": None, "c": -5}]


INT = pa.array([1], pa.int32())
FIXED = {"type": "fixed", "name": "F", "size": 4}
ENUM = {"type": "enum", "name": "E", "symbols": ["X", "Y"]}
INNER = record(of("x", "int"), of("y", ["null", FIXED], default=None), name="I")
BAD_DEFAULTS = [  # the type, its default, and the field at fault
    (FIXED, "abc", "d"),
    (FIXED, "abcdef", "d"),
    (["null", FIXED], "abc", "d"),
    ({**FIXED, "logicalType": "decimal", "precision": 3, "scale": 0}, "\u0001", "d"),
    ("int", 2**31, "d"),
    ("long", 2**63, "d"),
    ("float", 1e39, "d"),
    ("double", "NaN", "d"),
    ("float", True, "d"),
    ("string", "\ud800", "d"),
    ("bytes", "\u0100", "d"),
    (ENUM, "Z", "d"),
    ({"type": "array", "items": "int"}, [1, "x"], "d"),
    ({"type": "map", "values": ENUM}, {"k": "Z"}, "d"),
    (INNER, {}, "d"),
    (INNER, {"x": 1, "y": "abc"}, "d.y"),
]


@pytest.mark.parametrize(("kind", "default", "field"), BAD_DEFAULTS)
def test_a_default_that_is_no_value_of_its_type_is_refused_by_name(kind, default, field):
    # Written anyway, one of another size shifts the fields after it.
    schema = record(of("d", kind, default=default), of("a", "int"))
    with pytest.raises(SchemaError, match=rf"field {field} of the Avro|Default value"):
        write(schema, struct(a=INT))


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        ([ENUM, "string"], "Z"),
        (["int", "long"], 2**31),
        (["null", FIXED, "bytes"], "abc"),
        ([INNER, {"type": "map", "values": "int"}], {"z": 1}),
        ("float", 3.4028235e38),
        ("double", float("inf")),
        ("int", -(2**31)),
        ("long", 2**63 - 1),
        (FIXED, "abc\u00ff"),
    ],
)
def test_a_default_is_that_of_the_first_branch_that_takes_it(kind, default):
    schema = record(of("d", kind, default=default), of("a", "int"))
    [found] = read(schema, write(schema, struct(a=INT)))
    value = found["d"].decode("latin-1") if isinstance(found["d"], bytes) else found["d"]
    assert found["a"] == 1
    assert value == pytest.approx(default)


def test_a_field_that_is_there_twice_is_refused():
    inner = pa.StructArray.from_arrays(
        [INT, pa.array(["x"])], fields=[pa.field("b", pa.int32()), pa.field("b", pa.string())]
    )
    schema = record(of("a", record(of("b", "int"), name="B")))
    with pytest.raises(SchemaError, match=r"column 'a.b' is there 2 times"):
        write(schema, struct(a=inner))


UNION = record(of("a", ["string", "null", "long", record(of("x", "int"), name="P")]))
MEMBERS = pa.struct(
    [
        pa.field("member0", pa.string()),
        pa.field("member1", pa.int64()),
        pa.field("member2", pa.struct([pa.field("x", pa.int32())])),
    ]
)


def members(*rows, kind=MEMBERS):
    return struct(a=pa.array(rows, kind))


def test_a_union_is_a_struct_with_a_member_for_each_type():
    column = members(
        {"member0": "x"}, {"member1": 7}, None, {"member2": {"x": 3}}, {}, {"member0": ""}
    )
    found = read(UNION, write(UNION, column))
    assert [each["a"] for each in found] == ["x", 7, None, {"x": 3}, None, ""]
    back = columns_of(UNION, write(UNION, column)).to_pylist()
    assert back[3] == {"a": {"member0": None, "member1": None, "member2": {"x": 3}}}
    assert write(UNION, column.slice(3)) == write(UNION, column)[3:]


def test_members_may_be_missing_and_unions_be_in_lists():
    one = pa.struct([pa.field("member1", pa.int64()), pa.field("member0", pa.null())])
    assert read(UNION, write(UNION, members({"member1": 5}, None, kind=one))) == [
        {"a": 5},
        {"a": None},
    ]
    inner = pa.struct([pa.field("member0", pa.int32()), pa.field("member1", pa.string())])
    column = struct(a=pa.array([[{"member0": 1}, {"member1": "x"}], []], pa.list_(inner)))
    schema = record(of("a", {"type": "array", "items": ["int", "string"]}))
    assert read(schema, write(schema, column)) == [{"a": [1, "x"]}, {"a": []}]


def test_a_row_with_no_member_or_several_is_refused_by_name():
    without_null = record(of("a", ["int", "string"]))
    kind = pa.struct([pa.field("member0", pa.int32()), pa.field("member1", pa.string())])
    for row in ({}, None):
        with pytest.raises(SchemaError, match="column 'a': in a row all members are null"):
            write(without_null, members({"member0": 1}, row, kind=kind))
    with pytest.raises(SchemaError, match="'a': a row has several of the fields member0, member1"):
        write(without_null, members({"member0": 1, "member1": "x"}, kind=kind))


BAD = {
    "no default": (record(of("a", "int"), of("b", "int")), struct(a=INT), "'b'.*no default"),
    "no field": (record(of("price", "int")), struct(prise=INT), "'prise' is no field.*'price'"),
    "a narrow type": (record(of("a", "int")), struct(a=pa.array([1])), "is int64.*cast it to INT"),
    "a union": (
        record(of("a", ["int", "null", "string"])),
        struct(a=INT),
        "cast it to STRUCT<member0: INT, member1: STRING> with one field",
    ),
    "a strange member": (
        record(of("a", ["int", "string"])),
        struct(a=struct(member2=INT)),
        "cast it to STRUCT<member0: INT, member1: STRING>",
    ),
    "a time": (
        record(of("a", "long")),
        struct(a=pa.array([1]).view(pa.timestamp("us", "UTC"))),
        "cast it to BIGINT",
    ),
    "digits": (
        record(of("a", {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2})),
        struct(a=pa.array([Decimal(1)], pa.decimal128(4, 1))),
        r"cast it to DECIMAL\(4, 2\)",
    ),
    "keys": (
        record(of("a", {"type": "map", "values": "int"})),
        struct(a=pa.array([[(1, 1)]], pa.map_(pa.int32(), pa.int32()))),
        "has keys of the type int32",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_types_that_do_not_fit_are_refused_by_name(case):
    schema, column, said = BAD[case]
    with pytest.raises(SchemaError, match=said):
        AvroEncoder(parse_avro_schema(json.dumps(schema)), column.type)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (pa.struct([pa.field("a", pa.duration("us"))]), r"column 'a' is duration\[us\], for which"),
        (pa.struct([pa.field("a-b", pa.int32())]), "column 'a-b' has no name of Avro.*'a_b'"),
        (
            pa.struct([pa.field("a", pa.list_(pa.map_(pa.int32(), pa.int32())))]),
            "column 'a' is a MAP with keys of the type int32",
        ),
    ],
)
def test_types_that_avro_cannot_hold_are_refused_by_name(kind, said):
    with pytest.raises(SchemaError, match=said):
        derive_schema(kind, "R")


WITHOUT_NUMBA = """
import sys
sys.modules["numba"] = None
sys.path[:] = {path!r}
import test_avro_encode as tests
tests.test_decimals_of_all_sizes(38, None)
tests.test_nested_records_have_names_of_their_paths()
tests.test_nulls_of_a_nullable_struct_are_not_those_of_its_fields()
tests.test_rows_without_a_value_stay_null()
tests.test_a_union_is_a_struct_with_a_member_for_each_type()
tests.test_times_before_1970_are_rounded_down_to_milliseconds()
for name, kind, avro in tests.DERIVED_TYPES:
    tests.test_each_type_has_a_derived_schema_and_is_read_back(name, kind, avro, nullable=True)
print("done")
"""


@pytest.mark.long
def test_the_kernel_without_numba_writes_the_same():
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_NUMBA.format(path=[str(Path(__file__).parent), *sys.path])],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.stdout.strip() == "done", run.stderr
