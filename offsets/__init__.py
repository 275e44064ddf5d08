"""The position of a query: offsets, watermarks, committed epochs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from krishiv_spark.runtime.lazy import find

if TYPE_CHECKING:
    from krishiv_spark.offsets.epoch_log import Claim, EpochLog, State, open_log, remove_dead_logs
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

_HOMES = {
    "Claim": "krishiv_spark.offsets.epoch_log",
    "EpochLog": "krishiv_spark.offsets.epoch_log",
    "Offset": "krishiv_spark.offsets.offset",
    "PlannedOffsets": "krishiv_spark.offsets.planned",
    "Start": "krishiv_spark.offsets.offset",
    "State": "krishiv_spark.offsets.epoch_log",
    "Value": "krishiv_spark.offsets.offset",
    "Watermark": "krishiv_spark.offsets.offset",
    "advance": "krishiv_spark.offsets.watermark",
    "canonical_json": "krishiv_spark.offsets.offset",
    "open_log": "krishiv_spark.offsets.epoch_log",
    "remove_dead_logs": "krishiv_spark.offsets.epoch_log",
}


def __getattr__(name: str) -> object:
    # A source needs no epoch log.
    return find(__name__, _HOMES, name)
