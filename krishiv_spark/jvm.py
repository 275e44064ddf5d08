"""The door to Spark's JVM, for what Spark shows nobody else. Driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["environment_of_jvm", "running_query"]


def environment_of_jvm(session: SparkSession) -> dict[str, str] | None:
    """The environment that the driver's Python workers get; None if it cannot be seen here.

    It is that in which the JVM began. Under Spark Connect it is the server's.
    """
    try:
        jvm: Any = session._jvm  # noqa: SLF001
        return dict(jvm.java.lang.System.getenv())
    except AttributeError:
        return None


def running_query(session: SparkSession, query: str) -> Any:
    """Java's object of a query (``StreamExecution``) that runs in an application.

    Raises:
        Exception: Of any kind, if there is none, or this Spark calls things otherwise.
    """
    own: Any = session
    uuid = own._jvm.java.util.UUID.fromString(query)  # noqa: SLF001
    return own._jsparkSession.sharedState().activeStreamingQueries().get(uuid)  # noqa: SLF001
