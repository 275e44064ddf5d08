"""What a job file says: its own short form, and that of workflows."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)
from pydantic.alias_generators import to_camel
from typing_extensions import Self

from krishiv_spark.jobs.values import (
    Names,
    NotUsed,
    OptionTexts,
    OutputModeName,
    SaveMode,
    Span,
    StepArguments,
    TriggerMode,
    in_any_case,
)

__all__ = [
    "JobInput",
    "JobList",
    "JobModel",
    "JobOutput",
    "JobSpec",
    "JobStep",
    "JobWatermark",
    "RestartPolicy",
    "StepSequence",
    "Streaming",
]

_OUTPUT = r"^[A-Za-z][A-Za-z0-9_-]{0,59}$"
_VIEW = r"^[A-Za-z_][A-Za-z0-9_]*$"
ViewName = Annotated[str, Field(pattern=_VIEW, max_length=100)]


class JobModel(BaseModel):
    """A part of a job file; keys are written in camelCase."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, hide_input_in_errors=True
    )


class JobWatermark(JobModel):
    """How late rows may be."""

    column: str = Field(description="Column of the event time.")
    delay: Span = Field(description="How late a row may be, such as `10 minutes`.")


class RestartPolicy(JobModel):
    """What happens after an error that may pass by itself."""

    attempts: int = Field(
        default=5, ge=0, description="How often it starts again without an epoch in between."
    )
    pause: Span = Field(default=1_000, description="Before the first new start; each next doubles.")
    longest_pause: Span = Field(default=60_000, description="No pause is longer.")


class _Read(JobModel):
    watermark: JobWatermark | None = Field(default=None, description="How late rows may be.")
    deduplicate: Names | None = Field(
        default=None,
        description="Rows with the same values in these columns are one; of a stream with a "
        "watermark, within it.",
    )
    title: str | None = Field(default=None, description="For people.")
    description: str | None = Field(default=None, description="For people.")
    tags: NotUsed = Field(default=None, description="Not used here.")


class JobInput(_Read):
    """A view of rows that are read."""

    name: ViewName = Field(description="Of the view.")
    dataset: str | None = Field(
        default=None, description="Address, as `dataos://depot:collection/dataset`."
    )
    format: str | None = Field(
        default=None,
        description="Of ours or of Spark's; `iceberg`, `kafka` and `kafkajson` are ours too.",
    )
    is_stream: bool = Field(default=False, description="Whether rows are read as they come.")
    options: OptionTexts = Field(default={}, description="Of the format; `path` is one of them.")
    schema_: str | None = Field(
        default=None,
        alias="schema",
        description="Columns, as `id BIGINT, name STRING`; of `kafkajson`, fields of the value.",
    )
    sample_values: int | None = Field(
        default=None,
        gt=0,
        le=100_000,
        description="`kafkajson` without `schema`: fields are found in so many values.",
    )


class JobStep(_Read):
    """A view that is made of others."""

    name: ViewName = Field(description="Of the view.")
    sql: str | None = Field(default=None, min_length=1, description="A query over views.")
    args: StepArguments = Field(
        default={}, description="Values of `:name` in `sql`, by name; a list is an array."
    )
    python: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")] | None = Field(
        default=None, description="`module:function`, which is given frames and returns one."
    )
    inputs: list[str] = Field(default=[], description="Views that the function is given, in order.")
    arguments: dict[str, Any] = Field(default={}, description="What it is given besides, by name.")

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.sql is None) == (self.python is None):
            raise ValueError("give either 'sql' or 'python'")
        if self.sql is None and self.args:
            raise ValueError("'args' is for 'sql'; a function of 'python' is given 'arguments'")
        if self.python is None and (self.inputs or self.arguments):
            raise ValueError(
                "'inputs' and 'arguments' are for 'python'; SQL names its views itself"
            )
        return self


class StepSequence(JobModel):
    """Steps, one after the other."""

    sequence: list[JobStep] = Field(min_length=1, description="Steps, in order.")
    name: str | None = Field(default=None, description="For people.")


def _kind_of_step(given: Any) -> str:
    has = "sequence" in given if isinstance(given, dict) else isinstance(given, StepSequence)
    return "sequence of steps" if has else "step"


class JobOutput(JobModel):
    """Where the rows of a view go."""

    name: Annotated[str, Field(pattern=_OUTPUT)] = Field(
        description="The output's for ever: its place in the checkpoint is found by it."
    )
    view: str | None = Field(default=None, description="An input or step; `name` without it.")
    dataset: str | None = Field(default=None, description="Address, as of inputs.")
    format: str | None = Field(default=None, description="As of inputs.")
    options: OptionTexts = Field(default={}, description="Of the format; `path` is one of them.")
    save_mode: SaveMode = Field(
        default="append", description="Of a batch, in any case: what becomes of rows there."
    )
    output_mode: OutputModeName | None = Field(
        default=None, description="Of a stream, in any case; `append` without it."
    )
    keys: Names = Field(
        default=[], description="Columns by which rows take the place of earlier ones (upsert)."
    )
    partition_by: Names = Field(default=[], description="Columns, or transforms of Iceberg's.")
    sort: Names = Field(default=[], description="Sort order of an Iceberg table that is made.")
    properties: OptionTexts = Field(
        default={}, description="Properties of an Iceberg table that is made."
    )
    checkpoint_location: str | None = Field(
        default=None, description="Of this output; else a folder in that of the job."
    )
    title: str | None = Field(default=None, description="For people.")
    description: str | None = Field(default=None, description="For people.")
    tags: NotUsed = Field(default=None, description="Not used here.")

    @property
    def source(self) -> str:
        """The view whose rows go there."""
        return self.view or self.name


class Streaming(JobModel):
    """How a job whose input is a stream runs."""

    trigger_mode: TriggerMode | None = Field(
        default=None,
        description="`Once`, `AvailableNow`, `ProcessingTime` or `Continuous`, in any case; "
        "without it, each batch follows the one before at once.",
    )
    trigger_duration: Span | None = Field(
        default=None, description="Of `ProcessingTime`: from one batch to the next."
    )
    batch_mode: bool = Field(
        default=False, description="End when all is read that is there, as `AvailableNow` does."
    )
    for_each_batch_mode: bool = Field(
        default=False, description="Run the steps on each batch, and write all outputs of it."
    )
    checkpoint_location: str | None = Field(
        default=None, description="Path, URL or address; each output has a folder in it."
    )

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.trigger_mode == "ProcessingTime" and self.trigger_duration is None:
            raise ValueError("'triggerMode' = ProcessingTime needs 'triggerDuration'")
        if self.for_each_batch_mode and self.trigger_mode == "Continuous":
            raise ValueError("'forEachBatchMode' is not for 'triggerMode' = Continuous")
        return self


class JobSpec(JobModel):
    """One job."""

    name: str | None = Field(default=None, description="Of the job; else that of its file.")
    inputs: list[JobInput] = Field(min_length=1, description="What is read.")
    steps: list[
        Annotated[
            Annotated[JobStep, Tag("step")] | Annotated[StepSequence, Tag("sequence of steps")],
            Discriminator(_kind_of_step),
        ]
    ] = Field(default=[], description="Views over views, in order.")
    outputs: list[JobOutput] = Field(min_length=1, description="What is written.")
    streaming: Streaming = Field(default=Streaming(), description="Where an input is a stream.")
    explain: bool = Field(default=False, description="Show each output's plan before the start.")
    show_preview_lines: int = Field(
        default=0, ge=0, le=1_000, description="So many rows of each view are shown first."
    )
    log_level: Annotated[
        Literal["ALL", "TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL", "OFF"],
        in_any_case("ALL", "TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL", "OFF"),
    ] = Field(default="WARN", description="Of Spark.")
    timeout: Span | None = Field(default=None, description="How long it may run.")
    stop_after_idle: Span | None = Field(
        default=None, description="It ends when no row has come for so long."
    )
    grace_time: Span = Field(
        default=60_000, description="How long a batch under way may take when it is to end."
    )
    restart: RestartPolicy = Field(
        default=RestartPolicy(), description="After errors that may pass by themselves."
    )
    spark: OptionTexts = Field(default={}, description="Settings of the Spark session.")
    title: str | None = Field(default=None, description="For people.")
    description: str | None = Field(default=None, description="For people.")
    tags: NotUsed = Field(default=None, description="Not used here.")

    def flat_steps(self) -> list[JobStep]:
        """All steps, in order."""
        parts = ([s] if isinstance(s, JobStep) else s.sequence for s in self.steps)
        return [step for part in parts for step in part]

    @property
    def is_streaming(self) -> bool:
        """Whether an input is a stream."""
        return any(one.is_stream for one in self.inputs)


class JobList(JobModel):
    """Several jobs."""

    jobs: list[JobSpec] = Field(min_length=1, description="In order.")
    order: Annotated[Literal["inOrder", "sideBySide"], in_any_case("inOrder", "sideBySide")] = (
        Field(
            default="inOrder",
            description="`inOrder`, each when the one before has ended, or `sideBySide`.",
        )
    )
