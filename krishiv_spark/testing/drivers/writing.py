"""The queries that write into one sink, and the lives of their drivers."""

from __future__ import annotations

from itertools import count
from pathlib import Path

from krishiv_spark.testing.drivers.base import Driver, words
from krishiv_spark.testing.drivers.copies import PutBack
from krishiv_spark.testing.drivers.ledger import Ledger, Unit
from krishiv_spark.testing.drivers.lives import Checkpoint, Life, Workers
from krishiv_spark.testing.drivers.queries import PlayedQuery
from krishiv_spark.testing.processes import write_roles
from krishiv_spark.testing.processes.clocks import Clock
from krishiv_spark.testing.processes.outside import Call
from krishiv_spark.testing.processes.pool import Pool
from krishiv_spark.testing.processes.serving import Answer
from krishiv_spark.testing.rules import Rule, Violation
from krishiv_spark.testing.subjects import SinkUnderTest, Writing

__all__ = ["WritingDriver"]


class WritingDriver(Driver):
    """What `EpochDriver` does its steps with.

    Attributes:
        sink: The sink.
        calls: Those to the outside in the last step.
        seconds: How long that took.
        survived: Whether a call has failed, and the step went on as if nothing had happened.
    """

    def __init__(  # noqa: PLR0913, PLR0917  those of `EpochDriver`
        self,
        sink: SinkUnderTest,
        folder: Path,
        writing: Writing,
        promise: str,
        pool: Pool | None,
        zone: str | None,
    ) -> None:
        super().__init__(sink.outside, promise, pool)
        self.sink = sink
        self.calls: tuple[Call, ...] = ()
        self.seconds = 0.0
        self.survived = False
        self._folder, self._writing, self._zone = folder, writing, zone
        self._clock = Clock()
        self._replaces = writing in {"complete", "batch overwrite"}
        self._ledger = Ledger(sink, complete=self._replaces)
        self._drivers, self._jobs = count(1), count(1)
        self._last = Answer("returned")
        self._copy: PutBack | None = None
        self._newest: PutBack | None = None
        """Puts the newest target back, while an older copy is in its place."""
        self._queries = [self._new_query(1)]

    def close(self) -> None:
        """End what is running."""
        for query in self._queries:
            for life in query.lives:
                life.workers.close()
        super().close()

    @property
    def _query(self) -> PlayedQuery:
        return self._queries[0]

    def _new_query(self, number: int) -> PlayedQuery:
        folder = self._folder / f"checkpoint-{number}"
        checkpoint = None if self._writing.startswith("batch") else Checkpoint(folder)
        life = self._new_life(self._job(checkpoint), checkpoint, self._new_workers())
        return PlayedQuery(number, checkpoint, life)

    def _new_workers(self) -> Workers:
        return Workers(self._pool, self._zone, self._clock)

    def _new_life(
        self, job: write_roles.Job, checkpoint: Checkpoint | None, workers: Workers
    ) -> Life:
        start = 0 if checkpoint is None else checkpoint.committed + 1
        return Life(f"driver {next(self._drivers)}", job, workers, start)

    def _job(self, checkpoint: Checkpoint | None, *, overwrite: bool = False) -> write_roles.Job:
        return write_roles.Job(
            self.sink.source,
            self.sink.options,
            self.sink.schema,
            self.sink.row,
            None if checkpoint is None else str(checkpoint.folder),
            None if checkpoint is None else checkpoint.query,
            overwrite or self._replaces,
        )

    def _next_life(self, query: PlayedQuery, workers: Workers) -> Life:
        """A new driver of a query, in the place of the one that is awake."""
        job = self._job(query.checkpoint)
        if query.is_reordered:
            job = job.reordered()
        return self._new_life(job, query.checkpoint, workers)

    def _restart(self, *, crashed: bool) -> str:
        life = self._query.awake
        if crashed:
            life.workers.kill()
        elif life.asleep is not None:  # it goes on some time, but nobody hears of it
            life.workers.set_aside(life.asleep)
        self._query.awake = self._next_life(self._query, life.workers)
        return f"{self._query.awake.name} starts"

    def _wake_nobody(self, query: PlayedQuery) -> None:
        if query.sleeper is not None:
            query.sleeper.workers.close()
        query.sleeper = None
        query.awake.workers.kill_sleepers()
        if query.checkpoint is not None:
            query.checkpoint.put_back()
        query.awake = self._next_life(query, query.awake.workers)

    def _unit(self, query: PlayedQuery, life: Life, rows: int) -> Unit:
        if query.checkpoint is None:
            return self._ledger.new(f"job {next(self._jobs)}", rows)
        if life.next == len(query.checkpoint.units):
            again = query.checkpoint.forgotten()
            unit = self._ledger.new(f"query {query.number} epoch {life.next}", rows, again)
            query.checkpoint.plan(unit)
        return query.checkpoint.units[life.next]

    @staticmethod
    def _open(life: Life) -> Unit:
        if life.unit is None:
            raise RuntimeError("no epoch was begun")
        return life.unit

    # --- what comes of a step

    def _heard(self, answer: Answer, role: str | None) -> Life:
        self._last, self.calls, self.seconds = answer, answer.calls, answer.seconds
        self.survived = self.survived or answer.survived
        life = self._query.awake
        if answer.outcome == "asleep":
            life.asleep = role
        return life

    def _over(self, answer: Answer) -> str:
        """The epoch has not been committed by this life, which ends unless it only sleeps."""
        if answer.outcome == "asleep":
            return f": {words(answer)}"
        return f": {words(answer)}; {self._restart(crashed=answer.outcome == 'died')}"

    @property
    def _can_look(self) -> bool:
        lives = (life for query in self._queries for life in query.lives)
        return self.sink.readable_while_writing or not any(
            life.workers.are_asleep() for life in lives
        )

    def _look(self) -> None:
        # While an older copy is in the place of the target, its rows are missing: they are not, as
        # soon as a driver has gone on with it.
        if self._can_look and self._newest is None:
            self._ledger.look()

    @staticmethod
    def _must(rule: Rule, answer: Answer) -> None:
        if answer.outcome != "returned":
            raise Violation(rule, f"{words(answer)}\n{answer.trace}")
