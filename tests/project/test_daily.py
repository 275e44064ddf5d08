"""The cost of a day, computed from counts."""

import pytest

from benchmarks import daily
from benchmarks.counts.record import Record
from benchmarks.daily import SINKS, Day, Sink


def test_it_is_that_of_the_epochs_and_of_the_rows():
    cases = {
        "epoch": {
            "PUT": {"unit": "requests", "any": 3.0},
            "looks": {"unit": "looks", "any": 7.0},
            "bytes sent": {"unit": "bytes", "any": 500.0},
            "bytes received": {"unit": "bytes", "any": 900.0},
            "processor time of 20 epochs": {"unit": "x loop", "3.11": 40.0},
        },
        "rows": {"processor time of 1,000 rows": {"unit": "x loop", "3.11": 2.0}},
    }
    sink = Sink("x", "epoch", ("rows", 1000), package=1000, effort="epoch")
    day = Day(rows=50_000, every=864, row_bytes=10, loop=0.5)
    assert day.epochs == 100
    assert day.cpu_seconds(sink, cases) == pytest.approx((100 * 2 + 50 * 2) * 0.5)
    assert day.requests(sink, cases) == 100 * 3 + 500
    assert day.written(sink, cases) == 100 * 500 + 500_000
    assert day.requests(Sink("x", "epoch", ("rows", 1000)), cases) == 300


@pytest.mark.parametrize("sink", SINKS, ids=lambda sink: sink.name)
def test_its_counts_are_recorded(sink):
    cases = Record.load().cases
    none, some = (Day(rows, 10, 100, 1.0) for rows in (0, 200_000))
    assert some.cpu_seconds(sink, cases) > none.cpu_seconds(sink, cases)
    assert (none.cpu_seconds(sink, cases) > 0) == bool(sink.effort)
    assert (none.requests(sink, cases) > 0) == (sink.epoch != "sink.parquet")


def test_the_command_prints_a_line_for_each_sink(capsys, monkeypatch):
    monkeypatch.setattr(daily, "loop_seconds", lambda: 0.01)
    daily.main(["--rows", "10"])
    printed = capsys.readouterr().out
    assert all(f"| {sink.name} | " in printed for sink in SINKS)
    assert "| CPU s, requests, GB written | 10 rows |" in printed
