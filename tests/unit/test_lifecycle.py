"""The calls of Spark in terms of the contracts: planning, staging, committing, aborting."""

import copy
import pickle
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter

from krishiv_spark.errors import (
    CheckpointMismatch,
    CommitUnknown,
    Fenced,
    OptionError,
    SchemaError,
    SinkError,
)
from krishiv_spark.formats import format_of
from krishiv_spark.lifecycle.epoch_write import BatchWrite, StreamWrite
from krishiv_spark.lifecycle.plans import Plan, PlanningFailed, Staged
from krishiv_spark.offsets import PlannedOffsets
from krishiv_spark.options import Options
from krishiv_spark.sinks import epoch_checks
from krishiv_spark.sinks.base import (
    AtLeastOnceWriter,
    CommittedEpoch,
    Epoch,
    OutputMode,
    Ownership,
    Task,
    TwoPhaseWriter,
)
from krishiv_spark.sinks.numbered import JobNumber
from krishiv_spark.spark.checkpoint import BATCH_PREFIX, SparkCheckpoint

SCHEMA = pa.schema([("id", pa.int64())])


@dataclass
class Outside:
    """The external system that the writers of a test write to, and every call to it."""

    held: dict[str, CommittedEpoch] = field(default_factory=dict)
    rows: dict[tuple[str, int], list] = field(default_factory=dict)
    calls: list[tuple] = field(default_factory=list)
    generation: int = 0
    error: Exception | None = None

    def names(self) -> list[str]:
        return [call[0] for call in self.calls]


OUTSIDE: dict[str, Outside] = {}


class Sample(Options):
    name: str


class Recorder(TwoPhaseWriter[list]):
    """Exactly once, into the dictionary above."""

    options_type = Sample

    @property
    def outside(self) -> Outside:
        return OUTSIDE[self.options.name]

    def check(self) -> None:
        self.outside.calls.append(("check",))
        if self.outside.error is not None:
            raise self.outside.error

    def stage(self, batches: Iterator[pa.RecordBatch], task: Task, plan: None) -> list | None:
        del plan
        self.outside.calls.append(("stage", task))
        found = []
        for batch in batches:
            assert batch.schema == self.schema
            found += batch.column("id").to_pylist()
        return found or None

    def last_committed(self, query: str) -> CommittedEpoch | None:
        self.outside.calls.append(("last_committed", query))
        return self.outside.held.get(query)

    def publish(self, epoch: Epoch, staged: Sequence[list]) -> None:
        self.outside.calls.append(("publish", epoch, list(staged)))
        assert (epoch.query, epoch.number) not in self.outside.rows
        self.outside.rows[epoch.query, epoch.number] = sorted(x for part in staged for x in part)
        self.outside.held[epoch.query] = CommittedEpoch(epoch.number, epoch.digest)

    def discard(self, staged: Sequence[list]) -> None:
        self.outside.calls.append(("discard", list(staged)))
        if self.outside.error is not None:
            raise self.outside.error


class Fencing(Recorder):
    """One that fences off drivers believed dead."""

    def begin(self, epoch: Epoch) -> Ownership:
        self.outside.calls.append(("begin", epoch.query))
        self.outside.generation += 1
        return Ownership(self.outside.generation)

    def find_own_generation(self, query: str, number: int) -> Epoch | None:
        return Epoch(query, number, self.outside.generation) if self.outside.generation else None

    def abandon(self, epoch: Epoch) -> None:
        self.outside.calls.append(("abandon", epoch))

    def check_owner(self, epoch: Epoch) -> None:
        self.outside.calls.append(("check_owner", epoch))
        if epoch.generation != self.outside.generation:
            raise Fenced("another driver took over")


class Recalling(Fencing):
    """One whose planner has something to tell to its committer."""

    def export_state(self, query: str) -> str:
        self.outside.calls.append(("seen", query))
        return f"generation {self.outside.generation}"

    def import_state(self, query: str, seen: str) -> None:
        self.outside.calls.append(("import_state", query, seen))


class Printer(AtLeastOnceWriter[list]):
    """One without two phases, without a checkpoint."""

    options_type = Sample

    def stage(self, batches: Iterator[pa.RecordBatch], task: Task, plan: None) -> list | None:
        del task, plan
        return [batch.num_rows for batch in batches]

    def publish(self, epoch: Epoch, staged: Sequence[list]) -> None:
        OUTSIDE[self.options.name].calls.append(("publish", epoch, list(staged)))


@pytest.fixture
def outside(request) -> Outside:
    OUTSIDE[request.node.name] = Outside()
    yield OUTSIDE[request.node.name]
    del OUTSIDE[request.node.name]


@pytest.fixture
def make(request, outside):
    def make(kind: type = Recorder, mode: OutputMode = OutputMode.APPEND) -> Recorder:
        assert outside is OUTSIDE[request.node.name]
        return kind(Sample(name=request.node.name), SCHEMA, mode)

    return make


def shipped(write):
    """Return the planner's instance as a task gets it, pickled as Spark does it."""
    return pickle.loads(CloudPickleSerializer().dumps(write))


def task(epoch: int, partition: int = 0, query: str = "q", generation: int | None = None) -> Task:
    return Task(query, epoch, partition, attempt=partition, generation=generation)


def batches(*ids: int) -> Iterator[pa.RecordBatch]:
    for number in ids:
        yield pa.record_batch({"id": [number]})


# --- planning


def test_nothing_outside_is_asked_before_the_writer_is_pickled(make, outside):
    StreamWrite(make(Fencing), "q")
    BatchWrite(make(Fencing))
    assert outside.calls == []


def test_planning_checks_takes_over_and_looks_in_this_order_and_once(make, outside):
    write = StreamWrite(make(Fencing), "q")
    first = shipped(write)
    for again in (write, first, shipped(first), copy.copy(first)):
        shipped(again)
    assert outside.calls == [("check",), ("begin", "q"), ("last_committed", "q")]


@pytest.mark.parametrize("way", [pickle, cloudpickle], ids=lambda way: way.__name__)
def test_the_plan_reaches_the_tasks(make, outside, way):
    outside.held["q"] = CommittedEpoch(4)
    loaded = way.loads(way.dumps(StreamWrite(make(Fencing), "q")))
    assert loaded._plan == Plan("q", 1, committed=CommittedEpoch(4))


def test_every_epoch_is_planned_anew(make):
    generations = [shipped(StreamWrite(make(Fencing), "q"))._plan.generation for _ in range(3)]
    assert generations == [1, 2, 3]


class Planning(Recorder):
    """One whose planner chooses something for all tasks."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.seen = []

    def plan(self, ownership) -> str:
        self.seen.append("in the planner only")
        return f"generation {ownership and ownership.generation}"

    def stage(self, batches, task, plan):
        del batches, task
        return [plan, *self.seen]


class PlanningAndFencing(Planning, Fencing):
    pass


@pytest.mark.parametrize(("kind", "generation"), [(Planning, None), (PlanningAndFencing, 1)])
def test_a_task_gets_what_was_planned_and_nothing_else(make, in_task, kind, generation):
    write = shipped(StreamWrite(make(kind), "q"))
    in_task(epoch=0)
    assert write.write(batches(1)).payload == [f"generation {generation}"]


def test_a_sink_without_a_checkpoint_plans_too(make, in_task):
    write = shipped(StreamWrite(make(Planning), None))
    in_task(epoch=0)
    assert write.write(batches(1)).payload == ["generation None"]


@pytest.mark.parametrize("verb", ["check", "plan", "last_committed", "begin"])
def test_a_planner_that_sets_an_attribute_is_told_to_return_it(make, verb):
    def smuggle(writer, *_):
        writer.found = 1

    kind = type("Smuggler", (Fencing,), {verb: smuggle})
    told = r"Smuggler sets 'found' on itself, .*Return data for the tasks from plan\(\)"
    with pytest.raises(PlanningFailed, match=told):
        shipped(StreamWrite(make(kind), "q"))


def test_a_task_and_a_committer_that_set_an_attribute_are_told_so_too(make, in_task):
    class Smuggler(Recorder):
        def stage(self, *_):
            self.rows = 1

        def publish(self, *_):
            self.rows = 1

    write = shipped(StreamWrite(make(Smuggler), "q"))
    in_task(epoch=0)
    with pytest.raises(AttributeError, match=r"data for the committer from stage\(\)"):
        write.write(batches(1))
    with pytest.raises(AttributeError, match="sets 'rows' on itself"):
        StreamWrite(make(Smuggler), "q").commit([Staged(task(0), [1])], 0)


def test_a_writer_without_a_checkpoint_is_only_checked(make, outside):
    assert shipped(StreamWrite(make(Recorder), None))._plan == Plan(None)
    assert outside.names() == ["check"]


@pytest.mark.parametrize("error", [OptionError("choose another table"), OSError("no such host")])
def test_what_planning_fails_of_passes_sparks_pickling_unchanged(make, outside, error):
    outside.error = error
    with pytest.raises(PlanningFailed, match=f"^{type(error).__name__}: {error}$"):
        shipped(StreamWrite(make(), "q"))


def test_a_batch_job_has_an_id_of_its_own(make):
    jobs = {shipped(BatchWrite(make()))._plan.query for _ in range(3)}
    assert len(jobs) == 3
    assert all(job.startswith(BATCH_PREFIX) for job in jobs)


def test_spark_hands_arrow_to_every_writer(make):
    assert isinstance(StreamWrite(make(), "q"), DataSourceStreamWriter)
    assert isinstance(StreamWrite(make(), "q"), DataSourceArrowWriter)
    assert isinstance(BatchWrite(make()), DataSourceArrowWriter)


# --- tasks


def test_a_task_stages_its_rows_under_its_own_name(make, in_task):
    write = shipped(StreamWrite(make(Fencing), "q"))
    in_task(epoch=3, partition=2, attempt=11)
    message = write.write(batches(1, 2))
    assert message.payload == [1, 2]
    staged = message.task
    assert (staged.query, staged.epoch, staged.partition, staged.attempt) == ("q", 3, 2, 11)
    assert staged.generation == 1
    assert pickle.loads(pickle.dumps(message)) == message


def test_two_attempts_never_share_a_name(make, in_task):
    write = shipped(StreamWrite(make(), "q"))
    in_task(epoch=0)
    nonces = {write.write(batches()).task.nonce for _ in range(50)}
    assert len(nonces) == 50


def test_rows_come_in_the_declared_types(make, in_task):
    write = shipped(StreamWrite(make(), "q"))
    in_task(epoch=0)
    small = pa.record_batch({"more": ["x"], "id": pa.array([5], pa.int8())})
    assert write.write(iter([small])).payload == [5]


def test_a_replayed_epoch_consumes_no_rows(make, outside, in_task):
    outside.held["q"] = CommittedEpoch(3)
    write = shipped(StreamWrite(make(), "q"))
    in_task(epoch=3)
    rows = batches(1, 2)
    assert write.write(rows).payload is None
    assert next(rows).num_rows == 1
    assert "stage" not in outside.names()


def test_without_a_checkpoint_the_query_is_the_one_that_spark_names(make, in_task):
    write = shipped(StreamWrite(make(Printer), None))
    in_task(epoch=5, query="spark's")
    assert write.write(batches(1)).task.query == "spark's"


def test_a_batch_job_has_the_one_epoch_0(make, outside, in_task):
    write = shipped(BatchWrite(make()))
    in_task(epoch=None, query=None)
    message = write.write(batches(1))
    assert message.task.epoch == 0
    assert message.task.query == write._plan.query
    write.commit([message])
    assert outside.rows == {(write._plan.query, 0): [1]}


def test_a_batch_job_inside_of_foreach_batch_is_no_batch_of_the_stream(make, outside, in_task):
    write = shipped(BatchWrite(make()))
    in_task(epoch=7, query="the stream around it")
    message = write.write(batches(1))
    assert (message.task.query, message.task.epoch) == (write._plan.query, 0)
    write.commit([message])
    assert outside.rows == {(write._plan.query, 0): [1]}


def test_writing_outside_a_task_is_an_error(make):
    with pytest.raises(SinkError, match="inside a Spark task"):
        StreamWrite(make(), "q").write(batches(1))


# --- commits


def test_a_commit_publishes_what_was_staged_with_its_generation(make, outside):
    messages = [Staged(task(2, i, generation=5), [i]) for i in range(3)]
    StreamWrite(make(), "q").commit(messages, 2)
    assert outside.calls[-1] == ("publish", Epoch("q", 2, 5), [[0], [1], [2]])
    assert outside.rows == {("q", 2): [0, 1, 2]}


def test_a_committer_is_told_first_what_the_planner_has_seen_last(make, outside, in_task):
    write = shipped(StreamWrite(make(Recalling), "q"))
    assert outside.names()[-2:] == ["last_committed", "seen"]
    in_task(epoch=0)
    message = write.write(batches(1))
    outside.calls.clear()
    StreamWrite(make(Recalling), "q").commit([message], 0)
    assert outside.calls[0] == ("import_state", "q", "generation 1")
    assert outside.names() == ["import_state", "last_committed", "publish"]


def test_a_commit_plans_nothing(make, outside):
    StreamWrite(make(Fencing), "q").commit([Staged(task(0), [1])], 0)
    assert "begin" not in outside.names()
    assert "check" not in outside.names()


def test_a_commit_of_a_held_epoch_discards_and_does_not_publish(make, outside):
    outside.held["q"] = CommittedEpoch(2)
    StreamWrite(make(), "q").commit([Staged(task(2), [1]), Staged(task(2, 1), None)], 2)
    assert outside.calls == [("last_committed", "q"), ("discard", [[1]])]


@pytest.mark.parametrize("generation", [1, 2])
def test_a_driver_that_was_taken_over_from_learns_it_from_a_held_epoch_too(
    make, outside, generation
):
    outside.held["q"], outside.generation = CommittedEpoch(2), 2
    write = StreamWrite(make(Fencing), "q")
    with nullcontext() if generation == 2 else pytest.raises(Fenced):
        write.commit([Staged(task(2, generation=generation), [1])], 2)
    assert outside.names() == ["last_committed", "discard", "check_owner"]


def test_a_commit_looks_at_the_truth_of_now_and_not_at_that_of_the_plan(make, outside):
    write = shipped(StreamWrite(make(), "q"))
    outside.held["q"] = CommittedEpoch(0)
    write.commit([Staged(task(0), [1])], 0)
    assert "publish" not in outside.names()


def test_an_epoch_that_tasks_skipped_and_the_sink_lacks_by_now_is_refused(make, outside, in_task):
    outside.held["q"] = CommittedEpoch(0)
    write = shipped(StreamWrite(make(), "q"))
    in_task(epoch=0)
    message = write.write(batches(1))
    outside.held.clear()  # its target was replaced by an older copy
    with pytest.raises(CheckpointMismatch, match="and does not have it now"):
        StreamWrite(make(), "q").commit([message], 0)
    assert "publish" not in outside.names()


def test_a_replay_of_the_whole_epoch_changes_nothing(make, outside, in_task):
    for _ in range(3):
        write = shipped(StreamWrite(make(), "q"))
        in_task(epoch=0)
        StreamWrite(make(), "q").commit([write.write(batches(1, 2))], 0)
    assert outside.rows == {("q", 0): [1, 2]}
    assert outside.names().count("publish") == outside.names().count("stage") == 1


def test_an_epoch_without_rows_is_published_only_where_it_replaces(make, outside):
    empty = [Staged(task(0), None), Staged(task(0, 1), None)]
    StreamWrite(make(), "q").commit(empty, 0)
    assert "publish" not in outside.names()
    StreamWrite(make(mode=OutputMode.REPLACE), "q").commit(empty, 0)
    assert outside.calls[-1] == ("publish", Epoch("q", 0), [])


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [None],
        [Staged(task(1), [1]), Staged(task(2), [2])],
        [Staged(task(1), [1])],
        [Staged(task(2), [1]), Staged(task(2, query="other"), [2])],
        [Staged(task(2, generation=1), [1]), Staged(task(2, generation=2), [2])],
        [Staged(task(2, generation=None), [1]), Staged(task(2, generation=2), [2])],
    ],
    ids=["none", "only lost ones", "epochs", "another epoch", "queries", "generations", "mixed"],
)
def test_messages_that_are_not_of_this_one_epoch_are_refused(make, outside, messages):
    with pytest.raises(SinkError, match="epoch 2 has messages of"):
        StreamWrite(make(), "q").commit(messages, 2)
    assert outside.rows == {}
    assert "discard" not in outside.names()


def test_a_sink_without_two_phases_delivers_again(make, outside):
    for _ in range(2):
        StreamWrite(make(Printer), None).commit([Staged(task(0), [1])], 0)
    assert outside.names() == ["publish", "publish"]


# --- which epoch is which


@pytest.fixture
def checkpoint(tmp_path):
    """Spark's offset log, of one source."""

    def plan(**ends: int) -> SparkCheckpoint:
        (tmp_path / "offsets").mkdir(exist_ok=True)
        for epoch, end in ends.items():
            (tmp_path / "offsets" / epoch[1:]).write_text(f"v1\n{{}}\n{end}")
        return SparkCheckpoint(str(tmp_path))

    return plan


def run(make, in_task, checkpoint: SparkCheckpoint, epoch: int) -> None:
    """One epoch, as Spark runs it."""
    write = shipped(StreamWrite(make(), "q", checkpoint))
    in_task(epoch=epoch)
    message = write.write(batches(epoch))
    StreamWrite(make(), "q", checkpoint).commit([message], epoch)


def test_what_spark_planned_reaches_publish(make, outside, in_task, checkpoint):
    run(make, in_task, checkpoint(_0=5), 0)
    planned = PlannedOffsets.of(0, {}, {"0": "5"})
    assert outside.calls[-1] == ("publish", Epoch("q", 0, None, planned), [[0]])
    assert outside.held["q"] == CommittedEpoch(0, planned.digest)


def test_an_epoch_that_is_repeated_is_skipped(make, outside, in_task, checkpoint):
    for _ in range(2):
        run(make, in_task, checkpoint(_0=5), 0)
    assert outside.names().count("publish") == 1


@pytest.mark.parametrize("held", [{"_0": 5, "_1": 7}, {"_0": 4, "_1": 9}], ids=["end", "start"])
def test_an_epoch_with_other_rows_than_the_held_one_is_refused(
    make, outside, in_task, checkpoint, held
):
    run(make, in_task, checkpoint(**held), 1)
    with pytest.raises(PlanningFailed, match=r"CheckpointMismatch: epoch 1 .*\(up to 0: 9\)"):
        shipped(StreamWrite(make(), "q", checkpoint(_0=5, _1=9)))
    assert outside.names().count("publish") == 1


def test_an_epoch_that_begins_elsewhere_than_the_held_one_ended_is_refused(
    make, outside, in_task, checkpoint
):
    run(make, in_task, checkpoint(_0=5), 0)
    why = (
        r"CheckpointMismatch: epoch 1 does not start where epoch 0 ended when the sink committed it"
    )
    with pytest.raises(PlanningFailed, match=why):
        shipped(StreamWrite(make(), "q", checkpoint(_0=7, _1=9)))
    run(make, in_task, checkpoint(_0=5, _1=9), 1)
    assert outside.names().count("publish") == 2


def test_an_epoch_before_the_held_one_is_refused(make, outside, checkpoint):
    outside.held["q"] = CommittedEpoch(17, shown="0: 99")
    with pytest.raises(PlanningFailed, match=r"at epoch 1, .*has epoch 17 .*\(up to 0: 99\)"):
        shipped(StreamWrite(make(), "q", checkpoint(_0=5, _1=9)))


def test_a_mark_without_a_digest_is_known_by_its_number(make, outside, in_task, checkpoint):
    outside.held["q"] = CommittedEpoch(0)
    run(make, in_task, checkpoint(_0=5), 0)
    assert "publish" not in outside.names()


@pytest.mark.parametrize(
    ("held", "ends", "gap"),
    [
        (CommittedEpoch(0, "x-end of 0"), {"_2": 9, "_3": 9}, "epochs 1 to 2,"),
        (None, {"_2": 9, "_3": 9}, "epochs 0 to 2,"),
        (CommittedEpoch(0, PlannedOffsets.of(0, {}, {"0": "9"}).digest), {"_2": 9, "_3": 9}, None),
        (CommittedEpoch(2, PlannedOffsets.of(2, {}, {"0": "9"}).digest), {"_2": 9, "_3": 11}, None),
        (CommittedEpoch(0), {"_2": 9, "_3": 9}, None),
        (None, {"_0": 9}, None),
    ],
    ids=["older", "new", "idle since", "next", "without a digest", "first"],
)
def test_epochs_that_the_sink_has_nothing_of_are_told_when_a_query_begins(
    make, outside, checkpoint, monkeypatch, caplog, held, ends, gap
):
    """A table that was restored from an older copy, or dropped and made again."""
    monkeypatch.setattr(epoch_checks, "_begun", set())
    if held is not None:
        outside.held["q"] = held
    for _ in range(2):
        shipped(StreamWrite(make(), "q", checkpoint(**ends)))
    told = [line.getMessage() for line in caplog.records if line.levelname == "WARNING"]
    assert len(told) == (gap is not None)
    assert gap is None or gap in told[0]


def test_a_task_of_an_epoch_that_the_checkpoint_has_left_is_fenced(make, in_task, checkpoint):
    write = shipped(StreamWrite(make(), "q", checkpoint(_0=5, _1=9)))
    in_task(epoch=0)
    with pytest.raises(Fenced, match=r"epoch 0, but .* at epoch 1 already"):
        write.write(batches(1))


def test_a_task_of_an_epoch_before_the_held_one_is_refused(make, outside, in_task):
    outside.held["q"] = CommittedEpoch(3)
    write = shipped(StreamWrite(make(), "q"))
    in_task(epoch=2)
    with pytest.raises(CheckpointMismatch, match=r"at epoch 2, .* has epoch 3"):
        write.write(batches(1))


@pytest.mark.parametrize("owner", [1, 2])
def test_a_commit_before_the_held_epoch_is_refused_or_fenced(make, outside, owner):
    outside.held["q"], outside.generation = CommittedEpoch(3), owner
    with pytest.raises(CheckpointMismatch if owner == 1 else Fenced):
        StreamWrite(make(Fencing), "q").commit([Staged(task(2, generation=1), [1])], 2)
    assert outside.names() == ["last_committed", "discard", "check_owner"]


def test_an_author_is_told_what_last_committed_has_to_return(make, outside):
    outside.held["q"] = 4
    with pytest.raises(
        PlanningFailed, match=r"last_committed\(\) of Recorder .*CommittedEpoch\(epoch"
    ):
        shipped(StreamWrite(make(), "q"))


def test_a_batch_job_is_never_asked_what_it_holds(make, outside, in_task):
    write = shipped(BatchWrite(make(Fencing)))
    in_task(epoch=None, query=None)
    write.commit([write.write(batches(1))])
    assert outside.names() == ["check", "begin", "stage", "publish"]


def test_a_batch_job_that_the_target_knows_by_its_number_is_skipped(make, outside, in_task):
    for _ in range(2):
        write = shipped(BatchWrite(make(Fencing), JobNumber("load", 5)))
        in_task(epoch=None, query=None)
        write.commit([write.write(batches(1))])
    names = outside.names()
    # Not even begun once more: whoever is busy with the next one shall not be fenced.
    assert [names.count(name) for name in ("begin", "stage", "publish")] == [1, 1, 1]


# --- aborts


def test_an_abort_without_any_message_sweeps_what_this_application_has_begun(make, outside):
    StreamWrite(make(Fencing), "q").abort([None, None], 2)
    assert outside.calls == [("discard", [])]
    outside.generation = 5
    StreamWrite(make(Fencing), "q").abort([None, None], 2)
    assert outside.calls[-1] == ("abandon", Epoch("q", 2, 5))


def test_an_abort_of_a_batch_job_without_any_message_sweeps_its_own(make, outside):
    write = shipped(BatchWrite(make(Fencing)))
    write.abort([None])
    assert outside.calls[-1] == ("abandon", Epoch(write._plan.query, 0, 1))


def test_an_abort_after_tasks_failed_discards_what_the_others_staged(make, outside):
    messages = [Staged(task(0), [1]), None, Staged(task(0, 2), None)]
    StreamWrite(make(), "q").abort(messages, 0)
    assert outside.calls == [("discard", [[1]])]


def test_an_abort_after_the_commit_failed_touches_nothing(make, outside, caplog):
    StreamWrite(make(), "q").abort([Staged(task(0), [1]), Staged(task(0, 1), [2])], 0)
    BatchWrite(make()).abort([Staged(task(0), [1])])
    assert outside.calls == []
    assert "a commit failed" in caplog.text


def test_an_abort_of_a_batch_discards_likewise(make, outside):
    BatchWrite(make()).abort([None, Staged(task(0, 1), [2])])
    assert outside.calls == [("discard", [[2]])]


def test_an_abort_that_fails_does_not_hide_why_the_tasks_failed(make, outside, caplog):
    outside.error = OSError("the disk went away")
    StreamWrite(make(), "q").abort([None, Staged(task(0), [1])], 0)
    assert "could not be deleted" in caplog.text


def test_a_commit_that_may_have_happened_survives_the_abort_that_follows(make, outside):
    class Forgetful(Recorder):
        def publish(self, epoch, staged):
            super().publish(epoch, staged)
            raise CommitUnknown("no answer")

    messages = [Staged(task(0), [1])]
    write = StreamWrite(make(Forgetful), "q")
    with pytest.raises(CommitUnknown):
        write.commit(messages, 0)
    write.abort(messages, 0)
    assert "discard" not in outside.names()
    StreamWrite(make(), "q").commit([Staged(task(0), None)], 0)
    assert outside.rows == {("q", 0): [1]}


@pytest.mark.parametrize("format_name", ["parquet", "kafka", "iceberg", "memory"])
@pytest.mark.parametrize("call", ["reader", "streamReader", "writer", "streamWriter"])
def test_an_engine_that_gives_arrows_columns_for_sparks_is_refused(format_name, call):
    """As Sail 0.7.2 does: it would call planner, tasks and committer otherwise, too."""
    source = format_of(format_name)({})
    given = (False,) if call.endswith("riter") else ()
    with pytest.raises(SchemaError, match=r"runs on Apache Spark only: .* pyarrow\.lib\.Schema"):
        getattr(source, call)(pa.schema([("id", pa.int64())]), *given)
