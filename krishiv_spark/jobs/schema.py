"""The JSON schema of job files, by which editors complete and check them."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from krishiv_spark.jobs.models import JobList, JobSpec
from krishiv_spark.jobs.workflows import Workflow

__all__ = ["job_schema"]


def job_schema() -> dict[str, Any]:
    """The schema, made of the models (JSON Schema 2020-12)."""
    forms = TypeAdapter(Workflow | JobList | JobSpec)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A job file of krishiv-spark",
        **forms.json_schema(),
    }
