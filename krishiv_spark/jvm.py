"""The door to Spark's JVM, for what Spark shows nobody else. Driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["hear_by", "is_jvm_here", "running_query", "variable_of_jvm"]


def is_jvm_here(session: SparkSession) -> bool:
    """Whether Spark's driver is this process's; under Spark Connect it is the server's."""
    return hasattr(session, "_jvm")


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


def running_query(session: SparkSession, query: str) -> Any:
    """Java's object of a query (``StreamExecution``) that runs in an application.

    Raises:
        Exception: Of any kind, if there is none, or this Spark calls things otherwise.
    """
    own: Any = session
    uuid = own._jvm.java.util.UUID.fromString(query)  # noqa: SLF001
    return own._jsparkSession.sharedState().activeStreamingQueries().get(uuid)  # noqa: SLF001
