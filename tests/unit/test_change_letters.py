"""Records of change data that cannot be decoded, as dead letters beside the mirror."""

import duckdb
import pyarrow as pa
import pytest
from debezium_events import to_json, wrap, write_event
from iceberg_life import table_of
from letter_life import LetterLife

from krishiv_spark.errors import OptionError, SchemaError
from krishiv_spark.lifecycle import resumption
from krishiv_spark.lifecycle.plans import PlanningFailed
from krishiv_spark.runtime.caches import LruCache
from krishiv_spark.sinks.fanout.dead_letters import TooManyBadRecords

CONNECT = "org.apache.kafka.connect.data"
RECORDS = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
    ]
)


@pytest.fixture(autouse=True)
def fresh():
    resumption._described = LruCache(64)


def to_batch(first, *values, columns=RECORDS):
    count = len(values)
    keys = [to_json({"id": 1})] * count
    found = [keys, list(values), ["t"] * count, [0] * count, [*range(first, first + count)]]
    found += [[0] * count]
    arrays = [pa.array(column, kind) for column, kind in zip(found, RECORDS.types, strict=True)]
    return pa.record_batch(arrays, schema=RECORDS).select(columns.names)


def upsert(number, name="a", **more):
    return write_event("c", None, {"id": number, "name": name, **more}, lsn=number)


class Mirror(LetterLife):
    def __init__(self, place, columns=RECORDS, **options):
        self.place = place
        given = {
            "warehouse": str(place / "warehouse"),
            "path": "db.mirror",
            "mode": "upsert",
            "changeFormat": "debezium",
            "keyColumns": "id",
            "tableSchema": "id INT, name STRING",
            "deadLetters.format": "krishiv-parquet",
            "deadLetters.path": str(place / "dead"),
            **options,
        }
        super().__init__(place, "krishiv-iceberg", columns, **given)

    def rows(self):
        found = table_of(self.place / "warehouse", "db.mirror").scan().to_arrow().to_pylist()
        return sorted((row["id"], row["name"]) for row in found)

    def letters(self):
        query = f"SELECT * FROM read_parquet('{self.place}/dead/*.parquet') ORDER BY \"offset\""
        found = duckdb.sql(query)
        return [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]


POISON = {
    "no JSON": (b"{", "the value is not valid JSON"),
    "no event": (b'{"a": 1}', "the value is neither an event of Debezium"),
    "an unknown operation": (write_event("x", None, {"id": 1}), "an unknown operation in 'op'"),
    "no row": (write_event("c", None, None), "has the operation 'c', and no row"),
    "no key": (write_event("c", None, {"name": "a"}), "no value in the key column 'id'"),
    "a wrong type": (upsert(1, name=7), "'name' has a number, which is no STRING"),
    "a number too large": (upsert(2**40), "in column 'id' that cannot be read as int32"),
    "a delete without a key": (write_event("d", None, None), "no key of the table"),
    "a schema that contradicts": (
        wrap({"fields": [{"field": "id", "name": f"{CONNECT}.Decimal"}]}, {"id": "AQ=="}),
        "Decimal in its schema in column 'id', which is int32",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("kind", POISON)
def test_a_bad_record_is_a_dead_letter_with_its_bytes_and_position(tmp_path, kind):
    value, reason = POISON[kind]
    mirror = Mirror(tmp_path)
    batch = to_batch(10, upsert(1), value, upsert(2), upsert(3))
    if kind == "a delete without a key":
        keys = pa.array([None if row == 1 else b"{}" for row in range(4)], pa.binary())
        batch = batch.set_column(0, RECORDS.field("key"), keys)
    mirror.run(0, batch)
    assert mirror.rows() == [(1, "a"), (2, "a"), (3, "a")]
    (letter,) = mirror.letters()
    assert letter["value"] == value
    assert (letter["topic"], letter["partition"], letter["offset"]) == ("t", 0, 11)
    assert reason in letter["reason"]


def test_a_value_that_the_table_does_not_accept_is_a_dead_letter(tmp_path):
    """It is decoded, and only the type of the table's column refuses it."""
    mirror = Mirror(tmp_path, tableSchema="id INT, name STRING, n STRING")
    mirror.run(0, to_batch(0, upsert(1, n="x")))
    table = table_of(tmp_path / "warehouse", "db.mirror")
    with table.update_schema(allow_incompatible_changes=True) as update:
        from pyiceberg.types import UUIDType

        update.add_column("uid", UUIDType())
    mirror = Mirror(tmp_path)
    mirror.options.pop("tableSchema")
    good = "98da4487-72cf-44ba-a36f-2fe8b6d69b5f"
    records = [upsert(2, uid=good), upsert(3, uid="no UUID"), upsert(4, uid=None)]
    mirror.run(1, to_batch(1, *records))
    assert [number for number, _ in mirror.rows()] == [1, 2, 4]
    (letter,) = mirror.letters()
    assert letter["offset"] == 2
    assert "does not fit the table" in letter["reason"]


def test_the_other_records_of_a_batch_change_the_table_in_their_order(tmp_path):
    """Each epoch, also one that is repeated, has its rows and its dead letters once."""
    mirror = Mirror(tmp_path)
    values = [upsert(n % 20, name=str(n)) if n % 7 else b"bad %d" % n for n in range(200)]
    batch = to_batch(0, *values)
    mirror.run(0, batch, is_logged=False)
    mirror.run(0, batch)
    mirror.run(1, to_batch(200, b"bad", None))
    wanted = {n % 20: str(n) for n in range(200) if n % 7}
    wanted.pop(1)  # the tombstone
    assert mirror.rows() == sorted(wanted.items())
    assert [each["offset"] for each in mirror.letters()] == [*range(0, 200, 7), 200]


def test_more_bad_records_than_the_limit_fail_the_epoch(tmp_path):
    mirror = Mirror(tmp_path, maxBadRecords="1")
    mirror.run(0, to_batch(0, upsert(1), b"bad"))
    with pytest.raises(TooManyBadRecords, match="2 of the 3 rows"):
        mirror.run(1, to_batch(2, upsert(2), b"bad", b"worse"))
    assert mirror.rows() == [(1, "a")]


def test_a_column_that_the_table_lacks_still_fails(tmp_path):
    """It is in every event from then on."""
    with pytest.raises(SchemaError, match="columns that the table does not have: 'extra'"):
        Mirror(tmp_path).run(0, to_batch(0, upsert(1, extra=1)))


def test_rows_that_have_an_error_already_are_dead_letters_too(tmp_path):
    columns = pa.schema([*RECORDS, ("_raw", pa.binary()), ("_error", pa.string())])
    batch = to_batch(0, upsert(1), b"bad", upsert(2))
    batch = batch.append_column("_raw", pa.array([None, None, b"mine"], pa.binary()))
    batch = batch.append_column("_error", pa.array([None, None, "is mine"], pa.string()))
    mirror = Mirror(tmp_path, columns)
    mirror.run(0, batch)
    assert mirror.rows() == [(1, "a")]
    assert sorted(each["reason"] for each in mirror.letters()) == [
        "is mine",
        "the value is not valid JSON",
    ]


def test_rows_of_a_sink_that_examines_none_need_the_column_of_errors(tmp_path):
    mirror = Mirror(tmp_path)
    for name in ("mode", "changeFormat", "keyColumns", "tableSchema"):
        mirror.options.pop(name)
    with pytest.raises((SchemaError, PlanningFailed), match="needs a column _error"):
        mirror.run(0, to_batch(0, upsert(1)))


def test_records_without_a_key_column_are_refused_before_a_row_moves(tmp_path):
    columns = pa.schema([RECORDS.field("value")])
    with pytest.raises((OptionError, PlanningFailed), match="column 'key' is missing"):
        Mirror(tmp_path, columns).run(0, to_batch(0, upsert(1), columns=columns))
