"""``krishiv_spark.fast_start``."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from krishiv_spark.errors import OptionError
from krishiv_spark.messages.suggestions import suggest
from krishiv_spark.spark.fast_start.preloading import PRELOADS, libraries
from krishiv_spark.spark.jvm import server_of

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
    than those of the first start, packages that were installed anew), processes start as Spark
    starts them. Under Spark Connect a client changes nothing, and a warning says so: its server is
    told by its own ``PYSPARK_PYTHON``.

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
    known = libraries() if wanted else {}
    for name in wanted:
        if name not in known:
            near = suggest(name, known) or ", ".join(known)
            raise OptionError(f"fast_start: {name!r} has no libraries to load; known: {near}")
    if (server := server_of(builder)) is not None:
        _log.warning(
            "fast_start does nothing here: Python processes are started by the server %s, "
            "which must be started with PYSPARK_PYTHON=.../%s",
            server,
            _LAUNCHER,
        )
        return builder
    own = Path(sys.executable).with_name(_LAUNCHER)
    if not sys.platform.startswith("linux") or not own.exists():
        _log.warning(
            "Python processes start as usual: the system is not Linux, or there is no %s", own
        )
        return builder
    from pyspark.sql import SparkSession

    if SparkSession.getActiveSession() is not None:
        raise OptionError("fast_start: a session runs already; call it before the first one")
    _warn_of_older_jvm(own)
    told = os.environ.get("PYSPARK_PYTHON")
    os.environ["PYSPARK_PYTHON"] = str(Path(told).with_name(_LAUNCHER) if told else own)
    os.environ["PYSPARK_DRIVER_PYTHON"] = str(own)
    os.environ[PRELOADS] = ",".join(wanted)
    return builder.config(f"spark.executorEnv.{PRELOADS}", ",".join(wanted))


def _warn_of_older_jvm(own: Path) -> None:
    """By ``spark-submit`` the JVM is there before the program, with the variables of then."""
    is_told = os.environ.get("PYSPARK_DRIVER_PYTHON", "").endswith(_LAUNCHER)
    if "PYSPARK_GATEWAY_PORT" in os.environ and not is_told:
        _log.warning(
            "fast_start: spark-submit has started Spark's JVM already, so most Python processes "
            "start as ever; before spark-submit, export PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON "
            "as %s",
            own,
        )
