"""Arrow columns as Protobuf records, compared with Google's parser over generated schemas."""

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from protobuf_cases import compiled, decode, messages, read, same, schemas

from krishiv_spark.errors import SchemaError
from krishiv_spark.kafka.schemas.protobuf.protobuf_encode import ProtobufEncoder
from krishiv_spark.kafka.schemas.protobuf.protobuf_files import message_class
from krishiv_spark.kafka.schemas.protobuf.protobuf_types import read_message

pytestmark = pytest.mark.filterwarnings("ignore:Python version 3:FutureWarning")

ORDER = """syntax = "proto3";
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
message Order {
  int64 id = 1;
  optional string name = 2;
  google.protobuf.Timestamp at = 3;
  google.protobuf.Duration took = 4;
  google.protobuf.Int32Value count = 5;
  repeated sint32 packed = 6;
  map<string, Line> lines = 1000;
  message Line { uint64 most = 1; repeated bytes tags = 2; }
  enum State { NEW = 0; PAID = 7; }
  repeated State states = 7;
  oneof way { Line line = 8; string mail = 9; }
}
"""


def encode(text, rows, kind=None):
    """Encode rows; return the descriptor of the message, and the records."""
    _, descriptor = compiled(text)
    message = read_message(descriptor)
    kind = message.arrow if kind is None else kind
    found = ProtobufEncoder(message, kind, b"").encode(pa.array(rows, kind))
    found.validate(full=True)
    return descriptor, found.to_pylist()


def row(**values):
    empty = {"id": 1, "packed": [], "lines": [], "states": []}
    return {**empty, **values}


def test_each_kind_of_value_is_read_by_googles_parser():
    at = dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, dt.timezone.utc)
    line = {"most": Decimal(2**64 - 1), "tags": [b"x" * 200, b""]}
    given = [
        row(
            name="",
            at=at,
            took=dt.timedelta(microseconds=-1_500_000),
            count=0,
            packed=[0, -1, 2**31 - 1],
            lines=[("a", line), ("", {"most": Decimal(0), "tags": []})],
            states=["PAID", "NEW", "-3"],
            mail="m",
        ),
        None,
        row(line=line),
    ]
    descriptor, records = encode(ORDER, given)
    assert records[1] is None
    for found, record in [(given[0], records[0]), (given[2], records[2])]:
        wanted = read(descriptor, record)
        assert {name: wanted[name] for name in found if name != "lines"} == {
            name: value for name, value in found.items() if name != "lines"
        }
        assert wanted["lines"] == dict(found["lines"])


@pytest.mark.long  # compiles a hundred schemas
@given(st.data())
def test_what_our_decoder_reads_is_written_as_google_writes_it(data):
    _, descriptor = compiled(data.draw(schemas()))
    given = data.draw(st.lists(messages(descriptor), max_size=4))
    decoded = decode(descriptor, [each.SerializeToString() for each in given])
    made = ProtobufEncoder(read_message(descriptor), decoded.values.type).encode(decoded.values)
    made.validate(full=True)
    for record, expected in zip(made.to_pylist(), decoded.values.to_pylist(), strict=True):
        assert same(expected, read(descriptor, record)), record
        if b"map<" not in descriptor.file.serialized_pb:
            again = message_class(descriptor).FromString(record)
            assert len(again.SerializeToString()) == len(record)


WRONG = {
    "null": ({"id": None}, r"'id': a row has null, and the Protobuf field cannot say that"),
    "null in a list": ({"packed": [None]}, r"'packed.element': a row has null"),
    "no list": ({"packed": None}, r"'packed': a row has null"),
    "symbol": ({"states": ["OPEN"]}, r"'states.element': .*'OPEN', which is no symbol .*NEW, PAID"),
    "oneof": ({"line": {"tags": []}, "mail": ""}, r"several of the fields line, mail"),
    "unsigned": (
        {"line": {"most": Decimal(2**64), "tags": []}},
        r"'line.most': a row has 18446744073709551616, and the type .* holds 0 to 184467",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_row_that_a_record_cannot_hold_names_its_column(case):
    values, reason = WRONG[case]
    with pytest.raises(SchemaError, match=reason):
        encode(ORDER, [row(), row(**values)], _nullable(ORDER))


def _nullable(text):
    """The type of a message as Spark has it: everything may be null."""
    _, descriptor = compiled(text)

    def relax(kind):
        if pa.types.is_struct(kind):
            return pa.struct([(each.name, relax(each.type)) for each in kind])
        if pa.types.is_map(kind):
            return pa.map_(kind.key_type, relax(kind.item_type))
        return pa.list_(relax(kind.value_type)) if pa.types.is_list(kind) else kind

    return relax(read_message(descriptor).arrow)


MISFITS = {
    "type": ([("id", pa.string())], r"column 'id' is string, which the Protobuf type int64"),
    "field": ([("ids", pa.int64())], r"'ids' is no field of the Protobuf message Order; did you"),
    "list": ([("packed", pa.int32())], r"column 'packed' is int32, which .* repeated sint32"),
    "twice": ([("id", pa.int64()), ("id", pa.int64())], r"column 'id' is there 2 times"),
    "time": ([("at", pa.timestamp("us"))], r"column 'at' is timestamp\[us\], which"),
}


@pytest.mark.parametrize("case", MISFITS)
def test_a_type_that_does_not_fit_is_refused_before_a_row(case):
    fields, reason = MISFITS[case]
    _, descriptor = compiled(ORDER)
    with pytest.raises(SchemaError, match=reason):
        ProtobufEncoder(read_message(descriptor), pa.struct(fields))


def test_smaller_numbers_fit_and_missing_columns_are_left_out():
    descriptor, records = encode(
        ORDER, [{"id": 3, "count": 5}], pa.struct([("id", pa.int8()), ("count", pa.int16())])
    )
    assert {"id": 3, "count": 5, "name": None}.items() <= read(descriptor, records[0]).items()


def test_a_required_field_needs_a_column():
    with pytest.raises(SchemaError, match="requires the field id: add the column"):
        encode('syntax = "proto2"; message M { required int32 id = 1; }', [{}], pa.struct([]))
