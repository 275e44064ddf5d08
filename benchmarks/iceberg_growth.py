"""Tables under hundreds of upsert epochs: bytes, seconds, files, and reads of the result."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.bench import MEMORY, Run, benchmark, scratch
from benchmarks.iceberg_tables import OURS
from benchmarks.measure import Figure, Goal, Wrong, figure, in_turn, ratios, seconds
from benchmarks.peer import ICEBERG
from benchmarks.upsert_epochs import (
    MERGE_COPY,
    MERGE_READ,
    UpsertEpochs,
    Work,
    make_rows,
    write_base,
)
from benchmarks.writers import Life

__all__ = ["compacted", "few", "late", "spread", "wide"]

_GZIP = {"tableProperty.write.metadata.compression-codec": "gzip"}
_SIZES = ("rows", "keys", "epochs", "copies")
_ENDS = 10
_SCANS = 5


@benchmark("iceberg.upsert.few", "pyiceberg", peers=(ICEBERG,), alone=True, long=True, sizes=_SIZES)
def few(run: Run) -> Iterator[Figure]:
    """20 random keys into a million rows, 60 epochs, beside MERGE INTO; --size epochs=300."""
    work = _work(run, Work(1_000_000, 20, 60), Work(20_000, 20, 12))
    yield from _beside_merge(run, work, "few", Goal(0.5), Goal(1.2))


@benchmark(
    "iceberg.upsert.wide", "pyiceberg", peers=(ICEBERG,), alone=True, long=True, sizes=_SIZES
)
def wide(run: Run) -> Iterator[Figure]:
    """10 000 random keys into ten million rows, 12 epochs, the first of which builds the index."""
    work = _work(run, Work(10_000_000, 10_000, 12), Work(50_000, 500, 12))
    yield from _beside_merge(run, work, "wide", None, None)


@benchmark(
    "iceberg.upsert.compacted", "pyiceberg", peers=(ICEBERG,), alone=True, long=True, sizes=_SIZES
)
def compacted(run: Run) -> Iterator[Figure]:
    """2 000 random keys into 200 000 rows, 100 epochs with compact = auto: files and scans."""
    work = _work(run, Work(200_000, 2_000, 100), Work(20_000, 200, 24))
    with run.workplace("compacted") as folder:
        write_base(base := folder / "base", work.rows)
        ours = UpsertEpochs(run, OURS, work, folder, {"compact": "auto"})
        ours.fill(base)
        ours.advance()
        ours.verify()
        yield from _costs(ours, Goal(1.2))
        yield from _files(ours, Goal(20))
        fresh = UpsertEpochs(run, OURS, Work(work.rows, work.keys, 0), _subfolder(folder, "fresh"))
        fresh.fill(base)
        yield from _scans(run, {"upserted": ours, "fresh": fresh})


def _work(run: Run, usual: Work, quick: Work) -> Work:
    return Work(
        run.size("rows", usual.rows, quick.rows),
        run.size("keys", usual.keys, quick.keys),
        run.size("epochs", usual.epochs, quick.epochs),
    )


def _subfolder(folder: Path, name: str) -> Path:
    (folder / name).mkdir(exist_ok=True)
    return folder / name


def _beside_merge(
    run: Run, work: Work, name: str, bytes_goal: Goal | None, growth: Goal | None
) -> Iterator[Figure]:
    """Run the epochs of each connector, one after the other; copy on write with --size copies=1."""
    names = [OURS]
    if ICEBERG not in run.absent:
        names += [MERGE_READ, MERGE_COPY][: 1 + run.size("copies", 0, 0)]
    found: dict[str, UpsertEpochs] = {}
    with run.workplace(f"{name}-{work.rows}-{work.keys}") as folder:
        write_base(base := folder / "base", work.rows)
        for each in names:
            one = found[each] = UpsertEpochs(run, each, work, folder)
            one.fill(base)
            one.advance()
            one.verify()
            yield from _costs(one, growth if each == OURS else None)
            yield from _files(one, None)
        if MERGE_READ in found:
            ours, theirs = found[OURS], found[MERGE_READ]
            share = ours.written / theirs.written
            yield figure(f"bytes, {OURS} / {MERGE_READ}", "x", [share], bytes_goal, smaller=True)
            speed = [_median(theirs.times[1:]) / _median(ours.times[1:])]
            yield figure(f"speed, {OURS} / {MERGE_READ}", "x", speed)
            if bytes_goal is not None:
                packed = UpsertEpochs(run, OURS, work, _subfolder(folder, "gzip"), _GZIP)
                packed.fill(base)
                packed.advance()
                packed.verify()
                share = packed.written / theirs.written
                name = f"bytes, {OURS} with gzip / {MERGE_READ}"
                yield figure(name, "x", [share], bytes_goal, smaller=True)


def _costs(one: UpsertEpochs, growth: Goal | None) -> Iterator[Figure]:
    factor = one.written / one.changed
    yield figure(f"bytes written / changed, {one.name}", "x", [factor], smaller=True)
    yield figure(f"first epoch, {one.name}", "s", [_median(one.times[:1])])
    first, last = _known(one.times[1 : _ENDS + 1]), _known(one.times[-_ENDS:])
    yield figure(f"epochs 2 to {_ENDS + 1}, {one.name}", "s", first)
    yield figure(f"last {_ENDS} epochs, {one.name}", "s", last)
    grown = [statistics.median(last) / statistics.median(first)]
    yield figure(f"last / first, {one.name}", "x", grown, growth, smaller=True)
    if one.name == OURS:
        yield figure("largest Python process", "MiB", [one.peak_mib], smaller=True)


def _files(one: UpsertEpochs, goal: Goal | None) -> Iterator[Figure]:
    data, deletes = one.count_files()
    yield figure(f"data files, {one.name}", "files", [data], smaller=True)
    yield figure(f"delete files, {one.name}", "files", [deletes], smaller=True)
    if goal is not None:
        yield figure(f"live files, {one.name}", "files", [data + deletes], goal)


def _scans(run: Run, tables: dict[str, UpsertEpochs]) -> Iterator[Figure]:
    """Read the tables in turn, as a batch of our source."""
    reads = {
        name: partial(seconds, lambda one=one: one.scan().selectExpr("sum(n)").collect())
        for name, one in tables.items()
    }
    in_turn(1, reads, lambda _: None)
    taken = in_turn(_SCANS, reads, run.told)
    for name, times in taken.items():
        yield figure(f"scan, {name}", "s", times)
    upserted, fresh = taken.values()
    yield figure("scan, upserted / fresh", "x", ratios(upserted, fresh), Goal(1.3))


def _known(times: Sequence[float | None]) -> list[float]:
    found = [time for time in times if time is not None]
    if not found:
        raise Wrong("all of these epochs were interrupted: run it again in a new folder")
    return found


def _median(times: Sequence[float | None]) -> float:
    return statistics.median(_known(times))


# --- without Spark


def _life(folder: Path, given: dict[str, str]) -> Life:
    from krishiv_spark.sinks.iceberg.writer import IcebergWriter

    options = {"path": "db.rows", "warehouse": str(folder), "mode": "upsert", "keyColumns": "id"}
    return Life(IcebergWriter, {**options, **given}, apart="catalog.role")


def _batch(keys: np.ndarray, epoch: int) -> pa.RecordBatch:
    (batch,) = make_rows(keys, epoch).combine_chunks().to_batches()
    return batch


@benchmark("iceberg.upsert.late", "pyiceberg", long=True, sizes=("rows", "keys", "epochs"))
def late(run: Run) -> Iterator[Figure]:
    """Epochs at upsert epoch 5 000 and at epoch 10, without Spark, compact = auto."""
    work = _work(run, Work(100_000, 20, 5_000), Work(10_000, 20, 200))
    with scratch(MEMORY) as folder:
        life = _life(folder, {"compact": "auto"})
        life.batch = _batch(np.arange(work.rows), 0)
        life.commit()
        for epoch in range(1, work.epochs + 1):
            if epoch % 100 == 1:
                run.told(f"epoch {epoch:,} of {work.epochs:,}")
            life.batch = _batch(work.draw(epoch), epoch)
            life.commit()
        times = [sum(phases) for phases in zip(*life.spent.values(), strict=True)]
    first, last = times[6:46], times[-40:]
    yield figure("epochs 6 to 45", "s", first)
    yield figure(f"40 epochs up to epoch {work.epochs:,}", "s", last)
    grown = [statistics.median(last) / statistics.median(first)]
    yield figure("late / early", "x", grown, Goal(1.3))


@benchmark("iceberg.upsert.spread", "pyiceberg", long=True, sizes=("rows",))
def spread(run: Run) -> Iterator[Figure]:
    """Bytes of epochs of 1, 10 and 100 keys in 10 and 200 files, in both modes."""
    import io

    import pyarrow.parquet as pq

    rows = run.size("rows", 200_000, 20_000)
    for mode in ("copy-on-write", "merge-on-read"):
        for files in (10, 200):
            with scratch(MEMORY) as folder:
                life = _life(folder, {"upsertMode": mode})
                for number in range(files):
                    life.batch = _batch(np.arange(number, rows, files), 0)
                    life.commit()
                for epoch, keys in enumerate((1, 10, 100), 1):
                    before = _sizes(folder)
                    life.batch = _batch(Work(rows, keys, 3).draw(epoch), epoch)
                    life.commit()
                    after = _sizes(folder)
                    new = {path: size for path, size in after.items() if path not in before}
                    data = sum(size for path, size in new.items() if "/data/" in path)
                    pq.write_table(pa.Table.from_batches([life.batch]), file := io.BytesIO())
                    changed, name = len(file.getvalue()), f"{keys} keys in {files} files, {mode}"
                    for what, size in (("all", sum(new.values())), ("data and deletes", data)):
                        yield figure(f"{name}: {what}", "x", [size / changed], smaller=True)


def _sizes(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_size for path in folder.glob("db/**/*") if path.is_file()}
