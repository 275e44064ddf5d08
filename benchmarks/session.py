"""The Spark session of the benchmarks."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["start"]


def start(folder: Path, jars: Sequence[Path] = ()) -> SparkSession:
    """Start Spark with two local cores, and register our formats.

    Args:
        folder: For what Spark puts on a disk.
        jars: Of Spark's own connectors, where they are measured.
    """
    # Workers that keep no compiled code would start as they do nowhere else.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    session = _built(folder, jars)
    session.sparkContext.setLogLevel("OFF")
    from krishiv_spark import register

    register(session)
    return session


def _built(folder: Path, jars: Sequence[Path]) -> SparkSession:
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
        .getOrCreate()
    )
