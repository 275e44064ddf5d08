"""Protobuf records as Arrow columns, compared with Google's parser over generated schemas."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from protobuf_cases import (
    BadRecordError,
    compiled,
    decode,
    messages,
    read,
    same,
    schemas,
)

from krishiv_spark.errors import SchemaError
from krishiv_spark.kafka.schemas.protobuf.protobuf_decode import ProtobufDecoder
from krishiv_spark.kafka.schemas.protobuf.protobuf_files import (
    encode_indexes,
    find_message,
    message_class,
)

pytestmark = pytest.mark.filterwarnings("ignore:Python version 3:FutureWarning")


def check(descriptor, records, decoded):
    """Compare with Google's parser: the same records are bad, and all others equal."""
    for row, record in enumerate(records):
        found = decoded.values[row].as_py()
        try:
            expected = read(descriptor, record)
        except BadRecordError:
            is_good = row not in decoded.errors or found is not None
            assert not is_good, record
        else:
            assert row not in decoded.errors, (record, decoded.errors[row])
            assert same(found, expected), (record, found, expected)


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
  enum State { NEW = 0; PAID = 1; }
  repeated State states = 7;
  oneof way { Line line = 8; string mail = 9; }
}
"""


@pytest.mark.long
def test_a_record_of_each_kind():
    _, descriptor = compiled(ORDER)
    whole = message_class(descriptor)(
        id=-1,
        name="é",
        at={"seconds": 1, "nanos": 999},
        took={"seconds": -1, "nanos": -1500},
        count={"value": 0},
        packed=[-1, 2**31 - 1],
        lines={"a": {"most": 2**64 - 1}, "b": {"tags": [b"\xff", b""]}},
        states=[1, 0, 7],
        line={"tags": [b"x"]},
    ).SerializeToString()
    mail = message_class(descriptor)(mail="m").SerializeToString()
    # The message of a oneof again after another field: Google's parser writes the record anew.
    records = [whole, b"", whole + mail, whole + mail + whole, whole + b"\x08", mail]
    decoded = decode(descriptor, records)
    check(descriptor, records, decoded)
    assert decoded.errors == {4: "at field id: it ends too early"}


CHANGED = [
    ("int32 x = 1;", "int64 x = 1;", None),
    ("bool x = 1;", "uint32 x = 1;", None),
    ("string x = 1;", "repeated bytes x = 1;", None),
    ("repeated string x = 1;", "string x = 1;", None),
    ("string y = 2;", "int32 x = 1;", None),
    ("int32 x = 1;", "sint32 x = 1;", "field x (number 1) is int32 in the writer's schema, which"),
    ("string x = 1;", "fixed64 x = 1;", "is string in the writer's schema, which cannot be read"),
    ("repeated int32 x = 1;", "int32 x = 1;", "is repeated int32 in the writer's schema"),
    ("map<string, int32> x = 1;", "map<string, string> x = 1;", "field x.value (number 2) is int"),
    ("message N { int32 y = 1; } N x = 1;", "message N { string y = 1; } N x = 1;", "field x.y "),
]


@pytest.mark.parametrize(("written", "read_as", "refusal"), CHANGED)
def test_types_that_have_changed(written, read_as, refusal):
    file, _ = compiled(f'syntax = "proto3"; message M {{ {written} }}')
    _, reader = compiled(f'syntax = "proto3"; message M {{ {read_as} }}')
    names = [each.name for each in reader.fields]
    if refusal is None:
        ProtobufDecoder(file, reader, names)
        return
    with pytest.raises(SchemaError) as caught:
        ProtobufDecoder(file, reader, names)
    assert refusal in str(caught.value)


def test_a_message_is_named_as_each_client_counts():
    """Clients in Java do not count the messages of maps, and others do."""
    text = 'syntax = "proto3"; message A {} message M { map<string, int32> m = 1; message N {} }'
    file, first = compiled(text)
    assert encode_indexes(first) == (b"\0", b"\x02\x00")
    assert encode_indexes(find_message(file, "M.N")) == (b"\x04\x02\x00", b"\x04\x02\x02")
    file, _ = compiled(text.replace("message N {} }", "message N {} message O {} }"))
    with pytest.raises(SchemaError, match=r"write M\.N and M\.O with the same number"):
        encode_indexes(find_message(file, "M.N"))


@pytest.mark.long  # compiles a hundred schemas
@given(st.data())
def test_values_are_those_of_googles_parser(data):
    _, descriptor = compiled(data.draw(schemas()))
    found = data.draw(st.lists(messages(descriptor), max_size=4))
    records = [each.SerializeToString() for each in found]
    decoded = decode(descriptor, [*records, None])
    assert decoded.errors == {}
    assert not decoded.values[len(records)].is_valid
    check(descriptor, records, decoded)


@pytest.mark.long  # compiles a hundred schemas
@given(st.data())
def test_fields_in_any_order_and_number(data):
    """The last value counts, messages are merged, and a oneof has the last of its fields."""
    _, descriptor = compiled(data.draw(schemas()))
    parts = data.draw(st.lists(messages(descriptor), min_size=2, max_size=4))
    joined = b"".join(each.SerializeToString() for each in parts)
    records = [joined, parts[0].SerializeToString(), joined]
    check(descriptor, records, decode(descriptor, records))


@pytest.mark.long  # compiles a hundred schemas
@given(st.data())
def test_damaged_records_are_bad_where_googles_parser_says_so(data):
    _, descriptor = compiled(data.draw(schemas()))
    good = data.draw(messages(descriptor)).SerializeToString()
    bad = bytearray(good)
    for _ in range(data.draw(st.integers(1, 2))):
        if bad and data.draw(st.booleans()):
            bad[data.draw(st.integers(0, len(bad) - 1))] ^= data.draw(st.integers(1, 255))
        else:
            at = data.draw(st.integers(0, len(bad)))
            bad[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=6))
    records = [good, bytes(bad), good]
    check(descriptor, records, decode(descriptor, records))


@pytest.mark.long  # compiles a hundred schemas
@given(st.data())
def test_records_of_another_schema(data):
    """Fields of a schema that the reader does not have are skipped, also groups in groups."""
    _, descriptor = compiled('syntax="proto2"; package p; message M { optional int32 only = 21; }')
    _, other = compiled(data.draw(schemas()))
    only = message_class(descriptor)(only=5).SerializeToString()
    records = [data.draw(messages(other)).SerializeToString() + only for _ in range(2)]
    check(descriptor, records, decode(descriptor, records))


@pytest.mark.long  # compiles a hundred schemas
@given(st.data())
def test_a_part_of_the_fields_is_read(data):
    _, descriptor = compiled(data.draw(schemas()))
    names = [each.name for each in descriptor.fields if data.draw(st.booleans())]
    parts = data.draw(st.lists(messages(descriptor), min_size=1, max_size=3))
    record = b"".join(each.SerializeToString() for each in parts)
    decoded = decode(descriptor, [record], names=names)
    expected = read(descriptor, record)
    found = decoded.values[0].as_py()
    assert all(same(found[name], expected[name]) for name in names)
