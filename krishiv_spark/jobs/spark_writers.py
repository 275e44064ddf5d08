"""Outputs of a job as Spark's writers. Driver.

Spark refuses the save modes ``ignore`` and ``errorIfExists`` for Python formats, so this module
checks the target before the write.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from krishiv_spark.errors import OptionError
from krishiv_spark.jobs.models import Streaming
from krishiv_spark.jobs.plan import ReadyJob, ReadyOutput
from krishiv_spark.jobs.views import make_views, options_with_references, read_input
from krishiv_spark.sinks.each_batch import each_batch, upsert_by_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["stream_writers", "write_batch"]


def should_write(output: ReadyOutput) -> bool:
    """Return True if an output is to be written, given the content of its target.

    Nothing is locked, so two jobs that check at the same time both write.

    Returns:
        False if the target exists and must remain unchanged.

    Raises:
        OptionError: If the target exists, but must not.
    """
    mode = output.model.save_mode
    place = output.place
    if mode in {"append", "overwrite"} or place.source is None:
        return True
    if not place.source.target_exists(place.options):
        return True
    if mode == "ignore":
        return False
    raise OptionError(
        f"output {output.model.name!r}: {place.shown} exists already, and 'saveMode' is "
        "errorIfExists: set append, overwrite or ignore, or another target"
    )


def stream_writers(spark: SparkSession, job: ReadyJob) -> list[DataStreamWriter]:
    """Return the queries of a streaming job, before their start; its views exist.

    Raises:
        OptionError: If the rows of an output are not a stream.
    """
    if job.writes_batches:
        return [_all_of_each_batch(spark, job)]
    return [_build_stream_writer(spark, job, output) for output in job.outputs]


def write_batch(spark: SparkSession, output: ReadyOutput) -> bool:
    """Write the rows of a view as a batch.

    Returns:
        False if the save mode is ``ignore`` and the target exists.

    Raises:
        OptionError: If the save mode is ``errorIfExists`` and the target exists.
    """
    if not should_write(output):
        return False
    rows = spark.table(output.model.source)
    mode = output.model.save_mode
    if output.place.is_ours and mode != "overwrite":
        mode = "append"  # Spark refuses the other two, which `should_write` has decided
    _of_format(spark, rows.write.mode(mode), output).save()
    return True


def _build_stream_writer(
    spark: SparkSession, job: ReadyJob, output: ReadyOutput
) -> DataStreamWriter:
    rows = spark.table(output.model.source)
    if not rows.isStreaming:
        raise OptionError(
            f"output {output.model.name!r}: the rows of {output.model.source!r} are no stream, "
            "since no input with 'isStream: true' is in them: write them by a job of their own"
        )
    writer = rows.writeStream.queryName(f"{job.name}.{output.model.name}")
    if output.checkpoint is not None:
        writer = writer.option("checkpointLocation", output.checkpoint)
    writer = _set_trigger(writer, job.model.streaming)
    mode = output.model.output_mode or _default_mode(output)
    if mode == "update" and output.place.is_ours:
        return writer.outputMode(mode).foreachBatch(_upserts(spark, output))
    made: DataStreamWriter = _of_format(spark, writer.outputMode(mode), output)
    return made


def _default_mode(output: ReadyOutput) -> str:
    return "complete" if output.model.save_mode == "overwrite" else "append"


def _upserts(spark: SparkSession, output: ReadyOutput) -> Callable[[DataFrame, int], None]:
    # The options are unchanged, so that the sink writes to the target that was checked.
    options = options_with_references(spark, output.place)
    identity = {"name": None, "checkpoint": output.checkpoint}
    return upsert_by_options(output.place.format, options, identity)


def _of_format(spark: SparkSession, writer: Any, output: ReadyOutput) -> Any:
    writer = writer.format(output.place.format).options(
        **options_with_references(spark, output.place)
    )
    if output.model.partition_by and not output.place.is_ours:
        writer = writer.partitionBy(*output.model.partition_by)
    return writer


def _set_trigger(writer: DataStreamWriter, streaming: Streaming) -> DataStreamWriter:
    mode = streaming.trigger_mode
    if mode == "Once":
        return writer.trigger(once=True)
    if mode == "AvailableNow" or (mode is None and streaming.batch_mode):
        return writer.trigger(availableNow=True)
    # Spark refuses Continuous for Python sources. Instead, a batch starts as soon as there is a
    # row.
    pause_ms = streaming.trigger_duration if mode == "ProcessingTime" else None
    return writer.trigger(processingTime=f"{pause_ms or 0} milliseconds")


# --- all outputs of each batch


def _all_of_each_batch(spark: SparkSession, job: ReadyJob) -> DataStreamWriter:
    (stream,) = [one for one in job.inputs if one.model.is_stream]
    writer = read_input(spark, stream).writeStream.queryName(job.name)
    writer = writer.option("checkpointLocation", job.batches_checkpoint)
    several = len(job.outputs) > 1
    write = each_batch(
        partial(_write_all, _Batches(job, stream.model.name)),
        checkpoint=job.batches_checkpoint,
        cache=several,
    )
    return _set_trigger(writer, job.model.streaming).foreachBatch(write)


@dataclass(frozen=True)
class _Batches:
    job: ReadyJob
    stream: str


def _write_all(batches: _Batches, batch: DataFrame, write: Callable[..., Any]) -> None:
    """Run the steps on one batch of the stream, then write each output; driver."""
    spark = batch.sparkSession
    make_views(spark, batches.job, {batches.stream: batch})
    for output in batches.job.outputs:
        rows = spark.table(output.model.source)
        mode = output.model.save_mode
        if output.place.is_ours:
            _of_format(spark, write(rows, output.model.name).mode(mode), output).save()
        else:
            _of_format(spark, rows.write.mode(mode), output).save()
