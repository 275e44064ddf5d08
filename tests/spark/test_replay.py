"""A query with state that is replayed on real Spark: killed at each stage, exact at the end."""

import signal
import subprocess
import sys
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from available_now import run_to_end
from iceberg_tables import table_in

FIRST = 3

DIES = """
import os, signal, sys
from click.testing import CliRunner
from krishiv_spark.cli import main
from krishiv_spark.operate.moving import replay_targets, replaying, rewinding

def die_after(owner, name):
    original = getattr(owner, name)
    def dying(*given):
        original(*given)
        os.kill(os.getpid(), signal.SIGKILL)
    setattr(owner, name, dying)

where = {
    "stopped": (replaying.QueryReplay, "_stop_starts"),
    "files": (replay_targets._LogTarget, "take_back"),
    "table": (replay_targets._TableTarget, "take_back"),
    "checkpoint": (rewinding.CheckpointRewind, "_remove"),
}
die_after(*where[sys.argv[1]])
sys.exit(CliRunner().invoke(main, ["replay", *sys.argv[2:]]).exit_code)
"""


@pytest.fixture
def source(tmp_path):
    """Six files, each with ten new rows and some that were there before."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(6):
        ids = [*range(10 * number, 10 * number + 10), *range(max(0, 10 * number - 5), 10 * number)]
        pq.write_table(pa.table({"id": pa.array(ids, pa.int64())}), folder / f"{number}.parquet")
    return folder


@pytest.fixture(params=["parquet", "iceberg"])
def sink(request, tmp_path):
    """The format, its options, the words of the command, and how its rows are read."""
    if request.param == "parquet":
        words = ["--table", f"{tmp_path}/t"]
        return "parquet", {"path": f"{tmp_path}/t"}, words, lambda: in_files(tmp_path / "t")
    options = {"warehouse": f"{tmp_path}/w", "table": "db.t"}
    words = [word for name, text in options.items() for word in ("-o", f"{name}={text}")]
    return "iceberg", options, words, lambda: in_table(tmp_path / "w")


def in_files(table):
    found = [path for path in table.glob("*.parquet") if not path.name.startswith(("_", "."))]
    return sum((rows_of(pq.read_table(path)) for path in found), Counter())


def in_table(warehouse):
    return rows_of(table_in(warehouse).scan().to_arrow())


def rows_of(table):
    return Counter(zip(table["id"].to_pylist(), table["value"].to_pylist(), strict=True))


def copy(spark, tmp_path, sink, value, trigger=None):
    """Run the query until everything is copied, each key once; with a trigger, start it."""
    name, options, _, _ = sink
    reader = spark.readStream.format("krishiv-parquet").schema("id LONG")
    rows = reader.option("maxFilesPerTrigger", "1").load(f"{tmp_path}/in")
    writer = (
        rows.dropDuplicates(["id"])
        .selectExpr("id", f"{value} AS value")
        .writeStream.format(f"krishiv-{name}")
        .options(**options)
        .option("checkpointLocation", f"{tmp_path}/c")
        .trigger(**(trigger or {"availableNow": True}))
    )
    return writer.start() if trigger else run_to_end(writer.start, f"{tmp_path}/c")


def replay(*words, dies=None):
    script = (
        [sys.executable, "-c", DIES, dies]
        if dies
        else [sys.executable, "-m", "krishiv_spark", "replay"]
    )
    done = subprocess.run([*script, *words], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_rows_are_exact_after_a_replay_that_was_killed_again_and_again(
    spark, source, sink, tmp_path
):
    name, _, words, rows = sink
    copy(spark, tmp_path, sink, "0L")  # the fault: every value is 0
    assert rows() == Counter({(n, 0): 1 for n in range(60)})
    own = "files" if name == "parquet" else "table"
    for stage in ("stopped", own, "checkpoint"):
        code, said = replay(f"{tmp_path}/c", "--from", str(FIRST), *words, dies=stage)
        assert code == -signal.SIGKILL, said
        with pytest.raises(Exception, match="krishiv-spark replay") as refused:
            copy(spark, tmp_path, sink, "id")
        assert f"krishiv-spark replay {tmp_path}/c --from {FIRST}" in str(refused.value)
    code, said = replay(f"{tmp_path}/c", *words)
    assert code == 0, said
    kept = {(n, 0): 1 for n in range(10 * FIRST)}
    assert rows() == Counter(kept)
    copy(spark, tmp_path, sink, "id")
    assert rows() == Counter({**kept, **{(n, n): 1 for n in range(10 * FIRST, 60)}})
    assert len(list(source.glob("*.parquet"))) == 6


@pytest.mark.usefixtures("source")
def test_a_driver_that_was_not_stopped_ends_when_it_plans_an_epoch(spark, sink, tmp_path):
    _, _, words, rows = sink
    query = copy(spark, tmp_path, sink, "0L", {"processingTime": "100 milliseconds"})
    query.processAllAvailable()
    code, said = replay(f"{tmp_path}/c", "--from", "3", *words, dies="stopped")
    assert code == -signal.SIGKILL, said
    late = pa.table({"id": pa.array(range(60, 70), pa.int64())})
    pq.write_table(late, tmp_path / "in" / "6.parquet")
    with pytest.raises(Exception, match=r"(?i)multiple streaming"):
        query.awaitTermination(100)
    assert rows() == Counter({(n, 0): 1 for n in range(60)})
    code, said = replay(f"{tmp_path}/c", *words)
    assert code == 0, said
    copy(spark, tmp_path, sink, "id")
    right = {(n, n if n >= 30 else 0): 1 for n in range(70)}
    assert rows() == Counter(right)


def test_files_of_the_source_that_were_removed_are_missed_before_anything_changes(
    spark, source, tmp_path
):
    words = ["--table", f"{tmp_path}/t"]
    sink = ("parquet", {"path": f"{tmp_path}/t"}, words, lambda: in_files(tmp_path / "t"))
    copy(spark, tmp_path, sink, "id")
    code, said = replay(f"{tmp_path}/c", "--from", "3", *words, "--dry-run")
    assert code == 0, said
    assert "the 3 files that were read since are still there" in said
    gone = sorted(source.glob("*.parquet"))[4]
    gone.unlink()
    code, said = replay(f"{tmp_path}/c", "--from", "3", *words)
    assert code == 1
    assert f"rows that must be read again no longer exist: {gone}" in said
    assert in_files(tmp_path / "t") == Counter({(n, n): 1 for n in range(60)})
    code, said = replay(f"{tmp_path}/c", "--from", "5", *words)
    assert code == 0, said


@pytest.mark.usefixtures("source")
def test_state_that_cannot_go_back_is_refused_by_name(spark, tmp_path):
    words = ["--table", f"{tmp_path}/t"]
    sink = ("parquet", {"path": f"{tmp_path}/t"}, words, None)
    copy(spark, tmp_path, sink, "id")
    for path in (tmp_path / "c/state").rglob("2.*"):
        path.unlink()
    code, said = replay(f"{tmp_path}/c", "--from", "3", *words)
    assert code == 1
    assert "cannot be loaded in version 3, which its query had at the end of epoch 2" in said
    assert in_files(tmp_path / "t") == Counter({(n, n): 1 for n in range(60)})


def follow(spark, tmp_path):
    """Run a second query until it has what is in the table of the first one."""
    rows = spark.readStream.format("krishiv-parquet").load(f"{tmp_path}/t")
    writer = (
        rows.writeStream.format("krishiv-parquet")
        .option("path", f"{tmp_path}/u")
        .option("checkpointLocation", f"{tmp_path}/d")
        .trigger(availableNow=True)
    )
    run_to_end(writer.start, f"{tmp_path}/d")


@pytest.mark.usefixtures("source")
def test_a_stream_that_follows_the_table_is_replayed_with_it(spark, tmp_path):
    words = ["--table", f"{tmp_path}/t"]
    sink = ("parquet", {"path": f"{tmp_path}/t"}, words, None)
    held = {path: path.read_bytes() for path in (tmp_path / "in").glob("[345].parquet")}
    for path in held:
        path.unlink()
    copy(spark, tmp_path, sink, "0L")
    follow(spark, tmp_path)
    for path, data in held.items():
        path.write_bytes(data)
    copy(spark, tmp_path, sink, "0L")
    follow(spark, tmp_path)
    assert in_files(tmp_path / "u") == Counter({(n, 0): 1 for n in range(60)})
    # As docs/replay.md has it: the follower first.
    code, said = replay(f"{tmp_path}/d", "--from", "1", "--table", f"{tmp_path}/u")
    assert code == 0, said
    code, said = replay(f"{tmp_path}/c", "--from", "3", *words)
    assert code == 0, said
    copy(spark, tmp_path, sink, "id")
    follow(spark, tmp_path)
    kept = {(n, 0): 1 for n in range(30)}
    right = Counter({**kept, **{(n, n): 1 for n in range(30, 60)}})
    assert in_files(tmp_path / "t") == right
    assert in_files(tmp_path / "u") == right
