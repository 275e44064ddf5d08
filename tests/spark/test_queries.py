"""Handles of queries, on real Spark: progress, ends, restarts, and what is left when cancelled."""

import signal
import threading
import time
import uuid
from datetime import datetime, timedelta, timezone
from functools import partial

import psutil
import pyarrow as pa
import pyspark
import pytest
from patience import PATIENCE, await_that
from pyspark.sql import functions as sql
from tables import look, make_input

import krishiv_spark
from krishiv_spark import queries
from krishiv_spark.errors import QueryFailed
from krishiv_spark.queries import Progress, Query, QueryState

FILES, ROWS = 6, 10
KNOWS_NEWEST = tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 2)


@pytest.fixture
def stream(spark, tmp_path):
    """Rows of files, one file in each epoch."""
    make_input(tmp_path / "in", FILES, ROWS)
    read = spark.readStream.format("krishiv-parquet").option("maxFilesPerTrigger", 1)
    return read.load(str(tmp_path / "in"))


def writer(frame, folder, name="out"):
    to = frame.writeStream.format("krishiv-parquet").option("path", str(folder / name))
    return to.option("checkpointLocation", str(folder / f"checkpoint-{name}"))


def slowly(frame, seconds=0.1):
    def pause(batches):
        for batch in batches:
            for row in range(batch.num_rows):
                time.sleep(seconds)
                yield batch.slice(row, 1)

    return frame.mapInArrow(pause, frame.schema)


@pytest.mark.core
def test_a_handle_tells_what_a_query_does(stream, tmp_path):
    with queries.start(writer(stream, tmp_path).queryName("orders")) as query:
        query.process_all_available()
        assert query.status.state in {QueryState.IDLE, QueryState.RUNNING}
        assert query.is_active
        assert query.failure is None
        await_that(lambda: len([one for one in query.progress if one.rows]) == FILES, "epochs")
        done = [one for one in query.progress if one.rows]
    assert query.status.state is QueryState.STOPPED
    assert [one.epoch for one in done] == list(range(FILES))
    assert {one.rows for one in done} == {ROWS}
    newest = done[-1]
    assert (newest.query, newest.run, newest.name) == (query.id, query.run_id, "orders")
    assert timedelta() < newest.phases["addBatch"] <= newest.duration
    (source,) = newest.sources
    assert source.rows == ROWS
    assert source.start != source.end
    assert newest.watermark is None
    if KNOWS_NEWEST:
        assert done[0].sources[0].waiting["files"] == FILES - 1
        assert source.waiting["files"] == 0
    assert look(tmp_path / "out")[:2] == (FILES * ROWS,) * 2


@pytest.mark.core
def test_a_failure_is_one_line(stream, tmp_path):
    broken = stream.withColumn("id", sql.raise_error(sql.lit("no such order")).cast("long"))
    with queries.start(writer(broken, tmp_path)) as query:
        with pytest.raises(QueryFailed, match="no such order") as caught:
            query.await_termination(PATIENCE)
        assert query.status.state is QueryState.FAILED
        assert "\n" not in query.status.message
    assert not caught.value.passes


def test_errors_of_ours_have_their_name(stream, tmp_path):
    (tmp_path / "out").write_text("no folder")
    with pytest.raises(QueryFailed, match="cannot be created") as caught:
        queries.start(writer(stream, tmp_path)).await_termination(PATIENCE)
    assert (caught.value.name, caught.value.passes) == ("OptionError", False)


# --- the sink is asked before the start


@pytest.fixture
def idle(spark, tmp_path):
    """A stream of Spark's own without a row; ours begin with an epoch without rows."""
    (tmp_path / "empty").mkdir()
    return spark.readStream.schema("id LONG, day STRING").csv(str(tmp_path / "empty"))


def test_spark_asks_a_python_sink_no_sooner_than_for_its_first_rows(idle, tmp_path):
    """Test the reason for the check of `queries.start`, which docs/errors.md describes."""
    query = writer(idle, tmp_path).option("partitonBy", "day").start()
    try:
        query.processAllAvailable()
        assert query.isActive
        (tmp_path / "empty/rows.csv").write_text("1,2013-01-01\n")
        with pytest.raises(Exception, match="did you mean 'partitionBy'"):
            query.processAllAvailable()
    finally:
        query.stop()


def test_times_without_anything_to_do_are_no_epochs(spark, idle, tmp_path):
    interval = "spark.sql.streaming.noDataProgressEventInterval"
    spark.conf.set(interval, "50ms")
    try:
        query = queries.start(writer(idle, tmp_path))
    finally:
        spark.conf.unset(interval)
    with query:
        for epoch in range(2):
            await_that(lambda: query.last_progress and query.last_progress.is_idle, "idle")
            assert query.last_progress.epoch == epoch
            assert [one.epoch for one in query.progress] == list(range(epoch))
            (tmp_path / f"empty/{epoch}.csv").write_text("1,2013-01-01\n")
            query.process_all_available()
    assert [one.rows for one in query.progress] == [1, 1]
    assert not any(one.is_idle for one in query.progress)


WRONG = {
    "option": ("parquet", {"partitonBy": "day"}, "OptionError", "did you mean 'partitionBy'"),
    "column": ("parquet", {"partitionBy": "month"}, "OptionError", "'month'"),
    "place": ("parquet", {"path": "{file}/out"}, "OptionError", "is not a folder"),
    "route": ("fanout", {"route.a.path": "/x"}, "OptionError", "option 'format' is required"),
    "rows": (
        "kafka",
        {"topic": "t", "kafka.bootstrap.servers": "127.0.0.1:1"},
        "SchemaError",
        "to_json",
    ),
    "sink": ("console", {"truncat": "1"}, "OptionError", "did you mean 'truncate'"),
    "partition": (
        "iceberg",
        {"partitionBy": "days(when)", "warehouse": "{new}", "path": "db.t"},
        "",
        "when",
    ),
    "key": ("memory", {"mode": "upsert"}, "OptionError", "'keyColumns'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_a_sink_refuses_is_told_before_the_start(idle, tmp_path, case):
    name, options, kind, says = WRONG[case]
    (tmp_path / "file").write_text("no folder")
    new = {"file": tmp_path / "file", "new": tmp_path / "new"}
    given = {key: text.format(**new) for key, text in options.items()}
    rows = krishiv_spark.routed(idle, a="true") if name == "fanout" else idle
    to = writer(rows, tmp_path, "new").format(f"krishiv-{name}").options(**given)
    with pytest.raises(QueryFailed, match=says) as caught:
        queries.start(to)
    assert kind in {"", caught.value.name}
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "checkpoint-new").exists()
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["parquet", "iceberg", "memory", "console"])
def test_what_a_sink_takes_is_not_made_before_the_start(idle, tmp_path, name):
    place = {"warehouse": str(tmp_path / "new"), "path": "db.t"} if name == "iceberg" else {}
    queries.check(writer(idle, tmp_path, "new").format(f"krishiv-{name}").options(**place))
    assert not (tmp_path / "new").exists()


def test_an_output_mode_that_spark_refuses_is_told_with_what_helps(idle, tmp_path):
    with pytest.raises(QueryFailed, match=r"use 'complete', or .*krishiv_spark\.upsert"):
        queries.start(writer(idle, tmp_path).outputMode("update"))


def test_functions_and_sinks_of_spark_are_not_asked(idle):
    queries.check(idle.writeStream.foreachBatch(lambda *_: None))
    queries.check(idle.writeStream.format("console").option("anything", "goes"))


def test_a_start_without_the_question_is_sparks_own(idle, tmp_path):
    with queries.start(writer(idle, tmp_path).option("partitonBy", "day"), check=False) as query:
        assert query.is_active


def test_a_query_ends_when_its_time_is_up_or_no_row_comes(stream, tmp_path):
    late = queries.start(writer(stream, tmp_path, "late"), timeout=1)
    assert late.await_termination(PATIENCE)
    idle = queries.start(writer(stream, tmp_path, "idle"), idle=timedelta(seconds=1))
    assert idle.await_termination(PATIENCE)
    assert look(tmp_path / "idle")[0] == FILES * ROWS


def test_stop_waits_for_the_epoch_under_way(stream, tmp_path):
    query = queries.start(writer(slowly(stream), tmp_path))
    await_that(lambda: query.status.state is QueryState.RUNNING, "it begins")
    assert query.stop(grace=PATIENCE)
    seen, _, _ = look(tmp_path / "out")
    assert seen
    assert seen % ROWS == 0


def test_what_is_cancelled_in_mid_write_is_seen_by_nobody_and_swept_by_the_next(stream, tmp_path):
    query = queries.start(writer(slowly(stream), tmp_path))
    await_that(lambda: staged(tmp_path), "rows are being written")
    query.cancel()
    assert look(tmp_path / "out")[0] % ROWS == 0
    with queries.start(writer(stream, tmp_path)) as again:
        again.process_all_available()
    assert look(tmp_path / "out")[:2] == (FILES * ROWS,) * 2
    assert not staged(tmp_path)


def staged(folder):
    found = (path for path in (folder / "out").glob("_krishiv/*/staged/**/*") if path.is_file())
    return [path for path in found if not path.parent.name.endswith(".done")]


def test_listeners_are_told_values_and_hurt_nobody(spark, stream, tmp_path):
    told, ended = [], threading.Event()

    def see(progress):
        told.append(progress)
        raise ValueError("a listener's own fault")

    with queries.listen(
        spark,
        started=lambda number, name: told.append((number, name)),
        progress=see,
        ended=lambda number, failed: (told.append((number, failed)), ended.set()),
    ):
        query = queries.start(writer(stream, tmp_path).queryName("told"))
        query.process_all_available()
        query.stop()
        assert ended.wait(PATIENCE)
    mine = [one for one in told if isinstance(one, Progress) and one.query == query.id]
    assert sum(one.rows for one in mine) == FILES * ROWS
    assert (query.id, "told") in told
    assert (query.id, None) in told


def test_lag_and_watermark_are_numbers(spark, tmp_path):
    name = f"q-{uuid.uuid4().hex[:8]}"
    source = krishiv_spark.memory_source(name, pa.schema([("ts", pa.timestamp("us", "UTC"))]))
    rows = spark.readStream.format("krishiv-memory").load(name).withWatermark("ts", "1 minute")
    counts = rows.groupBy(sql.window("ts", "1 hour")).count().select("count")
    to = counts.writeStream.format("krishiv-memory").outputMode("complete")
    with queries.start(to.option("checkpointLocation", str(tmp_path)).queryName(name)) as query:
        for day in (1, 2):
            noon = datetime(2013, 1, day, 12, tzinfo=timezone.utc)
            source.add(pa.table({"ts": pa.array([noon], pa.timestamp("us", "UTC"))}))
            query.process_all_available()
        await_that(lambda: query.last_progress.watermark, "a watermark")
        # As the epoch began; Spark may have had an empty one since.
        assert query.last_progress.watermark.time().isoformat() == "11:59:00"
        assert query.last_progress.event_time_lag > timedelta(days=365)
    krishiv_spark.memory_clear(name)


# --- restarts


def test_what_may_pass_is_tried_again(spark, tmp_path, caplog):
    """A broker that comes late, as far as its client can tell."""
    begun = []

    def make():
        begun.append(time.monotonic())
        rows = spark.readStream.format("rate").load().selectExpr("cast(value as string) AS value")
        to = rows.writeStream.format("krishiv-kafka").option("topic", "t")
        to = to.option("kafka.bootstrap.servers", "127.0.0.1:1")
        to = to.option("kafka.request.timeout.ms", "500")
        to = to.option("kafka.default.api.timeout.ms", "1000")
        return queries.start(to.option("checkpointLocation", str(tmp_path / "checkpoint")))

    with pytest.raises(QueryFailed) as caught:
        queries.run(make, restarts=1, pause=0.1)
    assert caught.value.passes, caught.value
    assert len(begun) == 2
    assert "starts again in 0.1 s" in caplog.text


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "is_stopped"),
    [
        ("python_streaming_source_runner", False),
        ("python_streaming_source_runner", True),
        ("write_into_data_source", False),
    ],
)
def test_a_query_whose_python_process_was_killed_starts_again(
    spark, tmp_path, caplog, kind, is_stopped
):
    """Spark's errors: an empty STREAM_FAILED, "Connection reset", and "Stream closed".

    A process that was stopped is killed while Spark waits for its answer, so that its socket has
    bytes that it has not read.
    """
    make_input(tmp_path / "in", FILES, ROWS)
    frame = spark.readStream.format("krishiv-parquet").load(str(tmp_path / "in"))
    begun: list[Query] = []

    def start():
        begun.append(queries.start(writer(frame, tmp_path)))
        begun[-1].process_all_available()
        if len(begun) == 1:
            if is_stopped:
                signal_processes(kind, signal.SIGSTOP)
                await_that(lambda: begun[-1].status.state is QueryState.RUNNING, "a poll")
                time.sleep(0.5)  # nothing tells that the bytes have arrived
            signal_processes(kind, signal.SIGKILL)
            make_input(tmp_path / "in", FILES, ROWS, first_file=FILES)
        else:
            begun[-1].stop()
        return begun[-1]

    queries.run(start, pause=0)
    assert "a Python process of Spark has ended" in caplog.text
    assert look(tmp_path / "out")[:2] == (2 * FILES * ROWS,) * 2


def signal_processes(kind: str, number: signal.Signals) -> None:
    """Send a signal to the Python processes of Spark that run a module."""
    found = [
        process
        for process in psutil.Process().children(recursive=True)
        if process.status() != psutil.STATUS_ZOMBIE and " ".join(process.cmdline()).endswith(kind)
    ]
    for process in found:
        process.send_signal(number)
    assert found, f"no process runs {kind}"


def test_what_does_not_pass_is_not_tried_again(stream, tmp_path):
    begun = []

    def make(check):
        begun.append(check)
        return queries.start(writer(stream, tmp_path), check=check)

    (tmp_path / "out").write_text("no folder")
    for check in (True, False):
        with pytest.raises(QueryFailed, match="cannot be created"):
            queries.run(partial(make, check))
    assert begun == [True, False]


def test_a_handle_is_made_of_sparks_own(stream, tmp_path):
    spark_query = writer(stream, tmp_path).trigger(availableNow=True).start()
    assert Query(spark_query).await_termination(PATIENCE)
