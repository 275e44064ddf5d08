"""Avro records of many pairs of schemas, beside Spark's own ``from_avro`` and fastavro."""

import io
import json
import math
import re
from decimal import Decimal

import fastavro
import numpy as np
import pyarrow as pa
import pyspark
import pytest
from avro_pairs import PAIRS, Pair
from pyspark.sql.pandas.types import from_arrow_type

from benchmarks.peer import SPARK_AVRO, peer_jars
from krishiv_spark.errors import SchemaError
from krishiv_spark.kafka.schemas.avro.avro_decode import AvroDecoder
from krishiv_spark.kafka.schemas.avro.avro_types import find_single_type, parse_avro_schema

pytestmark = [
    pytest.mark.long,  # 2 500 expressions, each of which Spark compiles
    pytest.mark.skipif(
        pyspark.__version__[:3] not in SPARK_AVRO.lines, reason="spark-avro has no such version"
    ),
]

BAD, REFUSED = "bad", "refused"
AT_ONCE = 60  # expressions of one query

KNOWN = {
    "timestamp-nanos": "a number; spark-avro 4.2.0 refuses the type",
    "time-micros": "a number; TIME(6) in Spark, which PySpark 4.0 does not have",
    "text": "bytes that are no UTF-8 are a bad record; Spark has an invalid STRING",
    "scale": "a decimal of another scale is a bad record; Spark reads another number",
    "unit": "a time of another unit is the same time; Spark reads its number",
    "an alias that is the name of another field": "the field of the name counts, and the alias "
    "finds nothing; in Spark the alias counts, and a field is missing",
}
"""The differences to Spark: by the name of a pair, or of what several have in common."""

KNOWN_OF_FASTAVRO = {
    "another name of the record": "is read by its fields, as in Spark",
    "another name of the record in a union": "likewise",
    "records of a union that differ by name alone": "are found by their names, as in Spark",
    "default of bytes": "fastavro returns the text of the schema",
    "default of fixed": "likewise",
    "default of record": "fastavro does not use the defaults within it",
    "default of decimal": "fastavro returns the text of the schema",
}
"""The differences to fastavro, besides decimals of another scale, times of another unit and the
branches of unions: it takes the first one to which a number can be promoted, and not the one of the
number's own type."""


@pytest.fixture(scope="module")
def avro(spark):
    """A session with Spark's functions of Avro."""
    (jar,) = peer_jars(SPARK_AVRO)
    spark.sql(f"ADD JAR '{jar}'")
    return spark


@pytest.mark.parametrize("group", PAIRS)
def test_rows_are_those_of_from_avro(avro, group):
    pairs = PAIRS[group]()
    records = [encode(pair) for pair in pairs]
    found = []
    for at in range(0, len(pairs), AT_ONCE):
        part = slice(at, at + AT_ONCE)
        theirs = read_by_spark(avro, pairs[part], records[part])
        for pair, each, of_spark in zip(pairs[part], records[part], theirs, strict=True):
            ours = read(pair, each)
            if ours != of_spark and explain(pair, ours, of_spark) is None:
                found.append(f"{pair.name}: ours {ours}, from_avro {of_spark}")
    assert not found, "\n".join(found)


@pytest.mark.parametrize("group", PAIRS)
def test_rows_are_those_of_fastavro(group):
    found = []
    for pair in PAIRS[group]():
        records = encode(pair)
        kind, ours = read(pair, records)
        if kind == REFUSED:
            continue
        of_fastavro = read_by_fastavro(pair, records)
        if ours != of_fastavro and not is_known_of_fastavro(pair):
            found.append(f"{pair.name}: ours {ours}, fastavro {of_fastavro}")
    assert not found, "\n".join(found)


def encode(pair: Pair) -> list[bytes]:
    parsed, found = fastavro.parse_schema(pair.writer), []
    for value in pair.values:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, value)
        found.append(out.getvalue())
    return found


def read(pair: Pair, records: list[bytes]):
    """The type of the rows as Spark names it, and the rows as texts; BAD for a bad record."""
    try:
        writer, reader = (parse_avro_schema(json.dumps(s)) for s in (pair.writer, pair.reader))
    except SchemaError:
        return REFUSED, None
    kind = from_arrow_type(reader.arrow).simpleString()
    try:
        decoder = AvroDecoder(writer, reader)
    except SchemaError:  # the reason why each record is bad
        return kind, [BAD] * len(records)
    ends = np.cumsum([len(each) for each in records]).astype(np.int64)
    starts = np.concatenate(([0], ends[:-1])).astype(np.int64)
    found = decoder.decode(np.frombuffer(b"".join(records), np.uint8), starts, ends)
    rows = to_texts(found.values)
    return kind, [BAD if n in found.errors else row for n, row in enumerate(rows)]


# --- Spark


def read_by_spark(spark, pairs, records):
    """As `read`, in one query: a column for each pair."""
    most = max(map(len, records))
    table = pa.table(
        {
            f"b{n}": pa.array([*each, *[None] * (most - len(each))], pa.binary())
            for n, each in enumerate(records)
        }
    )
    frame = spark.createDataFrame(table).coalesce(1)
    kinds = {}
    for n, pair in enumerate(pairs):
        try:
            kinds[n] = frame.selectExpr(_from_avro(n, pair)).schema[0].dataType.simpleString()
        except Exception:  # noqa: BLE001  a class of its own for each kind of refusal
            kinds[n] = REFUSED
    readable = [n for n, kind in kinds.items() if kind != REFUSED]
    rows = frame.selectExpr(*(_from_avro(n, pairs[n]) for n in readable)).toArrow()
    return [
        (kinds[n], None)
        if kinds[n] == REFUSED
        else (kinds[n], _to_rows(rows[f"v{n}"], len(records[n])))
        for n in kinds
    ]


def _from_avro(n, pair):
    writer, reader = (_quote(json.dumps(each)) for each in (pair.writer, pair.reader))
    return f"from_avro(b{n}, {writer}, map('mode', 'PERMISSIVE', 'avroSchema', {reader})) v{n}"


def _quote(text):
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _to_rows(column, count):
    values = pa.concat_arrays(column.chunks).slice(0, count)
    is_good = [flag == 1 for flag in values.field("ok").to_pylist()]
    return [row if good else BAD for row, good in zip(to_texts(values), is_good, strict=True)]


def explain(pair, ours, theirs):  # noqa: PLR0911  one per difference
    """The name of a known difference; None if there is none."""
    schemas = json.dumps([pair.writer, pair.reader])
    if pair.name in KNOWN:
        return pair.name
    if "timestamp-nanos" in schemas and theirs[0] == REFUSED:
        return "timestamp-nanos"
    if ours[0] != theirs[0] and ours[0] != theirs[0].replace("time(6)", "bigint"):
        return None
    if _has_other_unit(pair):
        return "unit"
    different = [(a, b) for a, b in zip(ours[1], theirs[1], strict=True) if a != b]
    if not different or pair.name.endswith((" time-micros", " [null, time-micros]")):
        return "time-micros"
    if any(mine != BAD for mine, _ in different):
        return None
    if _has_other_scale(pair):
        return "scale"
    return "text" if all("\\xff" in other for _, other in different) else None


# --- rows as texts


def to_texts(values: pa.Array) -> list[str]:
    """Rows, with texts as bytes and times as numbers: each value that Avro has can be shown."""
    for kind in (pa.time64("us"), pa.int64()):
        values = values.cast(_to_plain(values.type, kind))
    return [repr(_sort_maps(each)) for each in values.to_pylist()]


def _to_plain(kind, time):  # noqa: PLR0911  one per kind of type
    """The type for texts; `time` for a time of day, which Spark has in nanoseconds."""
    if pa.types.is_time64(kind):
        return time
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_date32(kind):
        return pa.int32()
    if pa.types.is_string(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, _to_plain(each.type, time)) for each in kind])
    if pa.types.is_map(kind):
        return pa.map_(pa.binary(), _to_plain(kind.item_type, time))
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _to_plain(kind.value_type, time)))
    return kind


def _sort_maps(value):
    if isinstance(value, dict):
        return {name: _sort_maps(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_sort_maps, value))
    if isinstance(value, list):
        found = [_sort_maps(each) for each in value]
        return sorted(found, key=repr) if found and isinstance(found[0], tuple) else found
    return value


# --- fastavro


def is_known_of_fastavro(pair):
    kind = pair.reader["fields"][-1]["type"]
    is_choice = isinstance(kind, list) and len([each for each in kind if each != "null"]) > 1
    return (
        pair.name in KNOWN_OF_FASTAVRO
        or is_choice
        or _has_other_scale(pair)
        or _has_other_unit(pair)
    )


def _has_other_scale(pair):
    return ['scale": 3' in json.dumps(each) for each in (pair.writer, pair.reader)] in (
        [True, False],
        [False, True],
    )


_UNITS = re.compile(r'"logicalType": "(?:local-)?(time(?:stamp)?)-(millis|micros|nanos)"')


def _has_other_unit(pair):
    """True if both schemas have times of one kind, and of different units."""
    found = [{*_UNITS.findall(json.dumps(each))} for each in (pair.writer, pair.reader)]
    return any(one[0] == other[0] and one[1] != other[1] for one in found[0] for other in found[1])


def read_by_fastavro(pair, records):
    """The rows as texts, without logical types, by which fastavro makes objects of its own."""
    writer, reader = (_strip(each) for each in (pair.writer, pair.reader))
    kind = parse_avro_schema(json.dumps(pair.reader))
    found = []
    for each in records:
        try:
            value = fastavro.schemaless_reader(io.BytesIO(each), writer, reader)
            found.append(repr(_sort_maps(_to_row(value, kind))))
        except Exception:  # noqa: BLE001  a class of its own for each fault
            found.append(BAD)
    return found


def _strip(schema):
    if isinstance(schema, list):
        return [_strip(each) for each in schema]
    if isinstance(schema, dict):
        return {name: _strip(each) for name, each in schema.items() if name != "logicalType"}
    return schema


def _to_row(value, kind):  # noqa: PLR0911  one per kind of type
    """A value of fastavro as `to_texts` has it."""
    if kind.kind == "union":
        return _to_member(value, kind)
    if kind.logical == "decimal":
        return _to_decimal(value, kind)
    if kind.kind == "record":
        return {each.name: _to_row(value[each.name], each.type) for each in kind.fields}
    if kind.kind == "array":
        return [_to_row(each, kind.items[0]) for each in value]
    if kind.kind == "map":
        return [(key.encode(), _to_row(each, kind.items[0])) for key, each in value.items()]
    if kind.kind in {"string", "enum"}:
        return value.encode()
    if kind.kind in {"float", "double"}:
        return float(np.float32(value)) if kind.kind == "float" else float(value)
    return _to_micros(value) if (kind.logical or "").endswith("timestamp-millis") else value


def _to_decimal(value, kind):
    whole = int.from_bytes(value, "big", signed=True)
    if not value or abs(whole) >= 10**kind.precision:
        raise OverflowError(value)
    return Decimal(whole).scaleb(-kind.scale)


def _to_micros(millis):
    if not -(2**63) <= millis * 1000 < 2**63:
        raise OverflowError(millis)
    return millis * 1000


def _to_member(value, union):
    one = find_single_type(union)
    if value is None and one is not None:
        return None
    if one is not None:
        return _to_row(value, one)
    if value is None:
        return None
    members = {f"member{n}": None for n in range(len(union.values))}
    at = next(n for n, each in enumerate(union.values) if _is_of(value, each))
    return {**members, f"member{at}": _to_row(value, union.values[at])}


def _is_of(value, kind):
    if isinstance(value, dict):
        return kind.kind == "record" and {each.name for each in kind.fields} == value.keys()
    classes = {
        bool: {"boolean"},
        int: {"int", "long"},
        float: {"float", "double"},
        bytes: {"bytes"},
        str: {"string", "enum"},
    }
    return kind.kind in classes[type(value)] and not (
        kind.kind == "int" and not math.isclose(value, max(min(value, 2**31 - 1), -(2**31)))
    )
