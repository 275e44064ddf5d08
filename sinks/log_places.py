"""Where the epoch log of a sink lies whose target has no place for it. Driver."""

from __future__ import annotations

from pydantic import Field

from krishiv_spark.errors import OptionError
from krishiv_spark.runtime.workers import local_folder
from krishiv_spark.sinks.checkpoints import CheckpointOptions
from krishiv_spark.spark.checkpoint import KRISHIV
from krishiv_spark.storage import StoreUrl

__all__ = ["LogPlaceOptions", "log_in_checkpoint"]


class LogPlaceOptions(CheckpointOptions):
    """Options of a sink whose epoch log is in the checkpoint.

    Attributes:
        checkpoint_location: Spark's; the epoch log lies in it.
        epoch_log: Another place for the log.
    """

    checkpoint_location: str | None = Field(
        default=None, description="Spark's own option; the epoch log lies in its folder `krishiv`."
    )
    epoch_log: str | None = Field(
        default=None,
        description="Another place for the epoch log: a path or URL; [storage.md](storage.md).",
    )

    def target_text(self) -> str:
        """See `NumberedJobOptions`; the log itself refuses another target."""
        return self.epoch_log or ""


def log_in_checkpoint(
    options: LogPlaceOptions, format_name: str, query: str, *, streaming: bool
) -> str:
    """Where the epoch log of a query is: in the option ``epochLog``, or in the checkpoint.

    A batch job has none, whatever its options say: its log serves the driver's own processes, and
    goes with the driver; unless it has a number, by which it may come again.

    Args:
        options: Of the sink.
        format_name: Its name, for the message.
        query: Id of the query.
        streaming: Whether epochs follow one another.

    Raises:
        OptionError: If neither option is given, and what is to come again would not be known.
    """
    if options.epoch_log is not None:
        return f"{options.epoch_log.rstrip('/')}/{query}"
    if streaming and options.query_id is not None:
        raise OptionError(
            f"{format_name}: with 'queryId' the checkpoint is not touched, so the epoch log needs "
            "a place of its own: give 'epochLog'"
        )
    if options.job is not None and options.checkpoint_location is None:
        raise OptionError(
            f"{format_name}: a batch with 'txnAppId' is known again by its epoch log, which needs "
            "a place: give 'epochLog', or in foreachBatch the query's checkpoint, by "
            "'checkpointLocation' or each_batch(..., checkpoint=...)"
        )
    if streaming and options.checkpoint_location is not None:
        in_checkpoint = StoreUrl.parse(options.checkpoint_location) / KRISHIV
        return str(in_checkpoint if options.job is None else in_checkpoint / query)
    return str(local_folder() / "krishiv" / query)
