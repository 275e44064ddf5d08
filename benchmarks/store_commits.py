"""The cost of an epoch in a bucket apart from Spark, beside one on a disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.bare_commits import Loop
from benchmarks.bare_requests import repeated
from benchmarks.bench import Run, benchmark, scratch
from benchmarks.check import totals
from benchmarks.commits import epoch_rates
from benchmarks.measure import Figure, expect, figure, in_turn, ratios
from benchmarks.requests import Request, counting
from benchmarks.stores import Bucket, Place
from benchmarks.writers import Life, SeparateLogs
from servers.stores import OPENED

__all__ = ["commits", "publish", "publish_in_hdfs"]

_TASKS = 2
_S3, _HDFS, _DISK = (f"krishiv-parquet, {place}" for place in ("S3", "HDFS", "disk"))
_BARE = "boto3, the same requests"
_FILES = (1, 100, 1_000)


@benchmark("store.commits")
def commits(run: Run) -> Iterator[Figure]:
    """Epochs per second with 2 tasks in a bucket and on a disk; and of their requests alone.

    Spark's checkpoint is on the disk, the epoch log in the table. The requests are those of one
    epoch, as a proxy has seen them, sent one after the other by Amazon's own client.
    """
    bucket = run.bucket()
    place, bare = bucket.place(), bucket.place()
    with scratch(run.folder) as folder:
        in_bucket, on_disk = _in_bucket(bucket, place, folder), _on_disk(folder)
        loop = repeated(*_requests(bucket, folder), bare)
        lives: Mapping[str, Life | Loop] = {_S3: in_bucket, _DISK: on_disk, _BARE: loop}
        rates = epoch_rates(run, lives, count=10 if run.quick else 30)
        expect("rows and sum of ids", place.totals("id"), in_bucket.rows)
        expect("rows and sum of ids", totals(folder / "disk", "id"), on_disk.rows)
        rows, total = loop.rows
        expect("rows and sum of ids", bare.totals("id"), (_TASKS * rows, _TASKS * total))
    for name, found in rates.items():
        yield figure(name, "epochs/s", found)
    for other in (_BARE, _DISK):
        yield figure(f"{_S3} / {other}", "x", ratios(rates[_S3], rates[other]))


def _requests(bucket: Bucket, folder: Path) -> tuple[list[Request], Place]:
    """Those of one epoch, after some others, in a table of its own, and where that is."""
    place = bucket.place()
    with counting(bucket.endpoint) as counted:
        life = _in_bucket(bucket, place, folder / "counted", endpoint=counted.endpoint)
        life.commits(5)
        counted.take()
        life.commit()
        return counted.take(), place


@benchmark("store.publish")
def publish(run: Run) -> Iterator[Figure]:
    """Milliseconds of the commit alone, for 1, 100 and 1000 files, in a bucket and on a disk."""
    bucket = run.bucket()
    for files in _FILES[: 2 if run.quick else 3]:
        place = bucket.place()
        with scratch(run.folder) as folder:
            life = _in_bucket(bucket, place, folder, files)
            table = _Table(_S3, life, partial(place.totals, "id"))
            yield from _published(run, table, _on_disk(folder, files))


@benchmark("store.publish.hdfs", long=True)
def publish_in_hdfs(run: Run) -> Iterator[Figure]:
    """Milliseconds of the commit alone, for 1 and 100 files, in HDFS and on a disk."""
    with scratch(run.folder) as home, OPENED["hdfs"](home) as store:
        for files in _FILES[:2]:
            with scratch(run.folder) as folder:
                url = f"{store.url}/table-{files}"
                given = {"path": url, "checkpointLocation": f"{folder}/of-hdfs", **store.options}
                life = Life(SeparateLogs, given, files)
                table = _Table(_HDFS, life, partial(_read_by_spark, run, url))
                yield from _published(run, table, _on_disk(folder, files))


@dataclass(frozen=True)
class _Table:
    """One that is written, and how what it holds is read otherwise."""

    name: str
    life: Life
    totals: Callable[[], tuple[int, int]]


def _published(run: Run, store: _Table, disk: Life) -> Iterator[Figure]:
    """Measure commits into a store and onto a disk, in turn."""
    on_disk = partial(totals, Path(disk.options["path"]), "id")
    tables = (store, _Table(_DISK, disk, on_disk))
    for table in tables:
        table.life.commit()
    taken = in_turn(5, {each.name: partial(_publish, each.life) for each in tables}, run.told)
    for table in tables:
        expect("rows and sum of ids", table.totals(), table.life.rows)
    what = f"{disk.tasks:,} file{'s' * (disk.tasks > 1)}"
    for name, times in taken.items():
        yield figure(f"{name}, {what}", "ms", times)
    times = ratios(taken[store.name], taken[_DISK])
    yield figure(f"{store.name} / {_DISK}, {what}", "x", times, smaller=True)


def _publish(life: Life) -> float:
    life.commit()
    return 1000 * life.spent["publish"][-1]


def _read_by_spark(run: Run, url: str) -> tuple[int, int]:
    rows, total = run.spark().read.parquet(url).selectExpr("count(*)", "sum(id)").first()
    return rows, total


def _in_bucket(
    bucket: Bucket, place: Place, folder: Path, tasks: int = _TASKS, endpoint: str | None = None
) -> Life:
    given = {"path": place.url, "checkpointLocation": f"{folder}/of-bucket"}
    return Life(SeparateLogs, {**given, **bucket.options(endpoint)}, tasks)


def _on_disk(folder: Path, tasks: int = _TASKS) -> Life:
    given = {"path": f"{folder}/disk", "checkpointLocation": f"{folder}/of-disk"}
    return Life(SeparateLogs, given, tasks)
