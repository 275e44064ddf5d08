"""Streams that append and upsert, killed while Iceberg-Java rewrites and expires their tables."""

import json
import os
import threading
from collections import Counter, defaultdict
from pathlib import Path

import pyspark
import pytest
from drivers import Driver
from duck_iceberg import read_by_duckdb
from iceberg_life import table_of
from java_iceberg import JavaTables
from killers import Killer, assert_each_once
from pyiceberg.exceptions import NoSuchTableError
from tables import make_input
from typing_extensions import Self

from benchmarks.peer import ICEBERG, peer_jars
from krishiv_spark.iceberg.property_keys import EPOCH_KEY

pytestmark = pytest.mark.skipif(
    pyspark.__version__[:3] not in ICEBERG.lines, reason="Iceberg has no connector for this Spark"
)

KILLS = int(os.environ.get("KRISHIV_KILLS", "6"))
"""Number of kills of drivers and workers. A kill takes about half a minute."""

FILES, MORE, ROWS, KEYS = 30, 8, 50, 997  # files at first, and after each kill
DELETES = "id % 7 = 3"
APPENDS, UPSERTS = "db.appended", "db.upserted"


class Watcher:
    """Reads each state of the tables that it can, as another program, while streams run.

    Attributes:
        epochs: For each table and epoch, the ids of its snapshots, also of those that have expired.
        races: For each table, the number of races that commits lost.
        twice: Paths that were live twice in one state.
    """

    def __init__(self, warehouse: Path) -> None:
        self.epochs: dict[tuple[str, str], set[int]] = defaultdict(set)
        self.races: Counter[str] = Counter()
        self.twice: list[str] = []
        self._known: set[int] = set()
        self._warehouse, self._stop = warehouse, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)

    def _run(self) -> None:
        while not self._stop.wait(0.5):
            for name in (APPENDS, UPSERTS):
                try:
                    self.look(name)
                except (NoSuchTableError, OSError):  # not there yet; or expired meanwhile
                    continue

    def look(self, name: str) -> None:
        table = table_of(self._warehouse, name)
        for snapshot in table.snapshots():
            if snapshot.snapshot_id in self._known:
                continue
            self._known.add(snapshot.snapshot_id)
            summary = snapshot.summary.additional_properties
            self.races[name] += int(summary.get("krishiv.lost-races", 0))
            if EPOCH_KEY in summary:
                self.epochs[name, summary[EPOCH_KEY]].add(snapshot.snapshot_id)
        self.twice += find_paths_twice(table)


def find_paths_twice(table) -> list[str]:
    head = table.current_snapshot()
    manifests = [] if head is None else head.manifests(table.io)
    paths = Counter(
        entry.data_file.file_path
        for manifest in manifests
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    )
    return [path for path, times in paths.items() if times > 1]


@pytest.fixture
def job(tmp_path: Path) -> dict[str, object]:
    common = {"warehouse": str(tmp_path / "w"), "compact": "auto"}
    columns = {"keyColumns": "key", "orderColumn": "id", "opColumn": "op", "partitionBy": "day"}
    return {
        "source": str(tmp_path / "in"),
        "checkpoint": str(tmp_path / "checkpoints"),
        "conf": {"spark.master": "local[2,8]"},  # a task whose worker was killed is tried again
        "files": 2,
        "trigger": "1 second",
        "select": [f"id % {KEYS} AS key", "id", "day", f"IF({DELETES}, 'd', 'u') AS op"],
        "sinks": {APPENDS: common, UPSERTS: {**common, **columns, "mode": "upsert"}},
    }


@pytest.mark.crash
@pytest.mark.timeout(5400)
def test_kills_beside_iceberg_java_lose_and_repeat_nothing(job, tmp_path, java):
    """Six kills, or as many as the environment variable KRISHIV_KILLS has."""
    warehouse, source, landed = tmp_path / "w", Path(job["source"]), [0]
    jars = [str(jar) for jar in peer_jars(ICEBERG)]
    work = {"warehouse": str(warehouse), "tables": [APPENDS, UPSERTS], "jars": jars, "pause_s": 3}

    def land(_driver=None) -> bool:
        """Bring more to copy, until everything was killed that is to be."""
        if killer.kills.total() >= KILLS:
            return False
        files = FILES if not landed[0] else MORE
        make_input(source, files, ROWS, first_file=landed[0])
        landed[0] += files
        return True

    killer = Killer("two_tables_copy.py", job, pauses=(1.0, 8.0), look=land)
    land()
    warehouse.mkdir()
    with Watcher(warehouse) as watcher, Driver("java_maintenance.py", work) as other:
        other.wait_for("READY")
        killer.run(KILLS)
        assert not other.says("Traceback", 0)
        rounds = [line for line in other.lines if line.startswith("ROUND")]
    assert rounds, other.lines[-20:]
    for name in (APPENDS, UPSERTS):
        watcher.look(name)
    print(rounds[-1], f"lost races: {dict(watcher.races)}", f"epochs: {len(watcher.epochs)}")
    done = json.loads(rounds[-1].removeprefix("ROUND"))["done"]
    assert all(done.get(name) for name in ("rewrite_data_files", "expire_snapshots"))
    assert watcher.twice == []
    assert [epoch for epoch, found in watcher.epochs.items() if len(found) > 1] == []
    numbers = range(landed[0] * ROWS)
    assert_exact(warehouse, APPENDS, numbers, java)
    newest = {number % KEYS: number for number in numbers}
    assert_exact(warehouse, UPSERTS, [n for n in newest.values() if n % 7 != 3], java)


def assert_exact(warehouse: Path, name: str, numbers, java: JavaTables) -> None:
    table = table_of(warehouse, name)
    by_java = java.values(table.metadata_location, "id")
    by_duckdb = [number for (number,) in read_by_duckdb(table, "id")]
    by_pyiceberg = table.scan().to_arrow()["id"].to_pylist()
    found = {"PyIceberg": by_pyiceberg, "DuckDB": by_duckdb, "Iceberg-Java": by_java}
    for reader, values in found.items():
        assert_each_once(Counter(map(int, values)), numbers, f"{name}, {reader}")
