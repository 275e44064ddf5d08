"""The content of Spark's checkpoint folder that a sink reads."""

import json
import shutil
import time
from pathlib import Path

import pytest

from krishiv_spark.errors import CheckpointMismatch, LinkError, OptionError
from krishiv_spark.offsets import PlannedOffsets
from krishiv_spark.spark.checkpoint import SparkCheckpoint
from krishiv_spark.storage import ENVIRONMENT
from krishiv_spark.storage.objects import ObjectFolder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "my checkpoint %20 é"
    (folder / "offsets").mkdir(parents=True)
    (folder / "metadata").write_text('{"id":"0f-1"}')
    return folder


@pytest.mark.parametrize("form", ["{}", "{}/", "file:{}", "file://{}"])
def test_the_query_is_found_under_every_name_of_the_folder(folder, form):
    assert SparkCheckpoint(form.format(folder)).query_id() == "0f-1"


NO_IDS = ['{"id":7}', '{"id":""}', '{"id":"../../x"}']


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", "7", "null", "\udcff", *NO_IDS])
def test_a_checkpoint_without_a_query_is_told_with_its_place(folder, text):
    (folder / "metadata").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(OptionError, match=r"no query id in .*metadata.*'checkpointLocation'"):
        SparkCheckpoint(str(folder)).query_id()


@pytest.mark.parametrize("location", ["/nowhere/at/all", "file:///nowhere", "s4://b/x", "x:y"])
def test_a_folder_that_is_not_there_is_told(location):
    with pytest.raises(OptionError, match="readable from the driver's machine"):
        SparkCheckpoint(location).query_id()


def recorded(folder: Path) -> str:
    return (folder / "krishiv" / "query-id.json").read_text()


def test_the_id_of_the_query_is_stored_once_as_spark_stores_it(folder):
    checkpoint = SparkCheckpoint(str(folder))
    checkpoint.record_query_id(checkpoint.query_id())
    assert recorded(folder) == '{"id":"0f-1"}\n'
    before = (folder / "krishiv" / "query-id.json").stat()
    checkpoint.record_query_id("0f-1")
    assert (folder / "krishiv" / "query-id.json").stat().st_ino == before.st_ino
    assert checkpoint.query_id() == "0f-1"


def test_another_id_than_the_stored_one_is_refused_with_the_line_to_restore(folder):
    checkpoint = SparkCheckpoint(str(folder))
    checkpoint.record_query_id(checkpoint.query_id())
    (folder / "metadata").write_text('{"id":"new"}')
    lost = r"belongs to query 0f-1, but .* names query new.*one line is \{\"id\":\"0f-1\"\} .*\.crc"
    for call in (checkpoint.query_id, lambda: checkpoint.record_query_id("new")):
        with pytest.raises(CheckpointMismatch, match=lost):
            call()
    assert recorded(folder) == '{"id":"0f-1"}\n'
    (folder / "metadata").write_text('{"id":"0f-1"}')
    assert checkpoint.query_id() == "0f-1"


def test_a_lost_metadata_file_is_shown_with_the_line_to_restore(folder):
    SparkCheckpoint(str(folder)).record_query_id("0f-1")
    (folder / "metadata").unlink()
    with pytest.raises(OptionError, match=r'If it was lost, restore .* line is {"id":"0f-1"} '):
        SparkCheckpoint(str(folder)).query_id()


def test_a_checkpoint_that_was_removed_and_made_again_in_one_process_is_another_query(folder):
    checkpoint = SparkCheckpoint(str(folder))
    checkpoint.record_query_id(checkpoint.query_id())
    shutil.rmtree(folder / "krishiv")
    (folder / "metadata").write_text('{"id":"new"}')
    checkpoint.record_query_id(checkpoint.query_id())
    assert recorded(folder) == '{"id":"new"}\n'


@pytest.mark.parametrize("text", ["", "{", "{}", '{"id":"../x"}', "\udcff"])
def test_a_stored_id_that_is_damaged_is_told_with_the_way_on(folder, text):
    (folder / "krishiv").mkdir()
    path = folder / "krishiv" / "query-id.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(CheckpointMismatch, match=r"query-id\.json is damaged .* remove .*query-id"):
        SparkCheckpoint(str(folder)).query_id()
    path.unlink()
    assert SparkCheckpoint(str(folder)).query_id() == "0f-1"


def test_a_checkpoint_that_can_only_be_read_keeps_its_query(folder, caplog):
    (folder / "krishiv").write_text("no folder can be made here")
    checkpoint = SparkCheckpoint(str(folder))
    checkpoint.record_query_id(checkpoint.query_id())
    for _ in range(3):  # epochs
        checkpoint.record_query_id(checkpoint.query_id())
    assert caplog.text.count("could not be stored") == 1
    assert checkpoint.query_id() == "0f-1"


def offsets(folder: Path, epoch: int, *sources: str, version: int = 1) -> None:
    """Write what Spark plans for an epoch."""
    conf = json.dumps({"batchWatermarkMs": 5, "batchTimestampMs": time.time_ns() // 10**6})
    (folder / "offsets" / str(epoch)).write_text("\n".join([f"v{version}", conf, *sources]))


def test_the_offsets_of_an_epoch_are_those_of_its_sources(folder):
    offsets(folder, 3, '{"kind":"memory","next":1,"v":1}')
    found = SparkCheckpoint(str(folder)).offset_seq(3)
    assert found.objects == [{"kind": "memory", "next": 1, "v": 1}]
    assert found.watermark_ms == 5
    assert SparkCheckpoint(str(folder)).offset_seq(4) is None


def test_named_sources_are_read_from_the_second_version_of_sparks_log(folder):
    offsets(folder, 0, 'orders:{"a":"x:y"}', "clicks:-", "0:17", version=2)
    found = SparkCheckpoint(str(folder)).offset_seq(0)
    assert found.sources == {"orders": '{"a":"x:y"}', "clicks": "-", "0": "17"}
    assert found.objects == [{"a": "x:y"}]


def test_a_source_without_an_offset_is_left_out(folder):
    offsets(folder, 0, '{"a":1}', "-", '{"b":2}')
    assert SparkCheckpoint(str(folder)).offset_seq(0).objects == [{"a": 1}, {"b": 2}]


def test_what_ends_a_line_elsewhere_is_a_part_of_an_offset(folder):
    offsets(folder, 0, '{"a":"x\u2028y\x85z"}', '{"b":2}')
    assert SparkCheckpoint(str(folder)).offset_seq(0).objects == [{"a": "x\u2028y\x85z"}, {"b": 2}]


def test_the_epoch_that_spark_is_at_is_the_newest_that_it_has_planned(folder):
    for epoch in (9, 10, 8):
        offsets(folder, epoch, json.dumps({"end": epoch}))
    (folder / "offsets" / ".11.crc").touch()
    planned = SparkCheckpoint(f"file://{folder}").planned_offsets()
    assert (planned.epoch, planned.shown) == (10, '0: {"end": 10}')


def test_an_epoch_is_known_again_by_where_it_begins_and_ends(folder):
    def planned(first: int, last: int, version: int = 1) -> str:
        name = "0:" if version == 2 else ""
        offsets(folder, 0, f"{name}{first}", version=version)
        offsets(folder, 1, f"{name}{last}", version=version)
        return SparkCheckpoint(str(folder)).planned_offsets().digest

    assert planned(1, 2) == planned(1, 2) == planned(1, 2, version=2)
    assert len({planned(1, 2), planned(1, 3), planned(0, 2), planned(1, 23), planned(12, 3)}) == 5


def test_an_epoch_whose_previous_one_was_removed_is_refused(folder):
    for epoch in (0, 1, 5):
        offsets(folder, epoch, str(epoch))
    checkpoint = SparkCheckpoint(str(folder))
    for plan in (checkpoint.planned_offsets, checkpoint.read_plan):
        with pytest.raises(CheckpointMismatch, match=r"has epoch 5, but lacks epoch 4, .*rewind"):
            plan()
    assert checkpoint.offsets_of(5).ends == PlannedOffsets.of(5, {}, {"0": "5"}).ends


@pytest.mark.parametrize("first", [0, 1, 7])
def test_the_two_newest_epochs_are_enough_for_a_plan(folder, first):
    """Spark keeps them with each value of minBatchesToRetain."""
    for epoch in range(first, first + 2):
        offsets(folder, epoch, str(epoch))
    planned = SparkCheckpoint(str(folder)).planned_offsets()
    assert planned == PlannedOffsets.of(first + 1, {"0": f"{first}"}, {"0": f"{first + 1}"})


def test_an_epoch_that_spark_has_not_planned_cannot_begin(folder):
    with pytest.raises(OptionError, match=r"no offsets in .*'checkpointLocation'"):
        SparkCheckpoint(str(folder)).planned_offsets()


def test_offsets_of_a_form_that_is_not_known_are_no_identity(folder):
    offsets(folder, 0, "1", version=3)
    with pytest.raises(ValueError, match=r"'v3'.*upgrade"):
        SparkCheckpoint(str(folder)).planned_offsets()


@pytest.mark.parametrize("text", ["", "v1", "v1\n", "v1\n{", "v2\n[", "\udcff"])
def test_damaged_offsets_say_nothing(folder, text):
    (folder / "offsets" / "0").write_bytes(text.encode(errors="surrogateescape"))
    assert SparkCheckpoint(str(folder)).offset_seq(0) is None


def test_a_commit_log_that_cannot_be_looked_at_says_neither_yes_nor_no(folder):
    assert not SparkCheckpoint(str(folder)).is_committed(0)
    (folder / "commits" / "0").mkdir(parents=True)
    with pytest.raises(LinkError, match="no plain file"):
        SparkCheckpoint(str(folder)).is_committed(0)


def test_long_offsets_are_told_apart_and_not_repeated(folder):
    offsets(folder, 0, "7" * 5_000)
    assert SparkCheckpoint(str(folder)).planned_offsets().shown is None


class InBucket:
    """A checkpoint in a bucket, and what is read of it."""

    def __init__(self, url: str, monkeypatch) -> None:
        self.checkpoint = SparkCheckpoint(f"{url}/checkpoint")
        self.reads: list[str] = []
        read = ObjectFolder.read

        def counted(folder, name):
            self.reads.append(name)
            return read(folder, name)

        monkeypatch.setattr(ObjectFolder, "read", counted)

    def write(self, folder: str, name: str, text: str) -> None:
        ENVIRONMENT.folder(f"{self.checkpoint.location}/{folder}").replace(name, text.encode())

    def begin(self, query: str) -> None:
        ENVIRONMENT.folder(self.checkpoint.location).destroy()
        self.write("", "metadata", f'{{"id":"{query}"}}')
        self.epoch(0)

    def epoch(self, number: int, offset: int = 7) -> None:
        self.write("offsets", str(number), f'v1\n{{"at":{time.time_ns()}}}\n{offset}')


def test_what_has_not_changed_in_a_bucket_is_not_read_again(s3, monkeypatch):
    found = InBucket(s3, monkeypatch)
    found.begin("q1")
    assert found.checkpoint.read_plan()[0] == "q1"
    found.checkpoint.record_query_id("q1")
    found.reads.clear()
    found.epoch(1, offset=9)
    query, planned = found.checkpoint.read_plan()
    found.checkpoint.record_query_id("q1")
    assert (query, planned) == ("q1", PlannedOffsets.of(1, {"0": "7"}, {"0": "9"}))
    assert found.reads == ["1"]


def test_an_entry_that_is_changed_in_a_bucket_is_read_again(s3, monkeypatch):
    found = InBucket(s3, monkeypatch)
    found.begin("q1")
    found.epoch(1)
    found.checkpoint.read_plan()
    found.epoch(1, offset=8)
    found.epoch(0, offset=3)
    assert found.checkpoint.read_plan()[1] == PlannedOffsets.of(1, {"0": "3"}, {"0": "8"})


@pytest.mark.parametrize("epochs", [0, 1])
def test_a_checkpoint_that_is_made_anew_in_a_bucket_is_another_query(s3, monkeypatch, epochs):
    found = InBucket(s3, monkeypatch)
    found.begin("q1")
    for epoch in range(1, 1 + epochs):
        found.epoch(epoch)
    assert found.checkpoint.read_plan()[0] == "q1"
    found.begin("q2")
    assert found.checkpoint.read_plan()[0] == "q2"
