"""The speed of turning JSON values into columns, beside ``from_json`` on Spark's own source."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks.bench import Run, benchmark
from benchmarks.measure import Figure, Goal, each_once, expect
from benchmarks.peer import KAFKA
from benchmarks.streams import Load, compared, rate
from benchmarks.topics import OURS, THEIRS

__all__ = ["json"]

_FROM_JSON = f"{THEIRS}, from_json"
_RAW = f"{OURS}, from_json"
_FIELDS = (
    "id BIGINT, account BIGINT, product INT, price DOUBLE, paid BOOLEAN, customer STRING, "
    "place STRUCT<city: STRING, zip: INT>, tags ARRAY<STRING>"
)
_AS_JSON = {"valueFormat": "json", "valueSchema": _FIELDS}
_GOAL = Goal(1.0, at_most=False)
_FILLER = "a customer and where they live, what they bought, and when; "


@benchmark("kafka.json", peers=(KAFKA,))
def json(run: Run) -> Iterator[Figure]:
    """JSON values into columns, without rows: ours, and ``from_json`` on Spark's own source.

    All of them give the same rows. What ``from_json`` takes on our source is shown too.
    """
    for load in _loads(run):
        with run.kafka().topic() as topic:
            run.told(f"{load}: filling a topic with {load.rows:,} JSON values")
            _fill(run, topic, load)
            frames = {name: _decoded(run, topic, name) for name in (OURS, _FROM_JSON, _RAW)}
            _check(run, topic, load)
            variants = {
                name: partial(rate, run, name, frame.writeStream.format("noop"), load.rows)
                for name, frame in frames.items()
            }
            pairs = {(OURS, _FROM_JSON): _GOAL, (_RAW, _FROM_JSON): None}
            yield from compared(run, load, variants, pairs)


def _loads(run: Run) -> tuple[Load, Load]:
    if run.quick:
        return Load(200, 200_000), Load(1000, 80_000)
    return Load(200, 1_500_000), Load(1000, 400_000)


def _fill(run: Run, topic: str, load: Load) -> None:
    """Numbered objects of about the load's size, as other programs write them."""
    padding = (_FILLER * (load.size // len(_FILLER) + 1))[: max(load.size - 150, 0)]
    value = (
        "to_json(named_struct('id', id, 'account', id * 7919 % 1000003, 'product', "
        "cast(id % 997 AS int), 'price', id / 8, 'paid', id % 3 = 0, 'customer', "
        f"concat('{padding}', id), 'place', named_struct('city', concat('city ', id % 100), "
        "'zip', cast(id % 90000 AS int)), 'tags', array('new', concat('tag ', id % 10))))"
    )
    rows = run.spark().range(0, load.rows, 1, 2)
    rows = rows.selectExpr("lpad(cast(id AS string), 10, '0') AS key", f"{value} AS value")
    given = {**run.kafka().cluster, "topic": topic}
    rows.write.format(THEIRS).options(**given).mode("append").save()


def _decoded(run: Run, topic: str, name: str) -> Any:
    """Return a stream of the fields."""
    if name == OURS:
        return run.kafka().stream(run.spark(), OURS, topic, **_AS_JSON)
    kind = name.partition(",")[0]
    more = {"columns": "value"} if kind == OURS else {}
    return _parsed(run.kafka().stream(run.spark(), kind, topic, **more))


def _parsed(rows: Any) -> Any:
    text = f"from_json(cast(value AS string), '{_FIELDS}') AS v"
    return rows.selectExpr(text).select("v.*")


def _check(run: Run, topic: str, load: Load) -> None:
    """Compare the rows of all readers, by their number, ids and hashes."""
    found = {
        OURS: _batch(run, OURS, topic, **_AS_JSON),
        _FROM_JSON: _parsed(_batch(run, THEIRS, topic)),
        _RAW: _parsed(_batch(run, OURS, topic, columns="value")),
    }
    sums = {name: _sums(rows) for name, rows in found.items()}
    for name, row in sums.items():
        expect(f"{name}, rows and sum of ids", row[:2], each_once(load.rows))
        expect(f"{name}, hashes", row[2], sums[_FROM_JSON][2])


def _batch(run: Run, kind: str, topic: str, **more: str) -> Any:
    given = {**run.kafka().cluster, "subscribe": topic, "startingOffsets": "earliest", **more}
    return run.spark().read.format(kind).options(**given).load()


def _sums(rows: Any) -> tuple[Any, ...]:
    hashed = rows.selectExpr("id", "xxhash64(*) AS hash")
    row = hashed.selectExpr("count(*)", "sum(id)", "sum(cast(hash AS decimal(38, 0)))").first()
    return tuple(row)
