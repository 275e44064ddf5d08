"""``krishiv-spark watch``, and what ``status`` says of the live system; without Spark."""

import json
import os
import pty
import signal
import subprocess
import sys
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from patience import await_that

from krishiv_spark.cli import main
from krishiv_spark.operate.inspection.watching import QueryWatcher
from krishiv_spark.spark.checkpoint import SparkCheckpoint

QUERY = "0f-1"


@pytest.fixture
def checkpoint(tmp_path):
    folder = tmp_path / "checkpoint"
    (folder / "offsets").mkdir(parents=True)
    (folder / "commits").mkdir()
    (folder / "metadata").write_text(json.dumps({"id": QUERY}))
    return folder


def plan(checkpoint, epoch, *sources, over=True, ms=0):
    """Write what Spark writes, an epoch every two seconds."""
    conf = {"batchWatermarkMs": ms, "batchTimestampMs": 1357016400123 + 2000 * epoch}
    text = "\n".join(["v1", json.dumps(conf), *sources])
    (checkpoint / "offsets" / "new").write_text(text)
    (checkpoint / "offsets" / "new").rename(checkpoint / "offsets" / str(epoch))
    if over:
        (checkpoint / "commits" / str(epoch)).write_text("v1\n{}")


def kafka(first, second):
    topics = {"orders": {"0": first, "1": second}}
    return json.dumps({"kind": "kafka", "topics": topics, "v": 2, "watermark": {"ms": 9000}})


def watching(*words, **kind):
    command = [sys.executable, "-m", "krishiv_spark", "watch", *map(str, words)]
    # A shell has what it starts with '&' ignore it, and so would all below.
    take_ctrl_c = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    return subprocess.Popen(command, preexec_fn=take_ctrl_c, **kind)  # noqa: PLW1509  no threads


def run(*words):
    return CliRunner().invoke(main, [str(word) for word in words])


def test_epochs_have_a_pace(checkpoint):
    for epoch, sources in enumerate([(kafka(0, 0), "5"), (kafka(10, 4), "7"), (kafka(30, 4), "7")]):
        plan(checkpoint, epoch, *sources, over=epoch < 2)
    first, second, third = QueryWatcher(SparkCheckpoint(str(checkpoint))).look().paces
    assert (first.moved, first.per_second) == (None, None)
    assert (second.moved, second.per_second) == (16, 8)
    assert (third.moved, third.per_second, third.epoch.is_over) == (20, 10, False)


def test_positions_that_are_no_numbers_have_no_pace(checkpoint):
    plan(checkpoint, 0, '{"kind":"parquet","v":1}', "no JSON")
    plan(checkpoint, 1, '{"kind":"parquet","v":1}', "-")
    assert QueryWatcher(SparkCheckpoint(str(checkpoint))).look().paces[1].moved is None


def test_partitions_and_topics_that_come_or_go_do_not_count(checkpoint):
    def offset(**topics):
        return json.dumps({"kind": "kafka", "topics": topics, "v": 2})

    plan(checkpoint, 0, offset(a={"0": 5}, gone={"0": 1_000_000}))
    plan(checkpoint, 1, offset(a={"0": 9, "1": 70_000}, new={"0": 1_000_000}))
    assert QueryWatcher(SparkCheckpoint(str(checkpoint))).look().paces[1].moved == 4


def test_more_epochs_than_a_screen_holds_are_all_told_from_look_to_look(checkpoint):
    watcher = QueryWatcher(SparkCheckpoint(str(checkpoint)), newest=2)
    for epoch in range(6):
        plan(checkpoint, epoch, kafka(epoch, 0))
    assert [pace.epoch.epoch for pace in watcher.look().paces] == [4, 5]
    for epoch in range(6, 16):
        plan(checkpoint, epoch, kafka(epoch, 0))
    paces = watcher.look(after=5).paces
    assert [pace.epoch.epoch for pace in paces] == [*range(6, 16)]
    assert {pace.moved for pace in paces} == {1}


def test_all_epochs_are_lines_however_many_come_between_two_looks(checkpoint, monkeypatch):
    def forty_epochs():
        for epoch in range(40):
            plan(checkpoint, epoch, kafka(epoch, 0))

    def ctrl_c():
        raise KeyboardInterrupt

    between = iter([forty_epochs, ctrl_c])
    clock = SimpleNamespace(sleep=lambda _seconds: next(between)())
    monkeypatch.setattr(import_module("krishiv_spark.operate.commands.query"), "time", clock)
    done = run("watch", checkpoint)
    assert done.exit_code == 0
    told = [line.partition(",")[0] for line in done.output.splitlines()]
    assert told == [f"epoch {number}" for number in range(40)]


def test_once_is_status_and_the_newest_epochs(checkpoint):
    plan(checkpoint, 0, kafka(0, 0))
    plan(checkpoint, 1, kafka(10, 4))
    said = run("watch", checkpoint, "--once").output
    assert "next start  plans epoch 2" in said
    assert "epoch 1, completed" in said
    assert "; 14 offsets, 7.0 per second; watermark 1970-01-01T00:00:09" in said


@pytest.mark.long
def test_where_there_is_no_terminal_each_epoch_is_a_line_and_ctrl_c_is_no_error(
    checkpoint, tmp_path
):
    plan(checkpoint, 0, kafka(0, 0))
    before = {path: path.stat().st_mtime_ns for path in checkpoint.rglob("*") if path.is_file()}
    out = tmp_path / "out"
    with out.open("w") as to:
        running = watching(checkpoint, "--interval", "20ms", stdout=to, stderr=subprocess.STDOUT)
    await_that(lambda: out.read_text().count("\n") == 1 or running.poll() is not None)
    plan(checkpoint, 1, kafka(10, 4), over=False)
    plan(checkpoint, 1, kafka(10, 4))
    await_that(lambda: out.read_text().count("\n") == 2 or running.poll() is not None)
    running.send_signal(signal.SIGINT)
    assert running.wait() == 0
    lines = out.read_text().splitlines()
    assert [line.partition(",")[0] for line in lines] == ["epoch 0", "epoch 1"]
    assert all(path.stat().st_mtime_ns == ns for path, ns in before.items())


@contextmanager
def on_a_terminal(checkpoint):
    """The command, and a function that waits until it has drawn something."""
    ours, theirs = pty.openpty()
    running = watching(checkpoint, "--interval", "20ms", stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""

    def await_drawn(what):
        def is_drawn():
            nonlocal shown
            shown += os.read(ours, 4096)
            return what in shown

        await_that(is_drawn)

    yield await_drawn
    running.send_signal(signal.SIGINT)
    assert running.wait() == 0
    os.close(ours)
    assert b"Traceback" not in shown


@pytest.mark.long
def test_on_a_terminal_it_is_drawn(checkpoint):
    plan(checkpoint, 0, kafka(0, 0))
    with on_a_terminal(checkpoint) as await_drawn:
        await_drawn(b"query")
        await_drawn(b"per second")


@pytest.mark.long
def test_what_looks_like_a_mark_of_the_screen_is_drawn_as_it_is(checkpoint):
    plan(checkpoint, 0, kafka(0, 0))
    named = checkpoint.parent / "a[" / "b]"  # rich takes [/b] for the end of something
    named.parent.mkdir()
    checkpoint.rename(named)
    with on_a_terminal(named) as await_drawn:
        await_drawn(b"per second")
        (named / "metadata").unlink()
        await_drawn(b"cannot be read now")


def test_what_is_no_checkpoint_is_an_error(tmp_path):
    done = run("watch", tmp_path)
    assert done.exit_code == 1
    assert "no query id in" in done.output


def test_staged_files_and_the_size_of_the_log_are_said(checkpoint, tmp_path):
    from krishiv_spark.offsets import Claim, PlannedOffsets, open_log

    plan(checkpoint, 0, kafka(0, 0), over=False)
    meta = tmp_path / "t" / "_krishiv" / QUERY
    log = open_log(str(meta / "log"))
    log.begin(Claim(query=QUERY, offsets=PlannedOffsets.of(0, {}, {"0": "1"})))
    (meta / "staged" / "1").mkdir(parents=True)
    (meta / "staged" / "1" / "a.staged").write_bytes(b"x" * 100)
    said = run("status", checkpoint, "--table", tmp_path / "t").output
    assert "staged      1 files of 100 bytes, invisible to readers" in said
    size = sum(path.stat().st_size for path in (meta / "log").iterdir())
    assert f"1 entries in 1 files of {size} bytes" in said


def test_a_cluster_that_is_away_is_said_and_the_rest_is_shown(checkpoint):
    plan(checkpoint, 0, kafka(0, 0))
    options = (
        "-o",
        "kafka.bootstrap.servers=127.0.0.1:1",
        "-o",
        "kafka.default.api.timeout.ms=500",
    )
    done = run("status", checkpoint, *options, "-o", "kafka.request.timeout.ms=400")
    assert done.exit_code == 0
    assert "not known   Kafka: " in done.output
    assert "next start  plans epoch 1" in done.output


def test_an_option_that_is_not_known_is_an_error(checkpoint):
    plan(checkpoint, 0, kafka(0, 0))
    done = run("status", checkpoint, "-o", "kafka.bootstrap.servers=${env:KRISHIV_NOT_SET}")
    assert done.exit_code == 1
    assert "has no variable 'KRISHIV_NOT_SET'" in done.output
