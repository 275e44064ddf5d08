"""What a user says of the checkpoint that a sink belongs to."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from krishiv_spark.checkpoint import BATCH_PREFIX, checked_id
from krishiv_spark.storage.options import StorageOptions

__all__ = ["CheckpointOptions", "name_of_query"]


def _name(given: str) -> str:
    if checked_id(given).startswith(BATCH_PREFIX):
        raise ValueError(f"the names of batch jobs begin with {BATCH_PREFIX!r}")
    return given


class CheckpointOptions(StorageOptions):
    """Options of a sink that is exactly once.

    Attributes:
        checkpoint_location: Path or URL of Spark's folder.
        query_id: What the query is called where its checkpoint cannot be read; then it is not.
    """

    checkpoint_location: str | None = Field(default=None, description="Spark's own option.")
    query_id: Annotated[str, AfterValidator(_name)] | None = Field(
        default=None,
        description="Names the query, whose checkpoint is then not read, for it lies where only "
        "Spark can read it: "
        "[storage.md](storage.md#checkpoints-that-only-spark-can-read).",
    )


def name_of_query(options: object) -> str | None:
    """What a user calls the query; None if its checkpoint says what it is."""
    return options.query_id if isinstance(options, CheckpointOptions) else None
