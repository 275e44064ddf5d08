"""What a sink reads from Spark's checkpoint folder."""

import json
from pathlib import Path

import pytest

from krishiv_spark.checkpoint import epoch_offsets, query_id
from krishiv_spark.errors import OptionError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "my checkpoint %20 é"
    (folder / "offsets").mkdir(parents=True)
    (folder / "metadata").write_text('{"id":"0f-1"}')
    return folder


@pytest.mark.parametrize("form", ["{}", "{}/", "file:{}", "file://{}"])
def test_the_query_is_found_under_every_name_of_the_folder(folder, form):
    assert query_id(form.format(folder)) == "0f-1"


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", "7", "null", "\udcff"])
def test_a_checkpoint_without_a_query_is_told_with_its_place(folder, text):
    (folder / "metadata").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(OptionError, match=r"no query id in .*metadata.*'checkpointLocation'"):
        query_id(str(folder))


@pytest.mark.parametrize("location", ["/nowhere/at/all", "file:///nowhere", "s4://b/x", "x:y"])
def test_a_folder_that_is_not_there_is_told(location):
    with pytest.raises(OptionError, match="readable from the driver's machine"):
        query_id(location)


def test_the_offsets_of_an_epoch_are_its_lines_behind_the_version(folder):
    lines = [{"batchWatermarkMs": 5}, {"kind": "memory", "next": 1, "v": 1}]
    (folder / "offsets" / "3").write_text("v1\n" + "\n".join(map(json.dumps, lines)))
    assert epoch_offsets(str(folder), 3) == lines
    assert epoch_offsets(str(folder), 4) == []


def test_a_source_without_an_offset_is_left_out(folder):
    (folder / "offsets" / "0").write_text('v1\n{"a":1}\n-\n{"b":2}')
    assert epoch_offsets(str(folder), 0) == [{"a": 1}, {"b": 2}]
