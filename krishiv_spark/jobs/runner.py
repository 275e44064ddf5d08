"""Runs of jobs, with their sessions and previews. Driver."""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import pyspark

from krishiv_spark.errors import OptionError, StorageError
from krishiv_spark.jobs.output_targets import JobTargets
from krishiv_spark.jobs.plan import LoadedJobs, ReadyJob, ReadyOutput
from krishiv_spark.jobs.spark_writers import stream_writers, write_batch
from krishiv_spark.jobs.supervisor import (
    QueryMaker,
    Supervisor,
    describe_pending_restart,
    restart_policy_of,
)
from krishiv_spark.jobs.views import make_views, read_input, read_samples
from krishiv_spark.queries.failures import check, failure_of
from krishiv_spark.queries.handle import Query, start
from krishiv_spark.spark.jvm import is_jvm_here, is_stopped
from krishiv_spark.storage import Storage, StoreUrl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["JobRunner", "restore_active_session"]


def open_job_session(spark: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    """Return a session with its own views, and those settings of a job that can still be set.

    It becomes the active session of this thread.
    """
    try:
        made = spark.newSession()
    except (AttributeError, NotImplementedError):  # Spark Connect before 4.3
        made = spark
    for name, text in settings.items():
        if made.conf.isModifiable(name):
            made.conf.set(name, text)
    _activate(made)
    return made


@contextmanager
def restore_active_session(spark: SparkSession) -> Iterator[None]:
    """Make the caller's session the active one again after the code that runs inside.

    Otherwise the caller would not find formats that are registered in its session only. The
    previous active session is not read from PySpark, which has one per process
    (``SparkSession._activeSession``); jobs run in several threads, and the JVM has an active
    session per thread.
    """
    try:
        yield
    finally:
        # Under Spark Connect, a server uses the session of the request.
        if is_jvm_here(spark) and not is_stopped(spark):
            _activate(spark)


def _activate(spark: SparkSession) -> None:
    # When a stream starts, Spark searches Python sources in the active session of the thread
    # (`DataSource.lookupDataSource`). A new thread has none, and this call sets it.
    spark.createDataFrame([], "nothing INT")


_SAMPLED = 1_000
"""Rows of each stream that are used for previews. Steps may leave few of them."""


def show_rows(spark: SparkSession, job: ReadyJob, say: Callable[[str], object]) -> None:
    """Show some rows of each view, from the beginning of each stream. No position advances.

    Args:
        spark: A separate session, since the views are created in it.
        job: The job, which specifies the number of rows.
        say: Called with each line.
    """
    lines = job.model.show_preview_lines

    def show(name: str, frame: DataFrame) -> None:
        say(f"{job.name}: {name}, from the first {_SAMPLED} rows of each stream")
        _say_printed(say, lambda: frame.show(lines, truncate=60))

    if lines:
        _show_views(spark, job, say, show, _SAMPLED)


def show_plans(spark: SparkSession, job: ReadyJob, say: Callable[[str], object]) -> None:
    """Show the plan of each output, with streams as batches.

    The arguments are those of `show_rows`.

    Spark cannot explain a stream over views: it would run the stream as a batch.
    """

    def explain(name: str, frame: DataFrame) -> None:
        for output in job.outputs:
            if output.model.source == name:
                say(f"{job.name}: plan of {output.model.name}")
                _say_printed(say, frame.explain)

    if job.model.explain:
        _show_views(spark, job, say, explain, None)


def _show_views(
    spark: SparkSession,
    job: ReadyJob,
    say: Callable[[str], object],
    see: Callable[[str, DataFrame], object],
    rows: int | None,
) -> None:
    from pyspark.errors import PySparkException

    try:
        make_views(spark, job, read_samples(spark, job, rows), see)
    except PySparkException as error:
        # The source can only be read as a stream. Mistakes of the job are reported when it starts.
        say(f"{job.name}: cannot be shown: {failure_of(error).line}")


def _say_printed(say: Callable[[str], object], function: Callable[[], object]) -> None:
    with contextlib.redirect_stdout(io.StringIO()) as text:
        function()
    for line in text.getvalue().rstrip().split("\n"):
        say(line)


_WRITTEN = "metadata"
"""The file that Spark writes first into the checkpoint of a query (``StreamMetadata``)."""


def check_same_mode(job: ReadyJob) -> None:
    """Refuse to start new queries beside the checkpoints of the other mode.

    With ``forEachBatchMode`` a job is one query, without it one for each output. If the mode is
    switched, the new queries would start as new queries do, and write rows again.

    Raises:
        OptionError: If checkpoints of the other mode exist, and none of this one.
    """
    if job.checkpoint is None:
        return
    together = [(job.outputs[0], job.batches_checkpoint)]
    each = [(one, one.checkpoint or f"{job.checkpoint}/{one.model.name}") for one in job.outputs]
    own, others = (together, each) if job.writes_batches else (each, together)
    found = next((place for output, place in others if _is_there(output, place)), None)
    if found is None or any(_is_there(output, place) for output, place in own):
        return
    switched = "on" if job.writes_batches else "off"
    raise OptionError(
        f"job {job.name!r}: {found} is the checkpoint of a run before 'forEachBatchMode' was "
        f"switched {switched}: the rows would be written again. Switch it back; or set another "
        "'checkpointLocation', with 'startingOffsets' where the job is to start"
    )


def _is_there(output: ReadyOutput, location: str) -> bool:
    try:
        storage = Storage.for_query(output.place.options).also_at(location)
        return storage.folder(StoreUrl.parse(location)).read(_WRITTEN) is not None
    except (OptionError, StorageError, OSError):
        return False  # only Spark can read it, and will report errors


_READS_ALL = tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 2)
"""True if a stream of a Python source reads all rows with ``availableNow`` or ``once``; otherwise
it reads one batch, as large as the source's limits allow."""

_CONTINUOUS = (
    "'triggerMode' = Continuous: Spark has no continuous processing for Python sources, so "
    "batches follow one another, each started as soon as there is a row. From topic to topic, "
    "a record was measured to arrive after 0.3 s"
)
"""The figure is that of ``./run bench --only kafka.latency``."""


@dataclass
class JobRunner:
    """A runner of jobs, which returns when they have ended.

    Attributes:
        spark: The session; each job gets a session with its own views.
        say: Called with each line of the report.
        strict: If True, a setting that Spark cannot honour exactly is an error.
        stop: An event that ends all jobs when it is set; streams end between two epochs if
            possible.
        on_session: Called with each session that is created for a job or its previews, since
            Spark's listeners and registered sources belong to one session.
        is_in_batch: True while a batch is being written, which only an exception can end.
        new_targets: Outputs, by name or as ``job.output``, that may write to another target than
            their checkpoint records, or have a new name.
        unfinished: A line for each query that was stopped before it completed an epoch, although
            there was work, and for each output and job that was not started. `run` adds to it.
    """

    spark: SparkSession
    say: Callable[[str], object]
    strict: bool = False
    stop: threading.Event = field(default_factory=threading.Event)
    on_session: Callable[[SparkSession], object] | None = None
    is_in_batch: bool = False
    new_targets: Collection[str] = ()
    unfinished: list[str] = field(default_factory=list)

    def run(self, loaded: LoadedJobs) -> None:
        """Run all jobs of a file.

        Raises:
            QueryFailed: If a stream has failed and is not restarted.
            KrishivError, PySparkException: If a job cannot be started, or a batch has failed.
        """
        with restore_active_session(self.spark):
            if loaded.side_by_side:
                self._side_by_side(loaded.jobs)
            else:
                self._one_by_one(loaded.jobs)

    def _one_by_one(self, jobs: Sequence[ReadyJob]) -> None:
        for job in jobs:
            if self.stop.is_set():
                self._leave(f"{job.name}: was not started")
            else:
                self.run_job(job)

    def _leave(self, line: str) -> None:
        """Report work that was not done, and record it."""
        self.unfinished.append(line)
        self.say(line)

    def run_job(self, job: ReadyJob) -> None:
        """Run one job. It raises the errors of `run`."""
        spark = self._prepare_with_retries(job)
        if spark is None:
            self.unfinished.append(f"{job.name}: was not started")
            return
        if job.model.is_streaming:
            self._stream(spark, job)
        else:
            self._batch(spark, job)
        self.say(f"{job.name}: ended")

    def prepare(self, job: ReadyJob) -> SparkSession:
        """Return a session with the views of a job, whose queries and functions Spark has analysed.

        It starts no query and advances no stream. The session becomes the active one of this
        thread. Raises the errors of `run`.
        """
        self._check_trigger(job)
        check_same_mode(job)
        for line in JobTargets(job, self.new_targets).check():
            self.say(f"{job.name}: {line}")
        show_rows(self._session(job), job, self.say)
        show_plans(self._session(job), job, self.say)
        spark = self._session(job)
        if not job.writes_batches:
            make_views(spark, job, {})
        else:
            # Steps run once per batch. An empty DataFrame with the same schema stands in for the
            # batch here.
            streams = (one for one in job.inputs if one.model.is_stream)
            empty = {
                one.model.name: spark.createDataFrame([], read_input(spark, one).schema)
                for one in streams
            }
            make_views(spark, job, empty)
        return spark

    def check(self, job: ReadyJob) -> None:
        """Let Spark and the sinks of streams check a job.

        Nothing starts. Raises the errors of `run`.
        """
        with restore_active_session(self.spark):
            spark = self.prepare(job)
            if job.model.is_streaming:
                accepted = self._find_accepted(job)
                for writer, is_new in zip(stream_writers(spark, job), accepted, strict=True):
                    check(writer, new_target=is_new)

    def _find_accepted(self, job: ReadyJob) -> list[bool]:
        """Return for each query of a job whether it may have a new target."""
        if job.writes_batches:
            return [False]  # its outputs are compared one by one
        targets = JobTargets(job, self.new_targets)
        return [targets.is_accepted(output) for output in job.outputs]

    def _prepare_with_retries(self, job: ReadyJob) -> SparkSession | None:
        """Call `prepare` until no transient error remains; return None if the run is stopped."""
        restarts, failed = restart_policy_of(job.model), None
        while not self.stop.is_set():
            try:
                return self.prepare(job)
            except Exception as error:  # noqa: BLE001  `pause_after` raises a permanent one
                failed = failure_of(error)
                self.stop.wait(restarts.pause_after(error, job.name, progressed=False))
        if failed is not None:
            self._make_reporter(job)(describe_pending_restart(failed.line))
        return None

    def _make_reporter(self, job: ReadyJob) -> Callable[[str], object]:
        """Return a function that reports lines of a job."""
        return lambda line: self.say(f"{job.name}: {line}")

    def _stream(self, spark: SparkSession, job: ReadyJob) -> None:
        writers = stream_writers(spark, job)
        for output in job.outputs:
            self.say(f"{job.name}: {output.model.name} goes to {output.place.shown}")
        targets = JobTargets(job, self.new_targets)
        targets.forget_accepted()
        makes = [
            QueryMaker(
                partial(_start, writer, is_new, partial(targets.record, number)),
                targets.checkpoint_at(number),
            )
            for number, (writer, is_new) in enumerate(
                zip(writers, self._find_accepted(job), strict=True)
            )
        ]
        supervisor = Supervisor(
            job.model, makes, self.stop, _has_more(job), self._make_reporter(job)
        )
        try:
            supervisor.run()
        finally:
            self.unfinished += [f"{name}: completed no epoch" for name in supervisor.stalled]

    def _batch(self, spark: SparkSession, job: ReadyJob) -> None:
        for output in job.outputs:
            if self.stop.is_set():
                self._leave(f"{job.name}: {output.model.name} was not written")
                continue
            self.is_in_batch = True
            try:
                did = write_batch(spark, output)
            finally:
                self.is_in_batch = False
            what = "goes to" if did else "is skipped, because the target exists:"
            self.say(f"{job.name}: {output.model.name} {what} {output.place.shown}")

    def _side_by_side(self, jobs: Sequence[ReadyJob]) -> None:
        with ThreadPoolExecutor(len(jobs)) as pool:
            runs = [pool.submit(self.run_job, job) for job in jobs]
            try:
                for run in as_completed(runs):
                    if run.exception() is not None:
                        self.stop.set()  # before waiting for the others
            except KeyboardInterrupt:
                self.spark.stop()  # ends the queries that they wait for
                raise
            for run in runs:
                run.result()

    def _session(self, job: ReadyJob) -> SparkSession:
        spark = open_job_session(self.spark, job.model.spark)
        if self.on_session is not None:
            self.on_session(spark)
        return spark

    def _check_trigger(self, job: ReadyJob) -> None:
        if job.model.streaming.trigger_mode != "Continuous" or not job.model.is_streaming:
            return
        if self.strict:
            raise OptionError(f"job {job.name!r}: {_CONTINUOUS}. Without --strict it runs so")
        self.say(f"{job.name}: {_CONTINUOUS}")


def _start(writer: DataStreamWriter, is_new: bool, record: Callable[[], object]) -> Query:
    """Start a query of a job, and record the targets that no sink records."""
    if is_new:
        check(writer, new_target=True)
    query = start(writer, check=not is_new)
    record()
    return query


def _has_more(job: ReadyJob) -> Callable[[Query], bool]:
    """Return a function that is True for a query that has ended, but may have left rows unread."""
    trigger = job.model.streaming.trigger_mode
    in_batch_mode = trigger is None and job.model.streaming.batch_mode
    ends = trigger in {"Once", "AvailableNow"} or in_batch_mode

    def has_more(query: Query) -> bool:
        return ends and not _READS_ALL and any(one.rows for one in query.progress)

    return has_more
