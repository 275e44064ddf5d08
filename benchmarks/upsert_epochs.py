"""A table of rows with keys, and epochs that each upsert some of them, by one connector.

The state is in a folder: an interrupted run continues there, with the next epoch.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.bench import Run
from benchmarks.iceberg_tables import OURS, Warehouse
from benchmarks.measure import expect

if TYPE_CHECKING:
    from pyiceberg.table import Table

__all__ = ["MERGE_COPY", "MERGE_READ", "UpsertEpochs", "Work", "write_base"]

MERGE_READ, MERGE_COPY = "MERGE INTO, merge-on-read", "MERGE INTO, copy-on-write"
_MODES = {MERGE_READ: "merge-on-read", MERGE_COPY: "copy-on-write"}

_TABLE = "db.rows"
_PROPERTY = "tableProperty."
_FILES = 4
_CHUNK = 250_000
_PAUSE_S = 0.2
_SEED = 7


@dataclass(frozen=True)
class Work:
    """The epochs of one table.

    Attributes:
        rows: Rows at first; their keys count from 0.
        keys: Keys that each epoch upserts, drawn at random.
        epochs: Number of epochs.
    """

    rows: int
    keys: int
    epochs: int

    def draw(self, epoch: int) -> np.ndarray:
        """Return the keys of an epoch, which count from 1: the same in each run."""
        return np.random.default_rng((_SEED, epoch)).choice(self.rows, self.keys, replace=False)


def make_rows(keys: np.ndarray, number: int) -> pa.Table:
    """Return rows of about 80 bytes that an epoch has written; epoch 0 has written all."""
    texts = [f"{key}-{number}-{'x' * 60}" for key in keys]
    numbers = pa.array(np.full(len(keys), number), pa.int64())
    return pa.table(
        {"id": pa.array(keys, pa.int64()), "n": numbers, "text": pa.array(texts, pa.string())}
    )


def write_base(folder: Path, rows: int) -> None:
    """Write the rows of epoch 0 into four files of a new folder, in an order that is random."""
    if folder.exists():
        return
    made = folder.with_name(f"{folder.name}.part")
    made.mkdir(exist_ok=True)
    keys = np.random.default_rng(_SEED).permutation(rows)
    for number in range(_FILES):
        own, schema = keys[number::_FILES], make_rows(keys[:0], 0).schema
        with pq.ParquetWriter(made / f"{number}.parquet", schema) as writer:
            for begin in range(0, len(own), _CHUNK):
                writer.write_table(make_rows(own[begin : begin + _CHUNK], 0))
    made.rename(folder)


@dataclass
class UpsertEpochs:
    """One connector's table, and what its epochs have cost so far.

    Attributes:
        run: The call of the command.
        name: ``krishiv-iceberg``, or how Iceberg's own connector merges.
        work: The epochs.
        folder: Of the table and its state.
        given: Options of our sink, which also creates the table with properties among them.
        times: Seconds of each epoch; None for one that was interrupted.
        changed: Bytes of the Parquet files with the rows of the epochs.
        written: Bytes of all files that epochs have written below the table.
        peak_mib: Memory of the largest Python process that Spark had, in MiB.
    """

    run: Run
    name: str
    work: Work
    folder: Path
    given: dict[str, str] = field(default_factory=dict)
    times: list[float | None] = field(default_factory=list)
    changed: int = 0
    written: int = 0
    peak_mib: float = 0.0

    def __post_init__(self) -> None:
        self._known: set[str] = set()
        short = OURS if self.name == OURS else _MODES[self.name]
        # Spark opens a catalog of one name once in a session.
        name = re.sub(r"\W", "_", f"{self.folder.name}_{short}")
        self.folder = self.folder / short
        (self.folder / "in").mkdir(parents=True, exist_ok=True)
        self.place = Warehouse(self.folder, name)

    def load(self) -> Table:
        """Return the table as PyIceberg finds it."""
        from pyiceberg.catalog.sql import SqlCatalog

        uri = f"sqlite:///{self.folder}/catalog.db"
        with SqlCatalog(self.place.name, uri=uri, warehouse=str(self.folder)) as catalog:
            return catalog.load_table(_TABLE)

    def fill(self, base: Path) -> None:
        """Create the table with the rows of epoch 0, or read the state of an earlier run."""
        state = self.folder / "epochs.json"
        if state.exists():
            if self.name != OURS:
                self._open_peer()
            self._read(json.loads(state.read_text()))
            return
        self.run.told(f"{self.name}: a table of {self.work.rows:,} rows")
        rows = self.run.spark().read.parquet(str(base))
        if self.name == OURS:  # which creates it with its own properties
            given = {**self.place.options, "tableProperty.write.merge.mode": "merge-on-read"}
            given |= {key: text for key, text in self.given.items() if key.startswith(_PROPERTY)}
            rows.write.format(OURS).mode("append").options(**given).save(_TABLE)
        else:
            modes = {f"write.{what}.mode": _MODES[self.name] for what in ("merge", "update")}
            schema = make_rows(np.arange(0), 0).schema
            with closing(self.place.catalog) as catalog:
                catalog.create_table(_TABLE, schema, properties={"format-version": "2", **modes})
            self._open_peer()
            rows.writeTo(self._peer_table).append()
        self._location = self.load().location().removeprefix("file://")
        self._note_files()
        self.written = 0
        self._save()

    def _open_peer(self) -> None:
        self.place.open_peer(self.run.spark(), is_new=False)

    @property
    def _peer_table(self) -> str:
        return f"{self.place.name}.{_TABLE}"

    def advance(self) -> None:
        """Run all epochs that are left."""
        with self._query() as query, self._watched():
            while len(self.times) < self.work.epochs:
                epoch = len(self.times) + 1
                if epoch % 10 == 1:
                    self.run.told(f"{self.name}: epoch {epoch:,} of {self.work.epochs:,}")
                took = self._once(query, epoch)
                self.times.append(took)
                self._note_files()
                self._save()

    def _once(self, query: Any, epoch: int) -> float | None:
        """Run an epoch and return its seconds; None if an earlier run has begun it."""
        made, file = self.folder / "next.parquet", self.folder / f"in/{epoch:06}.parquet"
        is_begun = file.exists()
        if not is_begun:
            pq.write_table(make_rows(self.work.draw(epoch), epoch), made)
            made.rename(file)
        self.changed += file.stat().st_size
        begin = time.perf_counter()
        query.processAllAvailable()
        return None if is_begun else time.perf_counter() - begin

    @contextmanager
    def _query(self) -> Iterator[Any]:
        spark = self.run.spark()
        schema = "id BIGINT, n BIGINT, text STRING"
        source = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        writer = source.parquet(str(self.folder / "in")).writeStream
        writer = writer.option("checkpointLocation", str(self.folder / "checkpoint"))
        if self.name == OURS:
            given = {**self.place.options, "mode": "upsert", "keyColumns": "id", **self.given}
            query = writer.format(OURS).options(**given).start(_TABLE)
        else:
            query = writer.foreachBatch(self._merge).start()
        try:
            yield query
        finally:
            query.stop()

    def _merge(self, rows: Any, _: int) -> None:
        rows.createOrReplaceTempView("krishiv_changes")
        rows.sparkSession.sql(
            f"MERGE INTO {self._peer_table} AS old USING krishiv_changes AS new ON old.id = new.id "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )

    def scan(self) -> Any:
        """Return the table as a frame of its own connector."""
        spark = self.run.spark()
        if self.name == OURS:
            return spark.read.format(OURS).options(**self.place.options).load(_TABLE)
        return spark.table(self._peer_table)

    def verify(self) -> None:
        """Compare the table with its keys' newest epochs, by PyIceberg alone."""
        newest = np.zeros(self.work.rows, np.int64)
        for epoch in range(1, len(self.times) + 1):
            newest[self.work.draw(epoch)] = epoch
        found = np.full(self.work.rows, -1, np.int64)
        count = 0
        for batch in self.load().scan(selected_fields=("id", "n")).to_arrow_batch_reader():
            found[batch["id"].to_numpy()] = batch["n"].to_numpy()
            count += batch.num_rows
        expect(f"{self.name}, rows", count, self.work.rows)
        expect(f"{self.name}, rows of another epoch", int((found != newest).sum()), 0)

    def count_files(self) -> tuple[int, int]:
        """Return the numbers of live data files and delete files."""
        from pyiceberg.manifest import DataFileContent

        table = self.load()
        head = table.current_snapshot()
        assert head is not None
        live = [
            entry.data_file.content
            for manifest in head.manifests(table.io)
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
        ]
        data = live.count(DataFileContent.DATA)
        return data, len(live) - data

    # --- state

    def _note_files(self) -> None:
        """Add up the files that are new below the table.

        Files that were deleted meanwhile count if they were there at the end of an epoch.
        """
        stack = [self._location]
        while stack:
            for entry in os.scandir(stack.pop()):
                if entry.is_dir():
                    stack.append(entry.path)
                elif entry.path not in self._known:
                    self._known.add(entry.path)
                    self.written += entry.stat().st_size

    def _save(self) -> None:
        state = {
            "times": self.times,
            "changed": self.changed,
            "written": self.written,
            "peak_mib": self.peak_mib,
        }
        part = self.folder / "epochs.json.part"
        part.write_text(json.dumps(state))
        part.rename(self.folder / "epochs.json")

    def _read(self, state: dict[str, Any]) -> None:
        """Continue; files of an epoch that was interrupted count as written before."""
        self.times, self.changed = state["times"], state["changed"]
        self.peak_mib = state["peak_mib"]
        self._location = self.load().location().removeprefix("file://")
        self._note_files()
        self.written = state["written"]

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Note the memory of Spark's Python processes meanwhile."""
        over = threading.Event()
        thread = threading.Thread(target=self._watch, args=(over,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _watch(self, over: threading.Event) -> None:
        own = psutil.Process()
        while not over.wait(_PAUSE_S):
            for process in own.children(recursive=True):
                try:
                    # By its program: a process that the JVM forks is the JVM for a moment.
                    if os.path.basename(process.exe()).startswith("python"):
                        size = process.memory_info().rss / 2**20
                        self.peak_mib = max(self.peak_mib, size)
                except psutil.Error:
                    continue
