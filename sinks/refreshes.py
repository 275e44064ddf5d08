"""Full refreshes of declarative pipelines, which begin a sink's flows anew. Planner."""

from __future__ import annotations

import re

from pydantic import Field

from krishiv_spark.errors import CheckpointMismatch
from krishiv_spark.options import Options
from krishiv_spark.spark.checkpoint import SparkCheckpoint

__all__ = ["RefreshOptions", "check_full_refresh"]

# Where a pipeline has the checkpoints of a flow; each full refresh begins the next one
# (``FlowSystemMetadata.flowCheckpointsDirOpt``, ``SystemMetadata.getLatestCheckpointDir``).
_VERSION = re.compile(r"(?P<flow>.*/_checkpoints/.+)/(?P<version>[0-9]{1,9})/?")


class RefreshOptions(Options):
    """Options of a sink that flows of pipelines write to.

    Attributes:
        full_refresh: Number of the one full refresh that may write all rows again.
    """

    full_refresh: int | None = Field(
        default=None,
        ge=1,
        description="In a declarative pipeline, the number of the full refresh that may write all "
        "rows again: [pipelines.md](pipelines.md#a-full-refresh).",
    )


def check_full_refresh(checkpoint: SparkCheckpoint, options: object) -> None:
    """Refuse the first epoch of a flow that has written its rows before, from another checkpoint.

    Spark empties the tables of a pipeline before a full refresh, but no sink.

    Args:
        checkpoint: Of the query, which is at its first epoch.
        options: Of the sink; if they cannot allow a refresh, none is refused.

    Raises:
        CheckpointMismatch: If it is the checkpoint of a full refresh that the options do not name.
        StorageError: If earlier checkpoints cannot be looked for.
    """
    match = _VERSION.fullmatch(checkpoint.location)
    if match is None or not isinstance(options, RefreshOptions):
        return
    version = int(match["version"])
    if version == options.full_refresh or not _has_begun(checkpoint, match["flow"], version):
        return
    raise CheckpointMismatch(
        f"{checkpoint.location} is the checkpoint of full refresh {version} of a pipeline's flow, "
        "which would write all rows a second time: Spark does not empty a sink. To keep what is "
        "there, remove that folder, and have full refreshes name tables (--full-refresh), not "
        "everything. If all rows are to be written again, empty the target or name a new one, and "
        f"give the sink the option 'fullRefresh' = '{version}'"
    )


def _has_begun(checkpoint: SparkCheckpoint, flow: str, version: int) -> bool:
    """Whether an earlier checkpoint of the flow has planned an epoch, which may be in the sink."""
    earlier = (SparkCheckpoint(f"{flow}/{n}", checkpoint.storage) for n in range(version))
    return any(each.has_offsets() for each in earlier)
