"""``krishiv-spark job-schema``: the JSON schema of job files."""

from __future__ import annotations

import click

from krishiv_spark.operate.commands.common import say_json

__all__ = ["job_schema"]


@click.command("job-schema")
def job_schema() -> None:
    """Print the JSON schema of job files, for editors."""
    from krishiv_spark.jobs.schema import job_schema as schema

    say_json(schema(), indent=2)
