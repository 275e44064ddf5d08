"""Inputs and steps as views of a session, and schemas of JSON values from samples. Driver."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.json as pj

from krishiv_spark.arrow.schemas import plain_schema, spark_schema
from krishiv_spark.errors import OptionError, SchemaError
from krishiv_spark.jobs.models import JobInput, JobStep
from krishiv_spark.jobs.plan import DataLocation, ReadyInput, ReadyJob, add_json_options
from krishiv_spark.jobs.variables import has_encoded_literals
from krishiv_spark.options.references import Referenced, variables
from krishiv_spark.spark.jvm import is_jvm_here, variable_of_jvm

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["make_views", "options_with_references", "read_input", "read_samples"]


def options_with_references(spark: SparkSession, place: DataLocation) -> dict[str, str]:
    """Return the options of a location for Spark.

    A value that a depot takes from the environment or a file is passed as a reference, if the
    connector can resolve it. Spark's own formats cannot, nor can a driver on another machine.
    """
    given = dict(place.options)
    named = {key: text for key, text in given.items() if isinstance(text, Referenced)}
    if not (named and place.is_ours and is_jvm_here(spark)):
        return given
    references = {key: t.reference for key, t in named.items() if _is_found(spark, t)}
    return {**given, **references}


def _is_found(spark: SparkSession, text: Referenced) -> bool:
    # The JVM may have started before a variable was set.
    names = variables(text.reference)
    return all(variable_of_jvm(spark, name) == os.environ.get(name) for name in names)


def infer_schema_from_samples(values: DataFrame, shown: str) -> str:
    """Return the fields of the JSON values of a bounded frame, as columns in Spark's syntax.

    Args:
        values: A bounded frame with one binary column.
        shown: The location of the values, for messages.

    Raises:
        SchemaError: If there is no value, or one is not a JSON object.
    """
    column = values.toArrow().column(0).drop_null()
    lines = b"\n".join(value.as_py().replace(b"\n", b" ") for value in column)
    if not lines:
        raise SchemaError(
            f"{shown}: there is no value yet to infer the fields from: set 'schema', as 'id "
            "BIGINT, name STRING'"
        )
    try:
        found = pj.read_json(io.BytesIO(lines)).schema
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaError(
            f"{shown}: not all of the values that were sampled are JSON objects: give 'schema', "
            f"as 'id BIGINT, name STRING' ({str(error).partition(chr(10))[0]})"
        ) from None
    fields = spark_schema(plain_schema(pa.schema([_as_text_if_unclear(field) for field in found])))
    return ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in fields)


def _as_text_if_unclear(field: pa.Field) -> pa.Field:
    """Return a field as text if it is a time, which JSON has as text, or was always null."""
    is_text = pa.types.is_temporal(field.type) or pa.types.is_null(field.type)
    return field.with_type(pa.string()) if is_text else field


_NO_ESCAPES = "spark.sql.parser.escapedStringLiterals"
"""The setting by which a backslash in an SQL literal is a plain character."""

_OF_STREAMS = ("startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp")
"""Options for the start of a stream, which do not apply to a batch, in lower case."""


def make_views(
    spark: SparkSession,
    job: ReadyJob,
    given: Mapping[str, DataFrame],
    see: Callable[[str, DataFrame], object] | None = None,
) -> None:
    """Create a temporary view of each input and step.

    Args:
        spark: The session in which they are created.
        job: The job.
        given: Frames by name that replace inputs, such as a batch of a stream. Other inputs are
            read.
        see: Called with each view.

    Raises:
        OptionError: If a function of a step cannot be imported, or does not return a frame.
        PySparkException: If Spark refuses a source or a query.
    """
    for one in job.inputs:
        frame = given.get(one.model.name)
        frame = (
            read_input(spark, one) if frame is None else apply_watermark_and_dedup(frame, one.model)
        )
        _register(frame, one.model.name, see)
    for step in job.model.flat_steps():
        _register(apply_watermark_and_dedup(_run_step(spark, step), step), step.name, see)


def read_input(
    spark: SparkSession, given: ReadyInput, *, as_batch: bool = False, rows: int | None = None
) -> DataFrame:
    """Return the rows of an input.

    Args:
        spark: The session.
        given: The input.
        as_batch: Read a stream as a batch from its beginning; its position does not advance.
        rows: Maximum number of rows; None for all.
    """
    is_stream = given.model.is_stream and not as_batch
    reader: Any = spark.readStream if is_stream else spark.read
    options = _options(spark, given)
    if as_batch:
        options = {key: text for key, text in options.items() if key.lower() not in _OF_STREAMS}
    reader = reader.format(given.place.format).options(**options)
    if given.model.schema_ is not None and not given.place.decodes:
        reader = reader.schema(given.model.schema_)
    frame = reader.load()
    return apply_watermark_and_dedup(frame if rows is None else frame.limit(rows), given.model)


def read_samples(spark: SparkSession, job: ReadyJob, rows: int | None) -> dict[str, DataFrame]:
    """Return the first rows of a job's streams, or all rows, as batches by name.

    Raises:
        PySparkException: If a format cannot be read as a batch.
    """
    streams = [one for one in job.inputs if one.model.is_stream]
    return {one.model.name: read_input(spark, one, as_batch=True, rows=rows) for one in streams}


def apply_watermark_and_dedup(frame: DataFrame, given: JobInput | JobStep) -> DataFrame:
    """Return a frame with its watermark, and without duplicates if that is configured."""
    if given.watermark is not None:
        delay = f"{given.watermark.delay} milliseconds"
        frame = frame.withWatermark(given.watermark.column, delay)
    if given.deduplicate is None:
        return frame
    if frame.isStreaming and given.watermark is not None:
        return frame.dropDuplicatesWithinWatermark(given.deduplicate)
    return frame.dropDuplicates(given.deduplicate)


def _register(frame: DataFrame, name: str, see: Callable[[str, DataFrame], object] | None) -> None:
    frame.createOrReplaceTempView(name)
    if see is not None:
        see(name, frame)


def _run_step(spark: SparkSession, step: JobStep) -> DataFrame:
    if step.sql is not None:
        return _run_sql(spark, step, step.sql)
    module, _, name = str(step.python).partition(":")
    try:
        function = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise OptionError(f"step {step.name!r}: {step.python!r} cannot be had: {error}") from error
    made = function(*(spark.table(view) for view in step.inputs), **step.arguments)
    if not hasattr(made, "createOrReplaceTempView"):
        raise OptionError(
            f"step {step.name!r}: {step.python!r} has returned {type(made).__name__}, not a frame"
        )
    frame: DataFrame = made
    return frame


def _run_sql(spark: SparkSession, step: JobStep, sql: str) -> DataFrame:
    if has_encoded_literals(sql) and str(spark.conf.get(_NO_ESCAPES, "false")).lower() == "true":
        raise OptionError(
            f"step {step.name!r}: a variable in a literal has a character that needs an escape, "
            f"and '{_NO_ESCAPES}' is true: pass it as a parameter, by :name and 'args'"
        )
    return spark.sql(sql, args=dict(step.args)) if step.args else spark.sql(sql)


def _options(spark: SparkSession, given: ReadyInput) -> dict[str, str]:
    """Return the options of the format; for JSON values, also those for their columns."""
    options = options_with_references(spark, given.place)
    if not given.place.decodes:
        return options
    schema = given.model.schema_
    if schema is None and given.model.sample_values is not None:
        kept = {key: text for key, text in options.items() if key.lower() not in _OF_STREAMS}
        raw = spark.read.format(given.place.format).options(**{**kept, "columns": "value"})
        schema = infer_schema_from_samples(
            raw.load().limit(given.model.sample_values), given.place.shown
        )
    if schema is None:
        return options
    try:
        return add_json_options(options, schema)
    except ValueError as error:
        raise OptionError(f"input {given.model.name!r}: 'schema': {error}") from None
