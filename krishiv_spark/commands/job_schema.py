"""``krishiv-spark job-schema``: the JSON schema of job files."""

from __future__ import annotations

import json

import click

__all__ = ["job_schema"]


@click.command("job-schema")
def job_schema() -> None:
    """Print the JSON schema of job files, for editors."""
    from krishiv_spark.jobs.schema import job_schema as schema

    click.echo(json.dumps(schema(), indent=2))
