"""Where a query stands: positions, watermarks, committed epochs."""

from krishiv_spark.offsets.epochs import EpochLog, State, open_log
from krishiv_spark.offsets.offset import Offset, Start, Value, Watermark, canonical_json

__all__ = [
    "EpochLog",
    "Offset",
    "Start",
    "State",
    "Value",
    "Watermark",
    "canonical_json",
    "open_log",
]
