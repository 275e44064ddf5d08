"""The function ``krishiv_spark.fast_start``."""

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


def fast_start(
    builder: SparkSession.Builder, formats: Iterable[str] | None = None
) -> SparkSession.Builder:
    """Make Spark fork its Python processes from one that has imported everything; driver.

    Call it before the first session of a process: it sets ``PYSPARK_PYTHON`` and
    ``PYSPARK_DRIVER_PYTHON``, which Spark's JVM reads once. On executors, install the package
    (which the formats need anyway) beside the Python that ``PYSPARK_PYTHON`` names. One process for
    each JVM imports, and ends with the JVM. Processes start in Spark's usual way where a fork would
    differ or is not possible: on systems other than Linux with ``pidfd_open``, if the folder of
    sockets is accessible to other users, if environment variables differ from those of the first
    start, and if packages were installed since. Under Spark Connect the function logs a warning and
    changes nothing, since the server starts the processes: set ``PYSPARK_PYTHON`` there.

    Args:
        builder: The builder of the session.
        formats: Formats whose libraries are imported too, such as ``["kafka"]``: kafka-python and
            numba, or PyIceberg. By default, those of all installed formats, while Spark requests no
            process. Each adds 20 to 70 MB to one process for each JVM.

    Returns:
        The builder.

    Raises:
        OptionError: If a format is not installed, or a session is active already.
    """
    wanted = _find_formats(formats)
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


def _find_formats(given: Iterable[str] | None) -> list[str]:
    """Return the names of formats that have libraries to import."""
    known = libraries()
    if given is None:
        return [name for name, modules in known.items() if modules]
    wanted = [name.removeprefix("krishiv-") for name in given]
    for name in wanted:
        if name not in known:
            near = suggest(name, known) or ", ".join(known)
            raise OptionError(f"fast_start: {name!r} is no installed format; known: {near}")
    return [name for name in wanted if known[name]]


def _warn_of_older_jvm(own: Path) -> None:
    """Log a warning if ``spark-submit`` has started the JVM before the variables were set."""
    is_told = os.environ.get("PYSPARK_DRIVER_PYTHON", "").endswith(_LAUNCHER)
    if "PYSPARK_GATEWAY_PORT" in os.environ and not is_told:
        _log.warning(
            "fast_start: spark-submit has started Spark's JVM already, so most Python processes "
            "start as usual; before spark-submit, export PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON "
            "as %s",
            own,
        )
