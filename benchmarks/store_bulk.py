"""The speed at which a batch job writes many rows into a bucket."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from benchmarks.bench import Run, benchmark
from benchmarks.bulk import Job, compared, rows_of
from benchmarks.measure import Figure, Goal, each_once, expect, figure
from benchmarks.peer import S3A
from benchmarks.requests import counting
from benchmarks.stores import Bucket

__all__ = ["bulk"]

_OURS, _SPARK = "krishiv-parquet", "parquet, magic committer"
_SPEED = Goal(0.8, at_most=False)
_SENT = Goal(1.05)
_CLOUD = "org.apache.spark.internal.io.cloud"
_MAGIC = {
    "fs.s3a.committer.name": "magic",
    "spark.sql.sources.commitProtocolClass": f"{_CLOUD}.PathOutputCommitProtocol",
    "spark.sql.parquet.output.committer.class": f"{_CLOUD}.BindingParquetOutputCommitter",
}
_PARTS = 24


@benchmark("store.bulk", peers=(S3A,))
def bulk(run: Run) -> Iterator[Figure]:
    """Compare a batch of 10 million rows of about 110 bytes into S3 with Spark's S3A committer.

    Both send the parts of an upload and complete it in the end. The noop sink shows what making the
    rows costs alone.
    """
    bucket = run.bucket()
    bucket.tell(run.spark())
    jobs = {_OURS: _ours(bucket), _SPARK: _theirs(run.spark(), bucket)}
    yield from compared(run, jobs, lambda count: rows_of(run.spark(), count, _PARTS), _SPEED)
    yield from _sent(run, bucket)


def _ours(bucket: Bucket) -> Job:
    place = bucket.place()

    def write(rows: Any) -> None:
        writer = rows.write.format(_OURS).mode("append")
        writer.options(**bucket.options()).save(place.url)

    return Job(write, lambda: place.totals("id"), place.clear)


def _theirs(spark: Any, bucket: Bucket) -> Job:
    place = bucket.place()

    def write(rows: Any) -> None:
        with _told(spark, _MAGIC):
            rows.write.mode("append").parquet(place.url)

    def found() -> tuple[int, int]:
        said = json.loads(place.read("_SUCCESS"))  # empty where the committer is another one
        expect("committer", said["committer"], "magic")
        return place.totals("id")

    return Job(write, found, place.clear)


@contextmanager
def _told(spark: Any, conf: Mapping[str, str]) -> Iterator[None]:
    """With settings of a session, which it then forgets."""
    for name, value in conf.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in conf:
            spark.conf.unset(name)


def _sent(run: Run, bucket: Bucket) -> Iterator[Figure]:
    """Count the requests of a job and the content of the bucket; not timed: a proxy counts."""
    count, place = 2_000_000, bucket.place()
    run.told(f"{_OURS}, {count:,} rows by a proxy")
    with counting(bucket.endpoint) as counted:
        writer = rows_of(run.spark(), count, _PARTS).write.format(_OURS).mode("append")
        writer.options(**bucket.options(counted.endpoint)).save(place.url)
        sent = sum(len(request.body) for request in counted.take())
    expect("rows and sum of ids", place.totals("id"), each_once(count))
    stored = sum(size for key, size in place.sizes().items() if key.endswith(".parquet"))
    yield figure(f"{_OURS}, bytes sent / bytes stored", "x", [sent / stored], _SENT)
