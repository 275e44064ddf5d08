"""The models of job files, in their short form and as workflows of Flare, and their JSON schema."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    WithJsonSchema,
    model_validator,
)
from pydantic.alias_generators import to_camel
from typing_extensions import Self

from krishiv_spark.options import parse_duration

__all__ = [
    "NOT_USED",
    "JobInput",
    "JobList",
    "JobModel",
    "JobOutput",
    "JobSpec",
    "JobStep",
    "JobWatermark",
    "Names",
    "NotUsed",
    "OptionTexts",
    "OutputModeName",
    "RestartPolicy",
    "SaveMode",
    "Span",
    "StepArguments",
    "StepSequence",
    "Streaming",
    "TriggerMode",
    "Workflow",
    "in_any_case",
    "job_schema",
]


_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_LONGEST_MS = 100 * 366 * 86_400_000
"""Limit of a time span. Python's waits fail with an OverflowError after 292 years."""


def _span(given: object) -> object:
    if not isinstance(given, str):
        raise ValueError(  # noqa: TRY004  pydantic takes no other one as a refusal
            f"{given!r} has no unit: write '30 seconds', '10 minutes' or '1 hour'"
        )
    found = parse_duration(given)
    if isinstance(found, int) and found > _LONGEST_MS:
        raise ValueError(f"{given!r} is longer than 100 years")
    return found


def _texts(given: object) -> object:
    if not isinstance(given, Mapping):
        return given
    return {key: _text(key, value) for key, value in given.items()}


def _text(key: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or isinstance(value, (list, Mapping)):
        raise ValueError(f"{key!r} needs a value, which is a text, a number, true or false")
    return str(value)


def _arguments(given: object) -> object:
    if not isinstance(given, Mapping):
        return given
    for name, value in given.items():
        if _PARAMETER.fullmatch(str(name)) is None:
            raise ValueError(
                f"{name!r} is not a valid parameter name: start with a letter, followed by "
                "letters, digits and '_'"
            )
        if any(isinstance(one, Mapping | list) for one in _to_list(value)):
            raise ValueError(f"{name!r} must be a text, a number, true, false, null or a list")
    return given


def _to_list(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def _names(given: object) -> object:
    if isinstance(given, str):
        return [part.strip() for part in given.split(",") if part.strip()]
    return given


def in_any_case(*names: str, **others: str) -> BeforeValidator:
    """Return a validator that accepts names in any case, as Spark does.

    Args:
        names: The names, as they are shown.
        others: Names by other spellings, which are in lower case.
    """
    meant = {**{name.lower(): name for name in names}, **others}

    def found(given: object) -> object:
        return meant.get(given.strip().lower(), given) if isinstance(given, str) else given

    return BeforeValidator(found)


Span = Annotated[
    int,
    BeforeValidator(_span),
    WithJsonSchema({"type": "string", "examples": ["30 seconds", "10 minutes", "1 hour"]}),
]
"""A time span in milliseconds, written with its unit."""

OptionTexts = Annotated[
    dict[str, str],
    BeforeValidator(_texts),
    # Options inside options have names that are joined by dots.
    WithJsonSchema(
        {
            "type": "object",
            "additionalProperties": {"type": ["string", "number", "boolean", "object"]},
        }
    ),
]
"""Options of a format or of Spark; numbers and booleans are converted to texts."""

StepArguments = Annotated[
    dict[str, Any],
    BeforeValidator(_arguments),
    WithJsonSchema(
        {
            "type": "object",
            "additionalProperties": {"type": ["string", "number", "boolean", "null", "array"]},
        }
    ),
]
"""Values of the parameters of an SQL text. Spark never parses them as SQL."""

Names = Annotated[list[str], BeforeValidator(_names)]
"""A list, or a text that is split at commas."""

TriggerMode = Annotated[
    Literal["Once", "AvailableNow", "ProcessingTime", "Continuous"],
    # The last one is a misspelling in published files.
    in_any_case("Once", "AvailableNow", "ProcessingTime", "Continuous", continous="Continuous"),
]
"""The time when a stream starts a batch."""

SaveMode = Annotated[
    Literal["append", "overwrite", "ignore", "errorIfExists"],
    in_any_case(
        "append",
        "overwrite",
        "ignore",
        "errorIfExists",
        error="errorIfExists",
        default="errorIfExists",
    ),
]
"""The action of a batch for existing rows."""

OutputModeName = Annotated[
    Literal["append", "update", "complete"], in_any_case("append", "update", "complete")
]
"""The rows of a stream's result that are written."""

NOT_USED = "not used here"

NotUsed = Annotated[Any, NOT_USED]
"""A key for another platform only."""


_OUTPUT = r"^[A-Za-z][A-Za-z0-9_-]{0,59}$"
_VIEW = r"^[A-Za-z_][A-Za-z0-9_]*$"
ViewName = Annotated[str, Field(pattern=_VIEW, max_length=100)]


class JobModel(BaseModel):
    """A part of a job file, whose keys are in camelCase."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, hide_input_in_errors=True
    )


class JobWatermark(JobModel):
    """The event-time column and the allowed lateness of rows."""

    column: str = Field(description="Column with the event time.")
    delay: Span = Field(description="Allowed lateness of a row, such as `10 minutes`.")


class RestartPolicy(JobModel):
    """Restarts of a job after a transient error."""

    attempts: int = Field(
        default=5,
        ge=0,
        description="Maximum number of restarts without a completed epoch in between.",
    )
    pause: Span = Field(
        default=1_000,
        description="Pause before the first restart. It doubles for each further restart.",
    )
    longest_pause: Span = Field(default=60_000, description="Maximum pause between restarts.")


class _Read(JobModel):
    watermark: JobWatermark | None = Field(
        default=None, description="Event-time column and allowed lateness."
    )
    deduplicate: Names | None = Field(
        default=None,
        description="Columns that identify duplicates, of which one row is kept.",
    )
    title: str | None = Field(default=None, description="Title for readers of the file.")
    description: str | None = Field(
        default=None, description="Description for readers of the file."
    )
    tags: NotUsed = Field(default=None, description="Accepted, but not used.")


class JobInput(_Read):
    """An input of a job: a view of the rows that are read."""

    name: ViewName = Field(description="Name of the view.")
    dataset: str | None = Field(
        default=None, description="Address of the dataset, as `dataos://depot:collection/dataset`."
    )
    format: str | None = Field(
        default=None,
        description="Format of krishiv-spark or of Spark. `iceberg`, `kafka` and `kafkajson` mean "
        "krishiv-spark's; `parquet`, `json` and others mean Spark's.",
    )
    is_stream: bool = Field(default=False, description="If `true`, rows are read as a stream.")
    options: OptionTexts = Field(
        default={}, description="Options of the format; `path` is one of them."
    )
    schema_: str | None = Field(
        default=None,
        alias="schema",
        description="Columns, as `id BIGINT, name STRING`. For `kafkajson`, they are the fields of "
        "the value.",
    )
    sample_values: int | None = Field(
        default=None,
        gt=0,
        le=100_000,
        description="Number of values from which `kafkajson` infers the fields if `schema` is not "
        "given.",
    )


class JobStep(_Read):
    """A view that is derived from other views."""

    name: ViewName = Field(description="Name of the view.")
    sql: str | None = Field(default=None, min_length=1, description="SQL query over views.")
    args: StepArguments = Field(
        default={}, description="Values of `:name` in `sql`, by name. A list is an array."
    )
    python: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")] | None = Field(
        default=None,
        description="Function `module:function`, which receives DataFrames and returns one.",
    )
    inputs: list[str] = Field(default=[], description="Views that the function receives, in order.")
    arguments: dict[str, Any] = Field(
        default={}, description="Further arguments of the function, by name."
    )

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
    """A sequence of steps."""

    sequence: list[JobStep] = Field(min_length=1, description="Steps, in order.")
    name: str | None = Field(default=None, description="Name for readers of the file.")


def _kind_of_step(given: Any) -> str:
    has = "sequence" in given if isinstance(given, dict) else isinstance(given, StepSequence)
    return "sequence of steps" if has else "step"


class JobOutput(JobModel):
    """An output: the target for the rows of a view."""

    name: Annotated[str, Field(pattern=_OUTPUT)] = Field(
        description="Permanent name of the output, and of its folder in the checkpoint."
    )
    view: str | None = Field(
        default=None, description="Input or step to write. Default: the view called `name`."
    )
    dataset: str | None = Field(default=None, description="Address of the dataset, as for inputs.")
    format: str | None = Field(default=None, description="Format, as for inputs.")
    options: OptionTexts = Field(
        default={}, description="Options of the format; `path` is one of them."
    )
    save_mode: SaveMode = Field(
        default="append",
        description="Save mode of a batch: `append`, `overwrite`, `ignore` or `errorIfExists`.",
    )
    output_mode: OutputModeName | None = Field(
        default=None,
        description="Output mode of a stream: `append` (the default), `complete` or `update`.",
    )
    keys: Names = Field(
        default=[],
        description="Columns that identify a row, which replaces earlier rows with the same key.",
    )
    partition_by: Names = Field(
        default=[], description="Partition columns, or transforms of Iceberg."
    )
    sort: Names = Field(default=[], description="Sort order of an Iceberg table that is created.")
    properties: OptionTexts = Field(
        default={}, description="Properties of an Iceberg table that is created."
    )
    checkpoint_location: str | None = Field(
        default=None,
        description="Checkpoint of this output. Default: a folder in the checkpoint of the job.",
    )
    title: str | None = Field(default=None, description="Title for readers of the file.")
    description: str | None = Field(
        default=None, description="Description for readers of the file."
    )
    tags: NotUsed = Field(default=None, description="Accepted, but not used.")

    @property
    def source(self) -> str:
        """The view whose rows are written."""
        return self.view or self.name


class Streaming(JobModel):
    """Settings of a job with a stream as input."""

    trigger_mode: TriggerMode | None = Field(
        default=None,
        description="Trigger of the stream: `Once`, `AvailableNow`, `ProcessingTime` or "
        "`Continuous`, case-insensitive.",
    )
    trigger_duration: Span | None = Field(
        default=None, description="Interval between batches, for `ProcessingTime`."
    )
    batch_mode: bool = Field(
        default=False, description="Stop when all available rows are read, like `AvailableNow`."
    )
    for_each_batch_mode: bool = Field(
        default=False,
        description="Run the steps on each batch, and write all outputs of that batch.",
    )
    checkpoint_location: str | None = Field(
        default=None,
        description="Path, URL or address of the checkpoint. Each output has a folder in it.",
    )

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.trigger_mode == "ProcessingTime" and self.trigger_duration is None:
            raise ValueError("'triggerMode' = ProcessingTime needs 'triggerDuration'")
        if self.for_each_batch_mode and self.trigger_mode == "Continuous":
            raise ValueError("'forEachBatchMode' is not for 'triggerMode' = Continuous")
        return self


class JobSpec(JobModel):
    """A job with its inputs, steps and outputs."""

    name: str | None = Field(
        default=None, description="Name of the job. Default: the name of its file."
    )
    inputs: list[JobInput] = Field(min_length=1, description="Inputs of the job.")
    steps: list[
        Annotated[
            Annotated[JobStep, Tag("step")] | Annotated[StepSequence, Tag("sequence of steps")],
            Discriminator(_kind_of_step),
        ]
    ] = Field(default=[], description="Views over other views, in order.")
    outputs: list[JobOutput] = Field(min_length=1, description="Outputs of the job.")
    streaming: Streaming = Field(
        default=Streaming(), description="Settings of a job with a stream as input."
    )
    explain: bool = Field(default=False, description="Print each output's plan before the start.")
    show_preview_lines: int = Field(
        default=0,
        ge=0,
        le=1_000,
        description="Number of rows of each view to print before the start.",
    )
    log_level: Annotated[
        Literal["ALL", "TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL", "OFF"],
        in_any_case("ALL", "TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL", "OFF"),
    ] = Field(default="WARN", description="Log level of Spark.")
    timeout: Span | None = Field(default=None, description="Maximum run time of the job.")
    stop_after_idle: Span | None = Field(
        default=None, description="Time without a new row after which the job ends."
    )
    grace_time: Span = Field(
        default=60_000,
        description="Maximum time that the current batch may take when the job is asked to end.",
    )
    restart: RestartPolicy = Field(
        default=RestartPolicy(), description="Restarts after transient errors."
    )
    spark: OptionTexts = Field(default={}, description="Settings of the Spark session.")
    title: str | None = Field(default=None, description="Title for readers of the file.")
    description: str | None = Field(
        default=None, description="Description for readers of the file."
    )
    tags: NotUsed = Field(default=None, description="Accepted, but not used.")

    def flat_steps(self) -> list[JobStep]:
        """Return all steps, in order."""
        parts = ([s] if isinstance(s, JobStep) else s.sequence for s in self.steps)
        return [step for part in parts for step in part]

    @property
    def is_streaming(self) -> bool:
        """True if an input is a stream."""
        return any(one.is_stream for one in self.inputs)


class JobList(JobModel):
    """A list of jobs in one file."""

    jobs: list[JobSpec] = Field(min_length=1, description="Jobs, in order.")
    order: Annotated[Literal["inOrder", "sideBySide"], in_any_case("inOrder", "sideBySide")] = (
        Field(
            default="inOrder",
            description="Order of the jobs: `inOrder` starts each job when the previous one has "
            "ended, `sideBySide` starts all of them at once.",
        )
    )


class _StackSpec(JobModel):
    job: JobSpec = Field(description="Job that the workflow runs.")
    driver: NotUsed = Field(default=None, description="Accepted, but not used.")
    executor: NotUsed = Field(default=None, description="Accepted, but not used.")


class _Stack(JobModel):
    stack: Annotated[str, Field(pattern=r"^flare(:.*)?$")] = Field(
        description="Stack of the job: `flare:…`."
    )
    stack_spec: _StackSpec = Field(description="Job and its resources.")
    compute: NotUsed = Field(default=None, description="Accepted, but not used.")
    tags: NotUsed = Field(default=None, description="Accepted, but not used.")


class _DagItem(JobModel):
    name: str = Field(description="Name of the job.")
    spec: _Stack = Field(description="Job and its resources.")
    dependencies: list[str] = Field(
        default=[], description="Jobs that must complete before this one."
    )
    title: str | None = Field(default=None, description="Title for readers of the file.")
    description: str | None = Field(
        default=None, description="Description for readers of the file."
    )


class _Dag(JobModel):
    dag: list[_DagItem] = Field(min_length=1, description="Jobs, in order.")
    title: str | None = Field(default=None, description="Title for readers of the file.")


class Workflow(JobModel):
    """Jobs in the form of a Flare workflow."""

    version: str | int = Field(description="Version of the format: `v1`.")
    name: str = Field(description="Name of the workflow.")
    type: Literal["workflow"] = Field(description="Type of the resource: `workflow`.")
    workflow: _Dag = Field(description="Jobs of the workflow.")
    tags: NotUsed = Field(default=None, description="Accepted, but not used.")
    description: str | None = Field(
        default=None, description="Description for readers of the file."
    )
    owner: NotUsed = Field(default=None, description="Accepted, but not used.")
    workspace: NotUsed = Field(default=None, description="Accepted, but not used.")


def job_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of job files, generated from the models."""
    forms = TypeAdapter(Workflow | JobList | JobSpec)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A job file of krishiv-spark",
        **forms.json_schema(),
    }
