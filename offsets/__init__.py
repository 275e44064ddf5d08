"""Where a query stands: positions, watermarks, committed epochs."""

from krishiv_spark.offsets.epochs import Claim, EpochLog, State, open_log, remove_dead_logs
from krishiv_spark.offsets.offset import Offset, Start, Value, Watermark, canonical_json
from krishiv_spark.offsets.planned import PlannedOffsets
from krishiv_spark.offsets.watermark import advance

__all__ = [
    "Claim",
    "EpochLog",
    "Offset",
    "PlannedOffsets",
    "Start",
    "State",
    "Value",
    "Watermark",
    "advance",
    "canonical_json",
    "open_log",
    "remove_dead_logs",
]
