"""``krishiv-chain`` on a real broker and a real catalog: where a table ends, its topics go on."""

import json
import time
import uuid
from collections import Counter
from functools import partial

import pyarrow as pa
import pytest
from iceberg_tables import expire, make_table, newest, table_in
from kafka import TopicPartition
from kafka.admin import NewPartitions
from kafka_topics import ask_admin, fill, make_topic, produce
from landings import Landing

from krishiv_spark.arrow.conform import conform
from krishiv_spark.errors import DataLossError, KrishivError, OptionError, StorageError
from krishiv_spark.kafka.client import KafkaFailedError
from krishiv_spark.kafka.dev import open_cluster
from krishiv_spark.kafka.records.scanner import SCHEMA
from krishiv_spark.sinks.iceberg import epoch_properties
from krishiv_spark.sources.base import UNLIMITED, Limit
from krishiv_spark.sources.chain.reader import ChainOptions, ChainReader
from krishiv_spark.sources.iceberg.reader import IcebergReader

pytestmark = pytest.mark.once

RAW = SCHEMA.remove(SCHEMA.names.index("headers"))
LENIENT = {"then.failOnDataLoss": "false"}
ONE = Limit(rows=1)


@pytest.fixture(scope="module")
def bootstrap():
    with open_cluster() as cluster:
        yield cluster.bootstrap


class World:
    """A topic, a table, a query that lands the one in the other, and who reads both."""

    def __init__(self, bootstrap, folder):
        self.bootstrap, self.folder = bootstrap, folder
        self.topic = f"t-{uuid.uuid4().hex[:12]}"
        make_topic(bootstrap, self.topic, partitions=2)
        make_table(folder, RAW)
        self.sent = 0
        self.landing = self.lands()

    def lands(self, query="landing-1", **more):
        kafka = {"kafka.bootstrap.servers": self.bootstrap, "subscribe": self.topic, **more}
        return Landing(self.folder, RAW, query=query, **kafka)

    def send(self, rows):
        fill(self.bootstrap, self.topic, rows, self.sent)
        self.sent += rows

    def reader(self, *, streaming=True, **more):
        given = {
            "path": "db.t",
            "first.warehouse": str(self.folder),
            "then.kafka.bootstrap.servers": self.bootstrap,
            "then.subscribe": self.topic,
            "maxRowsPerTrigger": "1",  # without effect where a limit is not handed on
            **more,
        }
        given = {name: text for name, text in given.items() if text is not None}
        options = ChainOptions.parse(given, "krishiv-chain")
        return ChainReader(options, RAW, streaming=streaming)

    def admin(self, what, *args):
        return ask_admin(self.bootstrap, what, *args)

    def age_out(self, more):
        """Records go: all that have been landed, and so many more of each partition."""
        ends = self.landing.position.topics[self.topic]
        self.admin(
            "delete_records",
            {TopicPartition(self.topic, int(n)): end + more for n, end in ends.items()},
        )


@pytest.fixture
def world(bootstrap, tmp_path):
    return World(bootstrap, tmp_path)


@pytest.fixture
def landed(world):
    """Three epochs of 40 rows are in the table, and 40 more in the topic."""
    for _ in range(3):
        world.send(40)
        world.landing.epoch()
    world.send(40)
    return world


def begun(reader):
    return reader.resolve(reader.initial())


def values(reader, start, end):
    return [
        int(value)
        for part in reader.plan(start, end)
        for batch in reader.read(part)
        for value in conform(batch, RAW)["value"].to_pylist()
    ]


def read_on(reader, start, limit=UNLIMITED, between=lambda: None):
    """All that there is from an offset on, and where that ends."""
    found = []
    while (end := reader.latest(start, limit)) != start:
        between()
        found += values(reader, start, end)
        start = end
    return found, start


def assert_each_once(found, rows):
    assert Counter(found) == Counter(range(rows))


# --- the seam


def test_the_table_is_read_and_then_what_the_topic_has_after_it(landed):
    reader = landed.reader()
    seam = begun(reader)
    found, end = read_on(reader, seam)
    assert_each_once(found, 160)
    assert seam.then.topics == landed.landing.position.topics
    landed.send(5)
    more, _ = read_on(reader, end)
    assert sorted(more) == list(range(160, 165))


@pytest.mark.long
def test_what_is_landed_after_the_seam_is_read_from_the_topic_alone(landed):
    reader = landed.reader()
    start = begun(reader)

    def goes_on():
        if landed.sent < 300:
            landed.send(20)
            landed.landing.epoch()

    found, end = read_on(reader, start, ONE, between=goes_on)
    more, _ = read_on(reader, end)
    assert_each_once(found + more, landed.sent)
    in_table = [start.first.spot.snapshot, end.first.spot.snapshot]
    assert in_table[0] == in_table[1] != newest(landed.folder)


@pytest.mark.long
def test_each_batch_can_be_read_again_by_another_process(landed):
    start, found = begun(landed.reader()), []
    while (end := landed.reader().latest(start, ONE)) != start:
        landed.landing.epoch()
        rows = values(landed.reader(), start, end)
        assert values(landed.reader(), start, end) == rows
        found, start = found + rows, end
    assert_each_once(found, 160)


def test_limits_hold_in_both_parts(landed):
    reader = landed.reader(maxRowsPerTrigger="40", **{"then.maxOffsetsPerTrigger": "7"})
    start, sizes = begun(reader), []
    while (end := reader.latest(start, reader.options.limit())) != start:
        sizes.append(len(values(reader, start, end)))
        start = end
    assert sizes[:3] == [40, 40, 40]
    assert max(sizes[3:]) <= 7
    assert sum(sizes) == 160


def test_a_batch_read_has_the_table_and_all_that_follows(landed):
    reader = landed.reader(streaming=False)
    start = begun(reader)
    end = reader.latest(start, UNLIMITED)
    assert_each_once(values(reader, start, end), 160)


def test_with_available_now_nothing_newer_is_read(landed):
    reader = landed.reader()
    reader.freeze()
    landed.landing.epoch()
    landed.send(30)
    landed.landing.epoch()
    found, end = read_on(reader, begun(reader), ONE)
    assert_each_once(found, 160)
    again = landed.reader()
    again.freeze()
    more, _ = read_on(again, end)
    assert_each_once(found + more, 190)


def test_a_table_that_is_away_when_a_run_is_bounded_is_read_up_to_its_seam(landed, monkeypatch):
    def is_away(*_):
        raise StorageError("the store is away for a moment")

    reader = landed.reader()
    with monkeypatch.context() as moment:
        moment.setattr(IcebergReader, "provenance", is_away)
        reader.freeze()
    # What has come since is in the table: of a partition that there was not, and after the ends.
    landed.admin("create_partitions", {landed.topic: NewPartitions(3)})
    produce(landed.bootstrap, landed.topic, [b"160", b"161"], partition=2)
    landed.landing.epoch()
    found, end = read_on(reader, begun(reader), ONE)
    assert_each_once(found, 162)
    more, _ = read_on(landed.reader(), end)
    assert more == []


def test_partitions_that_are_newer_than_the_table_are_read_from_their_beginning(landed):
    landed.admin("create_partitions", {landed.topic: NewPartitions(3)})
    produce(landed.bootstrap, landed.topic, [b"160", b"161"], partition=2)
    found, _ = read_on(landed.reader(), begun(landed.reader()))
    assert_each_once(found, 162)


def test_a_query_that_began_late_has_its_rows_and_no_older_ones(world):
    world.send(40)
    late = world.lands("late", startingOffsets="latest")
    late.epoch()
    world.send(40)
    late.epoch()
    world.send(40)
    found, _ = read_on(world.reader(), begun(world.reader()))
    assert sorted(found) == list(range(40, 120))


def test_of_two_queries_the_named_one_says_where_to_go_on(world):
    """One that was begun anew, with another checkpoint, where the first one ended."""
    world.send(40)
    world.landing.epoch()
    world.send(40)
    starts = json.dumps(world.landing.position.topics)
    second = world.lands("second", startingOffsets=starts)
    second.epoch()
    world.send(40)
    with pytest.raises(OptionError, match="2 queries have written"):
        begun(world.reader())
    reader = world.reader(landedBy=str(second.checkpoint))
    found, _ = read_on(reader, begun(reader))
    assert_each_once(found, 120)


def test_offsets_that_are_too_long_for_the_table_are_in_the_checkpoint(world, monkeypatch):
    monkeypatch.setattr(epoch_properties, "_MAX_OFFSETS", 10)
    world.send(40)
    world.landing.epoch()
    world.send(40)
    with pytest.raises(OptionError, match="does not record the position of the source of its rows"):
        begun(world.reader())
    reader = world.reader(landedBy=str(world.landing.checkpoint))
    found, _ = read_on(reader, begun(reader))
    assert_each_once(found, 80)


def test_the_user_may_say_where_a_snapshot_ends(landed):
    """As docs/backfill.md says, from the columns of the table."""
    snapshot = newest(landed.folder)
    given = {"snapshot": str(snapshot), "then.startingOffsets": ends_in(landed)}
    landed.landing.epoch()
    reader = landed.reader(**given)
    found, _ = read_on(reader, begun(reader))
    assert_each_once(found, 160)
    with pytest.raises(OptionError, match="'startingOffsets' would start at another position"):
        begun(landed.reader(**{"then.startingOffsets": given["then.startingOffsets"]}))
    with pytest.raises(OptionError, match="must specify the offset of each partition"):
        begun(landed.reader(snapshot=str(snapshot)))
    ahead = json.dumps({landed.topic: {"0": 9999, "1": 0}})
    with pytest.raises(OptionError, match="given as offset 9999, but the newest is"):
        begun(landed.reader(**{**given, "then.startingOffsets": ahead}))


def ends_in(world):
    rows = table_in(world.folder).scan(selected_fields=("partition", "offset")).to_arrow()
    ends = rows.group_by("partition").aggregate([("offset", "max")]).to_pylist()
    return json.dumps({world.topic: {str(e["partition"]): e["offset_max"] + 1 for e in ends}})


# --- refused before a row moves


@pytest.mark.long  # waits for ten seconds
def test_a_broker_that_is_not_reached_is_said_before_the_table_is_read(landed):
    began_s = time.monotonic()
    with pytest.raises(KafkaFailedError, match=r"127\.0\.0\.1:1"):
        begun(landed.reader(**{"then.kafka.bootstrap.servers": "127.0.0.1:1"}))
    assert time.monotonic() - began_s < 60


def test_rows_that_have_aged_out_already_are_said_before_the_table_is_read(landed):
    landed.age_out(3)
    with pytest.raises(
        DataLossError, match=r"the records that follow the rows of the table .* offset"
    ):
        begun(landed.reader())
    reader = landed.reader(**LENIENT)
    found, _ = read_on(reader, begun(reader))
    assert len({*found}) == len(found) == 160 - 2 * 3


def test_rows_that_age_out_while_the_table_is_read_are_said_when_a_process_begins(landed):
    reader = landed.reader()
    start = begun(reader)
    inside = reader.latest(start, ONE)
    landed.age_out(3)
    assert reader.latest(inside, ONE) != inside  # this one does not look again
    with pytest.raises(DataLossError, match="the records that follow the rows of the table"):
        landed.reader().latest(inside, ONE)
    with pytest.raises(DataLossError, match="the query is at offset"):
        read_on(reader, inside)


def test_another_topic_of_that_name_is_said_before_the_table_is_read(landed):
    landed.admin("delete_topics", [landed.topic])
    while landed.topic in landed.admin("list_topics"):
        pass
    make_topic(landed.bootstrap, landed.topic, partitions=2)
    with pytest.raises(DataLossError, match="deleted and recreated"):
        begun(landed.reader())


def test_a_topic_that_was_not_landed_is_refused(landed):
    other = f"t-{uuid.uuid4().hex[:12]}"
    make_topic(landed.bootstrap, other)
    with pytest.raises(OptionError, match=f"no rows of topic '{other}'"):
        begun(landed.reader(**{"then.subscribe": f"{landed.topic},{other}"}))
    with pytest.raises(OptionError, match="which the options do not include"):
        begun(landed.reader(**{"then.subscribe": other}))


def test_a_snapshot_that_expires_while_it_is_read_is_said(landed):
    reader = landed.reader()
    inside = reader.latest(begun(reader), ONE)
    gone = inside.first.spot.snapshot
    landed.landing.epoch()
    expire(landed.folder, gone)
    with pytest.raises(DataLossError, match=f"snapshot {gone} has expired.*there are"):
        landed.reader().latest(inside, ONE)


def test_once_the_table_is_read_it_is_not_needed_any_more(landed):
    reader = landed.reader()
    found, end = read_on(reader, begun(reader))
    landed.send(40)
    again = landed.reader(**{"first.warehouse": str(landed.folder / "nowhere")})
    again.freeze()
    more, _ = read_on(again, end)
    assert_each_once(found + more, 200)
    with pytest.raises(KrishivError):
        begun(again)


# --- what people see


def test_what_waits_is_that_of_the_part_that_is_read(landed):
    reader = landed.reader()
    assert reader.backlog() == {}
    inside = reader.latest(begun(reader), ONE)
    assert reader.backlog()["files_waiting"] == 2
    _, end = read_on(reader, inside)
    landed.send(3)
    reader.latest(end, ONE)
    assert 0 < reader.backlog()["offsets_waiting"] < 3


def test_the_watermark_is_that_of_the_topics(landed):
    late = {"eventTime": "timestamp", "watermarkDelay": "1 s", "lateRows": "drop"}
    reader = landed.reader(**late)
    start = begun(reader)
    inside = reader.latest(start, ONE)
    assert (start.watermark, inside.watermark) == (None, None)
    found, end = read_on(reader, inside)
    assert end.watermark == end.then.watermark is not None
    assert len(found) == 120


def test_columns_of_values_come_from_both(world, tmp_path):
    rows = pa.schema([("id", pa.int64()), ("name", pa.string())])
    folder = tmp_path / "json"
    folder.mkdir()
    make_table(folder, rows)
    send = partial(produce, world.bootstrap, world.topic)
    kafka = {"kafka.bootstrap.servers": world.bootstrap, "subscribe": world.topic}
    landing = Landing(folder, rows, valueFormat="json", **kafka)
    send([b'{"id": 1, "name": "a", "more": 5}'])
    landing.epoch()
    send([b'{"id": 2, "name": "b"}'])
    given = {"path": "db.t", "first.warehouse": str(folder), "then.valueFormat": "json"}
    given |= {f"then.{name}": text for name, text in kafka.items()}
    options = ChainOptions.parse(given, "krishiv-chain")
    reader = ChainReader(options, rows, streaming=True)
    found, start = [], begun(reader)
    while (end := reader.latest(start, UNLIMITED)) != start:
        for part in reader.plan(start, end):
            found += [row for batch in reader.read(part) for row in batch.to_pylist()]
        start = end
    assert found == [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]
