"""The formats: a class each for those of the package, and the search for those of other authors.

Each query starts half a dozen processes, and each of them imports this module. So readers and
writers are imported on first use (`later`), and no process imports a format that it does not use.
"""

from __future__ import annotations

import inspect
import logging
import pkgutil
import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from krishiv_spark.datasource import DatasetOptions, KrishivDataSource
from krishiv_spark.errors import OptionError
from krishiv_spark.messages.exception_chains import scrub
from krishiv_spark.messages.suggestions import did_you_mean
from krishiv_spark.runtime.epoch_times import format_time
from krishiv_spark.runtime.lazy import later

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from krishiv_spark.options import Options
    from krishiv_spark.sinks.base import Writer
    from krishiv_spark.sinks.logged_writer import LoggedWriter

__all__ = [
    "ChainDataSource",
    "ConsoleDataSource",
    "DeltaDataSource",
    "FanoutDataSource",
    "IcebergDataSource",
    "KafkaDataSource",
    "MemoryDataSource",
    "ParquetDataSource",
    "PostgresqlDataSource",
    "describe_offset",
    "every_format",
    "find_format",
    "format_names",
    "format_of",
    "installed_formats",
    "register",
    "route_names",
]

_log = logging.getLogger(__name__)

_SHOWN = 8
"""Partitions of a topic that a description lists."""


def every_format() -> tuple[type[KrishivDataSource], ...]:
    """Return the package's own formats, by name."""
    return tuple(_formats().values())


def format_names() -> list[str]:
    """Return the names of the package's own formats, without the prefix ``krishiv-``."""
    return list(_formats())


def format_of(name: str) -> type[KrishivDataSource]:
    """Return a format by the name that commands take.

    Args:
        name: The name without ``krishiv-`` of the package's own formats, the whole name of others.

    Raises:
        OptionError: If no format has that name.
    """
    found = find_format(f"krishiv-{name}") or find_format(name)
    if found is None:
        hint = did_you_mean(name, format_names(), f"known: {', '.join(format_names())}")
        raise OptionError(f"there is no format {name!r}; {hint}")
    return found


def find_format(name: str) -> type[KrishivDataSource] | None:
    """Return a format by its whole name, in any case: the package's own, or another author's.

    Returns:
        None if no module that Spark would find defines one.
    """
    wanted = name.strip().lower()
    own = _formats().get(wanted.removeprefix("krishiv-"))
    if own is not None and own.format_name == wanted:
        return own
    return next((each for each in _others() if each.format_name.lower() == wanted), None)


def installed_formats() -> tuple[type[KrishivDataSource], ...]:
    """Return all formats: the package's own, and those of other authors that Spark would find."""
    return (*every_format(), *_others())


def route_names() -> list[str]:
    """Return the names of the formats that can be a route of a fan-out; imports no sink."""
    return [
        each.format_name
        for each in installed_formats()
        if inspect.getattr_static(each, "route_type") is not None
    ]


def describe_offset(offset: Mapping[str, Any]) -> str:
    """Return the position that the JSON of an offset has, in words.

    Raises:
        LookupError, TypeError, ValueError, AttributeError: If no format has such offsets, or a
            newer version has written it.
    """
    kind = offset.get("kind")
    if kind == "start":
        when = f" {format_time(offset['ms'])}" if offset.get("ms") is not None else ""
        return f"before its first batch, at {offset['at']}{when}"
    own = _formats().get(str(kind))
    if own is not None:
        return own.describe_offset(offset)
    for each in _others():
        if each.reader_type is not None and each.reader_type.offset_type.kind == kind:
            return each.describe_offset(offset)
    raise LookupError(f"no format has offsets of kind {kind!r}")


def _formats() -> dict[str, type[KrishivDataSource]]:
    """Return the data sources that this module defines, so that no list has to be kept."""
    found = {
        each.format_name.removeprefix("krishiv-"): each
        for each in list(globals().values())
        if isinstance(each, type) and issubclass(each, KrishivDataSource)
        if each.__module__ == __name__
    }
    return dict(sorted(found.items()))


def _others() -> tuple[type[KrishivDataSource], ...]:
    return _found_as_spark_does(tuple(sys.path))


@lru_cache(maxsize=1)
def _found_as_spark_does(path: tuple[str, ...]) -> tuple[type[KrishivDataSource], ...]:
    """Return the formats of other authors, from the top-level modules that Spark imports too.

    Spark looks for a class ``DefaultSource`` in modules ``pyspark_*``. So a format that is found
    there needs no second registration.

    Args:
        path: The path on which modules are found, by which the result is cached.
    """
    found = []
    for module in pkgutil.iter_modules(path):
        if not module.name.startswith("pyspark_"):
            continue
        try:
            source = getattr(import_module(module.name), "DefaultSource", None)
        # A module of another author may raise anything; Spark reports it if a query needs it.
        except Exception as error:  # noqa: BLE001
            _log.debug("%s cannot be imported", module.name, exc_info=scrub(error))
            continue
        if isinstance(source, type) and issubclass(source, KrishivDataSource):
            found.append(source)
    own = every_format()
    return tuple(each for each in dict.fromkeys(found) if each not in own)


def register(spark: SparkSession) -> None:
    """Register every format of the package in a session; driver.

    Spark finds the formats automatically where the package is installed. Call this in a session
    that was started before the installation, or to register them explicitly.
    """
    from pyspark.errors import AnalysisException

    for source in every_format():
        try:
            spark.dataSource.register(source)
        except AnalysisException as error:
            # PySpark 4.0 refuses a name that it has already found; later versions replace it.
            if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise


class ChainDataSource(KrishivDataSource):
    """``krishiv-chain``: a table, and then the topics from which it was landed."""

    format_name = "krishiv-chain"
    reader_type = later("krishiv_spark.sources.chain.reader", "ChainReader")

    @override
    @classmethod
    def describe_offset(cls, offset: Mapping[str, Any]) -> str:
        first, then = (describe_offset(offset[part]) for part in ("first", "then"))
        is_read = offset["first"]["spot"].get("file") is None
        return f"{then}; after {first}" if is_read else f"{first}; then {then}"


class ConsoleDataSource(KrishivDataSource):
    """``krishiv-console``: prints each epoch on the driver."""

    format_name = "krishiv-console"
    writer_type = later("krishiv_spark.sinks.console", "ConsoleWriter")
    copy_note = "prints the epochs of both queries"


class DeltaDataSource(KrishivDataSource):
    """``krishiv-delta``: tables of Delta Lake, with Delta's own marks of epochs."""

    format_name = "krishiv-delta"
    reader_type = later("krishiv_spark.sources.delta.reader", "DeltaReader")
    writer_type = later("krishiv_spark.sinks.delta.writer", "DeltaWriter")
    route_type = later("krishiv_spark.sinks.delta.delta_route", "DeltaRoute")
    copy_note = (
        "starts without a committed epoch, which is stored by the query's id: use a separate "
        "table, or both queries write the rows after epoch {epoch} into one"
    )
    # deltalake starts a thread when it is imported, after which `fast_start` could not fork.
    preloads = ()

    @override
    @classmethod
    def describe_offset(cls, offset: Mapping[str, Any]) -> str:
        if "at" in offset:
            return f"before its first batch, at {offset['at']}"
        spot = offset["spot"]
        inside = f", {spot['file']} of its files" if spot.get("file") is not None else ""
        load = " of the first load" if spot.get("scan") else ""
        return f"table {offset['table']}, version {spot['version']}{inside}{load}"

    @override
    @classmethod
    def target_exists(cls, options: Mapping[str, str]) -> bool:
        from krishiv_spark.delta.opening import find_table
        from krishiv_spark.sinks.delta.options import DeltaSinkOptions

        return find_table(DeltaSinkOptions.parse(options, cls.format_name)) is not None


class FanoutDataSource(KrishivDataSource):
    """``krishiv-fanout``: rows into several targets, each epoch in all of them or in none."""

    format_name = "krishiv-fanout"
    writer_type = later("krishiv_spark.sinks.fanout.writer", "FanoutWriter")
    copy_note = "the same as each of its targets; its epoch log is recreated in {new}"


class IcebergDataSource(KrishivDataSource):
    """``krishiv-iceberg``: tables of Apache Iceberg, in any catalog that PyIceberg can write."""

    format_name = "krishiv-iceberg"
    reader_type = later("krishiv_spark.sources.iceberg.reader", "IcebergReader")
    writer_type = later("krishiv_spark.sinks.iceberg.writer", "IcebergWriter")
    route_type = later("krishiv_spark.sinks.iceberg.route", "IcebergRoute")
    dataset = DatasetOptions(read=("path", "table"), write=("path", "table"), form="table")
    copy_note = (
        "starts without a committed epoch, which is stored by the query's id: use a separate "
        "table, or both queries write the rows after epoch {epoch} into one"
    )
    preloads = ("krishiv_spark.iceberg.sql_catalog", "krishiv_spark.iceberg.rest_catalog")

    @classmethod
    def writer_for(cls, options: Options) -> type[Writer[Any, Any]] | None:
        """Return the writer of one table, or of a table for each topic."""
        if getattr(options, "is_by_topic", False):
            from krishiv_spark.sinks.fanout.topic_tables import TopicTablesWriter

            return TopicTablesWriter
        return super().writer_for(options)

    @classmethod
    def route_for(cls, options: Options) -> type[LoggedWriter[Any, Any]] | None:
        """Return the route of one table, or of a table for each topic."""
        if getattr(options, "is_by_topic", False):
            from krishiv_spark.sinks.fanout.topic_tables import TopicTablesWriter

            return TopicTablesWriter
        return super().route_for(options)

    @override
    @classmethod
    def describe_offset(cls, offset: Mapping[str, Any]) -> str:
        if "at" in offset:
            return f"before its first batch, at {offset['at']}"
        spot = offset["spot"]
        table = f"table {offset.get('table', 'of no UUID')}"
        if spot.get("snapshot") is None:
            return f"{table}, before its first snapshot"
        inside = f", {spot['file']} of its files" if spot.get("file") is not None else ""
        load = " of the first load" if spot.get("scan") else ""
        sequence = spot.get("sequence", 0)
        return f"{table}, snapshot {spot['snapshot']} (sequence {sequence}){inside}{load}"

    @override
    @classmethod
    def target_exists(cls, options: Mapping[str, str]) -> bool:
        from krishiv_spark.iceberg.catalogs import explain_catalog_errors, open_catalog
        from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions

        table = IcebergSinkOptions.parse(options, cls.format_name)
        with explain_catalog_errors(table, "find the table"):
            return bool(open_catalog(table, create=True).table_exists(table.identifier))


class KafkaDataSource(KrishivDataSource):
    """``krishiv-kafka``: topics of Apache Kafka."""

    format_name = "krishiv-kafka"
    reader_type = later("krishiv_spark.sources.kafka.reader", "KafkaReader")
    writer_type = later("krishiv_spark.sinks.kafka.writer", "KafkaWriter")
    route_type = later("krishiv_spark.sinks.kafka.writer", "KafkaWriter")
    dataset = DatasetOptions(read=("subscribe",), write=("topic",), form="name")
    is_append_only = True
    copy_note = (
        "has separate transactions; its epoch log is recreated in {new}. Use a separate topic, "
        "or both queries write the rows after epoch {epoch} into one"
    )
    preloads = ("kafka", "krishiv_spark.kafka.records.jit")

    @classmethod
    def writer_for(cls, options: Options) -> type[Writer[Any, Any]]:
        """Return the writer: exactly once, unless 'delivery' is 'at-least-once'."""
        from krishiv_spark.sinks.kafka.options import KafkaSinkOptions
        from krishiv_spark.sinks.kafka.writer import KafkaAtLeastOnceWriter, KafkaWriter

        plain = isinstance(options, KafkaSinkOptions) and options.delivery == "at-least-once"
        return KafkaAtLeastOnceWriter if plain else KafkaWriter

    @override
    @classmethod
    def describe_offset(cls, offset: Mapping[str, Any]) -> str:
        if "at" in offset and not offset.get("topics"):
            return f"before its first batch, at {offset['at']}"
        parts = [cls.describe_topic(*each) for each in sorted(offset.get("topics", {}).items())]
        parts += [
            f"{cls.describe_topic(*each)}, no longer read"
            for each in sorted(offset.get("left", {}).items())
        ]
        return "; ".join(parts) or "no partition"

    @staticmethod
    def describe_topic(topic: str, offsets: Mapping[str, int]) -> str:
        """Return the next offsets of a topic's partitions, in words."""
        ends = {int(partition): offset for partition, offset in offsets.items()}
        shown = ", ".join(f"{partition}: {ends[partition]}" for partition in sorted(ends)[:_SHOWN])
        more = f", and {len(ends) - _SHOWN} more" if len(ends) > _SHOWN else ""
        return f"topic {topic}, next offsets {shown}{more} (sum {sum(ends.values())})"


class MemoryDataSource(KrishivDataSource):
    """``krishiv-memory``: pushed batches as a stream, query results as Arrow."""

    format_name = "krishiv-memory"
    reader_type = later("krishiv_spark.sources.memory.reader", "MemoryReader")
    writer_type = later("krishiv_spark.sinks.memory", "MemoryWriter")
    dataset = DatasetOptions(read=("path", "name"), write=("path", "name"), form="name")
    copy_note = "starts a separate result, without the rows up to epoch {epoch}; set another 'name'"

    @override
    @classmethod
    def describe_offset(cls, offset: Mapping[str, Any]) -> str:
        return f"push {offset['next']} is next"

    @override
    @classmethod
    def target_exists(cls, options: Mapping[str, str]) -> bool:
        from krishiv_spark.memory.results import is_name
        from krishiv_spark.memory.store import open_store
        from krishiv_spark.sinks.memory import MemorySinkOptions

        name = MemorySinkOptions.parse(options, cls.format_name).result_name()
        return name is not None and is_name(open_store(), name)


class ParquetDataSource(KrishivDataSource):
    """``krishiv-parquet``: folders of Parquet files, exactly once for every reader."""

    format_name = "krishiv-parquet"
    reader_type = later("krishiv_spark.sources.parquet.reader", "ParquetReader")
    writer_type = later("krishiv_spark.sinks.parquet.writer", "ParquetWriter")
    route_type = later("krishiv_spark.sinks.parquet.writer", "ParquetWriter")
    copy_note = (
        "needs an epoch log in its table before it starts: 'krishiv-spark log adopt --format "
        "parquet --checkpoint {new} -o path=...'. Use a separate folder, or both queries write "
        "the rows after epoch {epoch} into one"
    )

    @override
    @classmethod
    def describe_offset(cls, offset: Mapping[str, Any]) -> str:
        files = len(offset.get("files", ()))
        many = "many (in its state)" if offset.get("files_in") else str(files)
        parts = [f"{many} files in its last batch"]
        newest = offset.get("newest")
        if newest is not None:
            parts.append(f"newest of {format_time(newest // 1_000_000)}")
        followed = offset.get("epochs", {})
        parts += [f"epoch {epoch} of {key}" for key, epoch in sorted(followed.items())[:4]]
        if offset.get("stream"):
            parts.append(f"state {offset['stream']}")
        return ", ".join(parts)

    @override
    @classmethod
    def target_exists(cls, options: Mapping[str, str]) -> bool:
        from krishiv_spark.sinks.parquet.options import ParquetSinkOptions
        from krishiv_spark.sinks.parquet.writer import choose_kind

        table = choose_kind(ParquetSinkOptions.parse(options, cls.format_name)).table
        return next(iter(table.visible()), None) is not None


class PostgresqlDataSource(KrishivDataSource):
    """``krishiv-postgresql``: tables of PostgreSQL."""

    format_name = "krishiv-postgresql"
    reader_type = later("krishiv_spark.sources.postgresql.reader", "PostgresqlReader")
    writer_type = later("krishiv_spark.sinks.postgresql.writer", "PostgresqlWriter")
    route_type = later("krishiv_spark.sinks.postgresql.table_route", "PostgresqlRoute")
    dataset = DatasetOptions(read=("table", "dbtable"), write=("table", "dbtable"), form="table")
    copy_note = (
        "starts without a committed epoch, which is stored by the query's id: use a separate "
        "table, or both queries write the rows after epoch {epoch} into one"
    )
    preloads = ("psycopg",)

    @override
    @classmethod
    def describe_offset(cls, offset: Mapping[str, Any]) -> str:
        return f"at the {offset['at']} of a batch"

    @override
    @classmethod
    def target_exists(cls, options: Mapping[str, str]) -> bool:
        from krishiv_spark.postgresql.catalog import find_table
        from krishiv_spark.postgresql.connection import open_transaction
        from krishiv_spark.sinks.postgresql.options import PostgresqlSinkOptions

        table = PostgresqlSinkOptions.parse(options, cls.format_name)
        with open_transaction(table, f"find table {table.table_name}", reads=True) as reading:
            return find_table(reading, table.table_name) is not None
