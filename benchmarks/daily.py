"""The cost of a day of a sink, computed from the recorded counts: ``python -m benchmarks.daily``.

The counts (``benchmarks/counts.json``) are those of an epoch and of a row in the three roles of a
sink: planner, task and committer. Spark's own work, the source and the brokers are not included.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.counts.effort import loop_seconds
from benchmarks.counts.record import Record, newest_of
from benchmarks.report.words import number

__all__ = ["SINKS", "Day", "Sink", "main"]

_DAY_S = 86_400
_ROWS = (1_000_000, 100_000_000, 10_000_000_000)
_EFFORT = "processor time of "
_OF_EPOCHS = f"{_EFFORT}20 epochs"
_REQUESTS = ("requests", "statements")
_PACKAGED = 1_000_000
"""Bytes of a request with rows to Kafka (`max.request.size`)."""

_PART = 8 * 2**20
"""Bytes of a part of an upload."""


@dataclass(frozen=True)
class Sink:
    """The recorded counts of a sink.

    Attributes:
        name: For the table.
        epoch: Case with the counts of an epoch without many rows.
        rows: Case with the processor time of many rows, and their number.
        package: Bytes of rows in a request; 0 if rows go to a disk.
        effort: Case with the processor time of an epoch; empty if none is recorded.
    """

    name: str
    epoch: str
    rows: tuple[str, int]
    package: int = 0
    effort: str = ""


_PARQUET, _ICEBERG, _KAFKA = (
    ("rows.parquet", 200_000),
    ("rows.iceberg", 200_000),
    ("rows.kafka", 50_000),
)

SINKS = (
    Sink("krishiv-parquet, disk", "sink.parquet", _PARQUET, 0, "sink.parquet"),
    Sink("krishiv-parquet, S3", "sink.parquet.store", _PARQUET, _PART, "sink.parquet"),
    Sink("krishiv-iceberg, disk", "sink.iceberg", _ICEBERG, 0, "sink.iceberg"),
    Sink("krishiv-kafka", "sink.kafka", _KAFKA, _PACKAGED),
)


@dataclass(frozen=True)
class Day:
    """The load of a day.

    Attributes:
        rows: In all.
        every: Seconds from one epoch to the next.
        row_bytes: Stored bytes of a row, compressed.
        loop: Seconds of a core that the loop of the counts takes on this machine (`effort`).
    """

    rows: int
    every: float
    row_bytes: float
    loop: float

    @property
    def epochs(self) -> float:
        """Epochs in a day."""
        return _DAY_S / self.every

    def cpu_seconds(self, sink: Sink, cases: Mapping[str, Any]) -> float:
        """Return the seconds of a core in Python."""
        case, rows = sink.rows
        loops = self.rows * _value(cases[case], f"{_EFFORT}{rows:,} rows") / rows
        if sink.effort:
            loops += self.epochs * _value(cases[sink.effort], _OF_EPOCHS) / 20
        return loops * self.loop

    def requests(self, sink: Sink, cases: Mapping[str, Any]) -> float:
        """Return the requests to a store, a catalog or brokers."""
        kept = cases[sink.epoch].values()
        of_epochs = self.epochs * sum(newest_of(k) for k in kept if k["unit"] in _REQUESTS)
        return of_epochs + (self.rows * self.row_bytes / sink.package if sink.package else 0)

    def written(self, sink: Sink, cases: Mapping[str, Any]) -> float:
        """Return the bytes that are written or sent, of rows and of metadata."""
        case = cases[sink.epoch]
        of_epochs = sum(_value(case, name) for name in ("bytes written", "bytes sent"))
        return self.epochs * of_epochs + self.rows * self.row_bytes


def _value(case: Mapping[str, Any], prefix: str) -> float:
    """Return the count whose name starts so; 0 if there is none."""
    return next((newest_of(kept) for name, kept in case.items() if name.startswith(prefix)), 0.0)


def _lines(days: Sequence[Day], cases: Mapping[str, Any]) -> Iterator[str]:
    heads = [f"{day.rows:,} rows" for day in days]
    yield f"| CPU s, requests, GB written | {' | '.join(heads)} |"
    yield f"| --- |{' --- |' * len(days)}"
    for sink in SINKS:
        yield f"| {sink.name} | {' | '.join(_cell(day, sink, cases) for day in days)} |"


def _cell(day: Day, sink: Sink, cases: Mapping[str, Any]) -> str:
    requests = day.requests(sink, cases)
    return ", ".join(
        (
            number(day.cpu_seconds(sink, cases)),
            f"{requests:,.0f}" if requests else "-",
            number(day.written(sink, cases) / 1e9),
        )
    )


def main(given: Sequence[str] | None = None) -> None:
    """Print a table of the cost of a day, for 1 million, 100 million and 10 billion rows."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.daily", description=main.__doc__)
    parser.add_argument("--every", type=float, default=10, help="seconds between epochs")
    parser.add_argument("--row-bytes", type=float, default=100, help="stored bytes of a row")
    parser.add_argument("--rows", type=int, nargs="*", default=_ROWS, help="rows of a day")
    options = parser.parse_args(given)
    loop = loop_seconds()
    days = [Day(rows, options.every, options.row_bytes, loop) for rows in options.rows]
    print("\n".join(_lines(days, Record.load().cases)))
    print(f"\nAn epoch every {options.every:g} s, rows of {options.row_bytes:g} bytes as stored.")
    print(f"The loop of the counts takes {loop * 1000:.0f} ms of a core here.")


if __name__ == "__main__":
    main()
