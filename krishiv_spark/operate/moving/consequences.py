"""Consequences of a copied or rewound checkpoint for each sink, as lines for the operator."""

from __future__ import annotations

from krishiv_spark.formats import installed_formats
from krishiv_spark.offsets import State

__all__ = ["describe_copy", "describe_log_after_rewind", "describe_rewind"]


_OTHERS = (
    (
        "other sinks: Spark's own file sink skips epochs whose numbers it has "
        "(_spark_metadata), so in a folder that another query continues to write, rows are "
        "LOST: use a separate folder. Kafka, Delta and foreachBatch accept the epochs of both; "
        "with one 'txnAppId' for both, the second batch with the same number is skipped (LOST)"
    ),
    (
        "sources: Spark's file source with 'cleanSource' removes files that the other query has "
        "not listed yet (LOST): leave it off in both"
    ),
    "with 'epochLog' the log is recreated by 'krishiv-spark log adopt', with the writer's options",
)


def describe_copy(new: str, epoch: int) -> list[str]:
    """Return lines about the consequences of a checkpoint under a new query id.

    Args:
        new: The location of the new checkpoint.
        epoch: The epoch after which it starts.
    """
    sinks = (source for source in installed_formats() if source.copy_note)
    said = [f"{source.format_name}: {source.copy_note}" for source in sinks]
    return [line.format(new=new, epoch=epoch) for line in (*said, *_OTHERS)]


def describe_rewind(epoch: int) -> list[str]:
    """Return lines about the consequences of a rewind for every kind of sink.

    Args:
        epoch: The epoch to whose end the checkpoint is rewound.
    """
    refused = (
        f"every sink of krishiv-spark that has a later epoch than {epoch} will refuse the next "
        "one (CheckpointMismatch), and nothing is written: 'krishiv-spark replay CHECKPOINT "
        f"--from {epoch + 1}' rewinds its target too, with its epoch log; or use 'krishiv-spark "
        f"checkpoint copy --to {epoch}' with a separate target"
    )
    marks = (
        "krishiv-parquet and krishiv-kafka: 'krishiv-spark log show' shows their committed "
        "epochs; krishiv-iceberg: its committed epoch is a property of the table, which a "
        "rollback does not change; krishiv-memory: its rows exist until the machine restarts"
    )
    others = (
        "other sinks: Spark's own file sink skips epochs whose numbers it has (rows that come "
        "under these are LOST); Kafka, and foreachBatch without numbers, write the rows again "
        "(TWICE). In foreachBatch each_batch() refuses them; batches that set 'txnAppId' and "
        "'txnVersion' themselves, Delta's too, are skipped if a later number is committed "
        "(LOST), unless 'txnRepeats' is 'newest'"
    )
    unseen = (
        "a sink with 'queryId', or whose writer has no option 'checkpointLocation', cannot "
        f"distinguish one epoch {epoch + 1} from another: if it has that epoch, its new rows "
        "are LOST"
    )
    sources = (
        "sources: the rows to read again must still exist; krishiv-parquet's source keeps its "
        "state of older epochs for a week"
    )
    return [refused, unseen, marks, others, sources]


def describe_log_after_rewind(state: State, place: str, epoch: int, *, named: bool) -> list[str]:
    """Return lines about a conflict between an epoch log and a rewind to an epoch.

    Args:
        state: The state of the log.
        place: The location in which the log was searched.
        epoch: The epoch to whose end the checkpoint is rewound.
        named: True if the user has specified the location; otherwise there may be no log.
    """
    if named and state.number == 0:
        return [f"there is no epoch log in {place}; that of a sink with 'queryId' has that name"]
    begun = None if state.offsets is None else state.offsets.epoch
    held = state.committed_epoch
    if state.number == 0 or max(held or 0, (begun or 0) - 1) <= epoch:
        return []
    has = "no epoch" if held is None else f"epoch {held}"
    return [
        f"the epoch log {place} has {has}"
        + (f" and has recorded the start of epoch {begun}" if begun is not None else "")
        + f": its sink WILL REFUSE epoch {epoch + 1}. With the options of its writer, "
        "'krishiv-spark log resolve' finishes open epochs, and then 'krishiv-spark log "
        "adopt' recreates the log for the current checkpoint: rows of later epochs that "
        "are in the target will be there TWICE. If the target has the numbers of its "
        "epochs (files of krishiv-parquet, a route of a fan-out to it), 'adopt' refuses "
        "until those files are moved out of it, between the two commands: then no row is "
        "there twice"
    ]
