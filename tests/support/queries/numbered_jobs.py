"""Batch jobs as Spark runs them, without Spark; their users number them."""

from itertools import count

from krishiv_spark.testing.processes import write_roles
from krishiv_spark.testing.processes.write_roles import Attempt, Job
from krishiv_spark.testing.subjects import ROW_SCHEMA, default_row

_IDS = count()


def run_job(source, options, numbers, *, tasks=2, overwrite=False, schema=ROW_SCHEMA, row=None):
    """Write rows by their numbers, each task some of them."""
    job = Job(source, options, schema, row or default_row, None, None, overwrite)
    planned = write_roles.plan(job)
    messages = [
        write_roles.write(job, planned, numbers[task::tasks], _attempt(task))
        for task in range(tasks)
    ]
    write_roles.commit(job, planned, messages, 0)


def _attempt(task):
    return Attempt(epoch=0, task=task, id=next(_IDS), number=0, midway="goes on")


def make_job_options(name, number, **more):
    """Options of a job."""
    return {"txnAppId": name, "txnVersion": str(number), **more}
