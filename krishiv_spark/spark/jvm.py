"""The only module that calls private parts of PySpark and of Spark's JVM. Driver."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = [
    "WriterSays",
    "hear_by",
    "is_jvm_here",
    "is_stopped",
    "last_progress",
    "running_query",
    "server_of",
    "variable_of_jvm",
    "writer_says",
]


def is_jvm_here(session: SparkSession) -> bool:
    """Return True if Spark's driver is in this process; False under Spark Connect."""
    return hasattr(session, "_jvm")


def is_stopped(session: SparkSession) -> bool:
    """Return True if a session, classic or Connect, was stopped here.

    It calls no JVM and no server.
    """
    own: Any = session
    try:
        if is_jvm_here(session):
            return own.sparkContext._jsc is None  # noqa: SLF001
        return bool(own.is_stopped)
    except Exception:  # noqa: BLE001  private names differ in this version
        return False


def server_of(builder: SparkSession.Builder) -> str | None:
    """Return the URL of the Spark Connect server that a builder would open, without parameters.

    Returns:
        None if this process starts the driver, or if the server is unknown.
    """
    options: Mapping[str, str] = getattr(builder, "_options", {})
    url = options.get("spark.remote") or os.environ.get("SPARK_REMOTE") or ""
    # Parameters, such as a token, follow the first semicolon.
    return url.partition(";")[0] if url.startswith("sc://") else None


def variable_of_jvm(session: SparkSession, name: str) -> str | None:
    """Return an environment variable of a local driver's JVM, which its Python workers inherit.

    Its value is that of the time when the JVM started.
    """
    own: Any = session
    found: str | None = own._jvm.java.lang.System.getenv(name)  # noqa: SLF001
    return found


def hear_by(session: SparkSession, listener: Any, events: Any) -> None:
    """Make a listener receive its events through `events`; called before it is added to Spark.

    Args:
        session: A session whose driver is in this process.
        listener: A ``StreamingQueryListener``.
        events: Replaces PySpark's ``JStreamingQueryListener``, which calls the JVM sixty times for
            one progress. That takes 10 ms of a core, even if the listener does nothing.

    Raises:
        Exception: Of any kind, if private names differ in this version of Spark.
    """
    own: Any = session
    streaming = own._jvm.org.apache.spark.sql.streaming  # noqa: SLF001
    # PySpark uses an existing object before it creates its own
    # (`StreamingQueryListener._jlistener`).
    listener._jlistenerobj = streaming.PythonStreamingQueryListenerWrapper(events)  # noqa: SLF001


def last_progress(session: SparkSession, query: str) -> Mapping[str, Any] | None:
    """Return the newest progress of an active query as in Spark's JSON; None before the first.

    It includes triggers without new data. Works with a classic session and with Connect.

    Raises:
        Exception: Of any kind, if there is no such query, or private names differ in this Spark.
    """
    running: Any = session.streams.get(query)
    if not is_jvm_here(session):
        told: Mapping[str, Any] | None = running.lastProgress
        return told
    # PySpark would call the JVM sixty times for one progress.
    found = running._jsq.lastProgress()  # noqa: SLF001
    return None if found is None else json.loads(found.json())


def running_query(session: SparkSession, query: str) -> Any:
    """Return Java's object of an active query (``StreamExecution``) of an application.

    Raises:
        Exception: Of any kind, if there is no such query, or private names differ in this Spark.
    """
    own: Any = session
    uuid = own._jvm.java.util.UUID.fromString(query)  # noqa: SLF001
    return own._jsparkSession.sharedState().activeStreamingQueries().get(uuid)  # noqa: SLF001


@dataclass(frozen=True)
class WriterSays:
    """The settings that a user has given to Spark's writer of a stream.

    Attributes:
        rows: The frame that is written.
        format: The format of the sink; for functions, one of Spark's own names.
        mode: Spark's output mode, in lower case.
        options: The options of the sink, which may contain secrets.
    """

    rows: DataFrame
    format: str
    mode: str
    options: dict[str, str]


def writer_says(writer: DataStreamWriter) -> WriterSays:
    """Return the settings of a query that was not started yet, classic or Connect.

    Raises:
        Exception: Of any kind, if private names differ in this version of Spark.
    """
    own: Any = writer
    return _said_to_connect(own) if hasattr(own, "_write_proto") else _said_to_java(own)


def _said_to_connect(writer: Any) -> WriterSays:
    from pyspark.sql.connect.dataframe import DataFrame

    said, plan = writer._write_proto, writer._write_stream._child  # noqa: SLF001
    rows: Any = DataFrame(plan, writer._session)  # noqa: SLF001
    # The server adds these two to the options.
    more = {"path": said.path, "queryName": said.query_name}
    options = {**said.options, **{name: text for name, text in more.items() if text}}
    return WriterSays(rows, said.format, said.output_mode.lower() or "append", options)


def _said_to_java(writer: Any) -> WriterSays:
    java, jvm = writer._jwrite, writer._spark._jvm  # noqa: SLF001

    def field(name: str) -> Any:
        found = java.getClass().getDeclaredField(name)
        found.setAccessible(True)
        return found.get(java)

    options = jvm.scala.jdk.javaapi.CollectionConverters.asJava(field("extraOptions").originalMap())
    mode = field("outputMode").toString().lower()
    return WriterSays(writer._df, field("source"), mode, dict(options))  # noqa: SLF001
