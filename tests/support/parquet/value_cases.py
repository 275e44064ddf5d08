"""Columns as files hold them, and types that are asked for: every pair, and edge values of each.

What Spark's own reader makes of each pair is recorded by `record_values.py`.
"""

import datetime as dt
import uuid
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

UTC = pa.timestamp("us", "UTC")
_DAY_US = 86_400_000_000
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896  # 0001-01-01, 9999-12-31
_DAYS = [_FIRST_DAY, -141_428, -141_427, -1, 0, 1, _LAST_DAY, None]
_MICROS = [
    _FIRST_DAY * _DAY_US,
    -2_208_988_800_000_001,
    -1,
    0,
    1,
    1_577_836_800_123_456,
    (_LAST_DAY + 1) * _DAY_US - 1,
    None,
]
_MILLIS = [None if us is None else us // 1000 for us in _MICROS]
_FLOATS = [0.0, -0.0, 1.0, 5.0, 0.1, 1.5, 1e300, float("nan"), float("inf"), float("-inf"), None]
_HALVES = [0.0, -0.0, 0.5, 65504.0, float("nan"), float("inf"), None]
_SINGLES = [value for value in _FLOATS if value != 1e300]


@dataclass(frozen=True)
class Stored:
    """A column as a file holds it.

    Attributes:
        name: What the records call it.
        column: Its values.
        options: How pyarrow writes the file.
    """

    name: str
    column: pa.Array
    options: dict[str, Any] = field(default_factory=dict)


def _integers(kind: pa.DataType) -> Stored:
    signed = pa.types.is_signed_integer(kind)
    bits = kind.bit_width - signed
    least = -(2**bits) if signed else 0
    values = [least, 0, 1, 5, 2**bits - 1, None]
    return Stored(str(kind), pa.array(values, kind))


def _decimals(precision: int, scale: int, **options: Any) -> Stored:
    most = f"{10**precision - 1}e-{scale}"  # as text: arithmetic rounds to 28 digits
    values = [Decimal(f"-{most}"), Decimal(0), Decimal(f"1e-{scale}"), Decimal(most), None]
    name = f"decimal({precision},{scale})" + (" as integer" if options else "")
    return Stored(name, pa.array(values, pa.decimal128(precision, scale)), options)


STORED = [
    Stored("boolean", pa.array([True, False, None])),
    *map(_integers, (pa.int8(), pa.int16(), pa.int32(), pa.int64())),
    *map(_integers, (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())),
    Stored("halffloat", pa.array(_HALVES, pa.float16())),
    Stored("float", pa.array(_SINGLES, pa.float32())),
    Stored("double", pa.array(_FLOATS, pa.float64())),
    _decimals(5, 2),
    _decimals(9, 0),
    _decimals(18, 3),
    _decimals(38, 10),
    _decimals(5, 2, store_decimal_as_integer=True),
    _decimals(18, 3, store_decimal_as_integer=True),
    Stored("date", pa.array(_DAYS, pa.date32())),
    Stored("timestamp[ms, UTC]", pa.array(_MILLIS, pa.timestamp("ms", "UTC"))),
    Stored("timestamp[us, UTC]", pa.array(_MICROS, UTC)),
    Stored("timestamp[us, New York]", pa.array(_MICROS, pa.timestamp("us", "America/New_York"))),
    Stored("timestamp[ns, UTC]", pa.array([0, 1_000, None], pa.timestamp("ns", "UTC"))),
    Stored("timestamp[ms]", pa.array(_MILLIS, pa.timestamp("ms"))),
    Stored("timestamp[us]", pa.array(_MICROS, pa.timestamp("us"))),
    Stored("timestamp[ns]", pa.array([0, 1_000, None], pa.timestamp("ns"))),
    Stored(
        "int96",
        pa.array(_MICROS, pa.timestamp("us")),
        {"use_deprecated_int96_timestamps": True},
    ),
    Stored("time[ms]", pa.array([dt.time(12, 34, 56, 789_000), None], pa.time32("ms"))),
    Stored("time[us]", pa.array([dt.time(0), dt.time(23, 59, 59, 999_999), None])),
    Stored("time[ns]", pa.array([0, 86_399_999_999_000, None], pa.time64("ns"))),
    Stored("string", pa.array(["", "12", "ü日😀", None])),
    Stored("large_string", pa.array(["", "a", None], pa.large_string())),
    Stored("dictionary", pa.array(["", "a", None, "a"]).dictionary_encode()),
    Stored("binary", pa.array([b"", b"\x00", b"12", None])),
    Stored("binary that is no text", pa.array([b"\xff", None])),
    Stored("fixed_size_binary", pa.array([b"abcd", b"\xff\x00\x01\x02", None], pa.binary(4))),
    Stored("uuid", pa.array([uuid.UUID(int=7).bytes, None], pa.binary(16)).cast(pa.uuid())),
    Stored("null", pa.nulls(2)),
    Stored("duration", pa.array([0, -1, 86_400_000_000, None], pa.duration("us"))),
]

WANTED = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "decimal(3,0)": pa.decimal128(3, 0),
    "decimal(5,0)": pa.decimal128(5, 0),
    "decimal(5,1)": pa.decimal128(5, 1),
    "decimal(5,2)": pa.decimal128(5, 2),
    "decimal(7,2)": pa.decimal128(7, 2),
    "decimal(7,4)": pa.decimal128(7, 4),
    "decimal(10,0)": pa.decimal128(10, 0),
    "decimal(12,2)": pa.decimal128(12, 2),
    "decimal(18,3)": pa.decimal128(18, 3),
    "decimal(20,0)": pa.decimal128(20, 0),
    "decimal(22,2)": pa.decimal128(22, 2),
    "decimal(38,0)": pa.decimal128(38, 0),
    "decimal(38,10)": pa.decimal128(38, 10),
    "decimal(38,18)": pa.decimal128(38, 18),
    "date": pa.date32(),
    "timestamp": UTC,
    "timestamp_ntz": pa.timestamp("us"),
    "time(6)": pa.time64("ns"),
    "string": pa.string(),
    "binary": pa.binary(),
}

NESTINGS = ("column", "struct", "array", "map", "array of struct")
"""The nestings of a value: in a column, or inside of another value."""


def nested(values: pa.Array, nesting: str) -> pa.Array:
    """A column with one value in each row, at some place."""
    count = len(values)
    one_each = pa.array(range(count + 1), pa.int32())
    if nesting == "struct":
        return pa.StructArray.from_arrays([values], ["f"])
    if nesting == "array":
        return pa.ListArray.from_arrays(one_each, values)
    if nesting == "map":
        return pa.MapArray.from_arrays(one_each, pa.array(["k"] * count), values)
    if nesting == "array of struct":
        return pa.ListArray.from_arrays(one_each, nested(values, "struct"))
    return values


def nested_type(kind: pa.DataType, nesting: str) -> pa.DataType:
    """The type of a column whose values have a type, at some place."""
    return {
        "column": kind,
        "struct": pa.struct([("f", kind)]),
        "array": pa.list_(kind),
        "map": pa.map_(pa.string(), kind),
        "array of struct": pa.list_(pa.struct([("f", kind)])),
    }[nesting]


def nested_ddl(ddl: str, nesting: str) -> str:
    """The same as Spark writes it."""
    return {
        "column": ddl,
        "struct": f"struct<f: {ddl}>",
        "array": f"array<{ddl}>",
        "map": f"map<string, {ddl}>",
        "array of struct": f"array<struct<f: {ddl}>>",
    }[nesting]


def unnest_values(column: pa.Array, nesting: str) -> pa.Array:
    """The values of a column that has one in each row, at some place."""
    if nesting == "struct":
        return column.field(0)
    if nesting == "array":
        return column.flatten()
    if nesting == "map":
        return column.items
    return unnest_values(column.flatten(), "struct") if nesting == "array of struct" else column


def write(stored: Stored, nesting: str, path: Path) -> None:
    """A file with one column, `c`."""
    pq.write_table(pa.table({"c": nested(stored.column, nesting)}), path, **stored.options)


def texts(values: pa.Array) -> list[str | None]:
    """Values in one form, which tells all of them apart that Spark can tell apart."""
    return [_text(value) for value in values]


def _text(value: pa.Scalar) -> str | None:
    kind = value.type
    if not value.is_valid:
        return None
    if pa.types.is_temporal(kind):
        return str(value.value // 1000 if pa.types.is_time(kind) else value.value)
    if pa.types.is_floating(kind):
        return repr(float(value.as_py()))
    if pa.types.is_decimal(kind):
        return format(value.as_py(), "f")
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return value.as_buffer().to_pybytes().hex()
    return str(value.as_py()).lower()


def array_of(found: list[str | None], kind: pa.DataType) -> pa.Array:
    """The values that texts stand for; text as bytes, since Spark's need not be UTF-8."""
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return pa.array([None if text is None else bytes.fromhex(text) for text in found])
    return pa.array([None if text is None else _value(text, kind) for text in found], kind)


def _value(text: str, kind: pa.DataType) -> Any:
    if pa.types.is_boolean(kind):
        return text == "true"
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return float(text) if pa.types.is_floating(kind) else Decimal(text)
    return int(text) * (1000 if pa.types.is_time(kind) else 1)


def list_meanings(values: pa.Array) -> list[Any]:
    """Return the meanings of values of any type: equal ones are the same value."""
    if isinstance(values, pa.DictionaryArray):
        values = values.dictionary_decode()
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if pa.types.is_nested(values.type):
        return values.to_pylist()
    return [_meaning(value) for value in values]


def _moment(value: pa.Scalar) -> tuple[str, int]:
    kind = value.type
    if pa.types.is_date(kind):
        return "wall time", value.value * 86_400 * _NS_PER["s"]
    zone = kind.tz if pa.types.is_timestamp(kind) else None
    name = "wall time" if pa.types.is_timestamp(kind) else str(kind)[:4]
    return "instant" if zone else name, value.value * _NS_PER[kind.unit]


_NS_PER = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}


def _meaning(value: pa.Scalar) -> Any:
    kind = value.type
    if not value.is_valid:
        return None
    if pa.types.is_boolean(kind):
        return ("truth", value.as_py())
    if pa.types.is_temporal(kind):
        return _moment(value)
    if pa.types.is_floating(kind):
        number = float(value.as_py())
        return Fraction(number) if abs(number) < float("inf") and number else repr(number)
    if pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        return Fraction(value.as_py()) or "0.0"
    return value.as_buffer().to_pybytes()
