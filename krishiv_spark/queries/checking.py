"""What a query would be refused for, before it is started. Driver."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from krishiv_spark.errors import QueryFailed
from krishiv_spark.messages.exception_chains import scrub
from krishiv_spark.queries.failures import failure_of
from krishiv_spark.spark.jvm import WriterSays, writer_says
from krishiv_spark.spark.preflight import PreflightRequest

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["check"]

_log = logging.getLogger(__name__)

_OURS = "krishiv-"


def check(writer: DataStreamWriter, *, new_target: bool = False) -> None:
    """Have the sink of a query say what it would refuse; nothing is changed.

    The sink checks its options, the rows and the target. With the checkpoint, it checks that this
    is the one of the query, that the target is the same as before, and that the newest epochs of
    checkpoint, epoch log and target fit each other.

    Spark itself asks a Python sink when the first epoch is planned: of a source that is idle, that
    may be days after the start. The sink is asked where Spark would ask it, in a Python process of
    the driver, so it may take some seconds. Sinks of other formats than ``krishiv-…``, and
    functions, are not asked.

    Args:
        writer: From ``frame.writeStream``, with its format and options, not started.
        new_target: Accept another target than the one that the query has written to, which does
            not get the rows of earlier epochs.

    Raises:
        QueryFailed: If it would refuse the first epoch, or cannot reach its target.
    """
    try:
        said = writer_says(writer)
    except Exception as error:  # noqa: BLE001  Spark's own start is as it was
        _log.warning(
            "what a query writes to is not looked at before its start", exc_info=scrub(error)
        )
        return
    if not said.format.lower().startswith(_OURS):
        return
    if said.mode == "update":
        raise QueryFailed(_update(said.format), name="OptionError")
    try:
        _ask(said, new_target=new_target)
    except Exception as error:
        found = failure_of(error)
        raise QueryFailed(found.line, passes=found.passes, name=found.name) from error


def _update(name: str) -> str:
    return (
        f"{name}: Spark refuses outputMode('update') for Python sinks: use 'complete', or "
        "foreachBatch with krishiv_spark.upsert(...), which takes it into Iceberg and memory"
    )


def _ask(said: WriterSays, *, new_target: bool) -> None:
    asked = PreflightRequest(said.rows.schema.json(), said.mode == "complete", new_target)
    reader = said.rows.sparkSession.read.format(said.format)
    given: Any = asked.to_options(said.options)
    _ = reader.options(**given).load().schema  # under Connect, that is when it is asked
