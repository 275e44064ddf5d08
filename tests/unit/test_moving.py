"""``krishiv-spark checkpoint copy`` and ``rewind``, and what is left when they are killed."""

import json
import re
import shutil
import time
from itertools import count
from pathlib import Path

import pytest
from command_line import Command
from sink_life import close_pool, dies_at
from spark_starts import (
    QUERY,
    copy_afresh,
    dies_before,
    files,
    make_checkpoint,
    offsets_in,
    start,
    write,
)

from krishiv_spark.errors import OptionError
from krishiv_spark.formats import every_format, format_of
from krishiv_spark.offsets import Claim, open_log
from krishiv_spark.operate.moving.boundaries import (
    is_incomplete_marker,
    newest_restore_point,
    restore_point_at,
)
from krishiv_spark.operate.moving.copying import CheckpointCopy
from krishiv_spark.operate.moving.rewinding import CheckpointRewind
from krishiv_spark.spark.checkpoint import SparkCheckpoint

GUIDE = Path(__file__).parents[2] / "docs" / "moving.md"
STORES = ("0/0", "0/1/left-keyToNumValues")


_COMMAND = Command("checkpoint")
run, said, refused = _COMMAND.run, _COMMAND.said, _COMMAND.refused


@pytest.fixture(scope="module", autouse=True)
def killed_processes():
    yield
    close_pool()


@pytest.fixture
def old(tmp_path):
    folder = make_checkpoint(tmp_path / "old", 6, first=2, state=STORES)
    write(folder / "sources/0/0", "v1\n{}")
    write(folder / "state/0/_metadata/metadata", "v1\n{}")
    return folder


# --- copies


def test_a_copy_goes_on_where_the_old_one_is_under_another_id(old, tmp_path):
    new, before = tmp_path / "new", files(old)
    assert "done" in said("copy", old, new)
    assert files(old) == before
    assert start(new) == start(old) == ("next", 7, offsets_in(old / "offsets/6"))
    id_of = {place: json.loads((place / "metadata").read_text())["id"] for place in (old, new)}
    assert id_of[old] == QUERY != id_of[new]
    assert (new / "krishiv/query-id.json").read_text() == f"{(new / 'metadata').read_text()}\n"
    assert SparkCheckpoint(str(new)).begins_after() == 6
    assert SparkCheckpoint(str(old)).begins_after() is None
    copied = {path for path in files(new) if not path.startswith("krishiv/")}
    assert copied == set(before)
    assert not list(new.rglob("*.crc"))


def test_a_copy_has_an_id_of_its_own_and_the_rewound_query_keeps_its_id(old, tmp_path):
    SparkCheckpoint(str(old)).record_query_id(QUERY)
    said("copy", old, tmp_path / "new")
    copied = SparkCheckpoint(str(tmp_path / "new"))
    copied.record_query_id(copied.query_id())
    said("rewind", old, "--to", 4)
    assert (old / "krishiv/query-id.json").read_text() == f'{{"id":"{QUERY}"}}\n'
    assert SparkCheckpoint(str(old)).query_id() == QUERY


@pytest.mark.parametrize(
    "words", [("copy",), ("rewind", "--to", "4"), ("import", "--from", "kafka"), ("export",)]
)
def test_a_checkpoint_whose_metadata_was_lost_is_not_moved(old, tmp_path, words):
    SparkCheckpoint(str(old)).record_query_id(QUERY)
    (old / "metadata").write_text('{"id":"made-by-spark"}')
    before = files(old)
    verb, *rest = words
    new = {"copy": [tmp_path / "new"], "rewind": [], "import": ["--to", tmp_path / "new"]}
    given = [*rest, old, *new.get(verb, ["--to", "kafka"])]
    assert f'{{"id":"{QUERY}"}}' in refused(verb, *given)
    assert files(old) == before
    assert not (tmp_path / "new").exists()


def test_a_copy_of_an_earlier_epoch_has_nothing_of_later_ones(old, tmp_path):
    said("copy", old, tmp_path / "new", "--to", 4)
    assert start(tmp_path / "new") == ("next", 5, offsets_in(old / "offsets/4"))
    there = files(tmp_path / "new")
    assert "state/0/0/5.delta" in there
    assert not {"state/0/0/6.delta", "offsets/5", "commits/5"} & set(there)
    assert "state/0/_metadata/metadata" in there


def test_a_copy_begins_after_what_is_over(tmp_path):
    old = make_checkpoint(tmp_path / "old", 6, over=5)
    said("copy", old, tmp_path / "new")
    assert start(tmp_path / "new") == ("next", 6, offsets_in(old / "offsets/5"))


def test_the_log_of_a_copy_counts_its_epochs_as_held(old, tmp_path):
    log = open_log(str(old / "krishiv"), QUERY)
    log.begin(Claim(query=QUERY, target="a cluster"))
    said("copy", old, tmp_path / "new")
    new = SparkCheckpoint(str(tmp_path / "new"))
    state = open_log(str(tmp_path / "new/krishiv"), new.query_id()).state()
    assert (state.committed_epoch, state.claim.target) == (6, None)
    assert state.committed_offsets == new.offsets_of(6)


def test_a_dry_run_writes_nothing(old, tmp_path):
    before = files(tmp_path)
    assert "after epoch 6, with 2 state stores" in said("copy", old, tmp_path / "new", "--dry-run")
    assert "epochs 5 to 6 will be removed" in said("rewind", old, "--to", 4, "--dry-run")
    assert files(tmp_path) == before


def test_it_is_said_of_each_sink_what_a_copy_means(old, tmp_path):
    sinks = {each.name().removeprefix("krishiv-") for each in every_format() if each.writer_type}
    assert {name for name in sinks if format_of(name).copy_note} == sinks
    shown = said("copy", old, tmp_path / "new", "--dry-run")
    assert all(f"krishiv-{name}: " in shown for name in sinks)
    assert "{" not in shown


def test_what_is_somewhere_is_not_overwritten(old, tmp_path):
    write(tmp_path / "new" / "mine.txt", "x")
    before = files(tmp_path / "new")
    assert "is not empty (mine.txt is there)" in refused("copy", old, tmp_path / "new")
    assert "is not empty" in refused("copy", old, old)
    assert files(tmp_path / "new") == before


@pytest.mark.parametrize(
    ("lost", "words"),
    [
        (["commits/4"], "commits/4 is not in"),
        (["offsets/3"], "offsets/3 is not in"),
        (["state/0/0/3.delta"], "cannot be loaded in version 5"),
        (["state/0/1/left-keyToNumValues/5.delta"], "left-keyToNumValues cannot be loaded"),
    ],
)
def test_an_epoch_of_which_something_is_gone_is_no_boundary(old, tmp_path, lost, words):
    for path in lost:
        (old / path).unlink()
    assert words in refused("copy", old, tmp_path / "new", "--to", 4)
    assert words in refused("rewind", old, "--to", 4)
    assert not (tmp_path / "new").exists()


def test_a_version_of_state_is_there_from_a_whole_one_on(old, tmp_path):
    write(old / "state/0/0/3_5d2a.zip", "whole")
    write(old / "state/0/0/4_77aa.changelog", "v")
    for version in range(1, 5):
        (old / f"state/0/0/{version}.delta").unlink()
    said("copy", old, tmp_path / "new", "--to", 4)


def test_a_checkpoint_without_an_end_of_an_epoch_has_no_position(tmp_path):
    old = make_checkpoint(tmp_path / "old", 0, over=-1)
    assert "no epoch of" in refused("copy", old, tmp_path / "new")
    assert "no query id" in refused("copy", tmp_path / "nowhere", tmp_path / "new")


def copying(old, new):
    place = SparkCheckpoint(str(old))
    return CheckpointCopy(place, SparkCheckpoint(str(new)), newest_restore_point(place))


def test_whatever_kills_a_copy_leaves_nothing_or_what_spark_refuses_or_all(tmp_path):
    old = make_checkpoint(tmp_path / "old", 2, state=STORES[:1])
    new, before, step, seen = tmp_path / "new", files(old), 0, []
    died = True
    while died:
        shutil.rmtree(new, ignore_errors=True)
        died = dies_before(step, copying(old, new).run)
        step += 1
        seen.append(start(new)[0])
        if seen[-1] == "new":
            assert not files(new)
            continue
        if seen[-1] == "refused":
            assert "checkpoint copy' has not got through" in start(new)[1]
            copying(old, new).run()  # again
        assert start(new) == start(old)
        assert {p for p in files(new) if not p.startswith("krishiv/")} == set(before)
    assert files(old) == before
    assert seen == sorted(seen, key=["new", "refused", "next"].index)
    assert set(seen) == {"new", "refused", "next"}
    assert step > 50


@pytest.mark.parametrize("step", [3, 80])
def test_a_copy_goes_on_after_a_real_death(old, tmp_path, step):
    new = tmp_path / "new"
    assert dies_at(step, lambda: copying(old, new).run() and None, after=True)
    assert start(new)[0] in {"new", "refused"}
    said("copy", old, new)
    assert start(new) == start(old)


def test_a_copy_that_was_half_made_is_begun_anew_at_another_epoch(old, tmp_path):
    new = tmp_path / "new"
    assert dies_before(60, copying(old, new).run)
    shutil.rmtree(old)
    make_checkpoint(old, 9, first=4)
    said("copy", old, new)
    assert start(new) == ("next", 10, offsets_in(old / "offsets/9"))
    assert not [path for path in files(new) if path.startswith("state/")]


@pytest.mark.long
def test_a_way_back_that_died_is_no_place_for_a_copy(old, tmp_path):
    for step in count():
        half = shutil.copytree(old, tmp_path / f"half-{step}")
        assert dies_before(step, CheckpointRewind(SparkCheckpoint(str(half)), 3).run)
        if is_incomplete_marker((half / "offsets/6").read_bytes()):
            break
    before = files(half)
    assert "is not empty" in refused("copy", old, half)
    assert files(half) == before


# --- back


@pytest.mark.parametrize("planned", [6, 7])
@pytest.mark.parametrize("epoch", [3, 4, 5, 6])
def test_what_goes_is_aside_and_what_stays_is_as_before(tmp_path, planned, epoch):
    old = make_checkpoint(tmp_path / "old", planned, over=6, state=STORES)
    if epoch == planned:
        assert "is at the end of epoch 6 already" in refused("rewind", old, "--to", epoch)
        return
    before = files(old)
    end = offsets_in(old / f"offsets/{epoch}")
    assert f"done: the next epoch is {epoch + 1}" in said("rewind", old, "--to", epoch)
    assert start(old) == ("next", epoch + 1, end)
    (aside,) = (old / "krishiv-rewound").iterdir()
    went = files(aside)
    stay = {p: data for p, data in files(old).items() if not p.startswith("krishiv-rewound/")}
    assert {**stay, **went} == before
    assert not set(stay) & set(went)
    assert {int(p.split("/")[1]) for p in went if p.startswith("offsets/")} == set(
        range(epoch + 1, planned + 1)
    )
    assert not [p for p in old.rglob("*.crc") if not (p.parent / p.name[1:-4]).exists()]


def test_state_behind_a_link_is_of_the_checkpoint_too(old, tmp_path):
    """On a disk of its own, say: later versions that stay there would be loaded again."""
    shutil.move(old / "state", tmp_path / "fast")
    (old / "state").symlink_to(tmp_path / "fast")
    assert "with 2 state stores" in said("copy", old, tmp_path / "new")
    assert (tmp_path / "new/state/0/0/7.delta").exists()
    assert "also from 2 state stores" in said("rewind", old, "--to", 4)
    assert not list((tmp_path / "fast").rglob("[67].delta"))
    (aside,) = (old / "krishiv-rewound").iterdir()
    assert (aside / "state/0/0/7.delta").exists()


def test_what_others_hide_in_the_new_place_stays(old, tmp_path):
    """Hadoop's checksum of what was in a checkpoint before does not: it would not fit."""
    write(tmp_path / "new/.ssh/id", "theirs")
    for path in (".metadata.crc", "offsets/.6.crc", "state/0/0/.7.delta.crc"):
        left = tmp_path / "new" / path
        left.parent.mkdir(parents=True, exist_ok=True)
        left.write_text("crc")
    said("copy", old, tmp_path / "new")
    assert (tmp_path / "new/.ssh/id").read_text() == "theirs"
    assert not list((tmp_path / "new").rglob(".[0-9m]*.crc"))


def test_what_lies_behind_a_link_is_not_overwritten(old, tmp_path):
    (tmp_path / "new").mkdir()
    (tmp_path / "new/state").symlink_to(write_state(tmp_path / "others"))
    assert "is not empty" in refused("copy", old, tmp_path / "new")
    assert (tmp_path / "others/0/0/1.delta").read_text() == "theirs"


def write_state(folder):
    write(folder / "0/0/1.delta", "theirs")
    return folder


def test_what_went_can_be_put_back(old):
    before, began = files(old), start(old)
    said("rewind", old, "--to", 4)
    (aside,) = (old / "krishiv-rewound").iterdir()
    shutil.copytree(aside, old, dirs_exist_ok=True)
    shutil.rmtree(old / "krishiv-rewound")
    assert (files(old), start(old)) == (before, began)


@pytest.mark.long
@pytest.mark.parametrize("epoch", [3, 4, 5])
def test_whatever_kills_a_way_back_leaves_it_before_after_or_refused(tmp_path, epoch):
    original = make_checkpoint(tmp_path / "original", 6, first=2, state=STORES[:1])
    before, everything = start(original), files(original)
    again = ("again", 6, offsets_in(original / "offsets/5"), offsets_in(original / "offsets/6"))
    end = ("next", epoch + 1, offsets_in(original / f"offsets/{epoch}"))
    step, died, seen = 0, True, set()
    while died:
        old = copy_afresh(original, tmp_path / "old")
        died = dies_before(step, CheckpointRewind(SparkCheckpoint(str(old)), epoch).run)
        step += 1
        found = start(old)
        seen.add(found[0])
        assert found in [before, again, end] or found[0] == "refused"
        assert all(_is_kept(old, path, data) for path, data in everything.items())
        if found[0] == "refused":
            assert f"'krishiv-spark checkpoint rewind --to {epoch}' has not got" in found[1]
        if found != end:
            CheckpointRewind(SparkCheckpoint(str(old)), epoch).run()
        assert start(old) == end
        assert not (old / f"state/0/0/{epoch + 2}.delta").exists()
    # Of a single epoch, nothing is refused at any time.
    assert ("refused" in seen) == (epoch < 5)


@pytest.mark.long
@pytest.mark.parametrize("epoch", [3, 5])
def test_what_went_can_be_put_back_from_one_folder_after_a_death(tmp_path, monkeypatch, epoch):
    """The command that goes on says where all of it is, not what was left to go."""
    seconds = count()
    monkeypatch.setattr(time, "gmtime", lambda: time.localtime(next(seconds)))
    original = make_checkpoint(tmp_path / "original", 6, first=2, state=STORES[:1])
    step, died = 0, True
    while died:
        old = copy_afresh(original, tmp_path / "old")
        died = dies_before(step, CheckpointRewind(SparkCheckpoint(str(old)), epoch).run)
        step += 1
        if died and start(old)[0] != "next":
            told = (
                said("rewind", old, "--to", epoch)
                .rpartition("The removed files are in ")[2]
                .strip()
            )
            shutil.copytree(told, old, dirs_exist_ok=True)
            shutil.rmtree(old / "krishiv-rewound")
            assert (files(old), start(old)) == (files(original), start(original))


def _is_kept(old, path, data):
    """Return True if a file is at its path or in the backup."""
    places = [old, *(old / "krishiv-rewound").glob("*")]
    return any((place / path).exists() and (place / path).read_bytes() == data for place in places)


def test_a_log_that_holds_later_epochs_is_said_to_refuse(old):
    log = open_log(str(old / "krishiv"), QUERY)
    planned = SparkCheckpoint(str(old)).offsets_of(6)
    log.intend(log.begin(Claim(query=QUERY, offsets=planned)).owner, 6, [])
    shown = said("rewind", old, "--to", 4, "--dry-run")
    assert (
        "has epoch 6 and has recorded the start of epoch 6: its sink WILL REFUSE epoch 5" in shown
    )
    elsewhere = said("rewind", old, "--to", 4, "--dry-run", "--epoch-log", old / "logs")
    assert "WILL REFUSE" not in elsewhere
    assert f"there is no epoch log in {old / 'logs'}/{QUERY}" in elsewhere


# That of Iceberg needs a table: `test_moving_iceberg`.
EXAMPLES = re.findall(
    r"^ {4,}krishiv-spark checkpoint ((?!.*--from iceberg).*)$", GUIDE.read_text(), re.MULTILINE
)


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_commands_of_the_guide_run(example, tmp_path):
    offset = json.dumps({"t": {"0": 1}})
    makes = {
        "orders": None,
        "theirs": lambda _: offset,
        "files": lambda _: '{"logOffset":0}',
        "kafka": lambda _: json.dumps({"kind": "kafka", "topics": json.loads(offset), "v": 2}),
    }
    for name, text in makes.items():
        make_checkpoint(tmp_path / "chk" / name, 18, text=text)
    entry = {"path": f"file://{tmp_path}/data/arriving/a.parquet", "timestamp": 1, "batchId": 0}
    write(tmp_path / "chk/files/sources/0/0", f"v1\n{json.dumps(entry)}")
    (tmp_path / "data" / "arriving").mkdir(parents=True)
    words = example.replace("/chk/", f"{tmp_path}/chk/").replace("/data/", f"{tmp_path}/data/")
    assert said(*words.split())


def test_a_checkpoint_that_is_not_whole_is_told(old):
    write(old / "offsets/6", "unfinished: 'krishiv-spark checkpoint copy' has not got through")
    with pytest.raises(OptionError, match="is not whole: unfinished: "):
        restore_point_at(SparkCheckpoint(str(old)), 6)
