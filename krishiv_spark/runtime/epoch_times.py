"""Milliseconds since 1970 UTC as times, including those outside of Python's `datetime`."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

__all__ = ["format_time", "to_datetime"]

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_FIRST = datetime.min.replace(tzinfo=timezone.utc)
_LAST = datetime.max.replace(tzinfo=timezone.utc)


def to_datetime(ms: int) -> datetime:
    """Return a time in UTC; times outside of Python's range become its first or last one."""
    try:
        return _EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return _LAST if ms > 0 else _FIRST


def format_time(ms: int) -> str:
    """Return a time as ISO 8601 in UTC, or as a number if it is outside of Python's range."""
    found = to_datetime(ms)
    if found in (_FIRST, _LAST):
        return f"{ms} ms since 1970"
    return found.isoformat(timespec="milliseconds")
