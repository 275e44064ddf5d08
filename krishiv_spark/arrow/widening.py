"""Which types may be read as which: what holds every value of another, and nothing else.

The yardstick is Spark's own Parquet reader (``ParquetVectorUpdaterFactory`` of Spark 4.3): what it
reads without loss is read here, what loses is refused. docs/formats.md says where the two differ.
"""

from __future__ import annotations

import pyarrow as pa

__all__ = ["lacks_zone", "reason", "widens"]


def widens(held: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of one type, not nested, may be read as another.

    The wanted type holds every value, or else Arrow's cast looks at each one: a finer unit of
    time as a coarser one, bytes as text, bytes as so many bytes.
    """
    if pa.types.is_null(held):
        return True
    rules = (_integer, _floating, _decimal, _time, _bytes)
    return held == wanted or any(rule(held, wanted) for rule in rules)


def _integer(held: pa.DataType, wanted: pa.DataType) -> bool:
    if not pa.types.is_integer(held):
        return False
    low, high = _range(held)
    if pa.types.is_integer(wanted):
        least, most = _range(wanted)
        return least <= low and high <= most
    if pa.types.is_decimal(wanted):
        return bool(wanted.precision - wanted.scale >= len(str(high)))
    return pa.types.is_float64(wanted) and high <= _EXACT_IN_DOUBLE


# Beyond it a double does not have every whole number.
_EXACT_IN_DOUBLE = 2**53


def _range(kind: pa.DataType) -> tuple[int, int]:
    if pa.types.is_unsigned_integer(kind):
        return 0, 2**kind.bit_width - 1
    return -(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1


def _floating(held: pa.DataType, wanted: pa.DataType) -> bool:
    both = pa.types.is_floating(held) and pa.types.is_floating(wanted)
    return bool(both and held.bit_width <= wanted.bit_width)


def _decimal(held: pa.DataType, wanted: pa.DataType) -> bool:
    """As many digits before the point and after it, or more."""
    if not (pa.types.is_decimal(held) and pa.types.is_decimal(wanted)):
        return False
    digits = wanted.precision - wanted.scale >= held.precision - held.scale
    return bool(wanted.scale >= held.scale and digits)


def _time(held: pa.DataType, wanted: pa.DataType) -> bool:
    """The same kind of time in any unit; a day as its midnight, where that needs no zone."""
    if pa.types.is_timestamp(wanted):
        if pa.types.is_date(held):
            return wanted.tz is None
        return pa.types.is_timestamp(held) and (held.tz is None) == (wanted.tz is None)
    same = (pa.types.is_date, pa.types.is_time, pa.types.is_duration)
    return any(is_a(held) and is_a(wanted) for is_a in same)


def _bytes(held: pa.DataType, wanted: pa.DataType) -> bool:
    if _is_text(wanted):
        return _is_text(held) or _is_binary(held)
    anything = _is_text(held) or _is_binary(held) or pa.types.is_fixed_size_binary(held)
    if pa.types.is_fixed_size_binary(wanted):
        return _is_binary(held)
    return _is_binary(wanted) and anything


def _is_text(kind: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return any(test(kind) for test in tests)


def _is_binary(kind: pa.DataType) -> bool:
    tests = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
    return any(test(kind) for test in tests)


def lacks_zone(held: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a time is an instant only in some zone that it does not have."""
    both = pa.types.is_timestamp(held) and pa.types.is_timestamp(wanted)
    return bool(both and held.tz is None and wanted.tz is not None)


def reason(held: pa.DataType, wanted: pa.DataType) -> str:
    """Why one type is not read as another, and what to do."""
    what = f"not every {held} is a {wanted}"
    if pa.types.is_timestamp(held) and pa.types.is_timestamp(wanted):
        what = "a time with a zone and one without are different values"
    return f"{what}; read it with the type that it has, and cast it in the query"
