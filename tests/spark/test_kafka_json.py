"""JSON values beside the JVM's from_json, over generated values: type, form, nesting, session zone.

The rule of docs/kafka-json.md: a value is the one that from_json gives, or it is bad; where
from_json gives null, it is bad.
"""

import base64
import json
import random
from dataclasses import dataclass

import pyarrow as pa
import pytest

from krishiv_spark.arrow.json_parsing import JsonParser
from krishiv_spark.arrow.json_types import EVERY_TIME, JsonRules
from krishiv_spark.sources.kafka.row_schema import parse_fields

BAD = "a bad record"
SEED = random.SystemRandom().randrange(2**32)
VALUES = 60  # of each type, in each nesting
ZONES = ("UTC", "America/New_York", "Europe/Berlin", "Asia/Kathmandu", "Australia/Lord_Howe")
NESTINGS = {
    "v": '{{"v":{}}}',
    "s": '{{"s":{{"v":{}}}}}',
    "l": '{{"l":[{}]}}',
    "m": '{{"m":{{"k":{}}}}}',
}
"""By the name of the field, with which each document begins."""

PARTS = {"v": "{}.v", "s": "{}.s.v", "l": "get({}.l, 0)", "m": "try_element_at({}.m, 'k')"}


# --- generated JSON


def time_of(draw):
    year = draw.choice([1, 1582, 1883, 1900, 1969, 2024, 2024, 2037, 2500, 9999])
    day = f"{year:04}-{draw.randint(1, 12):02}-{draw.randint(1, 31):02}"
    day = draw.choice([day, "2024-03-10", "2024-11-03", "2024-03-31", "2024-10-27"])
    fraction = "." + "".join(draw.choices("0123456789", k=draw.randint(1, 9)))
    clock = f"{draw.choice(['00', '01', '02', '03', '23', '24'])}:{draw.choice(['00', '30', '59'])}"
    seconds = draw.choice(["", ":00", ":59", ":00" + fraction, ":59" + fraction, ":60", ":00."])
    zone = draw.choice(
        ["", "", "Z", "z", "+00:00", "-05:00", "+0530", "+05", "+18:00", "-18:30", "+1:00", " UTC",
         "+01:00[Europe/Berlin]", " Europe/Berlin", "+23:59"]
    )  # fmt: skip
    form = draw.randrange(6)
    if form == 0:
        return day
    if form == 1:
        return draw.choice([day + "T", "2024-1-1", "20240101", "2024", day + " ", " " + day, ""])
    return f"{day}{draw.choice('T ')}{clock}{seconds}{zone}"


def number_of(draw):
    whole = str(draw.choice([0, 1, 7, 127, 128, 2**15, 2**31, 2**53 + 1, 2**63 - 1, 2**63]))
    number = draw.choice([whole, str(draw.getrandbits(40))])
    digits = "".join(draw.choices("0123456789", k=draw.randint(1, 20)))
    fraction = draw.choice(["", "", ".0", ".5", ".05", ".1250", ".005", "." + digits])
    exponent = draw.choice(["", "", "", "e2", "E-1", "e400", "e+39", "e-50"])
    return draw.choice(["", "-"]) + number + fraction + exponent


def text_of(draw):
    return draw.choice(
        ["", "a", "é", "\u2028", "😀", '"', "\\", "\n", "\0", "true", "null", "{}", "[1]", "NaN",
         "Infinity", "-Infinity", "INF"]
    )  # fmt: skip


def bytes_of(draw):
    text = base64.b64encode(draw.randbytes(draw.randint(0, 7))).decode()
    return draw.choice([text, text, text.rstrip("="), text.replace("+", "-"), text + "!", text * 2])


WORDS = (
    "true", "false", "NaN", "Infinity", "-Infinity", "+Infinity", "Inf", "-Inf", "INF", "null",
    "01", "+1", ".5", "1.", "-0", "-0.0", '"\\ud800"', "{}", "[]", '{"a":1}', "[1]", "[null]",
    "'a'", '{"v":1,"v":2}',
)  # fmt: skip


def json_of(draw):
    """Return a JSON text of any form."""
    form = draw.randrange(8)
    if form < 2:
        return json.dumps(time_of(draw))
    if form == 2:
        return number_of(draw)
    if form == 3:
        return json.dumps(number_of(draw))
    if form == 4:
        return json.dumps(text_of(draw), ensure_ascii=draw.random() < 0.5)
    if form == 5:
        return json.dumps(bytes_of(draw))
    return draw.choice(WORDS)


FITTING = {
    "TIMESTAMP": lambda draw: json.dumps(time_of(draw)),
    "TIMESTAMP_NTZ": lambda draw: json.dumps(time_of(draw)),
    "DATE": lambda draw: json.dumps(time_of(draw)),
    "STRING": lambda draw: json.dumps(text_of(draw)),
    "BINARY": lambda draw: json.dumps(bytes_of(draw)),
    "BOOLEAN": lambda draw: draw.choice(["true", "false"]),
}


# --- both sides, as whole numbers and texts that can be compared


@dataclass(frozen=True)
class Kind:
    """A type, and how the JVM and Arrow show its values."""

    name: str
    shown: str = "CAST({} AS STRING)"

    @property
    def fields(self):
        kind = self.name
        return f"v {kind}, s STRUCT<v: {kind}>, l ARRAY<{kind}>, m MAP<STRING, {kind}>"


EPOCH = "TIMESTAMP_NTZ'1970-01-01'"
KINDS = [
    Kind("BOOLEAN"), Kind("TINYINT"), Kind("SMALLINT"), Kind("INT"), Kind("BIGINT"),
    Kind("FLOAT", "CAST(CAST({} AS DOUBLE) AS STRING)"), Kind("DOUBLE"), Kind("DECIMAL(5, 2)"),
    Kind("DECIMAL(38, 18)"), Kind("STRING"), Kind("BINARY", "hex({})"),
    Kind("DATE", "CAST(unix_date({}) AS STRING)"),
    Kind("TIMESTAMP", "CAST(unix_micros({}) AS STRING)"),
    Kind("TIMESTAMP_NTZ", f"CAST(timestampdiff(MICROSECOND, {EPOCH}, {{}}) AS STRING)"),
]  # fmt: skip


def from_json(spark, zone, cases):
    """Return what the JVM makes of texts, each with its kind and nesting."""
    spark.conf.set("spark.sql.session.timeZone", zone)
    rows = [(n, text) for n, (_, _, text) in enumerate(cases)]
    frame = spark.createDataFrame(rows, "n INT, text STRING")
    shown = [
        f"WHEN n IN ({','.join(numbers)}) THEN "
        + kind.shown.format(PARTS[path].format(f"from_json(text, '{kind.fields}')"))
        for (kind, path), numbers in numbers_of(cases).items()
    ]
    found = frame.selectExpr("n", f"CASE {' '.join(shown)} END AS value").collect()
    return [row.value for row in sorted(found)]


def numbers_of(cases):
    found = {}
    for number, (kind, path, _) in enumerate(cases):
        found.setdefault((kind, path), []).append(str(number))
    return found


def ours(cases, rules):
    found = [None] * len(cases)
    for (kind, path), numbers in numbers_of(cases).items():
        parser = JsonParser(pa.struct(list(parse_fields(kind.fields))), rules)
        places = [int(number) for number in numbers]
        values = pa.array([cases[place][2].encode() for place in places], pa.binary())
        parsed = parser.parse(values)
        bad = set(parsed.bad.tolist())
        for number, place in enumerate(places):
            value = part_of(parsed.objects[number], path)
            found[place] = BAD if number in bad else text_of_scalar(value)
    return found


def part_of(value, path):
    if not value.is_valid or path == "v" or not value[path].is_valid:
        return value[path] if value.is_valid else value
    parent = value[path]
    if path == "s":
        return parent["v"]
    values = parent.values if path == "l" else parent.values.field(1)
    return values[0] if len(values) else pa.scalar(None)


def text_of_scalar(value):
    if not value.is_valid:
        return None
    kind = value.type
    if pa.types.is_temporal(kind):
        return str(value.value)
    if pa.types.is_binary(kind):
        return value.as_py().hex().upper()
    if pa.types.is_decimal(kind):
        return format(value.as_py(), "f")
    return str(value.as_py()).lower() if pa.types.is_boolean(kind) else str(value.as_py())


def same(kind, mine, theirs):
    if mine is None or theirs is None or kind.name not in {"FLOAT", "DOUBLE"}:
        return mine == theirs
    return float(mine) == float(theirs) or (mine, theirs.lower()) == ("nan", "nan")


def breaches(cases, mine, theirs):
    """Return the cases that are neither the JVM's value nor bad where they may be."""
    for (kind, path, text), one, other in zip(cases, mine, theirs, strict=True):
        is_null = text == NESTINGS[path].format("null")
        if one == BAD or (is_null and (one, other) == (None, None)):
            continue
        if other is None or not same(kind, one, other):
            yield f"{kind.name} {path} {text}: {one!r}, from_json {other!r}"


@pytest.fixture
def session_zone(spark):
    before = spark.conf.get("spark.sql.session.timeZone")
    yield
    spark.conf.set("spark.sql.session.timeZone", before)


def generated(draw, kinds):
    return [
        (
            kind,
            path,
            form.format(FITTING.get(kind.name, number_of)(draw) if n % 2 else json_of(draw)),
        )
        for kind in kinds
        for path, form in NESTINGS.items()
        for n in range(VALUES)
    ]


@pytest.mark.usefixtures("session_zone")
def test_values_are_those_of_from_json_or_bad(spark):
    print(f"seed {SEED}")
    draw = random.Random(SEED)
    found, good = [], 0
    for zone in ZONES:
        of_zone = [kind for kind in KINDS if zone == ZONES[0] or kind.name == "TIMESTAMP"]
        cases = generated(draw, of_zone)
        mine = ours(cases, JsonRules(zone))
        found += breaches(cases, mine, from_json(spark, zone, cases))
        good += sum(each not in (None, BAD) for each in mine)
    assert not found, f"seed {SEED}: {len(found)} breaches, such as {found[:10]}"
    assert good > len(KINDS) * VALUES, "too few values were read to compare anything"


@pytest.mark.usefixtures("session_zone")
def test_seconds_since_1970_are_those_of_from_json(spark):
    draw = random.Random(SEED)
    timestamp = KINDS[-2]
    numbers = [str(draw.randint(-(10**11), 10**11)) for _ in range(VALUES)]
    cases = [(timestamp, path, form.format(n)) for path, form in NESTINGS.items() for n in numbers]
    mine = ours(cases, JsonRules(None, {EVERY_TIME: "s"}))
    assert mine == from_json(spark, "America/New_York", cases), f"seed {SEED}"


DOCUMENTS = [
    '{"id":1,"name":"a"}', ' {"id":1} ', '{"id":null}', '{"\\u0069d":1}', '{"id":1,"x":{"id":2}}',
    '{"id":1,"id":2}', '{"id":1}{"id":2}', '{"id":1} x', '{"id":1}//c', "{'id':1}", '{"id":1,}',
    '[{"id":1}]', "[]", "null", "5", '"a"', "", " ", '\ufeff{"id":1}', "{}", '{"ID":7}', '{"id":1',
    '{"x":Inf,"id":1}', '{"x":NaN,"id":1}', '{"x":+Infinity,"id":1}', '{"x":01,"id":1}',
    '{"x":"\t","id":1}', '{"x":"\\q","id":1}', '{"x":1,"x":2,"id":1}', '{"id":1,"name":2}',
    '{"schema":{"type":"struct"},"payload":{"id":1}}',
]  # fmt: skip


def test_documents_are_those_of_from_json_or_bad(spark):
    """Also where nothing of a document fits: from_json has nulls then, and no row is made here."""
    from krishiv_spark.sources.kafka.options import KafkaSourceOptions
    from krishiv_spark.sources.kafka.row_schema import KafkaRowSchema

    fields = "id INT, name STRING"
    frame = spark.createDataFrame(list(enumerate(DOCUMENTS)), "n INT, text STRING")
    theirs = frame.selectExpr("n", f"from_json(text, '{fields}') AS v").selectExpr("n", "v.*")
    expected = [tuple(row)[1:] for row in sorted(theirs.collect())]
    given = {
        "kafka.bootstrap.servers": "nowhere:1", "subscribe": "t", "valueFormat": "json",
        "valueSchema": fields, "badRecords": "divert",
    }  # fmt: skip
    shape = KafkaRowSchema.from_options(KafkaSourceOptions.parse(given, "krishiv-kafka"))
    size = len(DOCUMENTS)
    place = {"topic": ["t"] * size, "partition": [0] * size, "offset": list(range(size))}
    values = pa.array([text.encode() for text in DOCUMENTS], pa.binary())
    (batch,) = shape.convert(pa.record_batch({"value": values, **place}))
    good = 0
    for text, row, other in zip(DOCUMENTS, batch.to_pylist(), expected, strict=True):
        is_good = row["_raw"] is None
        good += is_good
        assert not is_good or (row["id"], row["name"]) == other, text
        assert not is_good or other != (None, None) or text == '{"id":null}', text
    assert good == 7
