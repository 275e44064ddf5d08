"""Values of partition columns, at their edges."""

import datetime as dt
from decimal import Decimal

import pyarrow as pa
from value_cases import UTC

_FIRST, _LAST = dt.datetime.min, dt.datetime.max  # noqa: DTZ901  without a zone, as the type
_TIMES = [
    _FIRST,
    dt.datetime(1883, 11, 18, 12, 0, 0, 1),  # noqa: DTZ001
    dt.datetime(1969, 12, 31, 23, 59, 59, 999_999),  # noqa: DTZ001
    dt.datetime(2020, 1, 1, 5),  # noqa: DTZ001
    dt.datetime(2020, 11, 1, 5, 30, 0, 120_000),  # noqa: DTZ001  twice that day in New York
    _LAST,
    None,
]
_FLOATS = [0.0, -0.0, 0.5, 1.0, 1e-7, 1e20, -123456789.125, float("inf"), float("-inf")]
_TEXTS = [
    *("", "a", "A", "1", "007", "a/b=c%d", "%41", "a:b", "ü 日", " x ", ".", "..", "a\nb", "\x7f"),
    *("true", "2020-01-01", "null", "__HIVE_DEFAULT_PARTITION__", "x" * 200, None),
]

PARTITIONS = {
    "boolean": pa.array([True, False, None]),
    "tinyint": pa.array([-128, 0, 127, None], pa.int8()),
    "smallint": pa.array([-(2**15), 2**15 - 1], pa.int16()),
    "int": pa.array([-(2**31), 2**31 - 1], pa.int32()),
    "bigint": pa.array([-(2**63), 2**63 - 1], pa.int64()),
    "float": pa.array([*_FLOATS, float("nan"), 0.1, None], pa.float32()),
    "double": pa.array([*_FLOATS, float("nan"), 0.1, 1e300, 5e-324, None]),
    "decimal(5,2)": pa.array([Decimal("-999.99"), Decimal("0.00"), None], pa.decimal128(5, 2)),
    "decimal(38,18)": pa.array(
        [Decimal("99999999999999999999.999999999999999999"), Decimal("1e-18"), Decimal(0)],
        pa.decimal128(38, 18),
    ),
    "date": pa.array([dt.date.min, dt.date(1582, 10, 10), dt.date(1970, 1, 1), dt.date.max, None]),
    "timestamp": pa.array(_TIMES, pa.timestamp("us")).cast(UTC),
    "timestamp_ntz": pa.array(_TIMES, pa.timestamp("us")),
    "time(6)": pa.array([0, 45_296_789_000_000, 86_399_999_999_000, None], pa.time64("ns")),
    "string": pa.array(_TEXTS),
}
"""By type, as Spark writes it."""

ZONES = ("UTC", "America/New_York", "Asia/Kolkata")
"""Zones of sessions."""
