"""Options as they are handed to Spark, which shows them: secrets by their references. Driver."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from krishiv_spark.jobs.places import DataPlace
from krishiv_spark.options.references import Referenced, variables
from krishiv_spark.spark.jvm import is_jvm_here, variable_of_jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["options_for"]


def options_for(spark: SparkSession, place: DataPlace) -> dict[str, str]:
    """The options of a place as Spark shall see them.

    What a depot takes from elsewhere is handed on by its name, if the connector can look it up:
    not of Spark's own formats, and not where Spark runs elsewhere.
    """
    given = dict(place.options)
    named = {key: text for key, text in given.items() if isinstance(text, Referenced)}
    if not (named and place.is_ours and is_jvm_here(spark)):
        return given
    references = {key: t.reference for key, t in named.items() if _is_found(spark, t)}
    return {**given, **references}


def _is_found(spark: SparkSession, text: Referenced) -> bool:
    # The JVM may have begun before a variable was set.
    names = variables(text.reference)
    return all(variable_of_jvm(spark, name) == os.environ.get(name) for name in names)
