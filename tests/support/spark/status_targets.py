"""Targets of queries as those find them who know nothing of krishiv-spark."""

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pyarrow.parquet as pq
from iceberg_life import TABLE, table_of
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka_topics import LIMITS
from patience import PATIENCE, await_none
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

_STRIKE_S = 10
"""Maximum wait of a kill for its moment; a query without work has none."""


class Found(NamedTuple):
    """The observed state of a target.

    Attributes:
        rows: Rows that readers see.
        open: Names of invisible data; not for Iceberg, which shows none.
        hidden_rows: Rows in it; None if they cannot be counted.
        hidden_bytes: Size of it, if it consists of files.
        held: The newest epoch, if the target itself records it; -1 for none.
        version: Version of the whole, if it has one.
    """

    rows: int
    open: frozenset[str] = frozenset()
    hidden_rows: int | None = None
    hidden_bytes: int = 0
    held: int | None = None
    version: int | None = None


class Target:
    """The target of a query.

    Args:
        checkpoint: The checkpoint of the query.
    """

    words: list[str]
    """Options of `krishiv-spark status`."""

    def __init__(self, checkpoint: str) -> None:
        self._checkpoint = Path(checkpoint)
        self._moments = cycle(["staged", "true"])

    def look(self) -> Found:
        """Return the current state."""
        raise NotImplementedError

    def hidden_by(self, said: Mapping[str, Any]) -> frozenset[str] | None:
        """Return the invisible data that the status reports; None if it does not name it."""

    def check_still(self, said: Mapping[str, Any], found: Found) -> None:
        """Compare further values that are constant while nothing changes."""

    def log(self) -> Iterable[Path]:
        """The files of the epoch log."""
        return (self._checkpoint / "krishiv").glob("[0-9]*.json")

    def intents(self, epoch: int) -> int:
        """Return how often the log, as far as it goes back, contains an intent of an epoch."""
        found = 0
        for path in self.log():
            with suppress(FileNotFoundError):  # folded meanwhile
                entry = json.loads(path.read_text())
                found += entry.get("kind") == "intent" and entry.get("epoch") == epoch
        return found

    def strike(self) -> None:
        """Come back while an epoch is staged; the next time, right after one has become true."""
        known, until = set(self.points()), time.monotonic() + _STRIKE_S
        moment = next(self._moments)
        while time.monotonic() < until:
            new = set(self.points()) - known
            known |= new
            if any(map(self.is_point, new)) if moment == "true" else self.is_staging():
                return
            time.sleep(0.0005)

    def is_staging(self) -> bool:
        """Return True if there is invisible data."""
        return bool(self.look().open)

    def points(self) -> Iterable[Any]:
        """Return the files of the log, of which a new one may commit an epoch."""
        return self.log()

    def is_point(self, file: Any) -> bool:
        """Return True if the file commits an epoch."""
        with suppress(FileNotFoundError):  # folded meanwhile
            return json.loads(file.read_text()).get("kind") == "intent"
        return False

    def _query(self) -> str:
        """Spark's id of it; nothing if that was not written yet."""
        try:
            return str(json.loads((self._checkpoint / "metadata").read_text())["id"])
        except FileNotFoundError:
            return ""


class KafkaTarget(Target):
    """A topic, for readers of committed records, and the transactions that the brokers list."""

    def __init__(self, checkpoint: str, bootstrap: str, topic: str) -> None:
        super().__init__(checkpoint)
        self.words = ["-o", f"kafka.bootstrap.servers={bootstrap}"]
        self._topic, self._values = topic, Counter[bytes]()
        given = {"bootstrap_servers": bootstrap, "enable_auto_commit": False}
        self._reader = KafkaConsumer(
            **given, isolation_level="read_committed", max_poll_records=10_000
        )
        self._places = [TopicPartition(topic, n) for n in self._reader.partitions_for_topic(topic)]
        self._reader.assign(self._places)
        self._reader.seek_to_beginning()
        self._admin = KafkaAdminClient(bootstrap_servers=bootstrap, **LIMITS)

    def close(self) -> None:
        self._reader.close()
        self._admin.close()

    def look(self) -> Found:
        await_none(lambda: self._listed("PrepareCommit", "PrepareAbort"), "not ended to the end")
        names = self._listed("Ongoing")
        self._read()
        twice = [value for value, times in self._values.items() if times > 1]
        assert not twice, f"records that are there more than once: {twice[:5]}"
        return Found(len(self._values), names)

    def _listed(self, *states: str) -> frozenset[str]:
        start, query = "krishiv.", self._query()
        found = self._admin.list_transactions(state_filters=list(states))
        names = {each.transactional_id for listed in found.values() for each in listed}
        return frozenset(name for name in names if query and name.startswith(f"{start}{query}."))

    def _read(self) -> None:
        """Read the rows since the last reading; committed rows stay."""
        ends, until = self._reader.end_offsets(self._places), time.monotonic() + PATIENCE
        while any(self._reader.position(place) < end for place, end in ends.items()):
            assert time.monotonic() < until, f"{self._topic} cannot be read to {ends}"
            for records in self._reader.poll(timeout_ms=200).values():
                self._values.update(record.value for record in records)

    def is_staging(self) -> bool:
        return bool(self._listed("Ongoing"))

    def hidden_by(self, said: Mapping[str, Any]) -> frozenset[str]:
        lines = said.get("live", {}).get("transactions") or ()
        return frozenset(line.split()[0] for line in lines)


class ParquetTarget(Target):
    """A folder as it is listed."""

    def __init__(self, checkpoint: str, table: Path) -> None:
        super().__init__(checkpoint)
        self.words = ["--table", str(table)]
        self._table, self._rows = table, dict[str, int]()

    def log(self) -> Iterable[Path]:
        return self._table.glob("_krishiv/*/log/*.json")

    def look(self) -> Found:
        staged = {path.name: path for path in self._table.rglob("*.staged")}
        sizes = [path.stat().st_size for path in staged.values() if path.exists()]
        rows = sum(map(self._rows_in, self._table.rglob("*.parquet")))
        hidden = sum(map(self._rows_in, staged.values()))
        return Found(rows, frozenset(staged), hidden, sum(sizes))

    def _rows_in(self, path: Path) -> int:
        """Return the rows of a file: visible ones never change, staged ones may lack the footer."""
        if path.suffix == ".staged":
            try:
                return int(pq.read_metadata(path).num_rows)
            except (OSError, ValueError):
                return 0
        if path.name not in self._rows:
            self._rows[path.name] = int(pq.read_metadata(path).num_rows)
        return self._rows[path.name]

    def check_still(self, said: Mapping[str, Any], found: Found) -> None:
        live = said.get("live", {"staged_files": 0, "staged_bytes": 0})
        assert live["staged_files"] == len(found.open), (said, found)
        assert live["staged_bytes"] == found.hidden_bytes, (said, found)


class IcebergTarget(Target):
    """A table by PyIceberg and DuckDB, and the keys that Iceberg's own sink writes, too."""

    def __init__(self, checkpoint: str, warehouse: Path) -> None:
        super().__init__(checkpoint)
        self.words = ["-o", f"warehouse={warehouse}", "-o", f"table={TABLE}"]
        self._warehouse = warehouse

    def log(self) -> Iterable[Path]:
        return ()

    def points(self) -> Iterable[Any]:
        with suppress(FileNotFoundError):  # not made yet
            yield (self._warehouse / "catalog.db").stat().st_mtime_ns

    def is_point(self, _: Any) -> bool:
        """The catalog writes with each commit, and with nothing else."""
        return True

    def look(self) -> Found:
        table = self._table()
        snapshot = None if table is None else table.current_snapshot()
        if table is None or snapshot is None:
            return Found(0, held=-1)
        files = [task.file.file_path for task in table.scan().plan_files()]
        ((rows,),) = duckdb.sql(f"SELECT count(*) FROM read_parquet({files})").fetchall()
        epoch = int(snapshot.summary["spark.sql.streaming.epochId"])
        return Found(rows, held=epoch, version=snapshot.snapshot_id)

    def is_staging(self) -> bool:
        """Data files are under their names from the start."""
        before = len(list(self._warehouse.rglob("*.parquet")))
        time.sleep(0.0005)
        return len(list(self._warehouse.rglob("*.parquet"))) > before

    def intents(self, epoch: int) -> int:
        """Return the number of snapshots of an epoch."""
        found = [s.summary["spark.sql.streaming.epochId"] for s in self._table().snapshots()]
        return found.count(str(epoch))

    def _table(self) -> Any:
        if not (self._warehouse / "catalog.db").exists():
            return None
        try:
            return table_of(self._warehouse)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None

    def check_still(self, said: Mapping[str, Any], found: Found) -> None:
        table = said.get("table") or {}
        assert table.get("snapshot") == found.version, (said, found)
