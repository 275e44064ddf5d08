"""The checks of sources by a replay before any change, and its handling of topics."""

import json

import pyarrow as pa
import pytest
from iceberg_tables import append, expire, make_table, table_in
from replays import Stream, forget, refused, said
from spark_starts import files, make_checkpoint

from krishiv_spark.memory.store import open_store
from krishiv_spark.offsets import Claim, open_log
from krishiv_spark.operate.moving.replay_sources import source_options
from krishiv_spark.sinks.parquet.writer import ParquetWriter
from krishiv_spark.sources.iceberg.offset import IcebergOffset, StreamingOffset
from krishiv_spark.sources.memory.handle import Pushed, memory_source

SCHEMA = pa.schema([("id", pa.int64())])


class Reads(Stream):
    """A query whose source has some offset at the end of each epoch."""

    def __init__(self, checkpoint, table, offset):
        super().__init__(ParquetWriter, checkpoint, path=str(table))
        self._offset = offset

    def offset(self, number, end):
        del end
        return self._offset(number)

    def _end_of(self, number):
        return 10 * number + 10


@pytest.fixture
def checkpoint(tmp_path, monkeypatch):
    monkeypatch.setenv("KRISHIV_MEMORY_DIR", str(tmp_path / "memory"))
    return make_checkpoint(tmp_path / "c", -1)


def run(checkpoint, tmp_path, offset, epochs=4):
    stream = Reads(checkpoint, tmp_path / "t", offset)
    for epoch in range(epochs):
        stream.run(epoch)


def words(checkpoint, tmp_path, *more):
    return (checkpoint, "--from", 2, "--table", tmp_path / "t", "--dry-run", *more)


# --- tables of Iceberg


@pytest.fixture
def snapshots(tmp_path):
    (tmp_path / "w").mkdir()
    make_table(tmp_path / "w", SCHEMA)
    return [append(tmp_path / "w", pa.table({"id": [n]}, SCHEMA)) for n in range(4)]


def at_snapshot(tmp_path, snapshots, warehouse="w"):
    table = str(table_in(tmp_path / warehouse).metadata.table_uuid)

    def offset(number):
        spot = StreamingOffset(snapshot=snapshots[number], sequence=number + 1)
        return IcebergOffset(table=table, spot=spot).to_json()

    return offset


def test_snapshots_of_the_source_are_asked_for(checkpoint, tmp_path, snapshots):
    run(checkpoint, tmp_path, at_snapshot(tmp_path, snapshots))
    source = ("-s", f"warehouse={tmp_path}/w", "-s", "table=db.t")
    assert "name its table" in refused(*words(checkpoint, tmp_path))
    assert "the 2 snapshots after it are still there" in said(*words(checkpoint, tmp_path, *source))
    expire(tmp_path / "w", *snapshots[:3])
    forget()
    before = files(tmp_path)
    text = refused(*words(checkpoint, tmp_path, *source)[:5], *source)
    assert "has expired" in text
    assert files(tmp_path) == before


def test_another_table_than_that_of_the_source_is_refused(checkpoint, tmp_path, snapshots):
    run(checkpoint, tmp_path, at_snapshot(tmp_path, snapshots))
    (tmp_path / "other").mkdir()
    make_table(tmp_path / "other", SCHEMA)
    source = ("-s", f"warehouse={tmp_path}/other", "-s", "table=db.t")
    assert "give the options of the source with -s" in refused(
        *words(checkpoint, tmp_path, *source)
    )


def test_the_catalog_of_the_sink_is_not_that_of_the_source(checkpoint, tmp_path, snapshots):
    run(checkpoint, tmp_path, at_snapshot(tmp_path, snapshots))
    sink = ("-o", "catalog.uri=http://127.0.0.1:1", "-o", "catalog.token=t", "-o", "path=/t")
    source = ("-s", f"warehouse={tmp_path}/w", "-s", "iceberg.table=db.t")
    shown = said(*words(checkpoint, tmp_path, "-o", "table=db.x", *sink, *source))
    assert "the 2 snapshots after it are still there" in shown


def test_general_options_hold_unless_the_source_has_its_own():
    sink = {"catalog.uri": "http://h", "Warehouse": "a", "table": "db.x", "catalog.token": "t"}
    both = {"catalog.uri": "http://h", "Warehouse": "a", "catalog.token": "t"}
    assert source_options(sink, {"table": "db.t"}) == {**both, "table": "db.t"}
    own = {"warehouse": "/w", "iceberg.table": "db.t"}
    assert source_options({**sink, "path": "/p"}, own) == own
    assert source_options({"kafka.bootstrap.servers": "h:1"}, own)["kafka.bootstrap.servers"]


def test_each_of_several_sources_can_have_options_of_its_own(checkpoint, tmp_path, snapshots):
    (tmp_path / "v").mkdir()
    make_table(tmp_path / "v", SCHEMA)
    others = [append(tmp_path / "v", pa.table({"id": [n]}, SCHEMA)) for n in range(4)]
    first, second = at_snapshot(tmp_path, snapshots), at_snapshot(tmp_path, others, "v")
    run(checkpoint, tmp_path, lambda number: f"{first(number)}\n{second(number)}")
    of_each = ("-s", f"0.warehouse={tmp_path}/w", "-s", f"1.warehouse={tmp_path}/v")
    shown = said(*words(checkpoint, tmp_path, "-s", "table=db.t", *of_each))
    assert shown.count("the 2 snapshots after it are still there") == 2
    text = refused(*words(checkpoint, tmp_path, "-s", "table=db.t", *of_each[:2]))
    assert "source 1" in text


# --- pushes


def test_pushes_are_found_by_their_origin_and_missed_when_they_were_cleared(checkpoint, tmp_path):
    source = memory_source("clicks", SCHEMA)
    for number in range(4):
        source.add([{"id": number}])
    origin = Pushed(open_store(), "clicks").origin()
    run(
        checkpoint,
        tmp_path,
        lambda number: json.dumps({"kind": "memory", "v": 1, "next": number + 1, "origin": origin}),
    )
    assert "the pushes into 'clicks' from there on are still there" in said(
        *words(checkpoint, tmp_path)
    )
    source.clear()
    before = files(tmp_path)
    assert "rows that must be read again no longer exist: the pushes before" in refused(
        *words(checkpoint, tmp_path)[:5]
    )
    assert files(tmp_path) == before


# --- topics


def test_a_source_that_reads_topics_needs_its_cluster(checkpoint, tmp_path):
    run(checkpoint, tmp_path, lambda number: json.dumps({"clicks": {"0": number}}))
    assert "give the settings of its cluster" in refused(*words(checkpoint, tmp_path))


def test_an_epoch_whose_entry_is_missing_is_not_left_out_of_the_check(checkpoint, tmp_path):
    """It may have been the first with a partition that was new then."""
    run(checkpoint, tmp_path, lambda number: json.dumps({"clicks": {"0": number}}))
    cluster = ("-o", "kafka.bootstrap.servers=127.0.0.1:1")
    kept = (checkpoint / "offsets/2").read_text()
    for text in (None, "v1\n{"):
        (checkpoint / "offsets/2").unlink()
        if text is not None:
            (checkpoint / "offsets/2").write_text(text)
        assert "offsets/2" in refused(*words(checkpoint, tmp_path, *cluster))
        (checkpoint / "offsets/2").write_text(kept)


def test_a_query_that_writes_to_a_topic_is_refused_with_both_ways_on(checkpoint, tmp_path):
    run(checkpoint, tmp_path, str)
    log = open_log(str(checkpoint / "krishiv"), "0f-1")
    log.begin(Claim(query="0f-1", target="Kafka cluster MkU3OEVBNTcwNTJENDM2Qk"))
    before = files(tmp_path)
    for more in ((), ("--format", "kafka")):
        text = refused(checkpoint, "--from", 2, *more)
        assert "krishiv-kafka cannot remove committed records" in text
        assert f"'krishiv-spark checkpoint copy {checkpoint} NEW --to 1'" in text
        assert f"'krishiv-spark checkpoint rewind {checkpoint} --to 1'" in text
        assert "log adopt --format kafka" in text
        assert "which then has the rows since epoch 2 once" in text
        assert "take that one up to the end of epoch 1, then the new one" in text
    assert files(tmp_path) == before


@pytest.mark.parametrize("name", ["queryId", "txnAppId"])
def test_names_that_users_give_to_queries_are_refused(checkpoint, tmp_path, name):
    run(checkpoint, tmp_path, str)
    assert f"a query with '{name}' cannot be replayed" in refused(
        *words(checkpoint, tmp_path, "-o", f"{name}=mine")
    )
