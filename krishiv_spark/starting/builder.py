"""``krishiv_spark.fast_start``."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from krishiv_spark.errors import OptionError
from krishiv_spark.starting.preloading import LIBRARIES, PRELOADS
from krishiv_spark.suggestions import suggest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["fast_start"]

_LAUNCHER = "krishiv-spark-python"
_log = logging.getLogger(__name__)


def fast_start(builder: SparkSession.Builder, formats: Iterable[str] = ()) -> SparkSession.Builder:
    """Have Spark's Python processes forked from one that has imported everything; driver.

    To be called before the first session of a process, since it sets ``PYSPARK_PYTHON`` and
    ``PYSPARK_DRIVER_PYTHON``, which Spark's JVM reads once. On executors the package has to be
    installed, as the formats need anyway, beside the Python that Spark was told. One process for
    each JVM imports, and ends with it. Where forks are not possible (anything but Linux with
    ``pidfd_open``, a folder for sockets that is not this user's alone, other environment variables
    than those of the first start), processes start as Spark starts them.

    Args:
        builder: Of the session.
        formats: Those whose libraries are imported too, such as ``["kafka"]``: kafka-python and
            numba, or PyIceberg.

    Returns:
        The builder.

    Raises:
        OptionError: If a format has no libraries of its own, or a session runs already.
    """
    wanted = [name.removeprefix("krishiv-") for name in formats]
    for name in wanted:
        if name not in LIBRARIES:
            near = suggest(name, LIBRARIES) or ", ".join(LIBRARIES)
            raise OptionError(
                f"fast_start: {name!r} has no libraries of its own; there are: {near}"
            )
    own = Path(sys.executable).with_name(_LAUNCHER)
    if not sys.platform.startswith("linux") or not own.exists():
        _log.warning("Python processes start as ever: no Linux, or there is no %s", own)
        return builder
    from pyspark.sql import SparkSession

    if SparkSession.getActiveSession() is not None:
        raise OptionError("fast_start: a session runs already; call it before the first one")
    told = os.environ.get("PYSPARK_PYTHON")
    os.environ["PYSPARK_PYTHON"] = str(Path(told).with_name(_LAUNCHER) if told else own)
    os.environ["PYSPARK_DRIVER_PYTHON"] = str(own)
    os.environ[PRELOADS] = ",".join(wanted)
    return builder.config(f"spark.executorEnv.{PRELOADS}", ",".join(wanted))
