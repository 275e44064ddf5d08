"""What a user says of the checkpoint that a sink belongs to."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from krishiv_spark.sinks.numbered import NumberedJobOptions, given_name
from krishiv_spark.sinks.refreshes import RefreshOptions
from krishiv_spark.spark.checkpoint import SparkCheckpoint
from krishiv_spark.storage.storage import StorageOptions

__all__ = ["CheckpointOptions", "name_of_query"]


class CheckpointOptions(StorageOptions, NumberedJobOptions, RefreshOptions):
    """Options of a sink that is exactly once.

    Attributes:
        checkpoint_location: Path or URL of Spark's folder.
        query_id: What the query is called where its checkpoint cannot be read; then it is not.
    """

    checkpoint_location: str | None = Field(
        default=None, description="Spark's own option: the checkpoint of the query."
    )
    query_id: Annotated[str, AfterValidator(given_name)] | None = Field(
        default=None,
        description="Name of the query. The checkpoint is then not read, because it is in a "
        "location that only Spark can read: "
        "[storage.md](storage.md#checkpoints-that-only-spark-can-read).",
    )

    def checkpoint_of_epochs(self) -> SparkCheckpoint | None:
        """Spark's folder, if its numbers are those of the epochs: those of jobs are the user's."""
        return None if self.job is not None else SparkCheckpoint.of(self)


def name_of_query(options: object) -> str | None:
    """What a user calls the query; None if its checkpoint says what it is."""
    return options.query_id if isinstance(options, CheckpointOptions) else None
