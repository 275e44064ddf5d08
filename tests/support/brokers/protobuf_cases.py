"""Generated Protobuf schemas and records, and the values that Google's own parser reads in them."""

import datetime as dt
import tempfile
from decimal import Decimal
from pathlib import Path

import numpy as np
from google.protobuf import message as google
from grpc_tools import protoc
from hypothesis import strategies as st

from krishiv_spark.kafka.schemas.protobuf.protobuf_decode import ProtobufDecoder
from krishiv_spark.kafka.schemas.protobuf.protobuf_files import (
    encode_indexes,
    find_message,
    message_class,
    read_descriptors,
)

SCALARS = [
    "double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32",
    "fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes",
]  # fmt: skip
_KEYS = [each for each in SCALARS if each not in {"double", "float", "bytes"}]
WRAPPERS = [
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
]
TIMES = ["google.protobuf.Timestamp", "google.protobuf.Duration"]
_DEFAULTS = {
    "double": "1.5", "float": "-0.25", "bool": "true", "string": '"a \\u00e9"', "bytes": '"\\377"',
    "uint64": "18446744073709551615", "uint32": "4294967295", "fixed32": "7", "fixed64": "8",
}  # fmt: skip


def compiled(text):
    """The file of a text, and the descriptor of its first message.

    In this process: to start the compiler takes a hundred times as long.
    """
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "f.proto").write_text(text)
        standard = Path(protoc.__file__).parent / "_proto"
        out = Path(folder, "out")
        paths = [f"-I{folder}", f"-I{standard}"]
        arguments = ["protoc", *paths, "--include_imports", f"--descriptor_set_out={out}"]
        assert protoc.main([*arguments, "f.proto"]) == 0
        file = read_descriptors(out.read_bytes(), "f.proto")
    return file, find_message(file, None)


@st.composite
def schemas(draw):
    """Texts of a file, whose first message has fields of all kinds."""
    return _Writer(draw).write()


class _Writer:
    def __init__(self, draw):
        self.draw = draw
        self.is_old = draw(st.booleans())
        self.names = iter(range(10_000))

    def write(self):
        syntax = "proto2" if self.is_old else "proto3"
        body = self.message("M", 3)
        words = {"timestamp": "Timestamp", "duration": "Duration", "wrappers": "Value"}
        needed = [name for name, word in words.items() if word in body]
        imports = "".join(f'import "google/protobuf/{name}.proto";\n' for name in needed)
        return f'syntax = "{syntax}";\npackage p;\n{imports}{body}'

    def message(self, name, level, word="message"):
        lines, used = [], set()
        for _ in range(self.draw(st.integers(0, 5))):
            lines += self.field(level, used)
        body = "\n".join(lines)
        return f"{word} {name} {{\n{body}\n}}"

    def number(self, used):
        small, large = st.integers(1, 20), st.integers(250, 18_000)
        found = self.draw(st.one_of(small, small, large).filter(lambda n: n not in used))
        used.add(found)
        return found

    def field(self, level, used):
        kinds = (
            ["one"] * 3 + ["many", "map", "oneof"] + (["group"] if self.is_old and level else [])
        )
        kind = self.draw(st.sampled_from(kinds))
        name = f"f{next(self.names)}"
        if kind == "map":
            before, of = self.kind(level, first=0)
            key = self.draw(st.sampled_from(_KEYS))
            return [*before, f"map<{key}, {of}> {name} = {self.number(used)};"]
        if kind == "oneof":
            lines, before = [], []
            for _ in range(self.draw(st.integers(1, 3))):
                more, of = self.kind(level)
                before += more
                lines.append(f"{of} f{next(self.names)} = {self.number(used)};")
            return [*before, f"oneof {name} {{", *lines, "}"]
        if kind == "group":
            label = self.draw(st.sampled_from(["optional", "repeated"]))
            group = f"G{next(self.names)} = {self.number(used)}"
            return [f"{label} {self.message(group, level - 1, 'group')}"]
        before, of = self.kind(level)
        if kind == "many":
            packed = ""
            if of in SCALARS and of not in {"string", "bytes"}:
                packed = self.draw(st.sampled_from(["", " [packed=true]", " [packed=false]"]))
            return [*before, f"repeated {of} {name} = {self.number(used)}{packed};"]
        labels = ["optional", "required"] if self.is_old else ["", "optional"]
        label = self.draw(st.sampled_from(labels))
        default = ""
        if self.is_old and of in SCALARS and label == "optional" and self.draw(st.booleans()):
            default = f" [default = {_DEFAULTS.get(of, '-3')}]"
        return [*before, f"{label} {of} {name} = {self.number(used)}{default};"]

    def kind(self, level, first=1):
        """The lines before a field, and the name of its type."""
        kinds = ["scalar"] * 4 + ["enum", "wrapper", "time"] + (["message"] * 2 if level else [])
        kind = self.draw(st.sampled_from(kinds))
        if kind == "scalar":
            return [], self.draw(st.sampled_from(SCALARS))
        if kind == "wrapper":
            return [], self.draw(st.sampled_from(WRAPPERS))
        if kind == "time":
            return [], self.draw(st.sampled_from(TIMES))
        name = f"{'E' if kind == 'enum' else 'N'}{next(self.names)}"
        if kind == "enum":
            first = first if self.is_old else 0
            return [f"enum {name} {{ {name}_A = {first}; {name}_B = 5; {name}_C = -2; }}"], name
        return [self.message(name, level - 1)], name


# --- records

_WHOLE = {
    "INT32": (-(2**31), 2**31 - 1),
    "INT64": (-(2**63), 2**63 - 1),
    "UINT32": (0, 2**32 - 1),
    "UINT64": (0, 2**64 - 1),
}


@st.composite
def messages(draw, descriptor):
    """Objects of Google's class of a message."""
    found = message_class(descriptor)()
    _fill(draw, found, descriptor)
    return found


def _fill(draw, message, descriptor):
    for each in descriptor.fields:
        if not each.is_required and draw(st.booleans()):
            continue
        if each.message_type is not None and each.message_type.GetOptions().map_entry:
            _fill_map(draw, getattr(message, each.name), each.message_type)
        elif each.message_type is not None:
            many = getattr(message, each.name)
            for _ in range(draw(st.integers(0, 3)) if each.is_repeated else 1):
                one = many.add() if each.is_repeated else many
                one.SetInParent()
                _fill_one(draw, one, each.message_type)
        elif each.is_repeated:
            getattr(message, each.name).extend(draw(st.lists(_scalars(each), max_size=3)))
        else:
            setattr(message, each.name, draw(_scalars(each)))


def _fill_one(draw, message, descriptor):
    if descriptor.full_name == TIMES[0]:
        message.seconds = draw(st.integers(-62135596800, 253402300799))
        message.nanos = draw(st.integers(0, 999_999_999))
    elif descriptor.full_name == TIMES[1]:
        sign = draw(st.sampled_from([-1, 1]))
        message.seconds = sign * draw(st.integers(0, 315_576_000_000))
        message.nanos = sign * draw(st.integers(0, 999_999_999))
    else:
        _fill(draw, message, descriptor)


def _fill_map(draw, found, entry):
    key, value = entry.fields_by_name["key"], entry.fields_by_name["value"]
    for each in draw(st.lists(_scalars(key), max_size=3)):
        if value.message_type is not None:
            _fill_one(draw, found[each], value.message_type)
        else:
            found[each] = draw(_scalars(value))


def _scalars(field):
    if field.enum_type is not None:
        known = st.sampled_from([each.number for each in field.enum_type.values])
        return known if field.enum_type.is_closed else st.one_of(known, st.integers(-9, 9))
    name = next(
        n[8:]
        for n in dir(field)
        if n.startswith("CPPTYPE_") and getattr(field, n) == field.cpp_type
    )
    if name in _WHOLE:
        return st.one_of(st.integers(-1, 3).filter(lambda n: n >= _WHOLE[name][0]),
                         st.integers(*_WHOLE[name]))  # fmt: skip
    if name in {"FLOAT", "DOUBLE"}:
        return st.floats(width=32 if name == "FLOAT" else 64, allow_nan=False)
    if name == "BOOL":
        return st.booleans()
    return st.binary(max_size=9) if field.type == field.TYPE_BYTES else st.text(max_size=9)


# --- the values that our decoder reads


def decode(descriptor, records, writer=None, names=None):
    """Decode records, None among them, as a batch of Kafka has them: one after the other."""
    fields = [each.name for each in descriptor.fields] if names is None else names
    decoder = ProtobufDecoder(writer or descriptor.file, descriptor, fields)
    head = encode_indexes(find_message(writer or descriptor.file, descriptor.full_name))[0]
    framed = [None if each is None else head + each for each in records]
    return decode_framed(decoder, framed)


def decode_framed(decoder, framed):
    sizes = np.array([len(each or b"") for each in framed], np.int64)
    ends = np.cumsum(sizes)
    starts = np.where([each is None for each in framed], -1, ends - sizes)
    data = np.frombuffer(b"".join(each or b"" for each in framed) or b"\0", np.uint8)
    decoded = decoder.decode(data, starts, ends)
    decoded.values.validate(full=True)
    return decoded


# --- the values that Google's parser reads


class BadRecordError(Exception):
    """Google's parser refuses a record, or a value of it."""


def read(descriptor, record):
    """The value of a record as Arrow gives it: Google's parser and the table of types.

    Raises:
        BadRecordError: If the record is not valid.
    """
    try:
        found = message_class(descriptor).FromString(record)
        if not found.IsInitialized():  # parsers in other languages check it themselves
            raise BadRecordError("a required field is missing")
        return _to_struct(found)
    except (google.DecodeError, UnicodeDecodeError) as error:
        raise BadRecordError(str(error)) from None


def _to_struct(message):
    return {each.name: _to_value(message, each) for each in message.DESCRIPTOR.fields}


def _to_value(message, field):
    value = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        of = field.message_type.fields_by_name["value"]
        return {key: _convert(value[key], of) for key in value}
    if field.is_repeated:
        return [_convert(each, field) for each in value]
    if field.has_presence and not message.HasField(field.name) and not field.has_default_value:
        return None
    return _convert(value, field)


def _convert(value, field):
    if field.enum_type is not None:
        known = {each.number: each.name for each in reversed(field.enum_type.values)}
        return known.get(value, str(value))
    if field.message_type is None:
        return Decimal(value) if field.cpp_type == field.CPPTYPE_UINT64 else value
    name = field.message_type.full_name
    if name in WRAPPERS:
        return _convert(value.value, field.message_type.fields_by_name["value"])
    if name not in TIMES:
        return _to_struct(value)
    try:
        micros = value.ToMicroseconds()
    except ValueError as error:
        raise BadRecordError(str(error)) from None
    if name == TIMES[0]:
        return dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc) + dt.timedelta(microseconds=micros)
    # Of the values of Python's `timedelta`; a duration of Protobuf may be longer.
    return np.timedelta64(micros, "us").item()


def same(found, expected):
    """True if a value of Arrow is the expected one; maps have no order, and NaN is itself."""
    if isinstance(expected, dict) and isinstance(found, list):
        return len(found) == len(expected) and all(
            key in expected and same(value, expected[key]) for key, value in found
        )
    if isinstance(expected, dict):
        return (
            found is not None
            and found.keys() == expected.keys()
            and all(same(found[key], each) for key, each in expected.items())
        )
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, float) and expected != expected:  # noqa: PLR0124
        return isinstance(found, float) and found != found  # noqa: PLR0124
    return type(found) is type(expected) and found == expected
