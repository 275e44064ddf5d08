"""The formats that ship with the package, one module each; no process imports what it does not use.

Each query starts half a dozen processes, and each of them imports its format. So a format
imports no other, and nothing here imports one before it is asked for.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from krishiv_spark.datasource import KrishivDataSource

__all__ = ["every_format", "format_names", "format_of", "register"]


def every_format() -> tuple[type[KrishivDataSource], ...]:
    """All of them, by name; imports them all."""
    return tuple(map(format_of, format_names()))


def format_names() -> list[str]:
    """What follows ``krishiv-`` in their names; imports none."""
    return [found.name for found in pkgutil.iter_modules(__path__)]


def format_of(name: str) -> type[KrishivDataSource]:
    """The format ``krishiv-NAME``: the one public class of the module ``NAME`` of this folder."""
    module = import_module(f"{__name__}.{name}")
    (public,) = module.__all__
    found: type[KrishivDataSource] = getattr(module, public)
    return found


def register(spark: SparkSession) -> None:
    """Register every format of the package in a session; driver.

    Spark finds the formats by itself where the package is installed; this is for sessions that
    were started before it was, and for those who like it said.
    """
    from pyspark.errors import AnalysisException

    for source in every_format():
        try:
            spark.dataSource.register(source)
        except AnalysisException as error:
            # 4.0 refuses a name that it has found by itself already; later ones replace it.
            if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise
