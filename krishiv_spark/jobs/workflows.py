"""Job files as workflows of Flare are written."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from krishiv_spark.jobs.models import JobModel, JobSpec
from krishiv_spark.jobs.values import NotUsed

__all__ = ["Workflow"]


class _StackSpec(JobModel):
    job: JobSpec = Field(description="The job.")
    driver: NotUsed = Field(default=None, description="Not used here.")
    executor: NotUsed = Field(default=None, description="Not used here.")


class _Stack(JobModel):
    stack: Annotated[str, Field(pattern=r"^flare(:.*)?$")] = Field(description="`flare:…`.")
    stack_spec: _StackSpec = Field(description="The job, and what it runs on.")
    compute: NotUsed = Field(default=None, description="Not used here.")
    tags: NotUsed = Field(default=None, description="Not used here.")


class _DagItem(JobModel):
    name: str = Field(description="Of the job.")
    spec: _Stack = Field(description="The job, and what it runs on.")
    dependencies: list[str] = Field(default=[], description="Jobs that have to be done before.")
    title: str | None = Field(default=None, description="For people.")
    description: str | None = Field(default=None, description="For people.")


class _Dag(JobModel):
    dag: list[_DagItem] = Field(min_length=1, description="Jobs, in order.")
    title: str | None = Field(default=None, description="For people.")


class Workflow(JobModel):
    """Jobs as workflows of Flare write them."""

    version: str | int = Field(description="`v1`.")
    name: str = Field(description="Of the workflow.")
    type: Literal["workflow"] = Field(description="`workflow`.")
    workflow: _Dag = Field(description="The jobs.")
    tags: NotUsed = Field(default=None, description="Not used here.")
    description: str | None = Field(default=None, description="For people.")
    owner: NotUsed = Field(default=None, description="Not used here.")
    workspace: NotUsed = Field(default=None, description="Not used here.")
