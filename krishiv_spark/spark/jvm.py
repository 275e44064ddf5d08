"""The door to Spark's JVM, for what Spark shows nobody else. Driver."""

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
    """Whether Spark's driver is this process's; under Spark Connect it is the server's."""
    return hasattr(session, "_jvm")


def is_stopped(session: SparkSession) -> bool:
    """Whether a session, classic or Connect, was stopped here. Asks no JVM and no server."""
    own: Any = session
    try:
        if is_jvm_here(session):
            return own.sparkContext._jsc is None  # noqa: SLF001
        return bool(own.is_stopped)
    except Exception:  # noqa: BLE001  this Spark calls things otherwise
        return False


def server_of(builder: SparkSession.Builder) -> str | None:
    """The Spark Connect server whose session a builder would open, without what follows its port.

    Returns:
        None if the session is of a driver that this process starts, or that is not known.
    """
    options: Mapping[str, str] = getattr(builder, "_options", {})
    url = options.get("spark.remote") or os.environ.get("SPARK_REMOTE") or ""
    # After it come parameters, such as a token.
    return url.partition(";")[0] if url.startswith("sc://") else None


def variable_of_jvm(session: SparkSession, name: str) -> str | None:
    """A variable of the environment that the driver's Python workers get, of a driver that is here.

    It is that in which the JVM began.
    """
    own: Any = session
    found: str | None = own._jvm.java.lang.System.getenv(name)  # noqa: SLF001
    return found


def hear_by(session: SparkSession, listener: Any, events: Any) -> None:
    """Have a listener, before it is added, hear of events by an object of its own.

    Args:
        session: Of a driver that is here.
        listener: A ``StreamingQueryListener``.
        events: What PySpark's ``JStreamingQueryListener`` is, which asks the JVM sixty times for
            one progress: 10 ms of a core, whatever the listener does.

    Raises:
        Exception: Of any kind, if this Spark calls things otherwise.
    """
    own: Any = session
    streaming = own._jvm.org.apache.spark.sql.streaming  # noqa: SLF001
    # Where PySpark looks before it makes its own (`StreamingQueryListener._jlistener`).
    listener._jlistenerobj = streaming.PythonStreamingQueryListenerWrapper(events)  # noqa: SLF001


def last_progress(session: SparkSession, query: str) -> Mapping[str, Any] | None:
    """The newest progress of a query that runs, also one of a trigger that had nothing to do.

    Classic or Connect; as Spark's JSON has it. None before the first.

    Raises:
        Exception: Of any kind, if there is no such query, or this Spark calls things otherwise.
    """
    running: Any = session.streams.get(query)
    if not is_jvm_here(session):
        told: Mapping[str, Any] | None = running.lastProgress
        return told
    # PySpark asks the JVM sixty times for one progress.
    found = running._jsq.lastProgress()  # noqa: SLF001
    return None if found is None else json.loads(found.json())


def running_query(session: SparkSession, query: str) -> Any:
    """Java's object of a query (``StreamExecution``) that runs in an application.

    Raises:
        Exception: Of any kind, if there is none, or this Spark calls things otherwise.
    """
    own: Any = session
    uuid = own._jvm.java.util.UUID.fromString(query)  # noqa: SLF001
    return own._jsparkSession.sharedState().activeStreamingQueries().get(uuid)  # noqa: SLF001


@dataclass(frozen=True)
class WriterSays:
    """What a user has told Spark's writer of a stream.

    Attributes:
        rows: What it writes.
        format: Of the sink; for functions, a name of Spark's own.
        mode: Spark's output mode, in small letters.
        options: Of the sink; may be secret.
    """

    rows: DataFrame
    format: str
    mode: str
    options: dict[str, str]


def writer_says(writer: DataStreamWriter) -> WriterSays:
    """What is known of a query that was not started yet, classic or Connect.

    Raises:
        Exception: Of any kind, if this Spark calls things otherwise.
    """
    own: Any = writer
    return _said_to_connect(own) if hasattr(own, "_write_proto") else _said_to_java(own)


def _said_to_connect(writer: Any) -> WriterSays:
    from pyspark.sql.connect.dataframe import DataFrame

    said, plan = writer._write_proto, writer._write_stream._child  # noqa: SLF001
    rows: Any = DataFrame(plan, writer._session)  # noqa: SLF001
    # Which the server puts among the options.
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
