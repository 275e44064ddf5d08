"""``krishiv-spark status`` and ``epochs``: what the folders of a query say, in words."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from iceberg_life import TABLE, IcebergLife, numbered

from krishiv_spark.cli import main
from krishiv_spark.offsets import Claim, PlannedOffsets, open_log
from krishiv_spark.operate.inspection import query_status
from krishiv_spark.operate.inspection.positions import describe_position

GOLDEN = Path(__file__).parents[1] / "golden" / "offsets"
QUERY = "0f-1"


def run(*words):
    done = CliRunner().invoke(main, [str(word) for word in words])
    return done.output


@pytest.fixture
def checkpoint(tmp_path):
    folder = tmp_path / "checkpoint"
    (folder / "offsets").mkdir(parents=True)
    (folder / "commits").mkdir()
    (folder / "metadata").write_text(json.dumps({"id": QUERY}))
    return folder


def plan(checkpoint, epoch, *sources, over=True):
    """Write what Spark writes."""
    conf = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1357016400123})
    (checkpoint / "offsets" / str(epoch)).write_text("\n".join(["v1", conf, *sources]))
    if over:
        (checkpoint / "commits" / str(epoch)).write_text("v1\n{}")


def memory(number, ms=9000):
    return json.dumps({"kind": "memory", "next": number, "v": 1, "watermark": {"ms": ms}})


# --- positions


@pytest.mark.parametrize("file", sorted(GOLDEN.glob("*.json")), ids=lambda file: file.stem)
def test_every_released_offset_has_words(file):
    for text in file.read_text().splitlines():
        said = describe_position(text)
        assert said
        assert not said.startswith("{")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("-", "nothing yet"),
        ('{"a":{"0":5,"10":7,"9":1}}', "topic a, next offsets 0: 5, 9: 1, 10: 7 (sum 13)"),
        ('{"logOffset":3}', "entry 3 of its own log of files"),
        ("17", "17"),
        ('{"x":1}', '{"x":1}'),
        ("no JSON", "no JSON"),
        ('{"kind":"kafka","topics":7}', '{"kind":"kafka","topics":7}'),
        ("x" * 1000, "x" * 300 + "..."),
        ('{"kind":"start","at":"timestamp","ms":0,"v":1}',
         "before its first batch, at timestamp 1970-01-01T00:00:00.000+00:00"),
    ],
)  # fmt: skip
def test_offsets_of_others_and_of_nobody(text, said):
    assert describe_position(text) == said


# --- queries


def test_a_query_before_its_first_epoch(checkpoint):
    said = run("status", checkpoint)
    assert "no epoch was planned yet" in said
    assert "plans epoch 0" in said


def test_a_query_whose_first_plan_was_not_written_to_its_end(checkpoint):
    """Spark's condition STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY, since 4.1."""
    offsets = checkpoint / "offsets"
    offsets.mkdir(exist_ok=True)
    (offsets / ".0.5a0c6a5e.tmp").write_text("v1")
    said = run("status", checkpoint)
    assert "refused by Spark" in said
    assert ".0.5a0c6a5e.tmp" in said


def test_a_query_between_two_epochs(checkpoint):
    plan(checkpoint, 0, memory(1))
    plan(checkpoint, 1, memory(2))
    said = run("status", checkpoint)
    assert f"query       {QUERY}" in said
    assert "epoch 1, completed, planned 2013-01-01T05:00:00.123+00:00" in said
    assert "source 0    push 2 is next" in said
    assert "watermark   1970-01-01T00:00:09.000+00:00 (of a source)" in said
    assert "next start  plans epoch 2, from where epoch 1 ended" in said


def test_a_query_that_died(checkpoint):
    plan(checkpoint, 0, memory(1))
    plan(checkpoint, 1, memory(2), over=False)
    assert "runs epoch 1 again, with the same rows" in run("status", checkpoint)


@pytest.mark.parametrize("where", ["checkpoint", "table", "epochLog"])
def test_a_query_that_died_when_its_epoch_was_true(checkpoint, tmp_path, where):
    places = {
        "checkpoint": (checkpoint / "krishiv", []),
        "table": (tmp_path / "t" / "_krishiv" / QUERY / "log", ["--table", tmp_path / "t"]),
        "epochLog": (tmp_path / "logs" / QUERY, ["--epoch-log", tmp_path / "logs"]),
    }
    place, words = places[where]
    plan(checkpoint, 0, memory(1), over=False)
    log = open_log(str(place))
    claim = Claim(query=QUERY, offsets=PlannedOffsets.of(0, {}, {"0": "1"}), target="cluster x")
    log.intend(log.begin(claim).owner, 0, {"files": []})
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    said = run("status", checkpoint, *words)
    assert "2 entries in 2 files of " in said
    assert "bytes; committed: epochs up to 0" in said
    rest = "may not be visible everywhere yet" if where != "table" else "is visible"
    assert f"epoch 0 is committed, and {rest}" in said
    assert "target      cluster x" in said
    assert "completes epoch 0, which the log has committed" in said
    found = json.loads(run("status", checkpoint, *words, "--json"))
    assert (found["log"]["open_epoch"], found["newest"]["is_over"]) == (0, False)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    plan(checkpoint, 0, memory(1))  # as when Spark has got there
    assert "may not be visible" not in run("status", checkpoint, *words)


@pytest.fixture
def warehouse(tmp_path):
    (tmp_path / "lake").mkdir()
    return tmp_path / "lake"


def named(warehouse, table=TABLE):
    return ["-o", f"warehouse={warehouse}", "-o", f"table={table}"]


def test_a_query_that_died_when_its_table_had_the_epoch(checkpoint, warehouse):
    plan(checkpoint, 0, memory(1))
    plan(checkpoint, 1, memory(2), over=False)
    life = IcebergLife(warehouse, query=QUERY)
    life.epoch(0, numbered(0))
    assert f"table       {TABLE}: committed: epochs up to 0; snapshot " in run(
        "status", checkpoint, *named(warehouse)
    )
    assert "runs epoch 1 again, with the same rows of its sources\n" in run(
        "status", checkpoint, *named(warehouse)
    )
    life.epoch(1, numbered(1))
    said = run("status", checkpoint, *named(warehouse))
    assert "completes epoch 1, which the table has committed; its rows are not staged again" in said
    assert json.loads(run("status", checkpoint, *named(warehouse), "--json"))["table"]["held"] == 1
    assert "runs epoch 1 again" in run("status", checkpoint)
    assert "unless its target has the epoch already" in run("status", checkpoint)


def test_a_table_that_is_not_there_yet(checkpoint, warehouse):
    plan(checkpoint, 0, memory(1), over=False)
    assert f"{TABLE} does not exist yet" in run("status", checkpoint, *named(warehouse))
    IcebergLife(warehouse, query="another").epoch(0, numbered(0))
    said = run("status", checkpoint, *named(warehouse, "db.other"))
    assert "db.other does not exist yet" in said
    assert "committed: no epoch of the query" in run("status", checkpoint, *named(warehouse))


def test_a_catalog_that_cannot_be_asked_is_said(checkpoint):
    plan(checkpoint, 0, memory(1), over=False)
    said = run("status", checkpoint, "-o", "catalog.uri=http://127.0.0.1:1", "-o", f"table={TABLE}")
    assert f"not known   the epoch of table {TABLE}: " in said
    assert "unless its target has the epoch already" in said


@pytest.mark.parametrize("over", [True, False])
def test_a_checkpoint_that_was_rolled_back(checkpoint, over):
    log = open_log(str(checkpoint / "krishiv"))
    for epoch in range(4):
        claim = Claim(query=QUERY, offsets=PlannedOffsets.of(epoch, {}, {"0": "1"}), target="x")
        log.intend(log.begin(claim).owner, epoch, {"files": []})
    plan(checkpoint, 1, memory(2), over=over)
    said = run("status", checkpoint)
    assert "is refused (CheckpointMismatch)" in said
    assert "the log has epoch 3, and the checkpoint has planned only epochs up to 1" in said


def test_a_query_that_goes_on_while_it_is_looked_at(checkpoint, monkeypatch):
    """A checkpoint that is read earlier does not fit a log that is read later."""
    plan(checkpoint, 0, memory(1), over=False)
    read = query_status._log_status

    def goes_on(*given):
        (checkpoint / "commits" / "0").write_text("v1\n{}")
        plan(checkpoint, 1, memory(2), over=False)
        return read(*given)

    monkeypatch.setattr(query_status, "_log_status", goes_on)
    found = json.loads(run("status", checkpoint, "--json"))
    assert found["newest"]["epoch"] == 1
    assert found["next"].startswith("runs epoch 1 again")


def test_epochs_are_listed_and_shown(checkpoint):
    for epoch in range(30):
        plan(checkpoint, epoch, memory(epoch + 1), "-", over=epoch < 29)
    lines = run("epochs", "list", checkpoint, "--newest", 2).splitlines()
    assert lines[1] == (
        "epoch 29, not completed, planned 2013-01-01T05:00:00.123+00:00: push 30 is next; "
        "nothing yet"
    )
    assert len(lines) == 2
    assert f"offset      0: {memory(8)}" in run("epochs", "show", checkpoint, 7)
    assert json.loads(run("epochs", "show", checkpoint, 7, "--json"))["epoch"] == 7
    assert "recorded are 0 to 29" in run("epochs", "show", checkpoint, 77)


@pytest.mark.long
def test_an_epoch_that_was_not_written_to_its_end_is_told_wherever_it_ends(checkpoint):
    plan(checkpoint, 7, memory(8), memory(9))
    entry = checkpoint / "offsets" / "7"
    whole = entry.read_text()
    for end in range(len(whole)):
        entry.write_text(whole[:end])
        if whole[:end].removesuffix("\n").endswith("}}"):
            continue  # a whole entry of a query with one source
        for command in (["status"], ["status", "--json"], ["epochs", "list"]):
            assert "offsets/7 cannot be read: it was not written to its end" in run(
                *command, checkpoint
            ), whole[:end]


@pytest.mark.parametrize("command", [["status"], ["epochs", "list"]])
def test_what_is_no_checkpoint_is_told(tmp_path, command):
    assert "no query id in" in run(*command, tmp_path)
