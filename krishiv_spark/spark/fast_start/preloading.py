"""The imports of a zygote, and the steps that make its forks equal to new interpreters."""

from __future__ import annotations

import os
import pkgutil
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec

from krishiv_spark.formats import every_format, installed_formats

__all__ = ["PRELOADS", "libraries", "prefer_installed", "preload"]

PRELOADS = "KRISHIV_SPARK_PRELOADS"
"""Environment variable with the names of formats whose `preloads` are imported too, separated by
commas. Each takes 0.1 to 1 s, so they are imported on demand only."""

_SPARK = (
    "pyspark.daemon",
    "pyspark.worker",
    "pyspark.sql.streaming.python_streaming_source_runner",
)
_ARROW = ("pyarrow.compute", "pyarrow.parquet", "pandas")


def libraries() -> dict[str, tuple[str, ...]]:
    """Return the modules that the first batch of a format would import, by the format's name.

    The names of the package's own formats have no prefix ``krishiv-``.
    """
    found = installed_formats()
    return {
        each.format_name.removeprefix("krishiv-"): each.preloads for each in found if each.preloads
    }


def prefer_installed() -> None:
    """Import PySpark from pip's folder, not from the archive inside that folder.

    Spark puts the archive first on the path. It contains no compiled code, so each process would
    compile its imports: 0.4 s of a core. If PySpark belongs to another Spark home, the path stays
    unchanged.
    """
    archives = [path for path in sys.path if path.endswith((".zip", ".jar"))]
    others = [path for path in sys.path if path not in archives]
    found, sys.path[:] = list(sys.path), others
    installed = find_spec("pyspark")
    home = os.path.dirname(installed.origin or "") if installed else None
    within = [path for path in archives if home and path.startswith(home + os.sep)]
    sys.path[:] = [path for path in found if path not in within]


def preload() -> None:
    """Import the modules, and check that no thread runs that a fork would lack.

    Raises:
        ImportError: If a module cannot be imported.
        RuntimeError: If a thread runs afterwards. Its locks would stay locked in all forks.
    """
    for name in _names():
        import_module(name)
    for source in every_format():
        # Reading the attribute imports the class.
        _both_sides = source.reader_type, source.writer_type
    os.register_at_fork(after_in_child=_reseed)
    if len(os.listdir("/proc/self/task")) > 1:
        raise RuntimeError("something that was imported has started a thread: nothing is forked")


def _names() -> Iterator[str]:
    yield from _SPARK
    for package in ("pyspark.sql.worker", "krishiv_spark.lifecycle"):
        within = import_module(package).__path__
        yield from (f"{package}.{found.name}" for found in pkgutil.iter_modules(within))
    yield from _ARROW
    for name in filter(None, os.environ.get(PRELOADS, "").split(",")):
        yield from libraries()[name]


def _reseed() -> None:
    """Seed NumPy's generator in a fork; otherwise all forks would draw the same numbers."""
    if (random := sys.modules.get("numpy.random")) is not None:
        random.seed()
