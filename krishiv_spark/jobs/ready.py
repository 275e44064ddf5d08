"""Jobs that have been checked, with all that is needed to run them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from krishiv_spark.jobs.models import JobInput, JobOutput, JobSpec
from krishiv_spark.jobs.places import DataPlace
from krishiv_spark.messages.redaction import redact

__all__ = ["LoadedJobs", "ReadyInput", "ReadyJob", "ReadyOutput"]

BATCHES = "_batches"
"""Folder of a checkpoint that several outputs have in common; no output can be called so."""


@dataclass(frozen=True)
class ReadyInput:
    """A view that is read.

    Attributes:
        model: What was written.
        place: Where its rows are.
    """

    model: JobInput
    place: DataPlace


@dataclass(frozen=True)
class ReadyOutput:
    """Where the rows of a view go.

    Attributes:
        model: What was written.
        place: Where its rows go.
        checkpoint: Of its own query; None for a batch, and where the batches of all outputs are
            one query.
    """

    model: JobOutput
    place: DataPlace
    checkpoint: str | None = None


@dataclass(frozen=True)
class ReadyJob:
    """A job.

    Attributes:
        name: Of the job.
        model: What was written.
        inputs: In order.
        outputs: In order.
        checkpoint: Folder of the job, in which each query has its own; None for a batch.
        other_checkpoints: Those of the queries of the other jobs of the file.
    """

    name: str
    model: JobSpec
    inputs: tuple[ReadyInput, ...]
    outputs: tuple[ReadyOutput, ...]
    checkpoint: str | None
    other_checkpoints: frozenset[str] = frozenset()

    @property
    def writes_batches(self) -> bool:
        """Whether one query writes all outputs of each batch."""
        return self.model.is_streaming and self.model.streaming.for_each_batch_mode

    @property
    def batches_checkpoint(self) -> str:
        """Of that query."""
        return f"{self.checkpoint}/{BATCHES}"

    @property
    def checkpoints(self) -> list[str]:
        """Of each of its queries."""
        if self.writes_batches:
            return [self.batches_checkpoint]
        by_name = {one.model.name: one.checkpoint for one in self.outputs}
        return [location for location in by_name.values() if location is not None]

    @property
    def ends(self) -> bool:
        """Whether it ends by itself."""
        streaming = self.model.streaming
        by_trigger = streaming.batch_mode or streaming.trigger_mode in {"Once", "AvailableNow"}
        limited = self.model.timeout is not None or self.model.stop_after_idle is not None
        return not self.model.is_streaming or by_trigger or limited


@dataclass(frozen=True)
class LoadedJobs:
    """What a job file says.

    Attributes:
        jobs: In order.
        map_in_parallel: Whether they run at the same time.
        notes: What the user may want to know, a line each.
        secrets: Values that are shown nowhere.
        hide: Returns a text with the names of variables instead of their values.
    """

    jobs: tuple[ReadyJob, ...]
    map_in_parallel: bool
    notes: tuple[str, ...]
    secrets: frozenset[str] = field(default=frozenset(), repr=False)
    hide: Callable[[str], str] = field(default=str, repr=False, compare=False)

    @property
    def calls_python(self) -> bool:
        """Return True if a step is a Python function."""
        steps = (step for job in self.jobs for step in job.model.flat_steps())
        return any(step.python is not None for step in steps)

    def redacted(self, text: str) -> str:
        """Return a text without the secrets and the values of variables."""
        return self.hide(redact(text, self.secrets))
