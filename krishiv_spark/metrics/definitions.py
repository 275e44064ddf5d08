"""The definitions of all metrics: name, help and value. All exporters read them here.

Positions in topics are summed by topic and group of partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import groupby
from typing import Any, TypeAlias

from krishiv_spark.metrics.records import QueryRecord
from krishiv_spark.operate.inspection.positions import offsets_by_topic
from krishiv_spark.queries.handle import QueryState
from krishiv_spark.queries.progress import Progress, SourceProgress

__all__ = ["METRICS", "OF_QUERY", "OTHER_TOPICS", "Metric", "QueryView", "topic_shares"]

_TOPICS = 20
_GROUPS = 10
OTHER_TOPICS = "(others)"
"""The name for all topics after the first twenty. No topic can have this name."""


@dataclass(frozen=True)
class TopicShare:
    """A group of partitions of a topic.

    Attributes:
        topic: The topic, or `OTHER_TOPICS`.
        partitions: One number, such as "3", or a range, such as "0-99".
        position: Sum of the next offsets.
        waiting: Number of offsets after them; None if the source does not report it.
    """

    topic: str
    partitions: str
    position: int
    waiting: int | None


def topic_shares(source: SourceProgress) -> list[TopicShare]:
    """Return the topics' shares of a Kafka source, of this package or Spark; empty for others."""
    ends, newest = offsets_by_topic(source.end), offsets_by_topic(source.latest)
    names = sorted(ends)
    found = [share for name in names[:_TOPICS] for share in _shares(name, ends[name], newest)]
    rest = [_share(OTHER_TOPICS, "", ends[name], newest.get(name)) for name in names[_TOPICS:]]
    return [*found, *_together(rest)]


def _shares(
    topic: str, ends: Mapping[int, int], newest: Mapping[str, Mapping[int, int]]
) -> Iterator[TopicShare]:
    width = -(-(max(ends, default=0) + 1) // _GROUPS)
    for number, members in groupby(sorted(ends), lambda partition: partition // width):
        first = number * width
        name = str(first) if width == 1 else f"{first}-{first + width - 1}"
        yield _share(topic, name, {p: ends[p] for p in members}, newest.get(topic))


def _share(
    topic: str, partitions: str, ends: Mapping[int, int], newest: Mapping[int, int] | None
) -> TopicShare:
    known = None if newest is None else {p: newest[p] for p in ends if p in newest}
    waiting = None if known is None else sum(max(end - ends[p], 0) for p, end in known.items())
    return TopicShare(topic, partitions, sum(ends.values()), waiting)


def _together(shares: list[TopicShare]) -> Iterator[TopicShare]:
    if shares:
        known = [share.waiting for share in shares if share.waiting is not None]
        position = sum(share.position for share in shares)
        yield TopicShare(OTHER_TOPICS, "", position, sum(known) if known else None)


OF_QUERY = ("query_id", "query_name")
"""Labels that every metric has: the query's id, and its ``queryName`` (the id if it has none)."""

MetricSamples: TypeAlias = Iterable[tuple[tuple[str, ...], float]]
"""Values, each with the values of the metric's own labels."""


@dataclass(frozen=True)
class QueryView:
    """The state of one query at one moment.

    Attributes:
        record: The counts of the query.
        progress: Its newest epoch; None before the first.
        now_s: The moment, seconds since 1970.
    """

    record: QueryRecord
    progress: Progress | None
    now_s: float

    @property
    def sources(self) -> tuple[SourceProgress, ...]:
        """The sources as of the newest epoch, or of a later idle report."""
        return self.record.sources

    @cached_property
    def topics(self) -> list[tuple[str, TopicShare]]:
        """The topic shares, each with the index of its source."""
        each = enumerate(self.sources)
        return [(str(place), share) for place, one in each for share in topic_shares(one)]


@dataclass(frozen=True)
class Metric:
    """A metric.

    Attributes:
        name: The name by Prometheus's conventions, without the ``_total`` of a counter.
        says: The help text.
        read: Returns its values for a query.
        labels: Its own labels, in addition to `OF_QUERY`.
        counts: True for a counter, which decreases only when the driver restarts.
    """

    name: str
    says: str
    read: Callable[[QueryView], MetricSamples]
    labels: tuple[str, ...] = ()
    counts: bool = False

    @property
    def full_name(self) -> str:
        """The name for Prometheus."""
        return f"{self.name}_total" if self.counts else self.name

    @property
    def unit(self) -> str:
        """The unit for OpenTelemetry; empty for a number of things."""
        last = self.name.rpartition("_")[2]
        return {"seconds": "s", "bytes": "By"}.get(last, "")

    @property
    def dotted_name(self) -> str:
        """The name for OpenTelemetry, without the unit, which is a separate field."""
        plain = (
            self.name.removesuffix("_seconds").removesuffix("_bytes") if self.unit else self.name
        )
        area, _, rest = plain.removeprefix("krishiv_").partition("_")
        return f"krishiv.{area}.{rest}"


def _one(get: Callable[[QueryView], float | None]) -> Callable[[QueryView], MetricSamples]:
    def read(view: QueryView) -> MetricSamples:
        value = get(view)
        return [] if value is None else [((), value)]

    return read


def _newest(get: Callable[[Progress], float | None]) -> Callable[[QueryView], MetricSamples]:
    return _one(lambda view: None if view.progress is None else get(view.progress))


def _sources(get: Callable[[SourceProgress], float | None]) -> Callable[[QueryView], MetricSamples]:
    def read(view: QueryView) -> Iterator[tuple[tuple[str, ...], float]]:
        for place, source in enumerate(view.sources):
            value = get(source)
            if value is not None:
                yield (str(place), source.kind), value

    return read


def _source_rows(view: QueryView) -> Iterator[tuple[tuple[str, ...], float]]:
    for place, source in enumerate(view.sources):
        yield (str(place), source.kind), view.record.source_rows.get(place, 0)


def _topics(get: Callable[[TopicShare], float | None]) -> Callable[[QueryView], MetricSamples]:
    def read(view: QueryView) -> Iterator[tuple[tuple[str, ...], float]]:
        for source, share in view.topics:
            value = get(share)
            if value is not None:
                yield (source, share.topic, share.partitions), value

    return read


def _states(view: QueryView) -> MetricSamples:
    return [((state.value,), float(view.record.state is state)) for state in QueryState]


def _unix(time: datetime | None) -> float | None:
    return None if time is None else time.timestamp()


def _watermark_age(view: QueryView) -> float | None:
    mark_s = None if view.progress is None else _unix(view.progress.watermark)
    return None if mark_s is None else view.now_s - mark_s


def _read_number(source: SourceProgress, key: str) -> float | None:
    """Return a number from the newest position that a source of this package reports."""
    latest: Any = source.latest
    value = latest.get(key) if isinstance(latest, dict) else None
    return float(value) if isinstance(value, int | float) else None


def _of_query(name: str, says: str, read: Any, *labels: str, counts: bool = False) -> Metric:
    return Metric(f"krishiv_query_{name}", says, read, labels, counts)


def _of_epochs() -> Iterator[Metric]:
    yield _of_query(
        "state", "1 for the current state of the query, 0 for the others.", _states, "state"
    )
    yield _of_query(
        "failures",
        "Failures, by condition: krishiv-spark's error class, or Spark's.",
        lambda view: [((name,), n) for name, n in view.record.failures.items()],
        "condition",
        counts=True,
    )
    yield _of_query(
        "epochs", "Epochs completed by the query.", _one(lambda v: v.record.epochs), counts=True
    )
    yield _of_query(
        "epoch",
        "Number of the newest completed epoch (Spark's batch id).",
        _newest(lambda p: p.epoch),
    )
    yield _of_query(
        "epoch_duration_seconds",
        "Duration of the newest epoch.",
        _newest(lambda p: p.duration.total_seconds()),
    )
    yield _of_query(
        "phase_seconds",
        "Time in each phase of the epochs, by Spark's names; triggerExecution is the total.",
        lambda view: [((name,), s) for name, s in view.record.phases.items()],
        "phase",
        counts=True,
    )


def _of_rows() -> Iterator[Metric]:
    yield _of_query(
        "input_rows", "Rows read by the query.", _one(lambda v: v.record.rows), counts=True
    )
    yield _of_query(
        "output_rows", "Rows written by the query.", _one(lambda v: v.record.written), counts=True
    )
    yield _of_query(
        "late_rows",
        "Late rows that Spark's operators dropped.",
        _one(lambda v: v.record.late),
        counts=True,
    )
    yield _of_query(
        "dead_letters",
        "Rows that became dead letters, by rule, of queries with krishiv_spark.with_rules.",
        lambda view: [((name,), n) for name, n in view.record.dead_letters.items()],
        "rule",
        counts=True,
    )
    yield _of_query(
        "rows_per_second", "Rows per second in the newest epoch.", _newest(lambda p: p.rows_per_s)
    )


def _of_times() -> Iterator[Metric]:
    yield _of_query(
        "watermark_timestamp_seconds",
        "Spark's watermark at the start of the newest epoch.",
        _newest(lambda p: _unix(p.watermark)),
    )
    yield _of_query(
        "watermark_age_seconds",
        "Difference between the clock and Spark's watermark.",
        _one(_watermark_age),
    )
    yield _of_query(
        "last_progress_timestamp_seconds",
        "Time of the last completed epoch.",
        _one(lambda v: v.record.progressed_s),
    )
    yield _of_query(
        "last_progress_age_seconds",
        "Time since the last completed epoch.",
        _one(lambda v: None if v.record.progressed_s is None else v.now_s - v.record.progressed_s),
    )
    yield _of_query(
        "last_seen_timestamp_seconds",
        "Time of the last activity of the query, including checks that found no new data.",
        _one(lambda v: v.record.seen_s),
    )


def _of_state() -> Iterator[Metric]:
    yield _of_query(
        "state_rows", "Rows in the state of Spark's operators.", _newest(lambda p: p.state_rows)
    )
    yield _of_query(
        "state_memory_bytes",
        "Memory used by the state of Spark's operators.",
        _newest(lambda p: p.state_bytes),
    )


def _of_source() -> Iterator[Metric]:
    def metric(name: str, says: str, read: Any, *, counts: bool = False) -> Metric:
        return Metric(f"krishiv_source_{name}", says, read, ("source", "kind"), counts)

    yield metric("input_rows", "Rows read from a source.", _source_rows, counts=True)
    yield metric("rows_per_second", "Rows per second in the newest epoch, for a source.",
                 _sources(lambda s: s.rows_per_s))  # fmt: skip
    for what in ("rows", "offsets", "files", "bytes", "snapshots"):
        yield metric(
            f"waiting_{what}",
            f"Lag: {what} that waited after the newest epoch (Spark 4.2).",
            _sources(lambda s, what=what: s.waiting.get(what)),  # type: ignore[misc]
        )
    yield metric(
        "held_back_offsets",
        "Offsets blocked by open transactions (Spark 4.2).",
        _sources(lambda s: _read_number(s, "offsets_held_back")),
    )
    yield metric(
        "passed_over_offsets",
        "Offsets deleted before they were read, since the query started (Spark 4.2).",
        _sources(lambda s: _read_number(s, "offsets_passed_over")),
    )
    yield metric(
        "event_times_ahead",
        "Event times too far ahead of the clock to move the watermark, since the query started "
        "(Spark 4.2).",
        _sources(lambda s: _read_number(s, "event_times_ahead")),
    )
    yield metric("watermark_timestamp_seconds", "Watermark of a krishiv-spark source with event "
    "time.",
                 _sources(lambda s: _unix(s.watermark)))  # fmt: skip


def _of_topic() -> Iterator[Metric]:
    labels = ("source", "topic", "partitions")

    def metric(name: str, says: str, get: Callable[[TopicShare], float | None]) -> Metric:
        return Metric(f"krishiv_topic_{name}", says, _topics(get), labels)

    yield metric(
        "position_offsets",
        "Sum of the next offsets of a group of partitions.",
        lambda t: t.position,
    )
    yield metric(
        "waiting_offsets", "Lag of a group of partitions (Spark 4.2).", lambda t: t.waiting
    )


METRICS = (
    *_of_epochs(),
    *_of_rows(),
    *_of_times(),
    *_of_state(),
    *_of_source(),
    *_of_topic(),
)
