"""Watermarks: they never move back, and late is strictly below."""

import datetime as dt
import time

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from krishiv_spark.errors import OffsetError, SchemaError
from krishiv_spark.offsets import Watermark
from krishiv_spark.offsets import watermark as watermarks
from krishiv_spark.offsets.watermark import (
    LATE_COLUMN,
    EventTimeLimit,
    EventTimes,
    WatermarkPlanner,
    advance,
    check_event_time,
    check_watermark,
    epoch_ms,
    is_ahead,
    judge,
)
from krishiv_spark.runtime.epoch_times import format_time, to_datetime

# From the year 1 to the year 9999, in milliseconds: what Spark can hold.
instants = st.integers(-62_135_596_800_000, 253_402_300_799_999)
TIMES = {
    "us": pa.timestamp("us"),
    "us utc": pa.timestamp("us", "UTC"),
    "us new york": pa.timestamp("us", "America/New_York"),
    "ms": pa.timestamp("ms"),
    "s": pa.timestamp("s"),
    "date32": pa.date32(),
    "date64": pa.date64(),
}
DAY = 86_400_000
UNIT = {"s": 1_000, "ms": 1, "us": 1, "date32": DAY, "date64": DAY}


@given(
    st.lists(st.tuples(st.none() | instants, st.integers(0, 10 * DAY), st.none() | st.just("why")))
)
def test_a_watermark_never_moves_back_and_never_passes_what_was_seen(steps):
    mark, newest_seen = None, None
    for newest, delay, held in steps:
        before = None if mark is None else mark.ms
        mark = advance(mark, newest, delay, held)
        if newest is not None:
            newest_seen = newest if newest_seen is None else max(newest_seen, newest)
        if before is not None:
            assert mark.ms >= before
        assert (mark.ms is None) == (newest_seen is None)
        assert mark.ms is None or mark.ms <= newest_seen
        assert newest is None or mark.ms >= newest - delay
        assert newest is not None or (mark.ms == before and mark.held)


def test_a_batch_without_event_time_holds_the_watermark_and_says_why():
    assert advance(Watermark(ms=5), None, 0) == Watermark(ms=5, held="no event time in the batch")
    assert advance(Watermark(ms=5), None, 0, "no statistics").held == "no statistics"
    assert advance(Watermark(ms=5, held="x"), 9, 1) == Watermark(ms=8)


def times(kind: pa.DataType, milliseconds: list[int | None]) -> pa.Array:
    return pa.array(milliseconds, pa.int64()).cast(pa.timestamp("ms")).cast(kind, safe=False)


def floored(milliseconds: int, kind: str) -> int:
    unit = UNIT[kind.split(" ", maxsplit=1)[0]]
    return milliseconds // unit * unit


@pytest.mark.long
@pytest.mark.parametrize("kind", TIMES)
@given(st.lists(st.none() | instants, max_size=6), instants)
def test_late_is_strictly_below_and_null_is_never_late(kind, milliseconds, mark):
    milliseconds = [None if ms is None else floored(ms, kind) for ms in milliseconds]
    milliseconds += [floored(mark, kind), None]
    batch = pa.record_batch(
        {"at": times(TIMES[kind], milliseconds), "n": [*range(len(milliseconds))]}
    )
    expected = [ms is not None and ms < mark for ms in milliseconds]

    flagged = judge(batch, "at", "flag", mark)
    assert flagged.column(LATE_COLUMN).to_pylist() == expected
    assert not flagged.schema.field(LATE_COLUMN).nullable
    assert flagged.drop_columns([LATE_COLUMN]).equals(batch)

    kept = judge(batch, "at", "drop", mark)
    assert kept.column("n").to_pylist() == [n for n, late in enumerate(expected) if not late]
    assert kept.schema == batch.schema
    assert judge(batch, "at", "keep", mark) is batch


@pytest.mark.parametrize("policy", ["keep", "drop", "flag"])
def test_nothing_is_late_before_there_is_a_watermark(policy):
    batch = pa.record_batch({"at": times(TIMES["us"], [-DAY, None, 0])})
    judged = judge(batch, "at", policy, None)
    assert judged.column("at").equals(batch.column("at"))
    if policy == "flag":
        assert judged.column(LATE_COLUMN).to_pylist() == [False, False, False]


@pytest.mark.parametrize("policy", ["keep", "drop", "flag"])
def test_an_empty_batch_stays_empty(policy):
    assert judge(pa.record_batch({"at": times(TIMES["us"], [])}), "at", policy, 0).num_rows == 0


def test_a_microsecond_below_the_watermark_is_late():
    at = pa.array([-1, 0, 1], pa.timestamp("us", "UTC"))
    flags = judge(pa.record_batch({"at": at}), "at", "flag", 0).column(LATE_COLUMN)
    assert flags.to_pylist() == [True, False, False]


def test_an_instant_in_a_zone_is_compared_as_an_instant():
    zone = dt.timezone(dt.timedelta(hours=-5))
    at = pa.array([dt.datetime(2013, 1, 1, tzinfo=zone)], pa.timestamp("us", "America/New_York"))
    five_utc = 1_357_016_400_000
    batch = pa.record_batch({"at": at})
    assert judge(batch, "at", "drop", five_utc).num_rows == 1
    assert judge(batch, "at", "drop", five_utc + 1).num_rows == 0


# --- the ends of time

INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
ENDS = [-(2**63), -(2**63) + 1, -(2**31), 0, 2**31 - 1, 2**63 - 2, 2**63 - 1]
NOW = 1_700_000_000_000


def clock_at(monkeypatch, ms):
    monkeypatch.setattr(watermarks.time, "time_ns", lambda: ms * 1_000_000)


@pytest.mark.parametrize(("unit", "per", "of"), [("s", 1000, 1), ("ms", 1, 1), ("us", 1, 1000)])
@given(st.lists(INT64 | st.sampled_from(ENDS), min_size=1), st.integers(-(2**66), 2**66))
def test_any_time_is_compared_with_any_watermark_as_a_number(unit, per, of, numbers, mark):
    batch = pa.record_batch({"at": pa.array(numbers, pa.timestamp(unit))})
    late = judge(batch, "at", "flag", mark).column(LATE_COLUMN).to_pylist()
    assert late == [number * per < mark * of for number in numbers]
    ahead = is_ahead(batch.column("at"), EventTimeLimit(mark, 0)).to_pylist()
    assert ahead == [number * per // of > mark for number in numbers]
    assert [epoch_ms(time) for time in batch.column("at")] == [n * per // of for n in numbers]


@given(st.lists(INT32, min_size=1), st.integers(-(2**62), 2**62))
def test_any_date_is_compared_with_any_watermark_as_a_number(days, mark):
    batch = pa.record_batch({"at": pa.array(days, pa.int32()).cast(pa.date32())})
    late = judge(batch, "at", "flag", mark).column(LATE_COLUMN).to_pylist()
    assert late == [day * DAY < mark for day in days]
    assert [epoch_ms(date) for date in batch.column("at")] == [day * DAY for day in days]


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000+00:00"),
        (253_402_300_799_998, "9999-12-31T23:59:59.998+00:00"),
        (9_223_372_036_854_775, "9223372036854775 ms since 1970"),
        (-9_223_372_036_854_776, "-9223372036854776 ms since 1970"),
        (2**70, f"{2**70} ms since 1970"),
    ],
)
def test_any_time_can_be_shown(ms, text):
    assert format_time(ms) == text
    assert to_datetime(ms).tzinfo is dt.timezone.utc


# --- event times that are too far ahead


@given(
    st.lists(
        st.tuples(instants, st.lists(INT64 | instants), st.none() | st.just("why")), max_size=8
    ),
    st.integers(0, 10 * DAY),
    st.integers(0, 10 * DAY),
)
def test_whatever_the_clock_does_no_time_past_it_moves_the_watermark(steps, delay, max_ahead):
    """The clock of each batch may be before or after that of the batch before."""
    planner, mark, ahead = WatermarkPlanner(delay, max_ahead), None, 0
    for now, times, held in steps:
        limit = EventTimeLimit(now + max_ahead, max_ahead)
        before = None if mark is None else mark.ms
        counted = [ms for ms in times if ms <= now + max_ahead]
        ahead += len(times) - len(counted)
        mark = planner.advance(mark, limit.sort(times), limit, held)
        reached = [max(counted) - delay] if counted else []
        known = reached if before is None else [before, *reached]
        assert mark.ms == max(known, default=None)
        assert (mark.held is None) == (
            len(counted) == len(times) and held is None and counted != []
        )
        # What a release without the option reads, too, and the same again.
        assert mark.model_dump(exclude_none=True).keys() <= {"ms", "held"}
        assert Watermark.model_validate_json(mark.model_dump_json(exclude_none=True)) == mark
    assert planner.report() == ({"event_times_ahead": ahead} if ahead else {})


@given(st.lists(st.lists(INT64)), INT64)
def test_parts_of_a_batch_count_as_the_whole_does(parts, newest):
    limit = EventTimeLimit(newest, 0)
    merged = EventTimes.merge(map(limit.sort, parts))
    assert merged == limit.sort(ms for part in parts for ms in part)


def test_authors_give_the_newest_time_and_the_option(monkeypatch):
    clock_at(monkeypatch, NOW)
    mark = advance(Watermark(ms=5), NOW + DAY, 10, max_ahead_ms=DAY)
    assert mark == Watermark(ms=NOW + DAY - 10)
    later = advance(mark, 9_214_646_400_000, 10, max_ahead_ms=DAY)
    assert later.ms == mark.ms
    assert later.held == (
        "1 event times more than 1 days ahead of the clock (option 'maxEventTimeAhead') are "
        "ignored, up to 2262-01-01T00:00:00.000+00:00"
    )
    assert advance(mark, NOW + 2 * DAY, 0, max_ahead_ms=2 * DAY).ms == NOW + 2 * DAY


def test_a_clock_that_goes_back_holds_the_watermark_until_it_is_right_again(monkeypatch):
    clock_at(monkeypatch, NOW)
    mark = advance(None, NOW, 0, max_ahead_ms=DAY)
    clock_at(monkeypatch, NOW - 10 * DAY)
    held = advance(mark, NOW + 1000, 0, max_ahead_ms=DAY)
    assert held.ms == NOW
    assert "ahead of the clock" in held.held
    clock_at(monkeypatch, NOW + 2000)
    assert advance(held, NOW + 2000, 0, max_ahead_ms=DAY) == Watermark(ms=NOW + 2000)


def test_rows_are_not_dropped_or_flagged_by_a_watermark_at_the_end_of_time(monkeypatch):
    clock_at(monkeypatch, NOW)
    end = Watermark(ms=9_223_372_036_854_775)
    check_watermark(end, "keep", DAY)
    for fine in (None, Watermark(), Watermark(ms=NOW + DAY)):
        check_watermark(fine, "drop", DAY)
    check_watermark(end, "drop", 10**16)
    for policy in ("drop", "flag"):
        with pytest.raises(OffsetError, match="9223372036854775 ms since 1970, is more than 1 da"):
            check_watermark(end, policy, DAY)


# --- milliseconds


@given(st.integers(-(2**62), 2**62), st.sampled_from(["s", "ms", "us", "ns"]), st.booleans())
def test_milliseconds_are_rounded_down_whatever_the_unit(value, unit, zoned):
    per_ms = {"us": 1_000, "ns": 1_000_000}.get(unit, 1)
    value = value if unit == "ns" else value // 1_000_000
    times_ms = {"s": 1_000}.get(unit, 1)
    scalar = pa.scalar(value, pa.timestamp(unit, "Asia/Tokyo" if zoned else None))
    assert epoch_ms(scalar) == value * times_ms // per_ms


@pytest.mark.parametrize("kind", [pa.date32(), pa.date64()], ids=str)
@given(st.dates())
def test_a_date_is_its_midnight_in_utc(kind, date):
    days = date.toordinal() - dt.date(1970, 1, 1).toordinal()
    assert epoch_ms(pa.scalar(date, kind)) == days * DAY


# --- the column


@pytest.mark.parametrize("kind", TIMES.values(), ids=str)
def test_times_and_dates_can_be_event_times(kind):
    check_event_time("at", pa.schema([("at", kind)]))


@pytest.mark.parametrize(
    "kind", [pa.int64(), pa.string(), pa.time64("us"), pa.duration("us"), pa.bool_()], ids=str
)
def test_what_holds_no_time_is_refused_by_name(kind):
    with pytest.raises(SchemaError, match="'at' of type"):
        check_event_time("at", pa.schema([("at", kind)]))


def test_a_missing_event_time_lists_the_columns():
    with pytest.raises(SchemaError, match="'at', but the columns are a, b"):
        check_event_time("at", pa.schema([("a", pa.int64()), ("b", pa.int64())]))


@pytest.mark.parametrize("ahead", [0, DAY])
def test_a_clock_that_is_a_little_behind_the_one_of_the_batch_before_stops_no_query(
    monkeypatch, ahead
):
    """It was set, or the query went on on another machine; rows would be late by no more."""
    planner = WatermarkPlanner(0, ahead)
    limit = planner.limit()
    end = planner.advance(None, limit.sort([limit.newest_ms]), limit)
    assert end.ms == limit.newest_ms
    now = time.time_ns()
    for behind_s in (1, 30, 590):
        monkeypatch.setattr(time, "time_ns", lambda at=now - behind_s * 10**9: at)
        check_watermark(end, "drop", ahead)
    monkeypatch.setattr(time, "time_ns", lambda: now - 700 * 10**9)
    with pytest.raises(OffsetError, match="ahead of the clock of this machine"):
        check_watermark(end, "drop", ahead)
