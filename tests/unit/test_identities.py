"""The identity of an epoch, each kind alone: no Spark, no sink, no writer that is pickled."""

import pickle
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage

from krishiv_spark.arrow.checksums import RowChecksum
from krishiv_spark.errors import (
    BatchMismatch,
    CheckpointMismatch,
    Fenced,
    LogError,
    OptionError,
)
from krishiv_spark.lifecycle.identities import (
    CheckpointEpoch,
    NumberedEpoch,
    OneOffEpoch,
    PlannedEpoch,
)
from krishiv_spark.lifecycle.plans import Plan, Staged
from krishiv_spark.offsets import PlannedOffsets
from krishiv_spark.sinks import AtLeastOnceWriter, CommittedEpoch, Epoch, Task, TwoPhaseWriter
from krishiv_spark.sinks.base import OutputMode
from krishiv_spark.sinks.numbered import JobNumber
from krishiv_spark.spark.checkpoint import BATCH_PREFIX, SparkCheckpoint

OFFSETS = PlannedOffsets.of(3, {"0": "5"}, {"0": "9"})
JOB = JobNumber("load", 5)


class Shelf(TwoPhaseWriter[int]):
    """A sink that is exactly once, and empty."""

    def stage(self, batches, task, plan): ...

    def last_committed(self, query): ...

    def publish(self, epoch, staged): ...

    def discard(self, staged): ...


class Printer(AtLeastOnceWriter[int]):
    def stage(self, batches, task, plan): ...

    def publish(self, epoch, staged): ...


def make(kind=Shelf, mode=OutputMode.APPEND):
    return kind(kind.options_type(), pa.schema([]), mode)


def in_task(batch=None, query=None):
    properties = {"streaming.sql.batchId": batch, "sql.streaming.queryId": query}
    return SimpleNamespace(getLocalProperty=properties.get)


@pytest.fixture
def checkpoint(tmp_path):
    """A checkpoint of query 0f-1 that has planned epoch 1."""
    (tmp_path / "offsets").mkdir()
    (tmp_path / "metadata").write_text('{"id":"0f-1"}')
    for epoch in (0, 1):
        (tmp_path / "offsets" / str(epoch)).write_text(f'v1\n{{}}\n{{"end":{epoch}}}')
    return SparkCheckpoint(str(tmp_path))


# --- CheckpointEpoch


def test_a_stream_is_what_its_checkpoint_plans(checkpoint):
    query, number, offsets = CheckpointEpoch(checkpoint=checkpoint).resolve_query(make())
    assert (query, number) == ("0f-1", 1)
    assert offsets == checkpoint.planned_offsets()


def test_a_name_that_the_user_gives_takes_precedence(checkpoint):
    named = CheckpointEpoch("mine", checkpoint).resolve_query(make())
    assert (named.query, named.number) == ("mine", 1)
    assert CheckpointEpoch("mine").resolve_query(make()) == PlannedEpoch("mine")
    assert CheckpointEpoch().resolve_query(make()) == PlannedEpoch(None)


def test_an_accepted_stream_is_recorded_in_its_checkpoint_and_a_refused_one_is_not(
    checkpoint, tmp_path
):
    identity, writer = CheckpointEpoch(checkpoint=checkpoint), make()
    epoch = Epoch("0f-1", 1, offsets=checkpoint.planned_offsets())
    with pytest.raises(CheckpointMismatch, match="is at epoch 1, but the sink has epoch 7"):
        identity.accept(writer, writer, epoch, CommittedEpoch(7))
    assert not (tmp_path / "krishiv").exists()
    assert identity.accept(writer, writer, epoch, None) == ()
    assert (tmp_path / "krishiv").exists()


def test_nothing_is_recorded_for_a_query_with_a_name_of_the_user(checkpoint, tmp_path):
    writer = make()
    epoch = Epoch("mine", 1, offsets=checkpoint.planned_offsets())
    CheckpointEpoch("mine", checkpoint).accept(writer, writer, epoch, None)
    assert not (tmp_path / "krishiv").exists()


def test_a_task_knows_its_epoch_by_spark_and_is_refused_if_the_plan_has_another():
    identity = CheckpointEpoch("q")
    found = identity.epoch_in_task(in_task("3", "s"), Plan("q", 7, OFFSETS))
    assert found == Epoch("q", 3, 7, OFFSETS)
    with pytest.raises(Fenced, match=r"this task is of epoch 2, .* is at epoch 3 already"):
        identity.epoch_in_task(in_task("2", "s"), Plan("q", 7, OFFSETS))


def test_offsets_that_cannot_be_read_are_those_of_sparks_query():
    identity = CheckpointEpoch("q")
    found = identity.epoch_in_task(in_task("3", "s"), Plan("q", 7, generations=9))
    assert found.offsets == PlannedOffsets.of_unknown(3, "s")
    with pytest.raises(LogError, match="its epoch log has recorded 3 attempts"):
        identity.epoch_in_task(in_task("3", "s"), Plan("q", 7, generations=3))


def test_a_sink_without_a_checkpoint_has_the_query_of_spark():
    assert CheckpointEpoch().epoch_in_task(in_task("3", "s"), Plan(None)) == Epoch("s", 3)


def test_failed_tasks_of_a_sink_without_generations_leave_nothing_to_name(checkpoint):
    identity = CheckpointEpoch(checkpoint=checkpoint)
    assert identity.epochs_without_messages(make(), 1, None) == set()


# --- OneOffEpoch


def test_a_job_without_a_number_has_a_new_id_and_is_never_asked_for():
    one, other = OneOffEpoch.new(), OneOffEpoch.new()
    assert one.query.startswith(BATCH_PREFIX)
    assert one != other
    assert not one.may_repeat
    assert one.resolve_query(make()) == PlannedEpoch(one.query)


def test_a_job_is_of_its_own_epoch_whatever_stream_is_around_it():
    job = OneOffEpoch("batch-1", 0)
    assert job.epoch_in_task(in_task("17", "s"), Plan("batch-1", 4)) == Epoch("batch-1", 0, 4)
    assert job.epochs_without_messages(make(), 0, Plan("batch-1", 4)) == {Epoch("batch-1", 0, 4)}
    assert job.epochs_without_messages(make(), 0, None) == {Epoch("batch-1", 0)}


# --- NumberedEpoch


def numbered(job=JOB, **more):
    return NumberedEpoch.of(job, make(**more))


def test_a_numbered_job_needs_a_sink_that_is_exactly_once():
    assert numbered().resolve_query(make()) == PlannedEpoch("load", 5)
    with pytest.raises(OptionError, match="'txnAppId' has no effect here"):
        numbered().resolve_query(make(Printer))


@pytest.mark.parametrize(("newest", "done"), [(None, False), (4, False), (5, True), (6, True)])
def test_a_numbered_job_is_committed_if_the_sink_has_it_or_a_later_one(newest, done):
    committed = None if newest is None else CommittedEpoch(newest)
    assert numbered().is_committed(Epoch("load", 5), committed) == done


def test_only_the_newest_may_repeat_if_the_user_says_so():
    newest = numbered(JobNumber("load", 5, repeats="newest"))
    assert newest.is_committed(Epoch("load", 5), CommittedEpoch(5))
    with pytest.raises(CheckpointMismatch, match="batch 5 of load comes after batch 6"):
        newest.is_committed(Epoch("load", 5), CommittedEpoch(6))


def test_without_generations_nothing_is_decided_before_the_plan():
    assert numbered().check_before_begin(make(), make(), Epoch("load", 5)) is None


@pytest.mark.parametrize(
    ("job", "compares"),
    [
        (JOB, True),
        (JobNumber("load", 5, compares=False), False),
        (JobNumber("load", 5, rows="3:ff"), False),
    ],
)
def test_rows_are_counted_if_they_are_what_identifies_the_job(job, compares):
    assert numbered(job).compares_rows == compares


def staged(rows: RowChecksum) -> WriterCommitMessage:
    return Staged(Task("load", 5, 0, 0), None, rows=rows)


def test_the_rows_of_all_tasks_identify_a_numbered_job():
    parts = [staged(RowChecksum(2, 10)), staged(RowChecksum(1, 7)), staged(None)]
    found = numbered().with_task_results(Epoch("load", 5), parts)
    assert found.offsets == PlannedOffsets.of_rows(5, 3, 17)


def test_a_repeated_job_with_other_rows_is_an_error():
    before = CommittedEpoch(5, PlannedOffsets.of_rows(5, 3, 17).digest)
    same = Epoch("load", 5, offsets=PlannedOffsets.of_rows(5, 3, 17))
    numbered().confirm(same, before, ())
    other = Epoch("load", 5, offsets=PlannedOffsets.of_rows(5, 4, 17))
    numbered().confirm(other, None, ())
    with pytest.raises(BatchMismatch, match="4 now, and the sink has 3"):
        numbered().confirm(other, before, ())


@pytest.mark.parametrize("identity", [CheckpointEpoch("q"), OneOffEpoch("b", 0), numbered()])
def test_identities_are_values(identity):
    assert pickle.loads(pickle.dumps(identity)) == identity
    with pytest.raises(AttributeError):
        identity.query = "other"
