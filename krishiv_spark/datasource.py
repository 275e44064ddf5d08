"""The class that Spark registers: ties a format's name to its reader and writer."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from krishiv_spark.arrow.schemas import arrow_schema, plain_schema, spark_schema
from krishiv_spark.errors import OptionError, SchemaError
from krishiv_spark.lifecycle.errors import message_before_traceback
from krishiv_spark.options import Options
from krishiv_spark.options.plain_secrets import secrets_among, warn_of_plain_secrets
from krishiv_spark.options.references import referenced_values
from krishiv_spark.spark.preflight import PreflightRequest

# Each process of Spark's unpickles a format, and most of them either read or write: what the
# other side needs is imported by the methods that do.
if TYPE_CHECKING:
    from krishiv_spark.lifecycle.read import RowSchema
    from krishiv_spark.sinks.base import Writer
    from krishiv_spark.sinks.logged_writer import LoggedWriter
    from krishiv_spark.sources.base import StreamReader

__all__ = ["DatasetOptions", "KrishivDataSource", "select_dead_letters"]


def select_dead_letters(given: Mapping[str, str]) -> dict[str, str]:
    """Return those of a sink's options that configure dead letters; empty without dead letters."""
    starts = ("deadletters.", "maxbadrecords")
    return {key: text for key, text in given.items() if key.lower().startswith(starts)}


@dataclass(frozen=True)
class DatasetOptions:
    """The options of a format that name its data, and how a ``dataset`` of a job file becomes one.

    Attributes:
        read: Options, in lower case, that name what is read. A job sets the first one; the others
            are its synonyms.
        write: Options, in lower case, that name what is written, in the same way.
        form: The text of the option. "folder": a path below the ``folder`` of the depot. "table":
            collection and dataset with a dot between them. "name": the dataset alone, for formats
            without collections.
    """

    read: tuple[str, ...] = ("path",)
    write: tuple[str, ...] = ("path",)
    form: Literal["folder", "table", "name"] = "folder"


class KrishivDataSource(DataSource):
    """A format: subclass it, name it, and give it a reader, a writer or both.

    The other attributes and methods state what jobs, commands and other formats need to know of it.
    All have a default, and none is read by a query.

    Attributes:
        format_name: What users write in ``.format(...)``.
        reader_type: The source, or None for a format that cannot be read.
        writer_type: The sink, or None for a format that cannot be written.
        route_type: The sink as a route of ``krishiv-fanout``, a `LoggedWriter`; None for a format
            that cannot be a route.
        dataset: How job files name the data of the format.
        is_append_only: True if a batch cannot replace the rows of its target.
        copy_note: A phrase that states what the sink does under a copied checkpoint, which has a
            new query id. ``{new}`` stands for the location of the copy, ``{epoch}`` for its last
            epoch. Empty for nothing to state.
        preloads: Modules that the first batch would import, for `krishiv_spark.fast_start`.
    """

    format_name: ClassVar[str]
    reader_type: ClassVar[type[StreamReader[Any, Any]] | None] = None
    writer_type: ClassVar[type[Writer[Any, Any]] | None] = None
    route_type: ClassVar[type[LoggedWriter[Any, Any]] | None] = None
    dataset: ClassVar[DatasetOptions] = DatasetOptions()
    is_append_only: ClassVar[bool] = False
    copy_note: ClassVar[str] = ""
    preloads: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def describe_offset(cls, offset: Mapping[str, Any]) -> str:
        """Return a position of the source as people ask for it; any process, without I/O.

        Args:
            offset: The JSON of an offset whose ``kind`` is that of `reader_type`. A newer version
                may have written it.

        Raises:
            LookupError, TypeError, ValueError, AttributeError: If it has not the expected form.
                Then its JSON is shown. So it is by default.
        """
        raise LookupError(f"{cls.format_name} describes no offset of kind {offset.get('kind')!r}")

    @classmethod
    def target_exists(cls, options: Mapping[str, str]) -> bool:
        """Return True if the target of a batch has rows, or is a table; driver.

        Args:
            options: Options of the sink, unparsed.

        Returns:
            False if nothing is there, or if the format does not find out, which is the default:
            then the save modes ``ignore`` and ``errorIfExists`` of a job write.

        Raises:
            KrishivError: If an option is wrong, or the target cannot be reached.
        """
        del options
        return False

    @classmethod
    @final
    def name(cls) -> str:
        return cls.format_name

    @classmethod
    def writer_for(cls, options: Options) -> type[Writer[Any, Any]] | None:
        """Return the sink for these options: `writer_type`, unless a format has several."""
        del options
        return cls.writer_type

    @classmethod
    def route_for(cls, options: Options) -> type[LoggedWriter[Any, Any]] | None:
        """Return the sink as a route: `route_type`, unless the format has several."""
        del options
        return cls.route_type

    @final
    def known_secrets(self) -> set[str]:
        """Return the secrets among the options, which no error may show."""
        found = set()
        for role in (self.reader_type, self.writer_type):
            if role is not None:
                with contextlib.suppress(OptionError):
                    found |= secrets_among(role.options_type, self.options)
        if select_dead_letters(self.options):
            found |= secrets_among(self.sink_options(self.options), self.options)
        return found

    @classmethod
    @final
    def sink_options(cls, given: Mapping[str, str]) -> type[Options]:
        """Return the class of the sink's options, which is another one with dead letters.

        Args:
            given: The options, unparsed.

        Raises:
            OptionError: If the format has no sink, or one that cannot have dead letters.
        """
        if cls.writer_type is None:
            raise OptionError(f"{cls.format_name} is a source only: it cannot be written")
        if not select_dead_letters(given):
            return cls.writer_type.options_type
        if cls.route_type is None:
            from krishiv_spark.runtime.lazy import route_names

            raise OptionError(
                f"{cls.format_name}: the options 'deadLetters.*' and 'maxBadRecords' are for "
                f"{', '.join(route_names())}, which share an epoch log with the target of the dead "
                "letters. Divide the rows in the query instead: docs/foreachbatch.md"
            )
        from krishiv_spark.sinks.fanout.dead_letter_options import DeadLetterOptions

        return DeadLetterOptions

    @classmethod
    @final
    def open_sink(cls, given: Mapping[str, str]) -> tuple[type[Writer[Any, Any]], Options]:
        """Return the sink for some options, and the parsed options.

        All code that makes a writer from a user's options calls it.

        Args:
            given: The options, unparsed.

        Raises:
            OptionError: If the format has no sink, or an option is wrong.
        """
        options = cls.sink_options(given).parse(given, cls.format_name)
        if select_dead_letters(given):
            from krishiv_spark.sinks.fanout.dead_letters import DeadLetterWriter

            return DeadLetterWriter, options
        kind = cls.writer_for(options) or cls.writer_type
        assert kind is not None, cls  # sink_options has refused it
        return kind, options

    @final
    @message_before_traceback
    def schema(self) -> StructType:
        if (asked := PreflightRequest.from_options(self.options)) is not None:
            return self._check_preflight(asked)
        from krishiv_spark.lifecycle.read import RowSchema

        # Spark does not say whether a stream or a batch will have it.
        reader = self._reader(None, streaming=True)
        row_schema = RowSchema.from_reader(plain_schema(reader.infer_schema()), reader.options)
        return spark_schema(row_schema.target)

    @final
    @message_before_traceback
    def reader(self, schema: StructType) -> DataSourceReader:
        from krishiv_spark.lifecycle.read import BatchRead

        reader, row_schema = self._reader_of(schema, streaming=False)
        return BatchRead(reader, row_schema)

    @final
    @message_before_traceback
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from krishiv_spark.lifecycle.read import stream_read

        reader, row_schema = self._reader_of(schema, streaming=True)
        return stream_read(reader, row_schema)

    @final
    @message_before_traceback
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from krishiv_spark.lifecycle.epoch_write import BatchWrite
        from krishiv_spark.sinks.numbered import number_of_job

        writer = self._writer(schema, overwrite=overwrite, streaming=False)
        job = number_of_job(writer.options)
        if job is not None:  # such jobs follow one another as epochs do
            writer = self._writer(schema, overwrite=overwrite, streaming=True)
        return BatchWrite(writer, job)

    @final
    @message_before_traceback
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from krishiv_spark.lifecycle.epoch_write import StreamWrite
        from krishiv_spark.sinks.base import SupportsGenerations
        from krishiv_spark.sinks.options import name_of_query
        from krishiv_spark.spark.checkpoint import SparkCheckpoint
        from krishiv_spark.storage import Storage

        writer = self._writer(schema, overwrite=overwrite, streaming=True)
        if (query := name_of_query(writer.options)) is not None:
            return StreamWrite(writer, query=query)
        location = self.options.get("checkpointLocation")
        if location is None and isinstance(writer.committer(), SupportsGenerations):
            raise OptionError(
                f"{self.format_name}: give the checkpoint with .option('checkpointLocation', ...) "
                "on this writer; one that is only in the session's configuration "
                "(spark.sql.streaming.checkpointLocation) never reaches a Python sink"
            )
        if location is None:
            return StreamWrite(writer)
        checkpoint = SparkCheckpoint(location, Storage.for_query(self.options))
        hidden = referenced_values(self.options)
        return StreamWrite(writer, checkpoint=checkpoint, hidden=hidden)

    def _check_preflight(self, asked: PreflightRequest) -> StructType:
        """Raise what keeps a query from being started; else a schema, of rows that nobody reads."""
        options = type(self.options)()  # in which case does not count, as in the other one
        for key, text in self.options.items():
            if not asked.is_option(key):
                options[key] = text
        schema = StructType.fromJson(json.loads(asked.schema))
        write: Any = type(self)(options).streamWriter(schema, asked.overwrite)
        write.check_start(new_target=asked.new_target)
        return StructType().add("checked", "boolean")

    def _reader_of(
        self, schema: StructType, *, streaming: bool
    ) -> tuple[StreamReader[Any, Any], RowSchema]:
        from krishiv_spark.lifecycle.read import RowSchema

        self._check_spark(schema)
        options = self._reader(None, streaming=streaming).options
        warn_of_plain_secrets(type(options), self.options, self.format_name)
        row_schema = RowSchema.from_user(arrow_schema(schema), options)
        return self._reader(row_schema.columns, streaming=streaming), row_schema

    def _check_spark(self, schema: object) -> None:
        """Refuse an engine that calls data sources otherwise than Spark does.

        Raises:
            SchemaError: If the columns are not Spark's, as Sail gives them (0.7.2): nor would it
                call planner, tasks and committer in processes of their own.
        """
        if not isinstance(schema, StructType):
            kind = f"{type(schema).__module__}.{type(schema).__qualname__}"
            raise SchemaError(
                f"{self.format_name} runs on Apache Spark only: it was called with columns of type "
                f"{kind} instead of Spark's StructType, as another engine such as Sail does. "
                "Nothing was read or written. Use Apache Spark 4.0 or later, also over Spark "
                "Connect; of tables of krishiv-parquet and krishiv-iceberg, other engines read the "
                "files"
            )

    def _reader(self, schema: Any, *, streaming: bool) -> StreamReader[Any, Any]:
        if self.reader_type is None:
            raise OptionError(f"{self.format_name} is a sink only: it cannot be read")
        options = self.reader_type.options_type.parse(self.options, self.format_name)
        return self.reader_type(options, schema, streaming=streaming)

    def _writer(self, schema: StructType, *, overwrite: bool, streaming: bool) -> Writer[Any, Any]:
        from krishiv_spark.sinks.base import OutputMode

        self.sink_options(self.options)  # refuses a format without a sink first
        self._check_spark(schema)
        kind, options = self.open_sink(self.options)
        models = {kind.options_type, (self.writer_type or kind).options_type}
        for model in models:
            warn_of_plain_secrets(model, self.options, self.format_name)
        mode = OutputMode.REPLACE if overwrite else OutputMode.APPEND
        return kind(options, arrow_schema(schema), mode, streaming=streaming)
