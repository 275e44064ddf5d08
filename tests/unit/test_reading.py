"""The values between Spark and a reader while a stream makes no progress."""

import json
import pickle

import pyarrow as pa
import pytest

from krishiv_spark.errors import OffsetError
from krishiv_spark.lifecycle.read import RowSchema, _PlainStreamRead, stream_read
from krishiv_spark.offsets import Offset
from krishiv_spark.sources.base import SourceOptions, StreamReader

SCHEMA = pa.schema([("n", pa.int64())])


class Position(Offset):
    """A position that counts how often it was parsed from a text and serialized into one."""

    kind = "counted"

    n: int

    @classmethod
    def from_dict(cls, value):
        CALLS.append("read")
        return super().from_dict(value)

    def to_dict(self):
        CALLS.append("written")
        return super().to_dict()


CALLS: list[str] = []


class Counted(StreamReader):
    """Stands still until it is told to move."""

    offset_type = Position

    newest = 0

    def infer_schema(self):
        return SCHEMA

    def initial(self):
        return Position(n=0)

    def latest(self, start, limit):
        del limit
        return start if start.n == self.newest else Position(n=self.newest)

    def plan(self, start, end):
        return [(start.n, end.n)]

    def read(self, partition):
        yield pa.record_batch([pa.array(range(*partition))], SCHEMA)


@pytest.fixture
def reader():
    CALLS.clear()
    return Counted(SourceOptions.parse({}, "counted"), None, streaming=True)


@pytest.fixture
def stream(reader):
    spark = pytest.importorskip("pyspark.sql.streaming.datasource")  # of 4.2 and newer
    made = stream_read(reader, RowSchema.from_reader(SCHEMA, reader.options))
    return lambda text: json.dumps(
        made.latestOffset(json.loads(text), spark.ReadAllAvailable())
    ), made


def test_a_position_is_read_and_written_only_where_the_query_moves(reader, stream):
    look, _ = stream
    text = look('{"kind":"counted","n":0,"v":1}')
    CALLS.clear()
    for _ in range(5):
        text = look(text)
    assert CALLS == []
    reader.newest = 7
    text = look(text)
    assert (json.loads(text)["n"], CALLS) == (7, ["written"])


def test_a_batch_is_planned_from_the_positions_that_were_handed_out(reader, stream):
    look, made = stream
    begin = look('{"kind":"counted","n":0,"v":1}')
    reader.newest = 3
    end = look(begin)
    CALLS.clear()
    (piece,) = made.partitions(json.loads(begin), json.loads(end))
    assert (piece.value, CALLS) == ((0, 3), [])


def test_a_text_that_was_not_handed_out_is_read(stream):
    look, _ = stream
    look('{"kind":"counted","n":0,"v":1}')
    CALLS.clear()
    assert json.loads(look('{"kind":"counted","n":5,"v":1}'))["n"] == 0
    assert CALLS == ["read", "written"]


def test_executors_get_no_positions(stream):
    look, made = stream
    empty = len(pickle.dumps(made))
    look('{"kind":"counted","n":0,"v":1}')
    assert len(pickle.dumps(made)) == empty


@pytest.fixture
def plain(reader):
    """As PySpark 4.0 and 4.1 call it, in any version."""
    return _PlainStreamRead(reader, RowSchema.from_reader(SCHEMA, reader.options))


def at(n):
    return {"kind": "counted", "n": n, "v": 1}


def test_a_new_query_may_ask_for_an_end_before_its_begin(reader, plain):
    reader.newest = 3
    assert plain.latestOffset()["n"] == 3
    (piece,) = plain.partitions(plain.initialOffset(), at(3))
    assert piece.value == (0, 3)
    reader.newest = 5
    assert plain.latestOffset()["n"] == 5


def test_a_restarted_query_says_first_where_it_stands(reader, plain):
    reader.newest = 5
    assert plain.partitions(at(3), at(3)) == []
    assert plain.latestOffset()["n"] == 5
    (piece,) = plain.partitions(at(3), at(5))
    assert piece.value == (3, 5)


@pytest.mark.parametrize("end", [3, 5])
def test_a_restarted_query_that_has_asked_for_an_end_before_is_refused(reader, plain, end):
    reader.newest = 5
    plain.latestOffset()
    for _ in range(2):
        with pytest.raises(OffsetError, match=r"triggerAvailableNowWrapper\.enabled to false"):
            plain.partitions(at(3), at(end))
