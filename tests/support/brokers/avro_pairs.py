"""Pairs of a writer's and a reader's Avro schema, with values of the writer's.

Each schema is a record that begins with the field ``ok``, which is 1 in each value: where Spark's
``from_avro`` cannot read a record, it returns one of nulls.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from random import Random

__all__ = ["PAIRS", "Pair"]

OK = {"name": "ok", "type": "int"}
GREAT, SMALL = 2**31 - 1, -(2**31)
GREATEST, SMALLEST = 2**63 - 1, -(2**63)


@dataclass(frozen=True)
class Pair:
    """A writer's schema, a reader's, and values of the writer's field ``a``.

    Attributes:
        name: The difference between the two.
        writer: The schema of the bytes.
        reader: The schema of the rows.
        values: The values of the writer, as fastavro takes them.
    """

    name: str
    writer: dict
    reader: dict
    values: tuple

    @classmethod
    def of(cls, name, writer, reader, values):
        """A pair of types of the field ``a``."""
        given = tuple({"ok": 1, "a": value} for value in values)
        return cls(name, record(field("a", writer)), record(field("a", reader)), given)


def record(*fields, name="Row"):
    return {"type": "record", "name": name, "fields": [OK, *fields]}


def field(name, kind, **more):
    return {"name": name, "type": kind, **more}


def inner(*fields, name="In", **more):
    return {"type": "record", "name": name, "fields": [*fields], **more}


# --- scalars


def _of(kind, logical, **more):
    return {"type": kind, "logicalType": logical, **more}


_MILLIS = (0, -1, -62_135_596_800_000, 253_402_300_799_999)
_MICROS = (0, -1, -62_135_596_800_000_000, 253_402_300_799_999_999)
_DECIMALS = (Decimal(0), Decimal("-0.01"), Decimal("99999999.99"))

SCALARS = {
    "boolean": ("boolean", (True, False)),
    "int": ("int", (0, -1, GREAT, SMALL)),
    "long": ("long", (0, 2**53 + 1, GREATEST, SMALLEST)),
    "float": ("float", (0.0, -0.0, 0.1, float("inf"), float("nan"), 3.4028234663852886e38)),
    "double": ("double", (0.0, -0.0, 0.1, float("-inf"), float("nan"), 1.7976931348623157e308)),
    "bytes": ("bytes", (b"", b"\0\xff", b"text")),
    "string": ("string", ("", "ä\0", "\U0001f600", "text")),
    "enum": ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, ("A", "B")),
    "fixed": ({"type": "fixed", "name": "F", "size": 4}, (b"\0\0\0\0", b"\xff\0\1\2")),
    "date": (_of("int", "date"), (0, -1, -719_162, 2_932_896)),
    "time-millis": (_of("int", "time-millis"), (0, 86_399_999)),
    "time-micros": (_of("long", "time-micros"), (0, 86_399_999_999)),
    "timestamp-millis": (_of("long", "timestamp-millis"), _MILLIS),
    "timestamp-micros": (_of("long", "timestamp-micros"), _MICROS),
    "local-timestamp-millis": (_of("long", "local-timestamp-millis"), _MILLIS),
    "local-timestamp-micros": (_of("long", "local-timestamp-micros"), _MICROS),
    "timestamp-nanos": (_of("long", "timestamp-nanos"), (0, GREATEST)),
    "decimal": (_of("bytes", "decimal", precision=10, scale=2), _DECIMALS),
    "decimal(12, 2)": (_of("bytes", "decimal", precision=12, scale=2), _DECIMALS),
    "decimal(10, 3)": (_of("bytes", "decimal", precision=10, scale=3), (Decimal("-0.001"),)),
    "fixed decimal": (
        {"type": "fixed", "name": "D", "size": 5, **_of("fixed", "decimal", precision=10, scale=2)},
        _DECIMALS,
    ),
    "uuid": (_of("string", "uuid"), ("12345678-1234-1234-1234-123456789abc",)),
    "uuid in 16 bytes": (
        {"type": "fixed", "name": "U", "size": 16, **_of("fixed", "uuid")},
        (bytes(range(16)),),
    ),
    "duration": (
        {"type": "fixed", "name": "P", "size": 12, **_of("fixed", "duration")},
        (bytes(range(12)),),
    ),
}  # fmt: skip


def pair_types() -> Iterator[Pair]:
    """Each type by itself and in each other one, with the same schema on both sides."""
    for name, (kind, values) in SCALARS.items():
        some = [*values]
        wrapped = {
            "": (kind, some),
            "[null, T]": (["null", kind], [None, *some]),
            "[T, null]": ([kind, "null"], [None, *some]),
            "[T]": ([kind], some),
            "array": ({"type": "array", "items": kind}, [[], some]),
            "array of [null, T]": ({"type": "array", "items": ["null", kind]}, [[None, *some]]),
            "map": ({"type": "map", "values": kind}, [{}, {str(n): v for n, v in enumerate(some)}]),
            "map of [null, T]": ({"type": "map", "values": ["null", kind]}, [{"": None}]),
            "record": (inner(field("x", kind)), [{"x": value} for value in some]),
            "[null, record]": (
                ["null", inner(field("x", ["null", kind]))],
                [None, {"x": None}, {"x": some[0]}],
            ),
        }
        for form, (whole, given) in wrapped.items():
            yield Pair.of(f"{form or 'T'}, T = {name}", whole, whole, given)
    yield Pair.of("null", "null", "null", [None])
    yield Pair.of("[null]", ["null"], ["null"], [None])
    yield Pair.of("a record without a field", inner(), inner(), [{}])


def pair_scalars() -> Iterator[Pair]:
    """Each scalar type read as each other one: promotions, and types that do not fit."""
    for (one, (writer, values)), (other, (reader, _)) in itertools.permutations(SCALARS.items(), 2):
        name = f"{one} as {other}"
        yield Pair.of(name, writer, reader, values)
        nullable = [None, *values]
        both = f"[null, {one}] as [null, {other}]"
        yield Pair.of(both, ["null", writer], ["null", reader], nullable)
        yield Pair.of(f"[null, {one}] as {other}", ["null", writer], reader, nullable)


# --- unions

_BRANCHES = {
    "null": (None,),
    "boolean": (True,),
    "int": (7, SMALL),
    "long": (2**40,),
    "float": (0.5,),
    "double": (0.1,),
    "bytes": (b"text",),
    "string": ("text",),
    "N": ("A",),
    "In": ({"x": 1},),
}
_NAMED = {
    "N": {"type": "enum", "name": "N", "symbols": ["A", "B"]},
    "In": inner(field("x", "int")),
}


def pair_unions(random: Random, count: int) -> Iterator[Pair]:
    """Unions read as other unions, and as types that are none."""
    for _ in range(count):
        names = [random.sample([*_BRANCHES], random.randint(1, 3)) for _ in range(2)]
        writer, reader = ([_NAMED.get(name, name) for name in union] for union in names)
        values = [(name, v) for name in names[0] for v in _BRANCHES[name]]
        values = [None if name == "null" else (name, v) for name, v in values]
        shown = " as ".join(f"[{', '.join(union)}]" for union in names)
        if len(reader) == 1 and random.random() < 0.5:
            reader, shown = reader[0], shown.replace(f" as [{names[1][0]}]", f" as {names[1][0]}")
        yield Pair.of(shown, writer, reader, values)


# --- changes of a schema


def _enum(*symbols, name="E", **more):
    return {"type": "enum", "name": name, "symbols": [*symbols], **more}


def _fixed(size, name="F", **more):
    return {"type": "fixed", "name": name, "size": size, **more}


def pair_evolutions() -> Iterator[Pair]:
    """Changes that people make: fields, names, symbols, sizes, defaults."""
    x, y = field("x", "int"), field("y", "string")
    changes = {
        "a field less": (inner(x, y), inner(y), [{"x": 1, "y": "t"}]),
        "another order": (inner(x, y), inner(y, x), [{"x": 1, "y": "t"}]),
        "a field more, without default": (inner(x), inner(x, y), [{"x": 1}]),
        "an alias": (
            inner(x), inner(field("new", "long", aliases=["x"])), [{"x": 1}],
        ),
        "an alias of a field that both have": (
            inner(x, y), inner(x, field("z", "string", aliases=["y"])), [{"x": 1, "y": "t"}],
        ),
        "an alias that is the name of another field": (
            inner(x, field("z", "int")),
            inner(x, field("w", "int", aliases=["x"], default=5)),
            [{"x": 1, "z": 2}],
        ),
        "another name of the record": (inner(x), inner(x, name="Other"), [{"x": 1}]),
        "another name of the record, by an alias": (
            inner(x), inner(x, name="Other", aliases=["In"]), [{"x": 1}],
        ),
        "another namespace of the record": (
            inner(x), inner(x, namespace="some.where"), [{"x": 1}],
        ),
        "another name of the record in a union": (
            ["null", inner(x)], ["null", inner(x, name="Other")], [None, {"x": 1}],
        ),
        "a symbol more": (_enum("A", "B"), _enum("B", "A", "C"), ["A", "B"]),
        "a symbol less": (_enum("A", "B"), _enum("B"), ["A", "B"]),
        "a symbol less, with a default": (_enum("A", "B"), _enum("B", default="B"), ["A", "B"]),
        "another name of the enum": (_enum("A"), _enum("A", name="Other"), ["A"]),
        "another name of the enum, by an alias": (
            _enum("A"), _enum("A", name="Other", aliases=["E"]), ["A"],
        ),
        "another namespace of the enum": (_enum("A"), _enum("A", namespace="some.where"), ["A"]),
        "another size": (_fixed(2), _fixed(3), [b"ab"]),
        "another name of the fixed": (_fixed(2), _fixed(2, name="Other"), [b"ab"]),
        "a fixed as bytes": (_fixed(2), "bytes", [b"ab"]),
        "bytes as a fixed": ("bytes", _fixed(2), [b"ab"]),
        "a type as an array of it": ("int", {"type": "array", "items": "int"}, [1]),
        "an array as a map": (
            {"type": "array", "items": "int"}, {"type": "map", "values": "int"}, [[1]],
        ),
        "a record as a map": (inner(x), {"type": "map", "values": "int"}, [{"x": 1}]),
        "elements that are promoted": (
            {"type": "array", "items": ["null", "int"]},
            {"type": "array", "items": ["null", "double"]},
            [[1, None]],
        ),
        "two records of a union, in another order": (
            [inner(x, name="A"), inner(y, name="B")], [inner(y, name="B"), inner(x, name="A")],
            [("A", {"x": 1}), ("B", {"y": "t"})],
        ),
        "records of a union that differ by name alone": (
            [inner(x, name="A"), inner(x, name="B")], [inner(x, name="B"), inner(x, name="A")],
            [("A", {"x": 1}), ("B", {"x": 2})],
        ),
    }  # fmt: skip
    for name, (writer, reader, values) in changes.items():
        yield Pair.of(name, writer, reader, values)
    for name, kind, default in _DEFAULTS:
        reader = inner(x, field("new", kind, default=default))
        yield Pair.of(f"default of {name}", inner(x), reader, [{"x": 1}])


_DEFAULTS = [
    ("null", "null", None), ("boolean", "boolean", True), ("int", "int", -5),
    ("long", "long", 2**60),
    ("float", "float", 0.1), ("float, whole", "float", 1), ("double", "double", 1e300),
    ("bytes", "bytes", "\u00ff\u0000"), ("string", "string", "ä"), ("enum", _enum("X", "Y"), "Y"),
    ("fixed", _fixed(2), "\u0000\u00ff"), ("array", {"type": "array", "items": "int"}, [1, 2]),
    ("map", {"type": "map", "values": "string"}, {"k": "v"}),
    ("[null, int]", ["null", "int"], None),
    ("[int, null]", ["int", "null"], 5), ("[string, int]", ["string", "int"], "s"),
    ("[null, int], of its second branch", ["null", "int"], 5),
    ("record", inner(field("p", "int"), field("q", "string", default="d"), name="Deep"), {"p": 1}),
    ("date", _of("int", "date"), 1), ("timestamp-millis", _of("long", "timestamp-millis"), 1),
    ("decimal", _of("bytes", "decimal", precision=4, scale=2), "\u0001\u0000"),
]  # fmt: skip


# --- random schemas and changes


class _Grower:
    """Random types, each with a type that a reader may have instead, and values."""

    def __init__(self, random: Random) -> None:
        self._random, self._names = random, itertools.count()

    def grow(self, depth: int):
        """Return a writer's type, a reader's, and a function that makes a value."""
        kinds = ["scalar"] * 3 + ["union"] + (["array", "map", "record"] if depth else [])
        return getattr(self, f"_{self._random.choice(kinds)}")(depth)

    def _scalar(self, _depth):
        name = self._random.choice([*SCALARS])
        kind, values = SCALARS[name]
        if isinstance(kind, dict) and "name" in kind:
            kind = {**kind, "name": f"N{next(self._names)}"}
        wider = {
            "int": ["long", "double"],
            "long": ["double"],
            "float": ["double"],
            "bytes": ["string"],
        }
        reader = kind
        if name in wider and self._random.random() < 0.3:
            reader = self._random.choice(wider[name])
            values = values if reader != "string" else (b"", b"text")
        if self._random.random() < 0.2:
            reader = ["null", reader]
        return kind, reader, lambda: self._random.choice(values)

    def _union(self, depth):
        writer, reader, value = self.grow(max(depth - 1, 0))
        if isinstance(writer, list) or writer == "null":
            return writer, reader, value
        readers = reader if isinstance(reader, list) else ["null", reader]
        return ["null", writer], readers, lambda: None if self._random.random() < 0.3 else value()

    def _array(self, depth):
        writer, reader, value = self.grow(depth - 1)
        return (
            {"type": "array", "items": writer},
            {"type": "array", "items": reader},
            lambda: [value() for _ in range(self._random.randint(0, 3))],
        )

    def _map(self, depth):
        writer, reader, value = self.grow(depth - 1)
        return (
            {"type": "map", "values": writer},
            {"type": "map", "values": reader},
            lambda: {str(n): value() for n in range(self._random.randint(0, 3))},
        )

    def _record(self, depth):
        name = f"N{next(self._names)}"
        grown = [(f"f{n}", *self.grow(depth - 1)) for n in range(self._random.randint(0, 4))]
        writer = [field(each, kind) for each, kind, *_ in grown]
        reader = [
            field(each, kind)
            if self._random.random() < 0.8
            else field(f"{each}_new", kind, aliases=[each])
            for each, _, kind, _ in grown
            if self._random.random() < 0.85
        ]
        self._random.shuffle(reader)
        if self._random.random() < 0.3:
            reader.append(
                field("more", *self._random.choice([("int",), ("string",)]), default=None)
            )
            reader[-1]["type"] = ["null", reader[-1]["type"]]
        return (
            inner(*writer, name=name),
            inner(*reader, name=name),
            lambda: {each: value() for each, _, _, value in grown},
        )


def pair_random(random: Random, count: int) -> Iterator[Pair]:
    """Random records, and changes of them that a reader may have made."""
    for number in range(count):
        writer, reader, value = _Grower(random)._record(3)
        yield Pair.of(f"random {number}", writer, reader, [value() for _ in range(4)])


PAIRS = {
    "types": lambda: [*pair_types()],
    "scalars": lambda: [*pair_scalars()],
    "unions": lambda: [*pair_unions(Random(1), 250)],
    "changes": lambda: [*pair_evolutions()],
    "random": lambda: [*pair_random(Random(2), 350)],
}
"""The pairs by kind; the same in each run."""
