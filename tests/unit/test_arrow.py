"""Arrow and Spark: every type, and batches that are made to fit or refused."""

import datetime as dt
import uuid
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyspark.sql.types as t
import pytest
from hypothesis import given
from hypothesis import strategies as st
from value_cases import list_meanings, nested, nested_type

from krishiv_spark.arrow import conform as fitting
from krishiv_spark.arrow.compute import sort_distinct
from krishiv_spark.arrow.conform import conform
from krishiv_spark.arrow.schemas import arrow_schema, plain_schema, spark_schema
from krishiv_spark.errors import SchemaError

at = dt.datetime.fromisoformat
UTC = pa.timestamp("us", "UTC")
NEW_YORK = pa.timestamp("us", "America/New_York")

CARRIED = [
    (t.StringType(), pa.string()),
    (t.BinaryType(), pa.binary()),
    (t.BooleanType(), pa.bool_()),
    (t.ByteType(), pa.int8()),
    (t.ShortType(), pa.int16()),
    (t.IntegerType(), pa.int32()),
    (t.LongType(), pa.int64()),
    (t.FloatType(), pa.float32()),
    (t.DoubleType(), pa.float64()),
    (t.DecimalType(38, 18), pa.decimal128(38, 18)),
    (t.DecimalType(1, 0), pa.decimal128(1, 0)),
    (t.DateType(), pa.date32()),
    (t.TimestampType(), UTC),
    (t.TimestampNTZType(), pa.timestamp("us")),
    (t.DayTimeIntervalType(), pa.duration("us")),
    (t.NullType(), pa.null()),
    (t.ArrayType(t.TimestampType()), pa.list_(UTC)),
    (t.MapType(t.StringType(), t.TimestampType()), pa.map_(pa.string(), UTC)),
    (t.StructType([t.StructField("t", t.TimestampType())]), pa.struct([("t", UTC)])),
    (
        t.ArrayType(t.StructType([t.StructField("m", t.MapType(t.LongType(), t.TimestampType()))])),
        pa.list_(pa.struct([("m", pa.map_(pa.int64(), UTC))])),
    ),
]
if hasattr(t, "TimeType"):
    CARRIED.append((t.TimeType(6), pa.time64("ns")))

REFUSED = [
    t.YearMonthIntervalType(),
    t.CalendarIntervalType(),
    t.ArrayType(t.YearMonthIntervalType()),
    t.StructType([t.StructField("i", t.CalendarIntervalType())]),
    t.MapType(t.StringType(), t.YearMonthIntervalType()),
]


def one(kind: t.DataType, *, nullable: bool = True) -> t.StructType:
    return t.StructType([t.StructField("fine", t.LongType()), t.StructField("c", kind, nullable)])


@pytest.mark.parametrize(("spark", "arrow"), CARRIED, ids=[s.simpleString() for s, _ in CARRIED])
@pytest.mark.parametrize("nullable", [True, False])
def test_a_type_is_carried_there_and_back(spark, arrow, nullable):
    nullable = nullable or isinstance(spark, t.NullType)
    schema = arrow_schema(one(spark, nullable=nullable))
    assert schema.field("c").type == arrow
    assert schema.field("c").nullable is nullable
    back = spark_schema(schema)["c"]
    assert back.nullable is nullable
    if not isinstance(spark, t.DayTimeIntervalType):  # comes back with its default fields named
        assert back.dataType == spark


def test_every_type_of_spark_is_carried_or_refused_on_purpose():
    seen = {type(spark) for spark, _ in CARRIED} | {type(spark) for spark in REFUSED}
    seen |= {t.CharType, t.VarcharType, t.VariantType, t.UserDefinedType}
    abstract = {"DataType", "AtomicType", "NumericType", "IntegralType", "FractionalType"}
    abstract |= {"AnsiIntervalType", "AnyTimeType", "DatetimeType", "SpatialType"}
    spatial = {"GeometryType", "GeographyType"}  # 4.1 and later, as structs
    types = {
        kind
        for kind in vars(t).values()
        if isinstance(kind, type) and issubclass(kind, t.DataType) and kind is not t.StructField
    }
    assert {kind.__name__ for kind in types - seen} <= abstract | spatial


@pytest.mark.parametrize("spark", REFUSED, ids=lambda spark: spark.simpleString())
def test_what_arrow_cannot_carry_is_refused_by_name(spark):
    with pytest.raises(SchemaError, match=r"column 'c' has type .*interval.*: cast it"):
        arrow_schema(one(spark))


def test_a_variant_can_be_told_from_a_struct_like_it():
    kind = arrow_schema(one(t.VariantType())).field("c").type
    assert any((kind.field(i).metadata or {}).get(b"variant") for i in range(kind.num_fields))


def test_a_schema_carries_no_metadata_of_its_columns():
    field = t.StructField("c", t.LongType(), metadata={"comment": "x"})
    assert arrow_schema(t.StructType([field])).field("c").metadata is None


@pytest.mark.parametrize(
    "kind",
    [pa.duration("ns"), pa.month_day_nano_interval(), pa.run_end_encoded(pa.int32(), pa.int64())],
    ids=str,
)
def test_an_arrow_type_without_counterpart_is_refused_by_name(kind):
    try:
        schema = spark_schema(pa.schema([("fine", pa.int64()), ("c", kind)]))
    except SchemaError as error:
        assert "column 'c' has the Arrow type" in str(error)  # noqa: PT017
    else:
        assert pa.types.is_duration(kind), schema


# --- plain schemas

PLAIN = [
    (pa.dictionary(pa.int8(), pa.string()), pa.string()),
    (pa.dictionary(pa.int32(), pa.dictionary(pa.int8(), pa.uint8())), pa.int16()),
    (pa.uint8(), pa.int16()),
    (pa.uint16(), pa.int32()),
    (pa.uint32(), pa.int64()),
    (pa.uint64(), pa.decimal128(20, 0)),
    (pa.float16(), pa.float32()),
    (pa.timestamp("s"), pa.timestamp("us")),
    (pa.timestamp("ns"), pa.timestamp("us")),
    (pa.timestamp("ns", "Asia/Tokyo"), UTC),
    (pa.timestamp("ms", "+02:00"), UTC),
    (pa.large_string(), pa.string()),
    (pa.string_view(), pa.string()),
    (pa.large_binary(), pa.binary()),
    (pa.binary_view(), pa.binary()),
    (pa.binary(16), pa.binary()),
    (pa.date64(), pa.date32()),
    (pa.time32("s"), pa.time64("ns")),
    (pa.time32("ms"), pa.time64("ns")),
    (pa.time64("us"), pa.time64("ns")),
    (pa.large_list(pa.large_string()), pa.list_(pa.string())),
    (pa.list_(pa.uint8(), 3), pa.list_(pa.int16())),
    (pa.struct([("a", pa.uint64())]), pa.struct([("a", pa.decimal128(20, 0))])),
    (
        pa.map_(pa.large_string(), pa.list_(pa.timestamp("ns", "UTC"))),
        pa.map_(pa.string(), pa.list_(UTC)),
    ),
    (pa.list_(pa.dictionary(pa.int8(), pa.string())), pa.list_(pa.string())),
]


@pytest.mark.parametrize(("kind", "plain"), PLAIN, ids=[str(kind) for kind, _ in PLAIN])
def test_a_type_becomes_the_plain_one_that_holds_its_values(kind, plain):
    schema = pa.schema([pa.field("c", kind, nullable=False, metadata={"a": "b"})])
    assert plain_schema(schema).field("c") == pa.field("c", plain, nullable=False)
    assert plain_schema(plain_schema(schema)) == plain_schema(schema)


@pytest.mark.parametrize("arrow", [arrow for _, arrow in CARRIED], ids=str)
def test_what_spark_writes_is_plain_already(arrow):
    schema = pa.schema([("c", arrow)])
    assert plain_schema(schema) == schema


VALUES = [
    (pa.dictionary(pa.int8(), pa.string()), ["a", None, "a"], ["a", None, "a"]),
    (pa.uint8(), [255, None], [255, None]),
    (pa.uint32(), [2**32 - 1], [2**32 - 1]),
    (pa.uint64(), [2**64 - 1, 0], [Decimal(2**64 - 1), Decimal(0)]),
    (pa.float16(), [0.5, None], [0.5, None]),
    (pa.large_string(), ["é"], ["é"]),
    (pa.string_view(), ["é", None], ["é", None]),
    (pa.binary_view(), [b"\xff"], [b"\xff"]),
    (pa.binary(2), [b"ab"], [b"ab"]),
    (pa.date64(), [dt.date(1969, 12, 31)], [dt.date(1969, 12, 31)]),
    (pa.time32("ms"), [dt.time(1, 2, 3)], [dt.time(1, 2, 3)]),
    (pa.large_list(pa.large_string()), [["a", None], None], [["a", None], None]),
    (pa.list_(pa.uint8(), 2), [[1, 2]], [[1, 2]]),
    (pa.struct([("a", pa.uint16())]), [{"a": 65535}, None], [{"a": 65535}, None]),
    (pa.list_(pa.dictionary(pa.int8(), pa.string())), [["x", None]], [["x", None]]),
    (pa.map_(pa.large_string(), pa.uint8()), [[("k", 1)]], [[("k", 1)]]),
]


@pytest.mark.parametrize(("kind", "values", "expected"), VALUES, ids=[str(v[0]) for v in VALUES])
def test_values_are_made_to_fit_their_plain_type(kind, values, expected):
    batch = pa.record_batch({"c": pa.array(values, kind)})
    fitted = conform(batch, plain_schema(batch.schema))
    assert fitted.column("c").to_pylist() == expected
    fitted.validate(full=True)


# --- batches


def test_a_batch_that_fits_is_not_touched():
    batch = pa.record_batch({"a": [1], "b": ["x"]})
    assert conform(batch, batch.schema) is batch


def test_columns_are_taken_by_name_and_others_left_out():
    batch = pa.record_batch({"b": ["x"], "more": [0.5], "a": [1]})
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    assert conform(batch, schema).to_pydict() == {"a": [1], "b": ["x"]}
    assert conform(batch, schema).schema == schema


def test_a_missing_column_is_named_with_those_that_are_there():
    with pytest.raises(SchemaError, match="no column 'c' among a, b"):
        conform(pa.record_batch({"a": [1], "b": [2]}), pa.schema([("c", pa.int64())]))


@pytest.mark.parametrize("kind", [pa.int32(), pa.int64()], ids=str)
def test_a_null_in_a_column_without_nulls_is_refused_by_name(kind):
    batch = pa.record_batch({"c": pa.array([1, None], pa.int32())})
    with pytest.raises(SchemaError, match="'c' has nulls"):
        conform(batch, pa.schema([pa.field("c", kind, nullable=False)]))


def test_fields_of_structs_are_taken_by_name_too():
    batch = pa.record_batch({"c": pa.array([{"A": 1, "b": "x", "more": 0}])})
    wanted = pa.struct([("b", pa.string()), ("gone", pa.int64()), ("a", pa.decimal128(19, 0))])
    fitted = conform(batch, pa.schema([("c", wanted)]))
    assert fitted.column("c").to_pylist() == [{"b": "x", "gone": None, "a": 1}]


def test_a_column_is_found_in_any_case_unless_case_tells_columns_apart():
    batch = pa.record_batch({"ID": [1], "b": [2]})
    assert conform(batch, pa.schema([("id", pa.int64())])).to_pydict() == {"id": [1]}
    both = pa.schema([("id", pa.int64()), ("ID", pa.int64())])
    assert conform(batch, both, fill=True).to_pydict() == {"id": [None], "ID": [1]}
    batch = pa.record_batch([pa.array([1]), pa.array([2])], names=["Id", "ID"])
    assert conform(batch, pa.schema([("ID", pa.int64())])).to_pydict() == {"ID": [2]}
    with pytest.raises(SchemaError, match="column 'id' could be any of 'Id' and 'ID'"):
        conform(batch, pa.schema([("id", pa.int64())]))


def test_a_column_that_is_there_twice_is_refused_where_it_is_wanted():
    batch = pa.record_batch([pa.array([1])] * 3, names=["a", "a", "b"])
    assert conform(batch, pa.schema([("b", pa.int64())])).to_pydict() == {"b": [1]}
    with pytest.raises(SchemaError, match="column 'a' could be any of 'a' and 'a'"):
        conform(batch, pa.schema([("a", pa.int64())]))


NOWHERE_NULL = [
    (pa.array([{"a": 1}]), pa.struct([pa.field("b", pa.int64(), nullable=False)]), "c.b"),
    (pa.array([{"a": None}]), pa.struct([pa.field("a", pa.int64(), nullable=False)]), "c.a"),
    (pa.array([[1, None]]), pa.list_(pa.field("e", pa.int64(), nullable=False)), "c.element"),
    (
        pa.array([[("k", None)]], pa.map_(pa.string(), pa.int64())),
        pa.map_(pa.string(), pa.field("v", pa.int64(), nullable=False)),
        "c.value",
    ),
]


@pytest.mark.parametrize(("column", "kind", "path"), NOWHERE_NULL, ids=[n[2] for n in NOWHERE_NULL])
def test_a_null_inside_of_a_column_is_refused_where_there_must_be_none(column, kind, path):
    with pytest.raises(SchemaError, match=rf"column '{path}' .*NOT NULL"):
        conform(pa.record_batch({"c": column}), pa.schema([("c", kind)]))


def test_a_field_that_is_never_null_may_be_in_a_struct_that_is():
    kind = pa.struct([pa.field("a", pa.int64(), nullable=False)])
    column = pa.array([{"a": 1}, None], pa.struct([("a", pa.int32())]))
    fitted = conform(pa.record_batch({"c": column}), pa.schema([("c", kind)]))
    assert fitted.column("c").to_pylist() == [{"a": 1}, None]


WIDER = [
    (pa.array([-128, 127], pa.int8()), pa.int16()),
    (pa.array([2**32 - 1], pa.uint32()), pa.int64()),
    (pa.array([2**64 - 1], pa.uint64()), pa.decimal128(20, 0)),
    (pa.array([-(2**63)]), pa.decimal128(21, 2)),
    (pa.array([2**31 - 1], pa.int32()), pa.float64()),
    (pa.array([0.1, -0.0], pa.float32()), pa.float64()),
    (pa.array([Decimal("-9.99")], pa.decimal128(3, 2)), pa.decimal128(5, 3)),
    (pa.array([dt.date(1, 1, 1), None]), pa.timestamp("us")),
    (pa.array([5], pa.timestamp("s")), pa.timestamp("us")),
    (pa.array([5_000], pa.timestamp("ns", "Asia/Tokyo")), UTC),
    (pa.array([b"\xc3\xa9", None]), pa.string()),
    (pa.array(["é"]), pa.binary()),
    (pa.array([b"abcd"]), pa.binary(4)),
    (pa.nulls(2), pa.list_(pa.int64())),
    (pa.array([[1, None], None, [3, 4]], pa.list_view(pa.int32())), pa.list_(pa.int64())),
    (pa.array([[1, 2], None], pa.list_(pa.int8(), 2)), pa.list_(pa.int64())),
    (pa.array(["x", None]).dictionary_encode(), pa.dictionary(pa.int8(), pa.string())),
    (pa.array(["x", None]), pa.dictionary(pa.int32(), pa.string())),
]


@pytest.mark.parametrize(("column", "kind"), WIDER, ids=[f"{c.type}-{k}" for c, k in WIDER])
def test_a_type_becomes_one_that_holds_all_of_its_values(column, kind):
    for values in (column, column.slice(1)):
        fitted = conform(pa.record_batch({"c": values}), pa.schema([("c", kind)])).column("c")
        fitted.validate(full=True)
        assert fitted.type == kind
        assert list_meanings(fitted) == list_meanings(values)


def test_uuids_become_their_text_at_any_depth():
    text = "00000000-0000-0000-0000-000000000007"
    stored = pa.array([uuid.UUID(text).bytes, None], pa.binary(16))
    uuids = pa.ExtensionArray.from_storage(pa.uuid(), stored)
    batch = pa.record_batch({"c": nested(uuids, "array of struct")})
    fitted = conform(batch, plain_schema(batch.schema))
    assert fitted.column("c").to_pylist() == [[{"f": text}], [{"f": None}]]


MISFITS = [
    (pa.array([2**31]), pa.int32()),
    (pa.array([1]), pa.int32()),  # whatever the value: a later one need not fit
    (pa.array([-1]), pa.uint8()),
    (pa.array([5, 0]), pa.bool_()),
    (pa.array([True]), pa.int64()),
    (pa.array([1.5]), pa.int64()),
    (pa.array([1e300, 0.1]), pa.float32()),
    (pa.array([2**24 + 1], pa.int32()), pa.float32()),
    (pa.array([2**53 + 1]), pa.float64()),
    (pa.array([1.005]), pa.decimal128(10, 2)),
    (pa.array([1]), pa.decimal128(18, 0)),
    (pa.array([Decimal("1.25")]), pa.decimal128(10, 1)),
    (pa.array([Decimal(12345)]), pa.decimal128(4, 0)),
    (pa.array([Decimal("12.34")]), pa.decimal128(5, 4)),
    (pa.array([Decimal("1.5")]), pa.float64()),
    (pa.array(["12"]), pa.int64()),
    (pa.array([12]), pa.string()),
    (pa.array([1577836800]), UTC),
    (pa.array([at("2020-01-01T23:59:00")]), pa.date32()),
    (pa.array([dt.date(2020, 1, 1)]), UTC),
    (pa.array([dt.date(2020, 1, 1)]), pa.int32()),
    (pa.array([at("2020-01-01T00:00:00")]), UTC),
    (pa.array([0], NEW_YORK), pa.timestamp("us")),
    (pa.array([1], pa.timestamp("ns")), pa.timestamp("us")),
    (pa.array([2**62], pa.timestamp("s")), pa.timestamp("us")),
    (pa.array([1], pa.time64("ns")), pa.time64("us")),
    (pa.array([b"\xff"]), pa.string()),
    (pa.array([b"abcd"], pa.binary(4)), pa.string()),
    (pa.array([b"abc"]), pa.binary(4)),
    (pa.array([[1]]), pa.int64()),
    (pa.array([{"a": 1}]), pa.map_(pa.string(), pa.int64())),
]


@pytest.mark.long
@pytest.mark.parametrize(("column", "kind"), MISFITS, ids=[f"{c.type}-{k}" for c, k in MISFITS])
@pytest.mark.parametrize("path", ["c", "c.f", "c.element", "c.value", "c.key", "c.element.f"])
def test_what_may_lose_a_value_is_refused_by_name_at_any_depth(column, kind, path):
    nestings = {"f": "struct", "element": "array", "value": "map"}
    steps = path.split(".")[1:]
    held, wanted = column, kind
    for step in reversed(steps):
        if step == "key":
            one_each = pa.array(range(len(held) + 1), pa.int32())
            held = pa.MapArray.from_arrays(one_each, held, pa.nulls(len(held)))
            wanted = pa.map_(wanted, pa.null())
        else:
            held, wanted = nested(held, nestings[step]), nested_type(wanted, nestings[step])
    with pytest.raises(SchemaError, match=rf"column '{path}' of type .* does not fit"):
        conform(pa.record_batch({"c": held}), pa.schema([("c", wanted)]))


def test_a_time_without_zone_is_an_instant_where_its_zone_is_known():
    # One that clocks passed over, and one that came twice.
    times = [at("2020-03-08T02:30:00"), at("2020-11-01T01:30:00"), None]
    batch = pa.record_batch({"c": pa.array([times], pa.list_(pa.timestamp("us")))})
    fitted = conform(batch, pa.schema([("c", pa.list_(UTC))]), zone="America/New_York")
    hours = [at("2020-03-08T07:30:00+00:00"), at("2020-11-01T05:30:00+00:00"), None]
    assert fitted.column("c").to_pylist() == [hours]


def test_two_schemas_are_compared_once_however_many_batches_there_are(monkeypatch):
    batch = pa.record_batch({"c": pa.array([1], pa.int8())})
    wanted = pa.schema([("c", pa.int16())])
    conform(batch, wanted)
    monkeypatch.setattr(fitting, "places", None)
    assert conform(batch, wanted).column("c").to_pylist() == [1]


instants = st.datetimes(at("0001-01-02"), at("9999-12-30"), timezones=st.just(dt.timezone.utc))


@given(st.lists(st.none() | instants, max_size=5))
def test_instants_of_the_sessions_zone_stay_the_same_instants(times):
    nested = pa.struct([("at", NEW_YORK), ("all", pa.list_(NEW_YORK))])
    batch = pa.record_batch(
        {
            "at": pa.array(times, NEW_YORK),
            "nested": pa.array([{"at": at, "all": [at]} for at in times], nested),
            "mapped": pa.array([[("k", at)] for at in times], pa.map_(pa.string(), NEW_YORK)),
        }
    )
    fitted = conform(batch, plain_schema(batch.schema))
    assert fitted.schema.field("nested").type == pa.struct([("at", UTC), ("all", pa.list_(UTC))])
    assert fitted.column("at").to_pylist() == times
    assert fitted.column("nested").to_pylist() == [{"at": at, "all": [at]} for at in times]
    assert fitted.column("mapped").to_pylist() == [[("k", at)] for at in times]


@given(st.lists(st.none() | st.integers(-(2**31), 2**31 - 1)), st.integers(0, 5))
def test_slices_are_made_to_fit_like_whole_batches(values, offset):
    batch = pa.record_batch({"c": pa.array(values, pa.int32())}).slice(offset)
    fitted = conform(batch, pa.schema([("c", pa.int64())]))
    assert fitted.column("c").to_pylist() == values[offset:]


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint64])
@pytest.mark.parametrize("values", [[], [3], [5, 1, 5, 5, 2, 1], [*range(1000)] * 2])
def test_distinct_integers_are_in_order(values, kind):
    found = sort_distinct(np.array(values, kind))
    assert (found.tolist(), found.dtype) == (sorted({*values}), kind)
