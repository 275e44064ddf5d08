"""The imports of a zygote, and the steps that make its forks equal to new interpreters.

This module imports nothing of PySpark: `prefer_installed` decides from where that comes.
"""

from __future__ import annotations

import gc
import os
import pkgutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from importlib.machinery import PathFinder

__all__ = ["PRELOADS", "libraries", "prefer_installed", "preload", "preload_formats"]

PRELOADS = "KRISHIV_SPARK_PRELOADS"
"""Environment variable with the names of formats whose `preloads` are imported too, separated by
commas. Each takes 0.1 to 2 s, so that happens while no process is wanted."""

_SPARK = (
    "pyspark.daemon",
    "pyspark.worker",
    "pyspark.sql.streaming.python_streaming_source_runner",
)
_ARROW = ("pyarrow.compute", "pyarrow.parquet", "pandas", "pyarrow.pandas_compat")
_AT_FIRST_USE = ("pydantic.dataclasses", "stringprep")
"""Modules that pydantic and sockets import when they are used first."""


def libraries() -> dict[str, tuple[str, ...]]:
    """Return the modules that the first batch of a format would import, by the format's name.

    The names of the package's own formats have no prefix ``krishiv-``.
    """
    from krishiv_spark.formats import installed_formats

    return {
        each.format_name.removeprefix("krishiv-"): each.preloads for each in installed_formats()
    }


def prefer_installed() -> None:
    """Import PySpark from pip's folder, not from the archive inside that folder.

    Spark puts the archive first on the path. It contains no compiled code, so each process would
    compile its imports: 0.4 s of a core. If PySpark belongs to another Spark home, the path stays
    unchanged.

    The finders of the archives are dropped too: PySpark calls ``importlib.invalidate_caches()`` at
    the start of each task, and each fork's copy would then read the directories of Spark's archives
    again, 18 MB of memory in each process.
    """
    archives = [path for path in sys.path if path.endswith((".zip", ".jar"))]
    others = [path for path in sys.path if path not in archives]
    installed = PathFinder.find_spec("pyspark", others)
    home = os.path.dirname(installed.origin or "") if installed else None
    within = [path for path in archives if home and path.startswith(home + os.sep)]
    sys.path[:] = [path for path in sys.path if path not in within]
    for path in [path for path in sys.path_importer_cache if path.startswith(tuple(within))]:
        del sys.path_importer_cache[path]


def preload() -> None:
    """Import the modules that all processes of Spark need, and both sides of each format.

    Raises:
        ImportError: If a module cannot be imported.
        RuntimeError: If a thread runs afterwards. Its locks would stay locked in all forks.
    """
    from krishiv_spark.formats import every_format

    for name in _names():
        import_module(name)
    for source in every_format():
        # Reading the attribute imports the class.
        _both_sides = source.reader_type, source.writer_type
    os.register_at_fork(after_in_child=_reseed)
    _finish()


def preload_formats() -> Iterator[str]:
    """Import the libraries of each format that `PRELOADS` names, and yield its name.

    What cannot be imported is left to the processes that need it, whose errors Spark shows.

    Raises:
        RuntimeError: As in `preload`.
    """
    known = libraries()
    for name in filter(None, os.environ.get(PRELOADS, "").split(",")):
        with suppress(ImportError):
            for library in known.get(name, ()):
                import_module(library)
        _finish()
        yield name


def _names() -> Iterator[str]:
    yield from _SPARK
    for package in ("pyspark.sql.worker", "krishiv_spark.lifecycle"):
        within = import_module(package).__path__
        yield from (f"{package}.{found.name}" for found in pkgutil.iter_modules(within))
    yield from _ARROW
    yield from _AT_FIRST_USE


def _finish() -> None:
    """Leave as little as possible to the forks: what they build or move is copied in each.

    The validators of a format's options are 4 MB. The garbage collector skips frozen objects.
    """
    from krishiv_spark.options.model import build_models

    if len(os.listdir("/proc/self/task")) > 1:
        raise RuntimeError("something that was imported has started a thread: nothing is forked")
    build_models()
    gc.freeze()


def _reseed() -> None:
    """Seed NumPy's generator in a fork; otherwise all forks would draw the same numbers."""
    if (random := sys.modules.get("numpy.random")) is not None:
        random.seed()
