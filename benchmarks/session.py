"""The Spark session of the benchmarks."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from krishiv_spark import fast_start, register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["PRINTED", "start"]

PRINTED = "printed.txt"
"""File in the session's folder for what the JVM and its workers print."""


def start(
    folder: Path,
    jars: Sequence[Path] = (),
    conf: Mapping[str, str] | None = None,
    fast: Sequence[str] | None = None,
) -> SparkSession:
    """Start Spark with two local cores, and register our formats.

    Args:
        folder: For what Spark puts on a disk.
        jars: Of Spark's own connectors, where they are measured.
        conf: What else it is told.
        fast: Formats that `krishiv_spark.fast_start` is told of; None to start as ever.
    """
    # Workers that keep no compiled code would start as they do nowhere else.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with _printing_into(folder / PRINTED):
        builder = _builder(folder, jars, conf or {})
        session = (builder if fast is None else fast_start(builder, fast)).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    register(session)
    return session


@contextmanager
def _printing_into(file: Path) -> Iterator[None]:
    """Print the output of programs that start within the block into a file, also afterwards."""
    kept = {number: os.dup(number) for number in (1, 2)}
    with file.open("ab") as opened:
        try:
            for number in kept:
                os.dup2(opened.fileno(), number)
            yield
        finally:
            for number, before in kept.items():
                os.dup2(before, number)
                os.close(before)


def _builder(folder: Path, jars: Sequence[Path], conf: Mapping[str, str]) -> SparkSession.Builder:
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master("local[2]")
        .appName("krishiv-spark-benchmarks")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.jars", ",".join(map(str, jars)))
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
        .config("spark.local.dir", f"{folder}/local")
        .config(map=dict(conf))
    )
