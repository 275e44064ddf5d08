"""Options as they are handed to Spark, which shows them: secrets by their references. Driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from krishiv_spark.jobs.places import DataPlace
from krishiv_spark.jvm import environment_of_jvm
from krishiv_spark.references import Referenced

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["options_for"]


def options_for(spark: SparkSession, place: DataPlace) -> dict[str, str]:
    """The options of a place as Spark shall see them.

    What a depot takes from elsewhere is handed on by its name, if the connector can look it up:
    not of Spark's own formats, and not where Spark runs elsewhere.
    """
    environment = environment_of_jvm(spark) if place.is_ours else None
    if environment is None:
        return dict(place.options)
    return {key: _handed(text, environment) for key, text in place.options.items()}


def _handed(text: str, environment: Mapping[str, str]) -> str:
    if not isinstance(text, Referenced):
        return text
    name = text.reference.partition("${env:")[2].removesuffix("}")
    # The JVM may have begun before the variable was set.
    is_there = not name or environment.get(name) == str(text)
    return text.reference if is_there else str(text)
