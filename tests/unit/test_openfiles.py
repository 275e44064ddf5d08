"""The files of partitions: few of them, few open, in bounded memory, none left over."""

import subprocess
import sys
from collections import defaultdict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from iceberg_life import IcebergLife

from krishiv_spark.arrow.partition_files import OpenFiles
from krishiv_spark.errors import SinkError
from krishiv_spark.iceberg.catalogs import open_table
from krishiv_spark.parquet.layout import DataFile
from krishiv_spark.sinks.base import Task
from krishiv_spark.sinks.iceberg.data_files import TaskDataFiles as IcebergFiles
from krishiv_spark.sinks.iceberg.data_files import merge_sorted
from krishiv_spark.sinks.iceberg.task_table import task_table_spec
from krishiv_spark.sinks.parquet.staging import DiskStaging, FileLayout
from krishiv_spark.sinks.parquet.staging import TaskFiles as ParquetFiles

# --- what becomes of chunks, with files that are lists


class InMemory:
    """A file that keeps what is written to it."""

    def __init__(self, files, key):
        self.files, self.key, self.rows = files, key, []
        files.there.append(self)

    @property
    def room(self):
        return None if self.files.most_rows is None else self.files.most_rows - len(self.rows)

    def write(self, rows):
        assert self.room is None or rows.num_rows <= self.room
        self.rows += rows["row"].to_pylist()

    def close(self):
        return self

    def drop(self):
        self.files.there.remove(self)


class Files(OpenFiles):
    """At most two open files, for partitions with at least three rows in a chunk."""

    most_open = 2
    group_bytes = 3 * 8

    def __init__(self, most_rows=None):
        super().__init__()
        self.there, self.most_rows, self.peak = [], most_rows, 0

    def make(self, key, schema):
        assert schema.names == ["row"]
        self.peak = max(self.peak, len(self._open) + 1)
        return InMemory(self, key)

    def remove(self, closed):
        self.there.remove(closed)


def parts_of(chunk, first):
    """A chunk's rows, numbered, by their keys."""
    rows = defaultdict(list)
    for number, key in enumerate(chunk, first):
        rows[key].append(number)
    return [(key, pa.table({"row": found})) for key, found in sorted(rows.items())]


def written(chunks, files):
    """Add chunks of keys; the files by key, which together have the rows as they came."""
    expected, first = defaultdict(list), 0
    with files:
        for chunk in chunks:
            parts = parts_of(chunk, first)
            files.add(iter(parts))
            for key, rows in parts:
                expected[key] += rows["row"].to_pylist()
            first += len(chunk)
        closed = files.close()
    found = defaultdict(list)
    for file in closed:
        found[file.key].append(file.rows)
    assert {
        key: [row for rows in of_key for row in rows] for key, of_key in found.items()
    } == expected
    return found


chunks_of_keys = st.lists(st.lists(st.integers(0, 8), min_size=1, max_size=12), max_size=6)


@given(chunks_of_keys)
def test_no_row_is_lost_and_a_partition_has_two_files_at_most(chunks):
    files = Files()
    found = written(chunks, files)
    assert all(len(of_key) <= 2 for of_key in found.values())
    assert files.peak <= 3
    if len(found) <= 2:
        assert all(len(of_key) == 1 for of_key in found.values())


@given(chunks_of_keys, st.integers(1, 4))
def test_files_with_a_limit_are_full_but_the_last(chunks, most_rows):
    found = written(chunks, Files(most_rows))
    for of_key in found.values():
        assert sum(len(rows) < most_rows for rows in of_key) <= 2


@given(st.lists(st.integers(1, 9), max_size=12), st.integers(1, 9))
def test_rows_in_the_order_of_their_partitions_hardly_reach_the_disk(counts, size):
    keys = [key for key, count in enumerate(counts) for _ in range(count)]
    files, stored = Files(), [0]
    flush = files._waiting.flush
    files._waiting.flush = lambda: (stored.append(len(files._waiting._fresh)), flush())
    found = written([keys[at : at + size] for at in range(0, len(keys), size)], files)
    assert all(len(of_key) == 1 for of_key in found.values())
    assert max(stored) <= 2  # of the many that a chunk may have


@given(chunks_of_keys, st.data())
def test_nothing_is_left_of_a_task_that_fails(chunks, data):
    files, place = Files(), data.draw(st.integers(0, len(chunks)))

    def failing():
        yield from chunks[:place]
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        written(failing(), files)
    assert files.there == []


# --- both sinks


def parquet_files(folder, _):
    return ParquetFiles(
        DiskStaging(folder), DataFile(0, 0, 0, "q", "n"), FileLayout(("p",), "none", None, None)
    )


def iceberg_files(folder, rows, **given):
    life = IcebergLife(folder, partitionBy="p", **given)
    life.plan(rows)
    return IcebergFiles(
        task_table_spec(open_table(life.writer(rows).options), None), Task("q", 0, 0, 0)
    )


def counts_of(files, chunks):
    """Return the number of rows in each file."""
    with files:
        for rows in chunks:
            files.write(rows)
        return [getattr(file, "rows", None) or file.record_count for file in files.close()]


def chunk(partitions, width):
    keys = [*range(partitions)] * 2
    return pa.table({"p": keys, "x": pa.array(["x" * width]).take(pa.array([0] * len(keys)))})


@pytest.mark.long
@pytest.mark.parametrize("make", [parquet_files, iceberg_files])
@pytest.mark.parametrize(
    ("partitions", "width"), [(1, 1), (64, 70_000), (65, 70_000), (65, 1), (200, 1)]
)
def test_a_partition_has_one_file_of_a_task(tmp_path, make, partitions, width):
    rows = chunk(partitions, width)
    assert counts_of(make(tmp_path, rows), [rows] * 3) == [6] * partitions


@pytest.mark.long
@pytest.mark.parametrize("make", [parquet_files, iceberg_files])
def test_the_same_rows_are_in_the_files(tmp_path, make):
    numbers = np.random.default_rng(0).permutation(3000)
    rows = pa.table({"p": numbers % 300, "x": numbers})
    files = make(tmp_path, rows)
    assert sum(counts_of(files, [rows.slice(at, 500) for at in range(0, 3000, 500)])) == 3000
    paths = [str(path) for path in tmp_path.rglob("*") if path.suffix in {".parquet", ".staged"}]
    found = pa.concat_tables(pq.ParquetFile(path).read() for path in paths)
    assert sorted(found["x"].to_pylist()) == list(range(3000))


def test_a_full_disk_is_an_error_that_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path}/gone")
    rows = chunk(65, 1)
    with pytest.raises(SinkError, match=r"gone.*give Spark another local folder.*repartition"):
        counts_of(parquet_files(tmp_path, rows), [rows, rows])
    assert not list(tmp_path.rglob("*.staged"))


MEMORY = """
import sys
from pathlib import Path
import numpy as np, pyarrow as pa
from krishiv_spark.arrow.partition_files import chunks
from krishiv_spark.sinks.parquet.staging import FileLayout, TaskFiles
from krishiv_spark.sinks.parquet.staging import DiskStaging
from krishiv_spark.parquet.layout import DataFile

def batches():
    rng = np.random.default_rng(0)
    for _ in range(600):
        columns = {f"c{n}": rng.random(10_000) for n in range(9)}
        yield pa.record_batch({"p": rng.integers(0, 2_000, 10_000), **columns})
def held():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) // 1024
before, peak, most = held(), 0, len(list(Path("/proc/self/fd").iterdir()))
name, layout = DataFile(0, 0, 0, "q", "n"), FileLayout(("p",), "none", None, None)
with TaskFiles(DiskStaging(Path(sys.argv[1])), name, layout) as task:
    for rows in chunks(batches()):
        task.write(rows)
        peak = max(peak, held())
    rows, make = None, task.make
    def watched(key, schema):
        global peak, most
        peak, most = max(peak, held()), max(most, len(list(Path("/proc/self/fd").iterdir())))
        return make(key, schema)
    task.make = watched
    print(len(task.close()), peak - before, most)
"""


@pytest.mark.long
def test_half_a_gigabyte_goes_into_two_thousand_partitions_in_little_memory(tmp_path):
    command = [sys.executable, "-c", MEMORY, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    files, megabytes, descriptors = map(int, done.stdout.split())
    assert files == 2_000
    assert megabytes < 400
    assert descriptors < 100


# --- sorted tables

A_FEW = st.lists(st.tuples(st.none() | st.integers(0, 5), st.integers(0, 3)), max_size=12)
ORDER = [("a", "descending"), ("b", "ascending")]


def keys_of(rows):
    return [(rows[name], direction) for name, direction in ORDER]


def table_of_pairs(pairs):
    a, b = zip(*pairs, strict=True) if pairs else ((), ())
    return pa.table({"a": pa.array(a, pa.int64()), "b": pa.array(b, pa.int64())})


@given(st.lists(A_FEW, max_size=5), st.integers(1, 8))
def test_sorted_runs_are_merged_in_tables_of_bounded_size(runs, most_rows):
    tables = [table_of_pairs(pairs).sort_by(ORDER) for pairs in runs]
    pieces = list(merge_sorted(tables, keys_of, most_rows=most_rows))
    assert all(piece.num_rows <= most_rows + len(runs) for piece in pieces)
    whole = table_of_pairs([pair for pairs in runs for pair in pairs]).sort_by(ORDER)
    found = pa.concat_tables([whole.slice(0, 0), *pieces])
    assert found.to_pylist() == whole.to_pylist()


def test_files_of_a_sorted_table_grow_beyond_a_chunk_and_are_sorted(tmp_path):
    numbers = np.random.default_rng(0).permutation(5000)
    rows = pa.table({"p": numbers % 2, "x": numbers})
    files = iceberg_files(tmp_path, rows, sortBy="x desc")
    assert counts_of(files, [rows.slice(at, 500) for at in range(0, 5000, 500)]) == [2500, 2500]
    for path in tmp_path.rglob("*.parquet"):
        found = pq.ParquetFile(path).read()["x"].to_pylist()
        assert found == sorted(found, reverse=True)
