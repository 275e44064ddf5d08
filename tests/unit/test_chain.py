"""``krishiv-chain`` without a broker: options, offsets, and what a table says of where it ends."""

import json
import pickle

import iceberg_tables
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from landings import QUERY, ROWS, land, make_empty_table, make_landing_properties

from krishiv_spark.errors import (
    OffsetError,
    OffsetVersionError,
    OptionError,
    SchemaError,
)
from krishiv_spark.formats import ChainDataSource
from krishiv_spark.offsets import Start, Watermark
from krishiv_spark.offsets.planned import PlannedOffsets
from krishiv_spark.operate.inspection.positions import describe_position, offsets_by_topic
from krishiv_spark.sources.base import UNLIMITED, Limit
from krishiv_spark.sources.chain.options import ChainOptions
from krishiv_spark.sources.chain.reader import ChainOffset, ChainPart, ChainReader
from krishiv_spark.sources.iceberg.offset import IcebergOffset, StreamingOffset
from krishiv_spark.sources.iceberg.reader import IcebergReader, IcebergSourceOptions
from krishiv_spark.sources.kafka.offset import KafkaOffset
from krishiv_spark.sources.kafka.reader import KafkaReader, KafkaSourceOptions
from krishiv_spark.spark.checkpoint import SparkCheckpoint

GIVEN = {
    "first.table": "db.t",
    "first.warehouse": "/nowhere",
    "then.kafka.bootstrap.servers": "127.0.0.1:1",
    "then.subscribe": "t",
}
SEAM = KafkaOffset(topics={"t": {"0": 7, "1": 0}}, ids={"t": "abc"}, epochs={"t": {"0": 2}})


def parsed(**more):
    return ChainOptions.parse({**GIVEN, **more}, "krishiv-chain")


# --- offsets

numbers = st.integers(0, 2**63 - 1)
spots = st.builds(
    StreamingOffset,
    snapshot=numbers,
    sequence=numbers,
    file=st.none() | st.integers(0, 9),
    scan=st.booleans(),
)
firsts = st.builds(IcebergOffset, table=st.none() | st.text(max_size=3), spot=spots)
by_partition = st.dictionaries(
    st.text(max_size=2),
    st.dictionaries(st.integers(0, 99).map(str), numbers, max_size=3),
    max_size=2,
)
thens = st.builds(
    KafkaOffset,
    topics=by_partition,
    epochs=by_partition,
    ids=st.dictionaries(st.text(max_size=2), st.text(max_size=2), max_size=2),
    watermark=st.none() | st.builds(Watermark, ms=numbers),
)
offsets = st.builds(ChainOffset, first=firsts, then=thens)


@given(offsets)
def test_an_offset_survives_its_text(offset):
    again = ChainOffset.from_json(offset.to_json())
    assert again == offset
    assert (type(again.first), type(again.then)) == (IcebergOffset, KafkaOffset)
    assert again.to_dict()["then"] == offset.then.to_dict()
    assert json.dumps(again.to_dict(), separators=(",", ":")) == offset.to_json()


@given(offsets, offsets)
def test_offsets_are_equal_exactly_when_their_texts_are(one, other):
    assert (one == other) == (one.to_json() == other.to_json())


@given(offsets)
def test_an_offset_travels_between_processes(offset):
    assert pickle.loads(pickle.dumps(offset)) == offset


@pytest.mark.parametrize(
    "part",
    [None, 3, [], {}, {"kind": "memory", "v": 1, "next": 0}, {"kind": ["iceberg"], "v": 1}],
    ids=repr,
)
@pytest.mark.parametrize("place", ["first", "then"])
def test_a_part_that_is_no_offset_is_damage(part, place):
    whole = ChainOffset(first=IcebergOffset(), then=SEAM).to_dict()
    with pytest.raises(OffsetError):
        ChainOffset.from_dict({**whole, place: part})
    with pytest.raises(OffsetError):
        ChainOffset.from_dict({name: value for name, value in whole.items() if name != place})


def test_a_part_of_a_newer_version_is_told_from_damage():
    whole = ChainOffset(first=IcebergOffset(), then=SEAM).to_dict()
    with pytest.raises(OffsetVersionError, match="version 9"):
        ChainOffset.from_dict({**whole, "then": {**whole["then"], "v": 9}})


def test_parts_in_the_wrong_order_are_refused():
    reader = ChainReader(parsed(), ROWS, streaming=True)
    with pytest.raises(OffsetError, match="kind 'kafka' instead of 'iceberg'"):
        reader.plan(ChainOffset(first=SEAM, then=SEAM), ChainOffset(first=SEAM, then=SEAM))


# --- options


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"first": "krishiv-parquet"}, "'first' .*There are krishiv-iceberg"),
        ({"then": "kafka"}, "'then'.*there are krishiv-kafka"),
        ({"first.tabel": "x"}, "'first.', krishiv-iceberg: unknown option 'tabel'; did you mean"),
        ({"then.subscrib": "x"}, "'then.', krishiv-kafka: unknown option 'subscrib'"),
        ({"then.assign": "x"}, "'then.', krishiv-kafka: option 'assign'"),
        ({"subscribe": "x"}, "krishiv-chain: unknown option 'subscribe'"),
        ({"then.eventTime": "timestamp"}, "'then.eventTime': set 'eventTime' instead"),
        ({"first.columns": "id"}, "'first.columns': set 'columns' instead"),
        ({"first.snapshot-id": "1"}, "'first.snapshot-id': set 'snapshot' instead"),
        ({"maxFilesPerTrigger": "1"}, "use 'first.maxFilesPerTrigger'"),
        ({"snapshot": "1", "landedBy": "q"}, "exclude each other"),
        ({"landedBy": ""}, "'landedBy'"),
        ({"eventTime": "at"}, "'eventTime' = 'at'"),
    ],
)
def test_options_that_are_wrong_are_refused(more, says):
    with pytest.raises(OptionError, match=says):
        parsed(**more)


def test_a_part_that_is_missing_is_said():
    with pytest.raises(OptionError, match=r"'then\.', krishiv-kafka: .*bootstrap"):
        ChainOptions.parse({"path": "db.t", "first.warehouse": "/nowhere"}, "krishiv-chain")


def test_options_of_the_parts_reach_them_in_any_case():
    options = ChainOptions.parse(
        {
            "path": "db.u",
            "FIRST.warehouse": "/nowhere",
            "Then.KAFKA.bootstrap.servers": "127.0.0.1:1",
            "then.SUBSCRIBE": "a,b",
            "columns": "id, text",
            "eventTime": "timestamp",
            "watermarkDelay": "3 s",
        },
        "krishiv-chain",
    )
    first, then = options.part("first"), options.part("then")
    assert (first.table_name, first.columns, first.event_time) == ("db.u", ("id", "text"), None)
    assert then.subscribe == ("a", "b")
    assert (then.event_time, then.watermark_delay) == ("timestamp", 3000)


def test_a_limit_is_that_of_the_part_or_else_of_both():
    both = parsed(**{"maxRowsPerTrigger": "5", "then.maxOffsetsPerTrigger": "3"})
    assert both.limit_of("first") == Limit(rows=5)
    assert both.limit_of("then") == Limit(rows=3)
    one = parsed(**{"first.maxFilesPerTrigger": "2"})
    assert one.limit() != UNLIMITED  # or Spark would hand back that there is none
    assert one.limit_of("first") == Limit(files=2)
    assert one.limit_of("then") == UNLIMITED
    assert parsed().limit() == UNLIMITED


def test_secrets_of_the_parts_are_known():
    given = {
        **GIVEN,
        "first.catalog.uri": "postgresql://u:hunter2@h/d",
        "THEN.kafka.sasl.jaas.config": "x required password='hunter2';",
    }
    found = ChainOptions.secret_keys(given)
    assert found == {"first.catalog.uri", "THEN.kafka.sasl.jaas.config"}


def test_a_reader_travels_without_its_sources():
    reader = ChainReader(parsed(), ROWS, streaming=True)
    reader._part("then")
    again = pickle.loads(pickle.dumps((reader, ChainPart("first", 1))))
    assert again[0]._parts == {}
    assert again[1].place == "first"


# --- columns


def infer(folder, **more):
    given = {**GIVEN, "first.warehouse": str(folder), **more}
    return ChainDataSource(given).schema()


def test_the_columns_are_those_of_the_table(tmp_path):
    make_empty_table(tmp_path)
    found = infer(tmp_path, **{"then.valueFormat": "json"})
    assert [field.name for field in found] == ["id", "text"]
    assert infer(tmp_path, columns="text", **{"then.valueFormat": "json"}).names == ["text"]


@pytest.mark.parametrize(
    ("columns", "more", "says"),
    [
        ([("id", pa.int64())], {}, "column 'id', which Kafka does not have"),
        ([("key", pa.binary()), ("value", pa.int64())], {}, "'value'"),
        ([("offset", pa.int32())], {}, "'offset'"),
        ([("tags", pa.map_(pa.int32(), pa.string()))], {"then.valueFormat": "json"}, "MAP"),
    ],
)
def test_columns_that_the_topics_have_not_are_refused(tmp_path, columns, more, says):
    iceberg_tables.make_table(tmp_path, pa.schema(columns))
    with pytest.raises(SchemaError, match=says):
        infer(tmp_path, **more)


def test_what_is_wrong_is_said_before_anything_is_read():
    reader = ChainReader(parsed(**{"first.tag": "v1"}), ROWS, streaming=True)
    with pytest.raises(OptionError, match="'tag' is for batch reads"):
        reader.initial()
    schema = pa.schema([("value", pa.binary())])
    reader = ChainReader(parsed(**{"then.endingOffsets": "latest"}), schema, streaming=True)
    with pytest.raises(OptionError, match="endingOffsets"):
        reader.initial()
    assert ChainReader(parsed(), schema, streaming=True).initial() == Start(at="earliest")


# --- what the table says


def landed(folder, by=None, snapshot=None, **more):
    given = {"table": "db.t", "warehouse": str(folder), **more}
    options = IcebergSourceOptions.parse(given, "krishiv-iceberg")
    return IcebergReader(options, None, streaming=True).provenance(by, snapshot)


def test_the_seam_is_where_the_query_stood_that_has_written_the_newest_snapshot(tmp_path):
    make_empty_table(tmp_path)
    land(tmp_path, 0, {"kind": "kafka", "v": 2})
    newest = land(tmp_path, 4, SEAM.to_dict())
    found = landed(tmp_path)
    assert found.offset == SEAM.to_dict()
    assert found.begin.spot.snapshot == newest
    assert (found.begin.spot.file, found.begin.spot.scan) == (0, True)
    assert found.by == f"query {QUERY}, epoch 4"


def test_what_is_compacted_or_only_deleted_changes_nothing(tmp_path):
    make_empty_table(tmp_path)
    land(tmp_path, 0, SEAM.to_dict())
    land(tmp_path, 1, SEAM.to_dict(), ids=range(3, 6))
    iceberg_tables.table_in(tmp_path).delete("id < 3")  # a whole file
    newest = iceberg_tables.compact(tmp_path)
    found = landed(tmp_path)
    assert (found.offset, found.begin.spot.snapshot) == (SEAM.to_dict(), newest)


def test_what_others_have_written_before_the_query_began_is_read_too(tmp_path):
    make_empty_table(tmp_path)
    iceberg_tables.append(tmp_path, pa.table({"id": [-1], "text": ["history"]}, schema=ROWS))
    land(tmp_path, 0, SEAM.to_dict())
    assert landed(tmp_path).offset == SEAM.to_dict()


def test_rows_of_others_since_then_are_refused_unless_the_query_is_named(tmp_path):
    make_empty_table(tmp_path)
    land(tmp_path, 0, SEAM.to_dict())
    theirs = iceberg_tables.append(tmp_path, pa.table({"id": [9], "text": ["theirs"]}, schema=ROWS))
    with pytest.raises(
        OptionError, match=f"snapshot {theirs} .*'append', was not written by query {QUERY}"
    ):
        landed(tmp_path)
    assert landed(tmp_path, QUERY).begin.spot.snapshot == theirs


def test_rows_of_others_are_refused_too_when_the_epochs_before_them_have_expired(tmp_path):
    make_empty_table(tmp_path)
    first = land(tmp_path, 0, SEAM.to_dict())
    theirs = iceberg_tables.append(tmp_path, pa.table({"id": [9], "text": ["theirs"]}, schema=ROWS))
    land(tmp_path, 1, SEAM.to_dict())
    iceberg_tables.expire(tmp_path, first)
    with pytest.raises(
        OptionError, match=f"snapshot {theirs} .*'append', was not written by query {QUERY}"
    ):
        landed(tmp_path)


def test_of_several_queries_one_has_to_be_named(tmp_path):
    make_empty_table(tmp_path)
    land(tmp_path, 0, SEAM.to_dict())
    land(tmp_path, 7, {"kind": "other"}, query="q-2")
    with pytest.raises(OptionError, match=f"2 queries .*{QUERY}, q-2.*'landedBy'"):
        landed(tmp_path)
    assert landed(tmp_path, QUERY).offset == SEAM.to_dict()
    assert landed(tmp_path, "q-2").offset == {"kind": "other"}
    with pytest.raises(OptionError, match=f"q-3 has written no epoch .*{QUERY}, q-2"):
        landed(tmp_path, "q-3")


@pytest.mark.parametrize("by", [None, QUERY])
def test_a_table_that_was_rolled_back_is_refused(tmp_path, by):
    make_empty_table(tmp_path)
    before = land(tmp_path, 0, SEAM.to_dict())
    land(tmp_path, 1, SEAM.to_dict())
    table = iceberg_tables.table_in(tmp_path)
    table.manage_snapshots().rollback_to_snapshot(before).commit()
    with pytest.raises(OptionError, match=f"rolled back: .*up to epoch 0 of query {QUERY}"):
        landed(tmp_path, by)
    land(tmp_path, 2, SEAM.to_dict())  # what the rollback took out is to stay away
    assert landed(tmp_path, by).offset == SEAM.to_dict()


@pytest.mark.parametrize("by", [None, QUERY])
def test_a_table_that_was_rolled_back_to_before_the_query_is_refused(tmp_path, by):
    make_empty_table(tmp_path)
    before = iceberg_tables.append(tmp_path, pa.table({"id": [9], "text": ["old"]}, schema=ROWS))
    land(tmp_path, 0, SEAM.to_dict())
    table = iceberg_tables.table_in(tmp_path)
    table.manage_snapshots().rollback_to_snapshot(before).commit()
    with pytest.raises(
        OptionError, match=f"rolled back: .*before the first epoch of query {QUERY}"
    ):
        landed(tmp_path, by)


def test_a_query_whose_snapshots_have_all_expired_is_not_forgotten(tmp_path):
    make_empty_table(tmp_path)
    quiet = land(tmp_path, 0, {"kind": "other"}, query="q-2")
    land(tmp_path, 0, SEAM.to_dict())
    table = iceberg_tables.table_in(tmp_path)
    with table.transaction() as transaction:  # as the sink does with the next epoch
        transaction.remove_properties("krishiv.offsets.q-2")
    iceberg_tables.expire(tmp_path, quiet)
    with pytest.raises(OptionError, match=f"2 queries .*{QUERY}, q-2.*'landedBy'"):
        landed(tmp_path)
    assert landed(tmp_path, QUERY).offset == SEAM.to_dict()


def test_if_all_its_snapshots_have_expired_the_query_has_to_be_named(tmp_path):
    make_empty_table(tmp_path)
    theirs = land(tmp_path, 0, SEAM.to_dict())
    iceberg_tables.compact(tmp_path)
    iceberg_tables.expire(tmp_path, theirs)
    with pytest.raises(OptionError, match="no longer has a snapshot of query"):
        landed(tmp_path)
    assert landed(tmp_path, QUERY).offset == SEAM.to_dict()


def test_a_table_without_a_snapshot_is_refused(tmp_path):
    make_empty_table(tmp_path)
    with pytest.raises(OptionError, match="no snapshot yet"):
        landed(tmp_path)


def test_a_table_that_does_not_say_where_it_ends_is_refused(tmp_path):
    make_empty_table(tmp_path)
    iceberg_tables.append(tmp_path, pa.table({"id": [1], "text": ["x"]}, schema=ROWS))
    with pytest.raises(OptionError, match=r"does not record .*'checkpointLocation'.*then\.start"):
        landed(tmp_path)
    land(tmp_path, 3)
    with pytest.raises(OptionError, match=f"it has epochs of {QUERY}"):
        landed(tmp_path)
    with pytest.raises(OptionError, match="checkpoint instead of its id"):
        landed(tmp_path, QUERY)


def test_the_checkpoint_of_the_query_says_what_did_not_fit_into_the_table(tmp_path):
    make_empty_table(tmp_path)
    land(tmp_path, 3)
    checkpoint = tmp_path / "landing"
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "metadata").write_text(json.dumps({"id": QUERY}))
    later = SEAM.model_copy(update={"topics": {"t": {"0": 99}}})
    for epoch, offset in ((3, SEAM), (4, later)):  # one that is planned, and not in the table yet
        (checkpoint / "offsets" / str(epoch)).write_text(f"v1\n{{}}\n{offset.to_json()}")
    assert landed(tmp_path, str(checkpoint)).offset == SEAM.to_dict()
    plan = PlannedOffsets.of(3, {}, {"0": SEAM.to_json()})
    said = {"krishiv.plan." + QUERY: f"3:{plan.digest}"}
    with iceberg_tables.table_in(tmp_path).transaction() as transaction:
        transaction.set_properties(said)
    sources = SparkCheckpoint(str(checkpoint)).offset_seq(3).sources
    assert plan.ends == PlannedOffsets.of(3, {}, sources).ends
    assert landed(tmp_path, str(checkpoint)).offset == SEAM.to_dict()
    entry = checkpoint / "offsets" / "3"
    entry.write_text(f"v1\n{{}}\n{later.to_json()}")  # of a copy that was put back, planned anew
    with pytest.raises(
        OptionError, match=r"offsets/3 does not match epoch 3 of the query in table db\.t"
    ):
        landed(tmp_path, str(checkpoint))
    entry.unlink()
    with pytest.raises(OptionError, match="offsets/3 cannot be read"):
        landed(tmp_path, str(checkpoint))
    (checkpoint / "metadata").write_text(json.dumps({"id": "another"}))
    with pytest.raises(OptionError, match="another has written no epoch"):
        landed(tmp_path, str(checkpoint))


@pytest.mark.parametrize(
    ("properties", "says"),
    [
        (
            make_landing_properties(QUERY, 1, SEAM.to_dict()) | {f"krishiv.epoch.{QUERY}": "2"},
            "is of epoch 1",
        ),
        (
            make_landing_properties(QUERY, 1, SEAM.to_dict()) | {f"krishiv.epoch.{QUERY}": "x"},
            "is 'x', not an epoch",
        ),
        (make_landing_properties(QUERY, 1) | {f"krishiv.offsets.{QUERY}": "{"}, "is damaged"),
        (make_landing_properties(QUERY, 1) | {f"krishiv.offsets.{QUERY}": "[]"}, "is damaged"),
        (make_landing_properties(QUERY, 1, None), "is damaged"),
    ],
    ids=range(5),
)
def test_properties_that_were_changed_are_refused(tmp_path, properties, says):
    make_empty_table(tmp_path)
    land(tmp_path, 1, properties=properties)
    with pytest.raises(OffsetError, match=says):
        landed(tmp_path)


def test_a_query_of_several_sources_is_refused(tmp_path):
    make_empty_table(tmp_path)
    land(tmp_path, 1, SEAM.to_dict(), {"kind": "memory"})
    with pytest.raises(OptionError, match="reads 2 sources"):
        landed(tmp_path)


def test_a_snapshot_that_the_user_names_says_nothing_of_offsets(tmp_path):
    make_empty_table(tmp_path)
    first = land(tmp_path, 0, SEAM.to_dict())
    land(tmp_path, 1, SEAM.to_dict())
    found = landed(tmp_path, snapshot=first)
    assert (found.offset, found.begin.spot.snapshot) == (None, first)
    with pytest.raises(OptionError, match="'snapshot' names snapshot 5, which"):
        landed(tmp_path, snapshot=5)


@pytest.mark.parametrize(
    "more",
    [
        {"branch": "main"},
        {"startingOffsets": "current"},
        {"start-snapshot-id": "1"},
        {"stream-from-timestamp": "1"},
        {"readChanges": "true"},
    ],
    ids=str,
)
def test_another_start_in_the_table_is_refused(tmp_path, more):
    make_empty_table(tmp_path)
    land(tmp_path, 0, SEAM.to_dict())
    with pytest.raises(OptionError, match="has no meaning here"):
        landed(tmp_path, **more)


# --- where the topics go on


def taken(offset, **more):
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t", **more}
    if {"assign", "subscribePattern"} & more.keys():
        del given["subscribe"]
    options = KafkaSourceOptions.parse(given, "krishiv-kafka")
    return KafkaReader(options, None, streaming=True).start_from_offset(offset)


def test_the_position_is_taken_over_without_its_event_time():
    timed = SEAM.model_copy(
        update={
            "began": {"t": {"1": 0}},
            "left": {"u": {"0": 3}},
            "times": {"t": {"0": 5}},
            "watermark": Watermark(ms=5),
        }
    )
    assert taken(timed.to_dict()) == SEAM.model_copy(update={"left": {"u": {"0": 3}}})


@pytest.mark.parametrize(
    ("offset", "more", "says"),
    [
        ({"kind": "parquet"}, {}, "came from a source of kind 'parquet'"),
        ({"t": {"0": 7}}, {}, "came from a source of Spark itself"),
        (KafkaOffset(at="latest").to_dict(), {}, "no rows of topic 't'"),
        (SEAM.to_dict(), {"subscribe": "u"}, "come from t-0 too, which the options do not include"),
        (SEAM.to_dict(), {"subscribe": "t, u"}, "no rows of topic 'u'"),
        (SEAM.to_dict(), {"assign": '{"t": [0]}'}, "come from t-1 too"),
        (SEAM.to_dict(), {"assign": '{"t": [0, 1, 2]}'}, "no rows of partition t-2 among"),
        (KafkaOffset().to_dict(), {"subscribePattern": "t.*"}, "no rows of any topic"),
        (
            SEAM.to_dict(),
            {"startingOffsets": "earliest"},
            "'startingOffsets' would start at another pos",
        ),
        (
            SEAM.to_dict(),
            {"startingTimestamp": "5"},
            "'startingTimestamp' would start at another position",
        ),
    ],
)
def test_a_position_that_is_not_the_one_asked_for_is_refused(offset, more, says):
    with pytest.raises(OptionError, match=says):
        taken(offset, **more)


def test_a_damaged_position_is_refused():
    with pytest.raises(OffsetError, match="damaged"):
        taken({**SEAM.to_dict(), "topics": 3})


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"startingOffsets": "earliest"},
        {"startingOffsets": "latest"},
        {"startingOffsets": '{"t": {"0": 3, "1": -1}}'},
        {"startingTimestamp": "5"},
        {"startingOffsets": '{"t": {"0": 3}}', "startingTimestamp": "5"},
    ],
    ids=str,
)
def test_a_start_that_is_not_exact_is_refused(more):
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t", **more}
    reader = KafkaReader(KafkaSourceOptions.parse(given, "krishiv-kafka"), None, streaming=True)
    with pytest.raises(OptionError, match="'startingOffsets' must specify the offset"):
        reader.configured_start()


# --- for people


def test_a_position_in_words():
    inside = IcebergOffset(
        table="u", spot=StreamingOffset(snapshot=5, sequence=2, file=3, scan=True)
    )
    over = IcebergOffset(table="u", spot=StreamingOffset(snapshot=5, sequence=2))
    words = "topic t, next offsets 0: 7, 1: 0 (sum 7)"
    assert describe_position(ChainOffset(first=inside, then=SEAM).to_json()) == (
        f"table u, snapshot 5 (sequence 2), 3 of its files of the first load; then {words}"
    )
    assert describe_position(ChainOffset(first=over, then=SEAM).to_json()).startswith(
        f"{words}; after"
    )


def test_tools_find_the_topics_in_an_offset():
    offset = ChainOffset(first=IcebergOffset(), then=SEAM)
    assert offsets_by_topic(offset.to_dict()) == {"t": {0: 7, 1: 0}}
