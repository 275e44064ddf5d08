"""Job files as workflows of Flare are written."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from krishiv_spark.jobs.models import JobModel, JobSpec
from krishiv_spark.jobs.values import NotUsed

__all__ = ["Workflow"]


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
