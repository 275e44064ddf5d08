"""Generated Avro schemas, values of them, and their encoding by fastavro."""

import datetime as dt
import io
import json
from decimal import Decimal

import fastavro
import pyarrow as pa
from hypothesis import strategies as st

from krishiv_spark.kafka.schemas.avro.avro_types import find_single_type, parse_avro_schema


def encode(schema, *values):
    parsed, found = fastavro.parse_schema(schema), []
    for value in values:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, value)
        found.append(out.getvalue())
    return found


def record(*fields, name="R", **more):
    return {"type": "record", "name": name, "fields": [*fields], **more}


def of(name, kind, **more):
    return {"name": name, "type": kind, **more}


# --- random schemas

_LOGICAL = [
    {"type": "int", "logicalType": "date"},
    {"type": "long", "logicalType": "timestamp-millis"},
    {"type": "long", "logicalType": "timestamp-micros"},
    {"type": "long", "logicalType": "local-timestamp-millis"},
    {"type": "long", "logicalType": "local-timestamp-micros"},
    {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 3},
    {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 0},
]
PRIMITIVE = st.sampled_from(
    ["null", "boolean", "int", "long", "float", "double", "bytes", "string", *_LOGICAL]
)


@st.composite
def schemas(draw, depth=3):  # noqa: C901  one branch per kind of type
    names = iter(range(1000))

    def named(kind, **more):
        return {"type": kind, "name": f"N{next(names)}", **more}

    def any_type(level):  # noqa: PLR0911
        kinds = ["primitive"] * 3 + ["fixed", "decimal", "enum", "union"]
        kinds += ["array", "map", "record"] if level else []
        kind = draw(st.sampled_from(kinds))
        if kind == "primitive":
            return draw(PRIMITIVE)
        if kind == "fixed":
            return named("fixed", size=draw(st.integers(0, 20)))
        if kind == "decimal":
            return named("fixed", size=9, logicalType="decimal", precision=18, scale=4)
        if kind == "enum":
            return named("enum", symbols=["A", "B", "C"][: draw(st.integers(1, 3))])
        if kind == "array":
            return {"type": "array", "items": any_type(level - 1)}
        if kind == "map":
            return {"type": "map", "values": any_type(level - 1)}
        if kind == "union":
            return any_union(level)
        fields = [of(f"f{n}", any_type(level - 1)) for n in range(draw(st.integers(0, 4)))]
        return named("record", fields=fields)

    def any_union(level):
        branches = ["null"] if draw(st.booleans()) else []
        for _ in range(draw(st.integers(1, 3))):
            branch = any_type(max(level - 1, 0))
            if not isinstance(branch, list) and _key(branch) not in {
                _key(each) for each in branches
            }:
                branches.append(branch)
        return branches or ["null", "int"]

    return record(*(of(f"f{n}", any_type(depth)) for n in range(draw(st.integers(0, 5)))))


def _key(kind):
    """A union may have one branch of each kind, and named types by their names."""
    if isinstance(kind, dict):
        return kind.get("name") or kind["type"]
    return kind


_UTC = dt.timezone.utc
_DATES = st.dates(dt.date(1, 1, 1), dt.date(9999, 12, 31))
_TIMES = st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30))  # noqa: DTZ001  local


def values_of(kind):  # noqa: PLR0911  one per kind of type
    """Values of a type as fastavro takes them, and what Arrow gives for each."""
    if isinstance(kind, list):
        return st.one_of([_member(kind, n) for n in range(len(kind))])
    if isinstance(kind, str):
        return _primitive(kind)
    if "logicalType" in kind:
        return _logical(kind)
    name = kind["type"]
    if name == "fixed":
        return _same(st.binary(min_size=kind["size"], max_size=kind["size"]))
    if name == "enum":
        return _same(st.sampled_from(kind["symbols"]))
    if name == "array":
        return st.lists(values_of(kind["items"]), max_size=3).map(
            lambda v: ([a for a, _ in v], [b for _, b in v])
        )
    if name == "map":
        entries = st.dictionaries(st.text(max_size=3), values_of(kind["values"]), max_size=3)
        return entries.map(
            lambda v: ({k: a for k, (a, _) in v.items()}, [(k, b) for k, (_, b) in v.items()])
        )
    if name != "record":
        return values_of(name)
    fields = st.fixed_dictionaries({f["name"]: values_of(f["type"]) for f in kind["fields"]})
    return fields.map(
        lambda v: ({k: a for k, (a, _) in v.items()}, {k: b for k, (_, b) in v.items()})
    )


def _same(strategy):
    return strategy.map(lambda v: (v, v))


def _primitive(name):
    whole = {"int": 31, "long": 63}
    if name in whole:
        return _same(st.integers(-(2 ** whole[name]), 2 ** whole[name] - 1))
    return {
        "null": st.just((None, None)),
        "boolean": _same(st.booleans()),
        "float": _same(st.floats(width=32, allow_nan=False)),
        "double": _same(st.floats(allow_nan=False)),
        "bytes": _same(st.binary(max_size=20)),
        "string": _same(st.text(max_size=20)),
    }[name]


def _logical(kind):
    logical = kind["logicalType"]
    if logical == "date":
        return _same(_DATES)
    if logical == "decimal":
        digits, scale = kind["precision"], kind["scale"]
        whole = st.integers(-(10**digits) + 1, 10**digits - 1)
        # By text: arithmetic would round to the 28 digits of the context.
        return _same(whole.map(lambda v: Decimal(f"{v}E-{scale}")))
    times = _TIMES.map(lambda v: v.replace(microsecond=v.microsecond // 1000 * 1000))
    times = times if "millis" in logical else _TIMES
    return _same(
        times if logical.startswith("local") else times.map(lambda v: v.replace(tzinfo=_UTC))
    )


def _member(union, number):
    branch = union[number]
    text = json.dumps(union)
    parsed = parse_avro_schema(text)
    name = _key(branch) if not isinstance(branch, str) else branch

    def given_and_expected(pair):
        value, expected = pair
        if branch == "null":
            return None, None
        given = (name, value)
        if find_single_type(parsed) is not None:
            return given, float(expected) if parsed.arrow == pa.float64() else expected
        at = [n for n, each in enumerate(union) if each != "null"].index(number)
        members = {f"member{n}": None for n in range(len(parsed.values))}
        return given, {**members, f"member{at}": expected}

    return values_of(branch).map(given_and_expected)
