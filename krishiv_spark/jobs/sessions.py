"""Sessions of jobs. Driver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from krishiv_spark.spark.jvm import is_jvm_here, is_stopped

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["active_again", "session_of_job"]


def session_of_job(spark: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    """One with views of its own, and the settings of a job that can still be made.

    It is the active one of this thread from then on.
    """
    try:
        made = spark.newSession()
    except (AttributeError, NotImplementedError):  # Spark Connect before 4.3
        made = spark
    for name, text in settings.items():
        if made.conf.isModifiable(name):
            made.conf.set(name, text)
    _activate(made)
    return made


@contextmanager
def active_again(spark: SparkSession) -> Iterator[None]:
    """What is run here may make other sessions active; in the end that of the caller is.

    Else he would find no format any more that is registered in his session alone. It is not asked
    which one was: PySpark answers for the process (``SparkSession._activeSession``), where jobs run
    in other threads, and Spark goes by the thread.
    """
    try:
        yield
    finally:
        # A server looks in the session of whoever asks.
        if is_jvm_here(spark) and not is_stopped(spark):
            _activate(spark)


def _activate(spark: SparkSession) -> None:
    # Where Spark looks for Python sources when a stream is started (`DataSource.lookupDataSource`)
    # is the active session of a thread; in a new thread there is none. By this it is made so.
    spark.createDataFrame([], "nothing INT")
