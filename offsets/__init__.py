"""Where a query stands: positions, watermarks, committed epochs."""

from krishiv_spark.offsets.offset import Offset, Start, Value, Watermark, canonical_json

__all__ = ["Offset", "Start", "Value", "Watermark", "canonical_json"]
