"""The format ``krishiv-sketch``."""

from __future__ import annotations

from krishiv_spark.datasource import KrishivDataSource
from krishiv_spark.sinks.sketch.writer import SketchWriter
from krishiv_spark.sources.sketch.reader import SketchReader

__all__ = ["SketchDataSource"]


class SketchDataSource(KrishivDataSource):
    """``krishiv-sketch``: what it reads and writes."""

    format_name = "krishiv-sketch"
    reader_type = SketchReader
    writer_type = SketchWriter
