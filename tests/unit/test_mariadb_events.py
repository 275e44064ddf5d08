"""Events of Debezium's MariaDB connector, recorded: incremental snapshots, and a failover by GTID.

Debezium 3.5.0 read MariaDB 10.11 with ``gtid-domain-id`` = 1. Events 5 to 8 are an incremental
snapshot of the table. After event 23 the connector was killed, and then read a replica with the
domain 2, which was promoted: events 24 to 30 repeat 17 to 23 with the positions of the replica's
log. The replica's own changes follow.
"""

import datetime as dt
import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from database_life import to_rows
from history_life import EPOCH
from iceberg_life import IcebergLife, table_of

from krishiv_spark.errors import CommitRejected

RECORDED = Path(__file__).parents[1] / "golden/debezium/mariadb.jsonl"
EVENTS = [json.loads(line) for line in RECORDED.read_text().splitlines()]
FAILOVER, PROMOTED = 24, 31
ROWS = [(1, 15, "a"), (3, 31, "cc"), (5, 50, "e"), (6, 60, "f"), (7, 70, "g"), (8, 80, "h")]
"""The rows of the promoted server at the end."""


class Table(IcebergLife):
    """A mirror or a history that epochs of recorded events change."""

    def __init__(self, folder, **given):
        columns = {"keyColumns": "id", "tableSchema": "id INT, n INT, s STRING"}
        super().__init__(folder, path="db.t", changeFormat="debezium", **columns, **given)
        self.folder, self.offset = folder, 0

    def apply(self, events, size):
        for first in range(0, len(events), size):
            some = events[first : first + size]
            sides = [(each["key"], each["value"]) for each in some]
            rows = to_rows([tuple(s and s.encode() for s in pair) for pair in sides], self.offset)
            times = pa.array([each["timestamp"] for each in some], pa.timestamp("ms", "UTC"))
            self.epoch(self.offset, rows.append_column("timestamp", times))
            self.offset += len(some)

    def rows(self):
        return table_of(self.folder, "db.t").scan().to_arrow().to_pylist()

    def versions(self):
        names = ("id", "n", "s", "valid_from", "valid_to", "is_current")
        return Counter(tuple(row[name] for name in names) for row in self.rows())


SIZES = pytest.mark.parametrize(
    "size",
    [37, *(pytest.param(size, marks=pytest.mark.long) for size in (5, 1))],  # up to 37 epochs
)


@SIZES
def test_the_mirror_equals_the_promoted_server(tmp_path, size):
    mirror = Table(tmp_path, mode="upsert")
    mirror.apply(EVENTS, size)
    assert sorted(tuple(row.values()) for row in mirror.rows()) == ROWS


@SIZES
def test_an_incremental_snapshot_opens_no_version(tmp_path, size):
    history = Table(tmp_path, mode="scd2")
    history.apply(EVENTS[:FAILOVER], size)
    assert history.versions() == expect_versions(EVENTS[:FAILOVER])


SAME = "log.000003"
"""The log file of the old server: a file of the new one with this number has higher positions."""


@pytest.mark.long
@pytest.mark.parametrize(("log", "count"), [("log.000001", 7), (SAME, 1), ("log.000009", 6)])
def test_repeated_events_of_a_promoted_server_are_unclear(tmp_path, log, count):
    """They have other positions, and its first change is in the second of the last one before."""
    history = Table(tmp_path, mode="scd2")
    history.apply(EVENTS[:FAILOVER], 37)
    with pytest.raises(CommitRejected, match=rf"{count} events are neither new nor repeated"):
        history.apply([move(each, log) for each in EVENTS[FAILOVER:]], 37)
    assert history.versions() == expect_versions(EVENTS[:FAILOVER])


@SIZES
@pytest.mark.parametrize("more", [{}, {"partitionBy": "is_current"}])
@pytest.mark.parametrize("log", ["log.000001", "log.000009"])
def test_a_history_ignores_them_if_the_promoted_server_changes_rows_a_second_later(
    tmp_path, size, log, more
):
    """Its log files may have lower or higher numbers than those of the old server."""
    later = EVENTS[:PROMOTED] + [delay(each) for each in EVENTS[PROMOTED:]]
    later = [move(each, log) if n >= FAILOVER else each for n, each in enumerate(later)]
    history = Table(tmp_path, mode="scd2", unclearEvents="ignore", **more)
    history.apply(later, size)
    assert history.versions() == expect_versions(later[:FAILOVER] + later[PROMOTED:])


@SIZES
@pytest.mark.parametrize("more", [{}, {"partitionBy": "is_current"}])
def test_log_files_of_one_number_repeat_only_a_row_that_one_transaction_changed_twice(
    tmp_path, size, more
):
    later = [move(each, SAME) for each in EVENTS[FAILOVER:]]
    history = Table(tmp_path, mode="scd2", unclearEvents="ignore", **more)
    history.apply(EVENTS[:FAILOVER] + later, size)
    time = EPOCH + dt.timedelta(seconds=1795849605)
    empty = Counter((2, n, "b", time, time, False) for n in (24, 25))
    expected = expect_versions(EVENTS[:FAILOVER] + later[PROMOTED - FAILOVER :])
    assert history.versions() == expected + empty


@pytest.mark.parametrize("log", ["log.000001", "log.000009"])
def test_a_gtid_that_is_used_again_later_is_a_new_change(tmp_path, log):
    """After a reset of the log, numbers of transactions start again."""
    again = [delay(move(each, log)) for each in EVENTS[17:FAILOVER]]
    history = Table(tmp_path, mode="scd2")
    history.apply(EVENTS[:FAILOVER], 37)
    history.apply(again, 37)
    assert history.versions() == expect_versions(EVENTS[:FAILOVER] + again)


def move(event, log):
    """Return an event from another log file, after all positions of the old server."""
    if event["value"] is None:
        return event
    value = json.loads(event["value"])
    value["source"]["file"] = log
    value["source"]["pos"] += 10_000
    return {**event, "value": json.dumps(value)}


def delay(event):
    """Return an event whose change was a second later."""
    if event["value"] is None:
        return event
    value = json.loads(event["value"])
    value["source"]["ts_us"] += 1_000_000
    return {**event, "value": json.dumps(value)}


def expect_versions(events):
    """Return the versions that a loop over events makes, each of which comes once."""
    found, current = [], {}
    for event in events:
        if event["value"] is None:
            continue
        value, key = json.loads(event["value"]), json.loads(event["key"])["id"]
        time = EPOCH + dt.timedelta(microseconds=value["source"]["ts_us"])
        if value["op"] == "r" and key in current:
            continue
        if key in current:
            found.append((*current.pop(key), time, False))
        if value["op"] != "d":
            current[key] = (*value["after"].values(), time)
    return Counter([*found, *((*version, None, True) for version in current.values())])
