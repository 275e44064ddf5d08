"""The state of the Parquet source under Spark, over files, batches, restarts and versions."""

import json
import os
import random
import struct
import time
from base64 import b64encode
from itertools import count

import pytest
from parquet_reading import make_content, put, put_bytes
from patience import PATIENCE

# PySpark 4.0 leaves the socket of a `collect` to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

MOST = 64 * 2**10
MILLION = 1_000_000
WHOLE = make_content(range(100))


class Query:
    """A stream of the numbers in a folder, run by run."""

    def __init__(self, spark, tmp_path, **options):
        self.folder, self.checkpoint = tmp_path / "in", tmp_path / "checkpoint"
        self.folder.mkdir()
        frame = spark.readStream.format("krishiv-parquet").schema("n LONG").options(**options)
        self._frame = frame.load(str(self.folder))
        self.found = []

    def start(self, **trigger):
        writer = self._frame.writeStream.foreachBatch(
            lambda rows, _: self.found.extend(row.n for row in rows.collect())
        )
        return writer.option("checkpointLocation", str(self.checkpoint)).trigger(**trigger).start()

    def run(self):
        """The rows of one run over what is there now."""
        self.found.clear()
        assert self.start(availableNow=True).awaitTermination(PATIENCE)
        return sorted(self.found)

    def link(self, names, at):
        """Many names of one file."""
        origin = put(self.folder, ".origin", [7], at=at)
        for name in names:
            os.link(origin, self.folder / name)
        origin.unlink()

    @property
    def offsets(self):
        """Spark's log of offsets, the newest last."""
        paths = [path for path in (self.checkpoint / "offsets").iterdir() if path.name.isdigit()]
        return sorted(paths, key=lambda path: int(path.name))

    def rewrite_newest(self, change):
        """Change the newest offset, as another version of the package would have written it."""
        path = self.offsets[-1]
        *head, text = path.read_text().splitlines()
        path.write_text("\n".join([*head, json.dumps(change(json.loads(text)), sort_keys=True)]))
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def as_version_1(offset, ids=()):
    """The same position as version 1 wrote it; some ids more, of files that are not there."""
    hour = str(int(time.time() // 3600) - 1)  # no file of the test is of that hour
    packed = b64encode(struct.pack(f">{len(ids)}Q", *sorted(ids))).decode()
    floor = offset["newest"] - 7 * 86_400 * 10**9
    kept = {key: offset[key] for key in ("epochs", "files", "kind")}
    seen = {**offset["seen"], hour: packed} if ids else offset["seen"]
    return {**kept, "seen": seen, "floor": floor, "v": 1}


def test_a_checkpoint_of_version_1_goes_on(spark, tmp_path):
    query = Query(spark, tmp_path)
    now = time.time_ns()
    for number in range(3):
        put(query.folder, f"{number}.parquet", [number], at=now - number)
    assert query.run() == [0, 1, 2]
    query.rewrite_newest(as_version_1)
    assert query.run() == []
    put(query.folder, "3.parquet", [3], at=now)
    assert query.run() == [3]
    assert json.loads(query.offsets[-1].read_text().splitlines()[-1])["v"] == 2
    assert query.run() == []


def test_a_file_that_is_being_copied_is_read_by_the_run_that_finds_it_whole(spark, tmp_path):
    query = Query(spark, tmp_path)
    put(query.folder, "a.parquet", [1000])
    put_bytes(query.folder, "b.parquet", WHOLE[:300])
    assert query.run() == [1000]
    put_bytes(query.folder, "b.parquet", WHOLE)
    assert query.run() == list(range(100))
    assert query.run() == []


@pytest.mark.long  # in tests/unit without Spark
def test_offsets_stay_small_over_thousands_of_files_and_restarts(spark, tmp_path):
    query = Query(spark, tmp_path, maxFilesPerTrigger=2500)
    number = count()
    for size in (3000, 900, 1):
        query.link((f"{next(number)}.parquet" for _ in range(size)), time.time_ns())
        read = len(query.run())
        while read < size:  # before 4.2, Spark does not ask a Python source again
            read += len(query.run())
        assert read == size
    assert query.run() == []
    assert max(path.stat().st_size for path in query.offsets) < MOST
    (state,) = (query.folder / "_krishiv_sources").iterdir()
    state.rename(tmp_path / "gone")
    with pytest.raises(Exception, match="restore it from a backup"):
        query.run()


@pytest.mark.parametrize(
    "batches",
    [pytest.param(150, marks=pytest.mark.long), pytest.param(10_000, marks=pytest.mark.soak)],
)
@pytest.mark.once
def test_a_driver_of_a_gigabyte_survives_a_million_files_that_it_remembers(
    spark, tmp_path, batches
):
    """Offsets of 11 MB ended it after 80 batches."""
    query = Query(spark, tmp_path)
    put(query.folder, "first.parquet", [1], at=time.time_ns())
    query.run()
    query.found.clear()
    ids = [random.getrandbits(64) for _ in range(MILLION)]
    query.rewrite_newest(lambda offset: as_version_1(offset, ids))
    heaps, stream = {}, query.start(processingTime="0 seconds")
    try:
        for number in range(batches):
            aside = put(query.folder, ".aside", [number], at=time.time_ns())
            aside.rename(query.folder / f"{number}.parquet")
            stream.processAllAvailable()
            if number in {batches // 10, batches - 1}:
                heaps[number] = heap(spark)
        assert sorted(query.found) == list(range(batches))
    finally:
        stream.stop()
    first, last = heaps.values()
    assert last - first < 32 * 2**20, heaps
    assert sum(path.stat().st_size for path in query.offsets[-50:]) < 50 * MOST


def heap(spark):
    """Bytes that the JVM's heap holds after a collection."""
    system, runtime = spark._jvm.java.lang.System, spark._jvm.java.lang.Runtime.getRuntime()
    system.gc()
    return runtime.totalMemory() - runtime.freeMemory()
