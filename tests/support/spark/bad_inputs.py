"""Queries with one thing wrong: what the user sees, what is left, what the mended query does."""

import json
import shutil
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import iceberg_life
import iceberg_tables
import pyarrow as pa
import pyarrow.parquet as pq
from kafka_topics import Onlooker, make_topic

import krishiv_spark

ROWS = 20
SECRET = "hunter2"
_ORDERS = pa.table(
    {"id": range(ROWS), "day": [f"2013-01-0{1 + n % 3}" for n in range(ROWS)]},
    pa.schema([("id", pa.int64()), ("day", pa.string())]),
)
_AS_RECORDS = ("cast(id AS string) AS value",)
_AS_ORDERS = ("cast(cast(value AS string) AS long) AS id", "'2013-01-01' AS day")


@dataclass(frozen=True)
class Case:
    """One thing that is wrong with a query that copies orders.

    Attributes:
        name: For the table, as a user would tell of it.
        says: What the first line has to have, a regular expression.
        source: Format that is read.
        sink: Format that is written.
        batch: Whether it is a batch; else a stream.
        read: Options of the source that are wrong, or what makes them; None leaves one out.
        write: Options of the sink, likewise.
        schema: That the source is read with.
        columns: What becomes of the rows before they are written, as SQL.
        mode: Spark's output mode, or of a batch its save mode.
        begun: Whether a query has copied orders before, and there are new ones.
        harm: Damages something; returns what mends it.
        within_s: How long it may take, generously, on a busy machine.
        cure: What the user is to do, for the report.
        varies: Whether the line has words of Spark's or of the system's, which may differ.
    """

    name: str
    says: str
    source: str = "parquet"
    sink: str = "parquet"
    batch: bool = False
    read: "Changes" = field(default_factory=dict)
    write: "Changes" = field(default_factory=dict)
    schema: str | None = None
    columns: Sequence[str] = ("*",)
    mode: str = "append"
    begun: bool = False
    harm: Callable[["Desk"], Callable[[], object]] = lambda _: lambda: None
    within_s: float = 60
    cure: str = ""
    varies: bool = False

    def mended(self) -> "Case":
        """The same query with nothing wrong."""
        return Case(self.name, "", self.source, self.sink, self.batch)


def check_soon(took_s: float, limit_s: float, mended_s: float) -> None:
    """Check that an error came soon.

    Args:
        took_s: Seconds that the query took to fail.
        limit_s: The limit, unless the machine is so busy that the mended query takes long too.
        mended_s: Seconds that the mended query took.
    """
    assert took_s < max(limit_s, mended_s + 15)


class Desk:
    """The environment of the query of one case.

    Args:
        spark: The session.
        folder: A new folder of the case.
        cluster: A Kafka cluster with TLS, logins and ACLs; None for cases without.
    """

    def __init__(self, spark: Any, folder: Path, cluster: Any = None) -> None:
        self.spark, self.folder, self.cluster = spark, folder, cluster
        self.name = f"t{uuid.uuid4().hex}"
        self.rows = 0

    # --- what is there

    @cached_property
    def topics(self) -> tuple[str, str]:
        """Return the topics to read and to write."""
        names = (f"{self.name}-in", f"{self.name}-out")
        for name in names:
            make_topic(self.cluster.bootstrap, name)
        return names

    def add_orders(self, source: str) -> None:
        """Twenty more."""
        ids = [number + self.rows for number in range(ROWS)]
        rows = _ORDERS.set_column(0, "id", pa.array(ids, pa.int64()))
        getattr(self, f"_add_to_{source}")(rows)
        self.rows += ROWS

    def _add_to_parquet(self, rows: pa.Table) -> None:
        (self.folder / "in").mkdir(exist_ok=True)
        pq.write_table(rows, self.folder / ".aside")
        (self.folder / ".aside").rename(self.folder / "in" / f"{self.rows}.parquet")

    def _add_to_iceberg(self, rows: pa.Table) -> None:
        if not self.rows:
            (self.folder / "lake").mkdir()
            iceberg_tables.make_table(self.folder / "lake", rows.schema)
        iceberg_tables.append(self.folder / "lake", rows)

    def _add_to_memory(self, rows: pa.Table) -> None:
        krishiv_spark.memory_source(f"{self.name}-in").add(rows)

    def _add_to_kafka(self, rows: pa.Table) -> None:
        frame = self.spark.createDataFrame(
            [(str(n),) for n in rows["id"].to_pylist()], "value STRING"
        )
        given = {"kafka.bootstrap.servers": self.cluster.bootstrap, "topic": self.topics[0]}
        frame.coalesce(1).write.format("krishiv-kafka").options(**given).mode("append").save()

    def options(self, kind: str, side: str) -> dict[str, str]:
        """Of a query with nothing wrong."""
        if kind == "kafka":
            servers = {"kafka.bootstrap.servers": self.cluster.bootstrap}
            if side == "in":
                return {**servers, "subscribe": self.topics[0], "startingOffsets": "earliest"}
            return {**servers, "topic": self.topics[1]}
        return {
            "parquet": {"path": str(self.folder / side)},
            "iceberg": {
                "warehouse": str(self.folder / ("lake" if side == "in" else "out")),
                "table": "db.t" if side == "in" else "db.rows",
            },
            "memory": {"path": f"{self.name}-{side}"},
            "console": {},
            "fanout": {
                "route.good.format": "krishiv-parquet",
                "route.good.path": str(self.folder / side),
            },
        }[kind]

    # --- a query

    def run(self, case: Case) -> None:
        """Until it has copied what there is."""
        reader = self.spark.read if case.batch else self.spark.readStream
        reader = reader.format(f"krishiv-{case.source}")
        reader = reader.options(**self._changed(self.options(case.source, "in"), case.read))
        frame = (reader if case.schema is None else reader.schema(case.schema)).load()
        if case.source == "kafka":
            frame = frame.selectExpr(*_AS_ORDERS)
        frame = frame.selectExpr(*case.columns)
        if case.sink == "kafka" and case.columns == ("*",):
            frame = frame.selectExpr(*_AS_RECORDS)
        if case.sink == "fanout":
            frame = krishiv_spark.routed(frame, good="true")
        options = self.options(case.sink, "out")
        if not case.batch:
            options["checkpointLocation"] = str(self.folder / "checkpoint")
        self._write(frame, case, self._changed(options, case.write))

    def _changed(self, options: Mapping[str, str], changes: "Changes") -> dict[str, str]:
        merged = {**options, **(changes(self) if callable(changes) else changes)}
        return {key: str(text) for key, text in merged.items() if text is not None}

    def _write(self, frame: Any, case: Case, options: dict[str, str]) -> None:
        format_name = f"krishiv-{case.sink}"
        if case.batch:
            frame.write.format(format_name).options(**options).mode(case.mode).save()
            return
        writer = frame.writeStream.format(format_name).options(**options)
        query = writer.outputMode(case.mode).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    def refusal(self, case: Case) -> tuple[str, float]:
        """Return the error that the user gets, and the seconds that it took."""
        begun_s = time.monotonic()
        try:
            self.run(case)
        except Exception as error:  # noqa: BLE001  whatever a user would see
            return str(error), time.monotonic() - begun_s
        raise AssertionError(f"{case.name}: no error")

    # --- what readers see

    def ids(self, sink: str) -> list[int] | None:
        """The orders in the target, sorted; None of a sink that nobody can look into."""
        if sink == "console":
            return None
        return sorted(getattr(self, f"_ids_in_{sink}")())

    def _ids_in_parquet(self) -> list[int]:
        files = sorted((self.folder / "out").rglob("*.parquet"))
        return [n for file in files for n in pq.ParquetFile(file).read(["id"])["id"].to_pylist()]

    _ids_in_fanout = _ids_in_parquet

    def _ids_in_iceberg(self) -> list[int]:
        there = (self.folder / "out" / "catalog.db").is_file()
        return list(iceberg_life.ids(self.folder / "out")) if there else []

    def _ids_in_memory(self) -> list[int]:
        try:
            return list(krishiv_spark.memory_table(f"{self.name}-out")["id"].to_pylist())
        except krishiv_spark.errors.OptionError:  # there is none
            return []

    def _ids_in_kafka(self) -> list[int]:
        looker = Onlooker(self.cluster.bootstrap)
        try:
            return [int(record.value) for record in looker.records(self.topics[1])]
        finally:
            looker.close()

    def files(self) -> set[str]:
        """All files of the target but those of its log, staged ones too."""
        out = self.folder / "out"
        found = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
        kept = ("/log/", ".db", "table-id")  # by which a folder is known, whoever writes there
        return {name for name in found if not any(part in name for part in kept)}

    def newest_offsets(self) -> Path:
        """Spark's entry of the newest epoch."""
        entries = (self.folder / "checkpoint" / "offsets").glob("[0-9]*")
        return max(entries, key=lambda path: int(path.name))


Changes: TypeAlias = Mapping[str, Any] | Callable[[Desk], Mapping[str, Any]]


# --- what is damaged


def spoil_file(path: Path, text: bytes) -> Callable[[], object]:
    """Put other bytes into a file; returns what puts back those that it had."""
    whole = path.read_bytes() if path.exists() else None
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text)
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    return path.unlink if whole is None else lambda: path.write_bytes(whole)


def broken_footer(desk: Desk) -> Callable[[], object]:
    """The file that is to be read has lost its middle, and still has an end."""
    path = next((desk.folder / "in").glob("*.parquet"))
    return spoil_file(path, b"PAR1 no footer at all" + (200).to_bytes(4, "little") + b"PAR1")


def changed_offset(**fields: Any) -> Callable[[Desk], Callable[[], object]]:
    """The newest offset in the checkpoint says something else."""

    def harm(desk: Desk) -> Callable[[], object]:
        path = desk.newest_offsets()
        *head, last = path.read_text().splitlines()
        return spoil_file(
            path, "\n".join([*head, json.dumps({**json.loads(last), **fields})]).encode()
        )

    return harm


def roll_back_checkpoint(desk: Desk) -> Callable[[], object]:
    """The checkpoint has lost its epochs, as one that was begun anew under an old id."""
    aside = desk.folder / "aside"
    aside.mkdir()
    for name in ("offsets", "commits"):
        shutil.move(desk.folder / "checkpoint" / name, aside / name)

    def mend() -> None:
        for name in ("offsets", "commits"):
            shutil.rmtree(desk.folder / "checkpoint" / name)
            shutil.move(aside / name, desk.folder / "checkpoint" / name)

    return mend


def damaged_log(desk: Desk) -> Callable[[], object]:
    """The newest entry of the epoch log was cut off."""
    entry = max((desk.folder / "out" / "_krishiv").glob("*/log/*.json"))
    return spoil_file(entry, entry.read_bytes()[:20])


def remove_epoch_log(desk: Desk) -> Callable[[], object]:
    """The epoch log was removed, as by who thought it to be rubbish."""
    log, aside = desk.folder / "out" / "_krishiv", desk.folder / "aside"
    shutil.move(log, aside)

    def mend() -> None:
        shutil.rmtree(log, ignore_errors=True)
        shutil.move(aside, log)

    return mend


def file_at_target(desk: Desk) -> Callable[[], object]:
    """There is a file where the folder has to be."""
    return spoil_file(desk.folder / "out", b"no folder")
