"""Queries go on with the code of today where an earlier release has stopped."""

import io
import os
import subprocess
import tarfile
import zipfile
from pathlib import Path

import iceberg_tables
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from drivers import SUPPORT, Driver
from kafka_topics import Onlooker, fill, make_topic
from patience import PATIENCE
from wheels import ROOT, build_distribution

from krishiv_spark.kafka.dev import open_cluster

BEFORE = "16dcec7"
"""The last commit before the package was restructured."""
DEATHS = {  # by a module of that commit
    "offsets/epochs.py": '_die_after(EpochLog, "intend", 1)',
    "lifecycle/streams.py": '_die_after(StreamWrite, "commit", 1)',
}
EPOCHS, FILES, RECORDS, ROWS = 3, 120, 40, 10
QUERIES = ("parquet", "kafka", "iceberg", "fanout", "landing", "chain")


@pytest.fixture(scope="module")
def earlier(tmp_path_factory) -> Path:
    """An earlier commit, built from the history and unpacked, that dies in its epoch 1."""
    archive = subprocess.run(
        ["git", "-C", ROOT, "archive", BEFORE], check=False, capture_output=True
    )
    if archive.returncode:
        pytest.skip(f"this clone has no history as far back as {BEFORE}: git fetch --unshallow")
    folder = tmp_path_factory.mktemp("earlier")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tree:
        tree.extractall(folder / "tree", filter="data")
    with zipfile.ZipFile(build_distribution(folder / "tree", "wheel", folder / "wheel")) as wheel:
        wheel.extractall(folder / "installed")
    death = (SUPPORT / "earlier/death.py").read_text()
    for module, call in DEATHS.items():
        path = folder / "installed/krishiv_spark" / module
        path.write_text(f"{path.read_text()}\n{death}{call}\n")
    return folder / "installed"


@pytest.fixture
def bootstrap() -> str:
    with open_cluster(ours=True) as cluster:
        for topic in ("source", "target", "routed"):
            make_topic(cluster.bootstrap, topic, partitions=2)
        fill(cluster.bootstrap, "source", RECORDS * EPOCHS)
        yield cluster.bootstrap


def fill_folder(folder: Path) -> None:
    """So many long names a batch that the offset keeps its files in a file of their own."""
    folder.mkdir()
    for number in range(EPOCHS * FILES):
        rows = pa.table({"id": [2 * number, 2 * number + 1], "day": ["a", "b"]})
        pq.write_table(rows, folder / f"{number:0200d}.parquet")


def fill_table(folder: Path) -> None:
    schema = pa.schema({"id": pa.int64()})
    iceberg_tables.make_table(folder, schema)
    for number in range(0, EPOCHS * ROWS, ROWS):
        ids = pa.table({"id": range(number, number + ROWS)}, schema=schema)
        iceberg_tables.append(folder, ids)


def run(folder: Path, bootstrap: str) -> tuple[Path, dict[str, str]]:
    """The code that ran, and what each query failed with."""
    with Driver("exact_copies.py", {"folder": str(folder), "bootstrap": bootstrap}) as driver:
        driver.wait_for("DONE", timeout=2 * PATIENCE)
        lines = [line.split(" ", 2) for line in driver.lines]
    code = next(Path(line[1]) for line in lines if line[0] == "CODE")
    return code, {line[1]: "".join(line[2:]) for line in lines if line[0] == "ENDED"}


def newest(checkpoint: Path) -> tuple[str, str]:
    """The newest epoch that Spark has planned, and the newest of which it knows that it is over."""
    logs = (checkpoint / "offsets", checkpoint / "commits")
    return tuple(max(path.name for path in log.glob("[0-9]*")) for log in logs)


@pytest.mark.long
@pytest.mark.once
@pytest.mark.crash
@pytest.mark.timeout(1800)
def test_queries_of_an_earlier_release_that_died_before_spark_s_commit_go_on_exactly(
    earlier, bootstrap, tmp_path, monkeypatch
):
    fill_folder(tmp_path / "source")
    fill_table(tmp_path)
    with monkeypatch.context() as then:
        paths = f"{SUPPORT / 'earlier'}{os.pathsep}{earlier}"
        then.setenv("PYTHONPATH", paths, prepend=os.pathsep)
        code, died = run(tmp_path, bootstrap)
    assert code.is_relative_to(earlier)
    for name in QUERIES:
        assert "exited unexpectedly" in died[name], died
        assert newest(tmp_path / "checkpoints" / name) == ("1", "0")
    # The next epochs of all but the table have an intent only.
    assert (
        len(parquet_ids(tmp_path / "target")) == len(parquet_ids(tmp_path / "routed")) == 2 * FILES
    )

    code, failed = run(tmp_path, bootstrap)
    assert code.is_relative_to(ROOT)
    assert failed == dict.fromkeys(QUERIES, "")
    ids = list(range(2 * FILES * EPOCHS))
    assert (
        sorted(parquet_ids(tmp_path / "target")) == sorted(parquet_ids(tmp_path / "routed")) == ids
    )
    assert sorted(kafka_ids(bootstrap, "routed")) == ids[1::2]
    assert sorted(iceberg_ids(tmp_path)) == list(range(ROWS * EPOCHS))
    values = list(range(RECORDS * EPOCHS))
    assert sorted(kafka_ids(bootstrap, "target")) == values
    assert sorted(landed_values(tmp_path)) == values
    assert sorted(chained_values(tmp_path)) == values


# --- readers that know nothing of us


def parquet_ids(table: Path) -> list[int]:
    return [
        number
        for path in table.glob("day=*/*.parquet")
        for number in pq.ParquetFile(path).read()["id"].to_pylist()
    ]


def kafka_ids(bootstrap: str, topic: str) -> list[int]:
    onlooker = Onlooker(bootstrap)
    found = [int(record.value) for record in onlooker.records(topic)]
    onlooker.close()
    return found


def iceberg_ids(folder: Path) -> list[int]:
    table = iceberg_tables.catalog(folder).load_table("db.target")
    return table.scan().to_arrow()["id"].to_pylist()


def landed_values(folder: Path) -> list[int]:
    table = iceberg_tables.catalog(folder).load_table("db.landed")
    return [int(value) for value in table.scan().to_arrow()["value"].to_pylist()]


def chained_values(folder: Path) -> list[int]:
    return [
        int(value)
        for path in (folder / "chained").glob("*.parquet")
        for value in pq.ParquetFile(path).read()["value"].to_pylist()
    ]
