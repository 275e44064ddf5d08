"""Queries that a user has named, since their checkpoints lie where only Spark can read them."""

import pickle
import shutil
from dataclasses import replace

import pytest
from click.testing import CliRunner
from sink_life import SCHEMA, rows
from tables import look

from krishiv_spark.arrow.schemas import spark_schema
from krishiv_spark.cli import main
from krishiv_spark.errors import CheckpointMismatch, LogError, OptionError
from krishiv_spark.formats.kafka import KafkaDataSource
from krishiv_spark.formats.parquet import ParquetDataSource
from krishiv_spark.lifecycle.plans import PlanningFailed
from krishiv_spark.offsets import open_log


class Stream:
    """Into a table, without a look at its checkpoint."""

    def __init__(self, place, in_task):
        self.table, self.log, self._in_task = place / "table", place / "logs", in_task
        self.options = {
            "path": str(self.table),
            "epochLog": str(self.log),
            "queryId": "orders",
            "checkpointLocation": "cosn://box/checkpoint",
        }

    def write(self):
        return ParquetDataSource(options=self.options).streamWriter(
            spark_schema(SCHEMA), overwrite=False
        )

    def stage(self, number, query="first", rows_of=None):
        planned = pickle.loads(pickle.dumps(self.write()))
        self._in_task(number, query=query)
        first = 10 * number if rows_of is None else rows_of
        return planned.write(iter([rows(first, 10)]))

    def epoch(self, number, query="first", rows_of=None):
        self.write().commit([self.stage(number, query, rows_of)], number)

    def count(self):
        return look(self.table)[0]


@pytest.fixture
def stream(tmp_path, in_task):
    stream = Stream(tmp_path, in_task)
    for epoch in range(3):
        stream.epoch(epoch)
    assert stream.count() == 30
    return stream


def test_an_epoch_that_is_there_is_not_written_again(stream):
    stream.epoch(2)
    stream.epoch(3)
    assert stream.count() == 40


@pytest.mark.parametrize("epoch", [0, 2, 3])
def test_another_query_under_the_name_is_refused_before_a_row_moves(stream, epoch):
    with pytest.raises(CheckpointMismatch, match=r"'queryId' orders is taken.*Spark's query first"):
        stream.stage(epoch, "second", rows_of=500)
    stream.epoch(3)
    assert stream.count() == 40


def test_an_older_copy_of_the_checkpoint_is_refused(stream):
    with pytest.raises(CheckpointMismatch, match=r"at epoch 1, but the sink holds epoch 2"):
        stream.stage(1)


def test_a_log_that_is_gone_or_younger_than_the_query_is_refused(stream):
    shutil.rmtree(stream.log)
    with pytest.raises(PlanningFailed, match=r"its epoch log is empty"):
        stream.stage(3)
    shutil.rmtree(stream.table)  # the query has written elsewhere so far
    with pytest.raises(LogError, match=r"at epoch 3, but its epoch log has seen 1 attempts"):
        stream.stage(3)


def test_epochs_without_rows_leave_no_mark_and_are_no_gap(stream):
    for epoch in range(3, 6):
        stream.write().commit([replace(stream.stage(epoch), payload=None)], epoch)
    with pytest.raises(CheckpointMismatch, match=r"is taken"):
        stream.stage(6, "second")
    stream.epoch(6)
    assert stream.count() == 40


def test_the_log_itself_says_what_is_finished_before_a_task_stages(stream):
    stream.stage(3)
    state = open_log(f"{stream.log}/orders", "orders").state()
    assert state.finished_intent == state.intent_number


@pytest.mark.parametrize("name", ["batch-1", "a/b", "", "x" * 101])
def test_a_name_that_would_not_do_is_refused(stream, name):
    stream.options["queryId"] = name
    with pytest.raises(OptionError, match=r"queryId"):
        stream.write()


def test_kafka_needs_another_place_for_its_log():
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t", "queryId": "orders"}
    writer = KafkaDataSource(options=options).streamWriter(spark_schema(SCHEMA), overwrite=False)
    with pytest.raises(OptionError, match=r"give 'epochLog'"):
        writer._writer.log_location("orders")


def test_a_checkpoint_of_an_unknown_kind_says_what_can_be_done(stream):
    del stream.options["queryId"]
    with pytest.raises(PlanningFailed, match=r"'cosn', which is not known.*'queryId' names"):
        pickle.dumps(stream.write())


def test_an_operator_sees_the_log_and_can_settle_it(stream):
    given = [f"--option={name}={text}" for name, text in stream.options.items() if name != "path"]
    command = ["--format=parquet", f"--checkpoint={stream.options['checkpointLocation']}"]
    command += [f"--option=path={stream.table}", *given[:2]]
    shown = CliRunner().invoke(main, ["log", "show", *command])
    assert "the checkpoint is not read" in shown.output
    assert "the log holds epoch 2" in shown.output
    assert CliRunner().invoke(main, ["log", "resolve", *command]).exit_code == 0
    assert "give another 'queryId'" in CliRunner().invoke(main, ["log", "adopt", *command]).output
    stream.epoch(3)
    assert stream.count() == 40
