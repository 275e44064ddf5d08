"""Protobuf schemas that are derived from columns, and their numbers over several versions."""

import pyarrow as pa
import pytest
from protobuf_cases import compiled, read

from krishiv_spark.errors import SchemaError
from krishiv_spark.kafka.schemas.protobuf.protobuf_derive import DERIVED_PROTO_TYPES, derive_proto
from krishiv_spark.kafka.schemas.protobuf.protobuf_encode import ProtobufEncoder
from krishiv_spark.kafka.schemas.protobuf.protobuf_types import read_message

pytestmark = pytest.mark.filterwarnings("ignore:Python version 3:FutureWarning")

LINE = pa.struct([("sku", pa.string()), ("count", pa.int32())])
ORDER = pa.struct(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("note", pa.string()),
        ("line_items", pa.list_(LINE)),
        ("by_name", pa.map_(pa.string(), LINE)),
        ("sizes", pa.map_(pa.int32(), pa.float64())),
        ("at", pa.timestamp("us", "UTC")),
    ]
)
TEXT = """syntax = "proto3";
import "google/protobuf/timestamp.proto";
message orders_value {
  int64 id = 1;
  optional string note = 2;
  message LineItems {
    optional string sku = 1;
    optional int32 count = 2;
  }
  repeated LineItems line_items = 3;
  message ByName {
    optional string sku = 1;
    optional int32 count = 2;
  }
  map<string, ByName> by_name = 4;
  map<int32, double> sizes = 5;
  google.protobuf.Timestamp at = 6;
}
"""


def derive(kind, newest=None):
    return derive_proto(kind, "orders_value", None if newest is None else compiled(newest)[0])


@pytest.mark.long
def test_a_derived_schema_has_a_field_for_each_column():
    assert derive(ORDER) == TEXT
    _, descriptor = compiled(TEXT)
    rows = [{"id": 0, "note": None, "line_items": [{"sku": "a", "count": None}], "by_name": [],
             "sizes": [(1, 0.5)], "at": None}]  # fmt: skip
    (record,) = ProtobufEncoder(read_message(descriptor), ORDER).encode(pa.array(rows, ORDER))
    wanted = rows[0] | {"by_name": {}, "sizes": {1: 0.5}}
    assert read(descriptor, record.as_py()) == wanted


@pytest.mark.parametrize(("name", "kind", "proto"), DERIVED_PROTO_TYPES, ids=str)
def test_a_schema_is_derived_from_itself_unchanged(name, kind, proto):
    del name, proto
    rows = pa.struct([("a", kind), ("b", pa.list_(kind)), pa.field("c", kind, nullable=False)])
    text = derive(rows)
    assert derive(rows, text) == text
    _, descriptor = compiled(text)
    ProtobufEncoder(read_message(descriptor), rows)


def test_fields_keep_their_numbers_when_columns_come_and_go():
    text = derive(ORDER)
    fields = [each for each in ORDER if each.name not in {"note", "sizes"}]
    wider = pa.struct([*LINE, ("price", pa.float64())])
    fields[1] = pa.field("line_items", pa.list_(wider))
    newer = derive(pa.struct([pa.field("new", pa.bool_()), *fields]), text)
    assert newer == TEXT.replace(
        "    optional int32 count = 2;\n  }\n  repeated",
        "    optional int32 count = 2;\n    optional double price = 3;\n  }\n  repeated",
    ).replace("at = 6;\n", "at = 6;\n  optional bool new = 7;\n")


OTHERS = {
    "another message": "message Order { int64 id = 1; }",
    "an enum": "message orders_value { enum E { A = 0; } E e = 1; }",
    "a oneof": "message orders_value { oneof way { int64 a = 1; string b = 2; } }",
    "a number of another form": "message orders_value { sint64 id = 1; }",
    "a package": "package shop; message orders_value { int64 id = 1; }",
}


@pytest.mark.parametrize("case", OTHERS)
def test_no_numbers_are_guessed_for_a_schema_of_somebody_else(case):
    with pytest.raises(SchemaError, match=r"not derived from columns .*'valueSchema'"):
        derive(ORDER, f'syntax = "proto3"; {OTHERS[case]}')


REFUSED = {
    "date": (pa.date32(), r"column 'x' has the type date32.*cast it"),
    "decimal": (pa.decimal128(10, 2), r"column 'x' has the type decimal128"),
    "list of lists": (pa.list_(pa.list_(pa.int32())), r"column 'x' .*a list within a list"),
    "keys": (
        pa.map_(pa.float64(), pa.int32()),
        r"column 'x' is a MAP with keys of the",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_types_without_a_protobuf_type_are_refused(case):
    kind, reason = REFUSED[case]
    with pytest.raises(SchemaError, match=reason):
        derive(pa.struct([("x", kind)]))


def test_a_name_that_protobuf_does_not_have_is_refused():
    with pytest.raises(SchemaError, match=r"column 'a-b' has no name of Protobuf"):
        derive(pa.struct([("a-b", pa.int32())]))
