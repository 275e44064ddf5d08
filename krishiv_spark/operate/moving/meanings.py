"""What a copy, or going back, means for each sink: lines for whoever decides about it."""

from __future__ import annotations

from krishiv_spark.offsets import State

__all__ = ["FOR_SINKS", "lines_of_log", "lines_of_new", "lines_of_rewinding"]

FOR_SINKS = {
    "console": "prints the epochs of both queries",
    "fanout": "as each of its targets; its epoch log is begun anew in {new}",
    "iceberg": (
        "begins without a mark, since that is by the query's id: give a table of its own, or both "
        "queries write the rows after epoch {epoch} into one"
    ),
    "kafka": (
        "has transactions of its own; its epoch log is begun anew in {new}. Give a "
        "topic of its own, or both queries write the rows after epoch {epoch} into one"
    ),
    "memory": (
        "begins a result of its own, without the rows up to epoch {epoch}; give another 'name'"
    ),
    "parquet": (
        "needs an epoch log in its table before it starts: 'krishiv-spark log adopt --format "
        "parquet --checkpoint {new} -o path=...'. Give a folder of its own, or both queries write "
        "the rows after epoch {epoch} into one"
    ),
}
"""By what follows ``krishiv-`` in the format's name."""

_OTHERS = (
    (
        "other sinks: Spark's own files pass over epochs whose numbers they hold "
        "(_spark_metadata), so in a folder that another query goes on writing, rows are LOST: give "
        "a folder of its own. Kafka, Delta and foreachBatch take the epochs of both; with one "
        "'txnAppId' for both, the second of a number is passed over (LOST)"
    ),
    (
        "sources: Spark's file source with 'cleanSource' removes files that the other query has "
        "not listed yet (LOST): leave it off in both"
    ),
    "with 'epochLog' the log is begun anew by 'krishiv-spark log adopt', with the writer's options",
)


def lines_of_new(new: str, epoch: int) -> list[str]:
    """What a checkpoint under a new query id means.

    Args:
        new: Where it is.
        epoch: At whose end it begins.
    """
    said = [f"krishiv-{name}: {text}" for name, text in FOR_SINKS.items()]
    return [line.format(new=new, epoch=epoch) for line in (*said, *_OTHERS)]


def lines_of_rewinding(epoch: int) -> list[str]:
    """What going back means for sinks, whatever they hold.

    Args:
        epoch: At whose end the checkpoint will stand.
    """
    refused = (
        f"every sink of krishiv-spark that holds a later epoch than {epoch} will refuse the next "
        "one (CheckpointMismatch), and nothing is written: 'krishiv-spark replay CHECKPOINT "
        f"--from {epoch + 1}' takes its target back too, with its epoch log; or take "
        f"'krishiv-spark checkpoint copy --to {epoch}' into a target of its own"
    )
    marks = (
        "krishiv-parquet and krishiv-kafka: 'krishiv-spark log show' says what they hold; "
        "krishiv-iceberg: its mark is a property of the table, which a rollback leaves as it is; "
        "krishiv-memory: what it holds is there until the machine restarts"
    )
    others = (
        "other sinks: Spark's own files pass over epochs whose numbers they hold (rows that come "
        "under these are LOST); Kafka, and foreachBatch without numbers, write the rows again "
        "(TWICE). In foreachBatch each_batch() refuses them; batches that have 'txnAppId' and "
        "'txnVersion' of their own, Delta's too, are passed over where a later number is held "
        "(LOST), unless 'txnRepeats' is 'newest'"
    )
    unseen = (
        "a sink with 'queryId', or whose writer has no option 'checkpointLocation', cannot tell "
        f"one epoch {epoch + 1} from another: if it holds that one, its new rows are LOST"
    )
    sources = (
        "sources: what they have to read again has to be there still; what krishiv-parquet's "
        "source remembers of older epochs is kept for a week"
    )
    return [refused, unseen, marks, others, sources]


def lines_of_log(state: State, place: str, epoch: int, *, named: bool) -> list[str]:
    """What an epoch log says against going back to an epoch.

    Args:
        state: Of the log.
        place: Where it is looked for.
        epoch: At whose end the checkpoint will stand.
        named: Whether the user says that it is there; otherwise there may be none.
    """
    if named and state.number == 0:
        return [f"there is no epoch log in {place}; that of a sink with 'queryId' has that name"]
    begun = None if state.offsets is None else state.offsets.epoch
    held = state.committed_epoch
    if state.number == 0 or max(held or 0, (begun or 0) - 1) <= epoch:
        return []
    has = "no epoch" if held is None else f"epoch {held}"
    return [
        f"the epoch log {place} holds {has}"
        + (f" and has seen epoch {begun} begin" if begun is not None else "")
        + f": its sink WILL REFUSE epoch {epoch + 1}. With the options of its writer, "
        "'krishiv-spark log resolve' finishes what is open, and then 'krishiv-spark log adopt' "
        "begins the log anew for the checkpoint as it is: rows of later epochs that are in the "
        "target will be there TWICE. Where that has the numbers of its epochs (files of "
        "krishiv-parquet, a route of a fan-out to one), 'adopt' refuses until those files are "
        "moved out of it, between the two commands: then no row is there twice"
    ]
