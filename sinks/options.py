"""Options that sinks share: checkpoint, name of the query, full refresh, epoch log."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field

from krishiv_spark.errors import CheckpointMismatch, OptionError
from krishiv_spark.options import Options
from krishiv_spark.runtime.workers import local_folder
from krishiv_spark.sinks.numbered import NumberedJobOptions, given_name
from krishiv_spark.spark.checkpoint import KRISHIV, SparkCheckpoint
from krishiv_spark.storage import StoreUrl
from krishiv_spark.storage.storage import StorageOptions

__all__ = [
    "PROPERTY_PREFIX",
    "CheckpointOptions",
    "LogPlaceOptions",
    "RefreshOptions",
    "TableProperties",
    "check_full_refresh",
    "log_in_checkpoint",
    "name_of_query",
]


# A pipeline has the checkpoints of a flow in this form; each full refresh begins the next one
# (``FlowSystemMetadata.flowCheckpointsDirOpt``, ``SystemMetadata.getLatestCheckpointDir``).
_VERSION = re.compile(r"(?P<flow>.*/_checkpoints/.+)/(?P<version>[0-9]{1,9})/?")


PROPERTY_PREFIX = "tableproperty."
"""Prefix of the options that are properties of a table that is created, in lower case."""


def _strip_prefix(given: Mapping[str, str]) -> Mapping[str, str]:
    return {key[len(PROPERTY_PREFIX) :]: text for key, text in given.items()}


TableProperties: TypeAlias = Annotated[Mapping[str, str], BeforeValidator(_strip_prefix)]
"""The properties of a table that is created, by name."""


class RefreshOptions(Options):
    """Options of a sink that a pipeline's flows write to.

    Attributes:
        full_refresh: Number of the one full refresh that may write all rows again.
    """

    full_refresh: int | None = Field(
        default=None,
        ge=1,
        description="Number of the full refresh that may write all rows again, in a declarative "
        "pipeline: [pipelines.md](pipelines.md#a-full-refresh).",
    )


def check_full_refresh(checkpoint: SparkCheckpoint, options: object) -> None:
    """Refuse the first epoch of a flow that has written its rows from another checkpoint before.

    Spark empties the tables of a pipeline before a full refresh, but no sink.

    Args:
        checkpoint: The checkpoint of the query, which is at its first epoch.
        options: The options of the sink; if they cannot allow a refresh, none is refused.

    Raises:
        CheckpointMismatch: If it is the checkpoint of a full refresh that the options do not
            specify.
        StorageError: If the search for earlier checkpoints fails.
    """
    match = _VERSION.fullmatch(checkpoint.location)
    if match is None or not isinstance(options, RefreshOptions):
        return
    version = int(match["version"])
    if version == options.full_refresh or not _has_begun(checkpoint, match["flow"], version):
        return
    raise CheckpointMismatch(
        f"{checkpoint.location} is the checkpoint of full refresh {version} of a pipeline's "
        "flow, which would write all rows a second time: Spark does not empty a sink. To keep "
        "the existing rows, remove that folder, and name tables in full refreshes "
        "(--full-refresh), not everything. If all rows are to be written again, empty the "
        f"target or name a new one, and set the sink's option 'fullRefresh' = '{version}'"
    )


def _has_begun(checkpoint: SparkCheckpoint, flow: str, version: int) -> bool:
    """Return True if an earlier checkpoint of the flow has planned an epoch."""
    earlier = (SparkCheckpoint(f"{flow}/{n}", checkpoint.storage) for n in range(version))
    return any(each.has_offsets() for each in earlier)


class CheckpointOptions(StorageOptions, NumberedJobOptions, RefreshOptions):
    """Options of a sink that is exactly once.

    Attributes:
        checkpoint_location: Path or URL of Spark's folder.
        query_id: Name of the query if its checkpoint cannot be read. It is then not read.
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
        """Return Spark's folder if its numbers are those of the epochs, as for streams."""
        return None if self.job is not None else SparkCheckpoint.of(self)


def name_of_query(options: object) -> str | None:
    """Return the user's name of the query; None if its checkpoint identifies it."""
    return options.query_id if isinstance(options, CheckpointOptions) else None


class LogPlaceOptions(CheckpointOptions):
    """Options of a sink whose epoch log is in the checkpoint.

    Attributes:
        checkpoint_location: Spark's checkpoint, which contains the epoch log.
        epoch_log: Another location of the log.
    """

    checkpoint_location: str | None = Field(
        default=None,
        description="Spark's own option: the checkpoint of the query. The epoch log is in its "
        "folder `krishiv`.",
    )
    epoch_log: str | None = Field(
        default=None,
        description="Another location for the epoch log: a path or URL; [storage.md](storage.md).",
    )

    def target_text(self) -> str:
        """Return the text for `NumberedJobOptions`; the log itself refuses another target."""
        return self.epoch_log or ""


def log_in_checkpoint(
    options: LogPlaceOptions, format_name: str, query: str, *, streaming: bool
) -> str:
    """Return the location of a query's epoch log: the option ``epochLog``, or its checkpoint.

    A batch job without a number always has a local log, which is used only by the driver's own
    processes and removed with the driver. A numbered job may be repeated, so it needs one of these
    locations.

    Args:
        options: The options of the sink.
        format_name: Its name, for the message.
        query: Id of the query.
        streaming: True for a query with a sequence of epochs.

    Raises:
        OptionError: If neither option is set, and a repeated epoch would not be recognized.
    """
    if options.epoch_log is not None:
        return f"{options.epoch_log.rstrip('/')}/{query}"
    if streaming and options.query_id is not None:
        raise OptionError(
            f"{format_name}: with 'queryId' the checkpoint is not touched, so the epoch log "
            "needs another location: set 'epochLog'"
        )
    if options.job is not None and options.checkpoint_location is None:
        raise OptionError(
            f"{format_name}: a batch with 'txnAppId' is recognized by its epoch log, which "
            "needs a location: set 'epochLog', or in foreachBatch the query's checkpoint, with "
            "'checkpointLocation' or each_batch(..., checkpoint=...)"
        )
    if streaming and options.checkpoint_location is not None:
        in_checkpoint = StoreUrl.parse(options.checkpoint_location) / KRISHIV
        return str(in_checkpoint if options.job is None else in_checkpoint / query)
    return str(local_folder() / "krishiv" / query)
