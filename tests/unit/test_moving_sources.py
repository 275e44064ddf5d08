"""``krishiv-spark checkpoint import`` and ``export``: positions of Spark's sources, and ours."""

import json
import os
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import Command
from spark_starts import files, make_checkpoint, offsets_in, start, write

from krishiv_spark.offsets import open_log
from krishiv_spark.operate.moving import translations
from krishiv_spark.operate.moving.spark_positions import list_read_files
from krishiv_spark.sources.base import UNLIMITED
from krishiv_spark.sources.kafka.offset import KafkaOffset
from krishiv_spark.sources.parquet.reader import ParquetOffset, ParquetReader
from krishiv_spark.spark.checkpoint import SparkCheckpoint
from krishiv_spark.storage import ENVIRONMENT

GOLDEN = Path(__file__).parents[1] / "golden" / "offsets"
SPARKS = '{"a":{"0":23,"10":4},"b":{"1":7}}'


_COMMAND = Command("checkpoint")
run, said, refused = _COMMAND.run, _COMMAND.said, _COMMAND.refused


def sparks_offset(epoch):
    return json.dumps({"a": {"0": epoch, "10": 4}, "b": {"1": 7}})


@pytest.fixture
def old(tmp_path):
    """A checkpoint of Spark's own Kafka source, of a query that counts."""
    folder = make_checkpoint(tmp_path / "old", 5, first=1, text=sparks_offset, state=["0/0"])
    write(folder / "sources/0/0", '\0v1\n{"a":{"0":0}}')
    return folder


# --- Kafka


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        (SPARKS, True),
        ("{}", True),
        ('{"kind":"kafka","v":2}', False),
        ('{"logOffset":3}', False),
        ('{"a":{"x":1}}', False),
        ('{"a":{"0":-1}}', False),
        ('{"version":1,"snapshot_id":7,"position":0,"scan_all_files":false}', False),
        ("17", False),
        ("-", False),
    ],
)
def test_offsets_of_sparks_kafka_source_are_known(text, fits):
    assert translations.is_spark_kafka(text) == fits


def test_a_position_goes_from_spark_to_ours_and_back():
    ours = translations.from_spark_kafka(SPARKS)
    assert ours.to_json() == '{"kind":"kafka","topics":{"a":{"0":23,"10":4},"b":{"1":7}},"v":2}'
    assert translations.to_spark_kafka(ours.to_json()) == SPARKS


@pytest.mark.parametrize("name", ["kafka-v1", "kafka-v2", "kafka-v2-watermark"])
def test_every_released_position_can_be_handed_back(name):
    text = (GOLDEN / f"{name}.json").read_text().strip()
    topics = KafkaOffset.from_json(text).topics
    assert json.loads(translations.to_spark_kafka(text)) == topics


def test_the_two_newest_epochs_are_translated_and_all_else_stays(old, tmp_path):
    new, before = tmp_path / "new", files(old)
    shown = said("import", "--from", "kafka", old, "--to", new)
    assert 'startingOffsets = {"a":{"0":5,"10":4},"b":{"1":7}}' in shown
    assert files(old) == before
    ours = {
        epoch: translations.from_spark_kafka(sparks_offset(epoch)).to_json() for epoch in (4, 5)
    }
    assert start(new) == ("next", 6, {"0": ours[5]})
    assert offsets_in(new / "offsets/4") == {"0": ours[4]}
    there = files(new)
    assert there["commits/5"] == before["commits/5"]
    assert {p for p in there if p.startswith("state/")} == {
        p for p in before if p.startswith("state/")
    }
    assert not [p for p in there if p.startswith("sources/") or p in ("offsets/3", "commits/4")]
    heads = [place["offsets/5"].split(b"\n")[:2] for place in (there, before)]
    assert heads[0] == heads[1]  # with Spark's watermark
    place = SparkCheckpoint(str(new))
    state = open_log(str(new / "krishiv"), place.query_id()).state()
    assert state.committed_offsets == place.offsets_of(5)


def test_named_sources_and_those_of_others_stay_what_they_are(tmp_path):
    old = make_checkpoint(tmp_path / "old", 1)
    for epoch in (0, 1):
        lines = [f"orders:{sparks_offset(epoch)}", 'files:{"logOffset":3}', "idle:-"]
        write(old / f"offsets/{epoch}", "\n".join(["v2", "{}", *lines]))
    write(old / "sources/files/3", "v1")
    write(old / "sources/orders/0", "v1")
    said("import", "--from", "kafka", old, "--to", tmp_path / "new")
    found = offsets_in(tmp_path / "new/offsets/1")
    assert found == {
        "orders": translations.from_spark_kafka(sparks_offset(1)).to_json(),
        "files": '{"logOffset":3}',
        "idle": "-",
    }
    assert (tmp_path / "new/offsets/1").read_text().startswith("v2\n{}\n")
    assert (tmp_path / "new/sources/files/3").exists()
    assert not (tmp_path / "new/sources/orders").exists()


def test_an_epoch_before_the_source_had_an_offset_is_none_after_it(tmp_path):
    old = make_checkpoint(tmp_path / "old", 1, text=lambda n: sparks_offset(n) if n else "-")
    said("import", "--from", "kafka", old, "--to", tmp_path / "new")
    assert offsets_in(tmp_path / "new/offsets/0") == {"0": "-"}


def test_of_an_epoch_that_is_not_over_the_user_has_to_say_what_became(tmp_path):
    old = make_checkpoint(tmp_path / "old", 5, over=4, text=sparks_offset, state=["0/0"])
    words = ("import", "--from", "kafka", old, "--to")
    assert "epoch 5 was planned" in refused(*words, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    said(*words, tmp_path / "again", "--newest", "unpublished")
    assert start(tmp_path / "again")[:2] == ("next", 5)
    assert "state/0/0/6.delta" not in files(tmp_path / "again")
    said(*words, tmp_path / "after", "--newest", "published")
    ours = translations.from_spark_kafka(sparks_offset(5)).to_json()
    assert start(tmp_path / "after") == ("next", 6, {"0": ours})
    (old / "state/0/0/6.delta").unlink()
    lost = refused(*words, tmp_path / "lost", "--newest", "published")
    assert "cannot be loaded in version 6" in lost
    for version in ("v2", "v3"):  # of Spark 4.0 and 4.3
        write(old / "commits/4", version + '\n{"nextBatchWatermarkMs":0,"stateUniqueIds":{}}')
        unknown = refused(*words, tmp_path / "lost", "--newest", "published")
        assert "start the old query once more" in unknown


def test_of_a_first_epoch_that_is_not_over_the_user_has_to_say_what_became_too(tmp_path):
    old = make_checkpoint(tmp_path / "old", 0, over=-1, text=sparks_offset, state=["0/0"])
    words = ("import", "--from", "kafka", old, "--to")
    text = refused(*words, tmp_path / "new")
    assert "epoch 0 was planned" in text
    assert "start the old query once more" in text
    assert not (tmp_path / "new").exists()
    text = refused(*words, tmp_path / "new", "--newest", "unpublished")
    assert "start the query with an empty checkpoint" in text
    said(*words, tmp_path / "new", "--newest", "published")
    ours = translations.from_spark_kafka(sparks_offset(0)).to_json()
    assert start(tmp_path / "new") == ("next", 1, {"0": ours})
    assert "state/0/0/1.delta" in files(tmp_path / "new")
    (old / "state/0/0/1.delta").rename(old / "state/0/0/1_0f3a.delta")
    unknown = refused(*words, tmp_path / "lost", "--newest", "published")
    assert "start the old query once more" in unknown


def test_what_no_source_of_ours_can_go_on_from_is_said(old, tmp_path):
    other = make_checkpoint(tmp_path / "other", 1)
    words = ("import", "--from", "kafka", other, "--to", tmp_path / "new")
    assert "no source in" in refused(*words)
    assert "push 2 is next" in refused(*words)
    delta = refused("import", "--from", "delta", old, "--to", tmp_path / "new", code=2)
    assert "keep that source, whose checkpoint works" in " ".join(delta.split())


def test_a_position_is_handed_back(tmp_path):
    def ours(epoch):
        return translations.from_spark_kafka(sparks_offset(epoch)).to_json()

    old = make_checkpoint(tmp_path / "old", 3, text=ours)
    assert 'startingOffsets = {"a":{"0":3,' in said("export", "--to", "kafka", old)
    said("export", "--to", "kafka", old, tmp_path / "new", "--dry-run")
    assert not (tmp_path / "new").exists()
    said("export", "--to", "kafka", old, tmp_path / "new")
    begin = json.loads(start(tmp_path / "new")[2]["0"])
    assert begin == json.loads(sparks_offset(3))


def test_a_start_without_a_position_is_not_handed_back(tmp_path):
    old = make_checkpoint(
        tmp_path / "old", 1, text=lambda _: '{"at":"latest","kind":"kafka","v":2}'
    )
    assert "names no partition yet" in refused("export", "--to", "kafka", old, tmp_path / "new")


# --- files


class Folder:
    """A folder of Parquet files, and a checkpoint of Spark's file source that has read some."""

    def __init__(self, tmp_path):
        self.path = tmp_path / "in é %20"
        self.path.mkdir()
        self.old, self.new = tmp_path / "old", tmp_path / "new"

    def add(self, *names):
        for name in names:
            file = self.path / name
            file.parent.mkdir(exist_ok=True)
            pq.write_table(pa.table({"name": pa.array([name])}), file)

    def entries(self, *names, batch):
        """Entries of its log (``FileStreamSourceLog``)."""
        return [
            json.dumps(
                {
                    "path": f"file://{quote(str(self.path / name))}",
                    "timestamp": (self.path / name).stat().st_mtime_ns // 10**6,
                    "batchId": batch,
                }
            )
            for name in names
        ]

    def log(self, name, entries):
        write(self.old / "sources/0" / name, "\n".join(["v1", *entries]))

    def take_over(self, *more):
        words = ("import", "--from", "files", self.old, "--to", self.new)
        return said(*words, "-o", f"path={self.path}", *more)

    def waiting(self, **more):
        """Return the rows that this package's source would read next, from the checkpoint."""
        text = offsets_in(self.new / f"offsets/{max(SparkCheckpoint(str(self.new)).epochs())}")
        options = ParquetReader.options_type.parse({"path": str(self.path), **more}, "test")
        reader = ParquetReader(options, None, streaming=True)
        begin = ParquetOffset.from_json(text["0"])
        end = reader.latest(begin, UNLIMITED)
        parts = reader.plan(begin, end)
        return sorted(
            name
            for part in parts
            for rows in reader.read(part)
            for name in rows["name"].to_pylist()
        )


@pytest.fixture
def folder(tmp_path):
    found = Folder(tmp_path)
    found.old = make_checkpoint(
        tmp_path / "old", 2, text=lambda epoch: json.dumps({"logOffset": epoch})
    )
    return found


def test_files_that_spark_has_read_are_not_read_again(folder):
    names = [f"day=1/part {n} é.parquet" for n in range(5)]
    folder.add(*names)
    for number in range(4):  # the last one was chosen, but its epoch was not planned
        folder.log(str(number), folder.entries(names[number], batch=number))
    assert "3 files were read" in folder.take_over()
    assert folder.waiting() == sorted(names[3:])
    assert not (folder.new / "sources").exists()


def test_a_folder_whose_files_spark_knows_by_the_log_of_its_own_sink_is_refused(folder):
    folder.add("a.parquet", "of a failed task.parquet")
    for number in range(3):
        folder.log(str(number), folder.entries("a.parquet", batch=number))
    write(folder.path / "_spark_metadata/0", "v1")
    words = ("import", "--from", "files", folder.old, "--to", folder.new)
    for more in (("--dry-run",), ()):
        shown = refused(*words, "-o", f"path={folder.path}", *more)
        assert "was written by Spark's own file sink" in shown
    assert not folder.new.exists()
    # With wildcards, Spark's source lists the folder itself.
    said(*words, "-o", f"path={folder.path}/*.parquet")
    assert folder.waiting() == ["of a failed task.parquet"]


def test_a_compacted_log_says_all_that_came_before_it(folder):
    folder.add("a.parquet", "b.parquet", "c.parquet", "d.parquet")
    whole = folder.entries("a.parquet", batch=0) + folder.entries("b.parquet", batch=1)
    folder.log("1.compact", whole)
    folder.log("0", ["not looked at"])
    folder.log("2", folder.entries("c.parquet", batch=2))
    folder.take_over()
    assert folder.waiting() == ["d.parquet"]
    # And one that goes further than the query.
    folder.log("9.compact", [*whole, *folder.entries("c.parquet", "d.parquet", batch=3)])
    read = list_read_files(ENVIRONMENT.folder(str(folder.old / "sources/0")), 2)
    assert [file.url.rpartition("/")[2] for file in read] == ["a.parquet", "b.parquet"]


def test_a_log_that_is_not_whole_is_no_position(folder):
    folder.add("a.parquet")
    folder.log("0", folder.entries("a.parquet", batch=0))
    words = ("import", "--from", "files", folder.old, "--to", folder.new)
    path = ("-o", f"path={folder.path}")
    assert "sources/0/1, which records the files that were read, is missing" in refused(
        *words, *path
    )
    folder.log("1", ["{"])
    folder.log("2", [])
    assert "is damaged" in refused(*words, *path)
    write(folder.old / "sources/0/1", "v7\n")
    assert "has the form 'v7'" in refused(*words, *path)
    write(folder.old / "sources/0/1", "v1")
    elsewhere = refused(*words, "-o", "path=/data")
    assert "which is not below /data" in elsewhere
    assert "path" in refused(*words)
    assert not folder.new.exists()


def test_more_files_than_an_offset_holds_are_in_the_state_of_the_source(folder, tmp_path):
    names = [f"{n}.parquet" for n in range(900)]
    folder.add("new.parquet")
    whole = f"file://{quote(str(folder.path))}"
    entry = {"timestamp": 1, "batchId": 0}
    folder.log("0", [json.dumps({"path": f"{whole}/{name}", **entry}) for name in names])
    folder.log("1", [])
    folder.log("2", [])
    state = {"stateLocation": str(tmp_path / "state")}
    more = ("-o", f"stateLocation={tmp_path}/state")
    folder.take_over(*more, "--dry-run")
    assert not (tmp_path / "state").exists()
    folder.take_over(*more)
    assert folder.waiting(**state) == ["new.parquet"]
    assert list((tmp_path / "state").iterdir())


def test_a_file_that_is_older_than_what_was_read_is_read(folder):
    folder.add("a.parquet", "old.parquet")

    os.utime(folder.path / "old.parquet", (1, 1))
    folder.log("0", folder.entries("a.parquet", batch=0))
    folder.log("1", [])
    folder.log("2", [])
    folder.take_over()
    assert folder.waiting() == ["old.parquet"]
