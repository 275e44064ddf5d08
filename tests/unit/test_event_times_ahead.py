"""Event times far past the clock, in every source: they are read, counted, and move nothing."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from iceberg_reading import Stream
from iceberg_tables import append, make_table

from krishiv_spark.errors import OffsetError, OptionError
from krishiv_spark.lifecycle.read import RowSchema, stream_read
from krishiv_spark.offsets import watermark as watermarks
from krishiv_spark.offsets.offset import Watermark
from krishiv_spark.offsets.watermark import EventTimeLimit
from krishiv_spark.operate.inspection.positions import format_moment
from krishiv_spark.parquet.calendars import TimeRules
from krishiv_spark.parquet.footers import read_footer
from krishiv_spark.queries import SourceProgress
from krishiv_spark.sources.base import UNLIMITED
from krishiv_spark.sources.chain.options import ChainOptions
from krishiv_spark.sources.memory.handle import memory_source
from krishiv_spark.sources.memory.reader import MemoryReader, MemorySourceOptions
from krishiv_spark.sources.parquet.offset import ParquetOffset
from krishiv_spark.sources.parquet.reader import ParquetReader, ParquetSourceOptions

DAY = 86_400_000
NOW = 1_800_000_000_000
INFINITY, YEAR_2262 = 2**63 - 1, 9_214_646_400_000_000
SCHEMA = pa.schema([("id", pa.int64()), ("t", pa.timestamp("us", "UTC"))])
AHEAD = "event times more than 1 days ahead of the clock"
TIMED = {"eventTime": "t", "watermarkDelay": "10 minutes", "lateRows": "drop"}
TEN_MINUTES = 600_000


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Sets the clock that watermarks are planned by."""

    def set_clock(ms):
        monkeypatch.setattr(watermarks.time, "time_ns", lambda: ms * 1_000_000)

    set_clock(NOW)
    return set_clock


def rows(*pairs):
    ids, times = zip(*pairs, strict=True)
    return pa.table({"id": ids, "t": times}, schema=SCHEMA)


# --- Parquet


def put(folder, name, table, **options):
    pq.write_table(table, folder / name, **options)


def parquet(folder, **options):
    options = ParquetSourceOptions.parse(
        {"path": str(folder), **TIMED, **options}, "krishiv-parquet"
    )
    source = ParquetReader(options, SCHEMA, streaming=True)
    return source, stream_read(source, RowSchema.from_reader(SCHEMA, options))


def trigger(read, start):
    """One batch as Spark asks for it: its ids, and the offset where it ends."""
    end = read.latestOffset(start, read.getDefaultReadLimit())
    batches = [batch for part in read.partitions(start, end) for batch in read.read(part)]
    return sorted(n for batch in batches for n in batch.column("id").to_pylist()), end


@pytest.mark.parametrize("last", [INFINITY, YEAR_2262], ids=["infinity", "the year 2262"])
def test_one_time_at_the_end_does_not_drop_what_comes_later(tmp_path, last):
    put(tmp_path, "a.parquet", rows((1, last), (2, 1_700_000_000_000_000)))
    source, read = parquet(tmp_path)
    found, end = trigger(read, read.initialOffset())
    assert found == [1, 2]
    assert end["watermark"].keys() == {"held"}
    assert f"1 {AHEAD}" in end["watermark"]["held"]
    put(tmp_path, "b.parquet", rows((3, 1_700_000_100_000_000), (4, 1_800_000_000_000_000)))
    found, end = trigger(read, end)
    assert found == [3, 4]
    assert end["watermark"] == {"ms": NOW - TEN_MINUTES}
    put(tmp_path, "c.parquet", rows((5, 1_700_000_000_000_000), (6, 1_800_000_000_000_000)))
    assert trigger(read, end)[0] == [6]
    assert source.backlog()["event_times_ahead"] == 1


def test_the_other_row_groups_of_a_file_count(tmp_path):
    table = rows((1, 5_000), (2, INFINITY), (3, 9_000), (4, YEAR_2262))
    put(tmp_path, "a.parquet", table, row_group_size=1)
    source, read = parquet(tmp_path, watermarkDelay="0 ms")
    end = trigger(read, read.initialOffset())[1]
    assert end["watermark"]["ms"] == 9
    assert f"2 {AHEAD}" in end["watermark"]["held"]
    assert "up to 9223372036854775 ms" in end["watermark"]["held"]
    assert source.backlog()["event_times_ahead"] == 2


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([2**31 - 1, 3], pa.int32()).cast(pa.date32()), 3 * DAY),
        (pa.array([2**63 - 1, 7], pa.timestamp("ms")), 7),
        (pa.array([2**63 - 1, 7_000_000], pa.timestamp("ns")), 7),
        (pa.array([-(2**63), 7_000], pa.timestamp("us")), 7),
    ],
    ids=["date", "ms", "ns", "before"],
)
@pytest.mark.parametrize("zone", [None, "America/New_York"])
def test_every_type_has_an_end(tmp_path, column, expected, zone):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"t": column}), path, row_group_size=1)
    limit = EventTimeLimit(NOW, DAY)
    footer = read_footer(str(path), "t", TimeRules(zone=zone), limit=limit)
    assert (footer.rows, footer.newest_ms, footer.unknown) == (2, expected, None)


def test_a_partition_column_at_the_end_moves_nothing(tmp_path):
    for day in ("1970-01-03", "9999-12-31"):
        (tmp_path / f"t={day}").mkdir()
        pq.write_table(pa.table({"id": [1]}), tmp_path / f"t={day}/a.parquet")
    source = parquet(tmp_path)[0]
    source.schema = pa.schema([("id", pa.int64()), ("t", pa.date32())])
    end = source.latest(ParquetOffset(), UNLIMITED)
    assert end.watermark.ms == 2 * DAY - TEN_MINUTES
    assert "up to 9999-12-31T00:00:00" in end.watermark.held


def test_a_batch_that_is_read_again_reads_no_clock(tmp_path, clock, monkeypatch):
    """The driver dies between planning and commit, and its successor has another clock."""
    put(tmp_path, "a.parquet", rows((1, 1_700_000_000_000_000)))
    read = parquet(tmp_path)[1]
    start = trigger(read, read.initialOffset())[1]
    put(tmp_path, "b.parquet", rows((2, YEAR_2262), (3, 1_600_000_000_000_000)))
    found, end = trigger(read, start)
    assert found == [2]

    def refuse():
        raise AssertionError("the clock is read")

    again = parquet(tmp_path)[1]
    monkeypatch.setattr(watermarks.time, "time_ns", refuse)
    parts = again.partitions(start, end)
    ids = [n for part in parts for b in again.read(part) for n in b.column("id").to_pylist()]
    assert ids == [2]
    # What was planned but not logged may be planned otherwise.
    monkeypatch.undo()
    clock(YEAR_2262 // 1000)
    other = parquet(tmp_path)[1]
    assert trigger(other, start)[1]["watermark"]["ms"] == YEAR_2262 // 1000 - TEN_MINUTES


def test_the_option_says_how_far_ahead_times_may_be(tmp_path):
    put(tmp_path, "a.parquet", rows((1, (NOW + 5 * DAY) * 1000)))
    for ahead, expected in {"5 days": NOW + 5 * DAY - TEN_MINUTES, "119 h": None}.items():
        source = parquet(tmp_path, maxEventTimeAhead=ahead)[0]
        assert source.latest(ParquetOffset(), UNLIMITED).watermark.ms == expected


@pytest.mark.parametrize("policy", ["drop", "flag"])
def test_a_watermark_of_an_older_release_at_the_end_of_time_drops_nothing(tmp_path, policy):
    put(tmp_path, "a.parquet", rows((1, INFINITY)))
    read = parquet(tmp_path)[1]
    end = trigger(read, read.initialOffset())[1]
    old = {**end, "watermark": {"ms": INFINITY // 1000 - TEN_MINUTES}}
    put(tmp_path, "b.parquet", rows((2, 1_700_000_000_000_000)))
    said = rf"would {policy} nearly all rows: no batch was planned.*checkpoint rewind"
    with pytest.raises(OffsetError, match=said):
        trigger(parquet(tmp_path, lateRows=policy)[1], old)
    found, later = trigger(parquet(tmp_path, lateRows="keep")[1], old)
    assert found == [2]
    assert later["watermark"]["ms"] == old["watermark"]["ms"]  # it never moves back


# --- the other sources


def test_memory_counts_rows(tmp_path, monkeypatch):
    monkeypatch.setenv("KRISHIV_MEMORY_DIR", str(tmp_path / "store"))
    pushes = memory_source("ends", SCHEMA)
    options = MemorySourceOptions.parse({"name": "ends", **TIMED}, "krishiv-memory")
    source = MemoryReader(options, SCHEMA, streaming=True)
    pushes.add(rows((1, YEAR_2262), (2, None), (3, INFINITY), (4, 900_000_000), (5, -INFINITY)))
    end = source.latest(source.initial(), UNLIMITED)
    assert end.watermark.ms == 300_000
    assert f"2 {AHEAD}" in end.watermark.held
    assert source.backlog()["event_times_ahead"] == 2
    pushes.add(rows((6, None), (7, INFINITY)))
    end = source.latest(end, UNLIMITED)
    assert end.watermark.ms == 300_000
    pushes.add(rows((8, 1_000_000_000)))
    assert source.latest(end, UNLIMITED).watermark == Watermark(ms=400_000)
    assert source.backlog() == {"kind": "memory", "next": 3, "v": 1, "event_times_ahead": 3}


def test_a_file_of_iceberg_whose_bound_is_ahead_moves_nothing(tmp_path):
    make_table(tmp_path, SCHEMA)
    append(tmp_path, rows((1, YEAR_2262), (2, 5_000_000)))
    stream = Stream(tmp_path, eventTime="t")
    assert stream.trigger() == [1, 2]
    assert stream.at.watermark.ms is None
    assert f"1 {AHEAD}" in stream.at.watermark.held
    append(tmp_path, rows((3, 9_000_000)))
    assert stream.trigger() == [3]
    assert stream.at.watermark == Watermark(ms=9_000)
    assert stream.source.backlog()["event_times_ahead"] == 1


def test_the_chain_hands_the_option_to_the_topics():
    given = {
        "path": "db.t",
        "first.warehouse": "/nowhere",
        "then.kafka.bootstrap.servers": "127.0.0.1:1",
        "then.subscribe": "a",
        "eventTime": "timestamp",
        "maxEventTimeAhead": "3 h",
    }
    then = ChainOptions.parse(given, "krishiv-chain").part("then")
    assert then.max_event_time_ahead == 3 * 3_600_000
    with pytest.raises(OptionError, match="set 'maxEventTimeAhead' instead, for both"):
        ChainOptions.parse({**given, "then.maxEventTimeAhead": "1 h"}, "krishiv-chain")


def test_progress_and_status_show_a_watermark_at_the_end_of_time():
    offset = ParquetOffset(watermark=Watermark(ms=INFINITY // 1000))
    progress = SourceProgress.of({"description": "x", "endOffset": offset.to_json()})
    assert progress.watermark.isoformat() == "9999-12-31T23:59:59.999999+00:00"
    assert format_moment(INFINITY // 1000) == "9223372036854775 ms since 1970"
