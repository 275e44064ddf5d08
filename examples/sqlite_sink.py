"""A sink that writes rows into SQLite, exactly once, by one COMMIT of an epoch's rows and mark."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from pyarrow import ArrowException, RecordBatch, ipc, types

from krishiv_spark import datasource, durable, errors, options
from krishiv_spark.sinks import CommittedEpoch, Epoch, OutputMode, Task, TwoPhaseWriter

_TABLE = "CREATE TABLE IF NOT EXISTS _epochs (query, epoch, digest, UNIQUE (query, epoch))"
_NEWEST = "SELECT epoch, digest FROM _epochs WHERE query = ? ORDER BY epoch DESC"
_HELD = types.is_boolean, types.is_integer, types.is_floating, types.is_string, types.is_binary


class _Options(options.Options):
    path: Path  # of the database, in a folder that the executors share with the driver
    table: str
    timeout: options.Duration = 5_000  # how long to wait for a lock


class _Writer(TwoPhaseWriter[Path]):
    options_type = _Options
    options: _Options  # for type checkers, which cannot follow `options_type`

    def _open(self) -> closing[sqlite3.Connection]:
        return closing(sqlite3.connect(self.options.path, timeout=self.options.timeout / 1000))

    def _file(self, query: str, rest: str) -> Path:
        return self.options.path.with_name(f"{self.options.path.name}-{query}-{rest}")

    def check(self) -> None:  # driver, before the tasks of an epoch, of streams and batches
        for field in self.schema:
            if not any(holds(field.type) for holds in _HELD):
                raise errors.SchemaError(f"column {field.name!r}: SQLite has no {field.type}")
        with self._open() as db:
            db.execute(_TABLE)

    def stage(self, batches: Iterator[RecordBatch], task: Task, plan: None) -> Path:  # executor
        file = self._file(task.query, f"{task.epoch}-{task.nonce}.arrow")
        with ipc.new_file(str(file), self.schema) as rows:
            for batch in batches:  # one at a time: a task may be larger than the memory
                rows.write(batch)
        durable.sync_file(file)
        return file

    def last_committed(self, query: str) -> CommittedEpoch | None:  # driver, before stage, publish
        with self._open() as db:
            row = db.execute(_NEWEST, [query]).fetchone()
            return CommittedEpoch(*row) if row else None

    def publish(self, epoch: Epoch, staged: Sequence[Path]) -> None:  # driver
        names = (name.replace('"', '""') for name in (self.options.table, *self.schema.names))
        table, *columns = (f'"{name}"' for name in names)
        into, values = f"{table} ({', '.join(columns)})", ", ".join("?" * len(columns))
        with self._open() as db:
            try:  # nothing in here is visible without the COMMIT
                db.executescript(f"PRAGMA synchronous=EXTRA; CREATE TABLE IF NOT EXISTS {into}")
                mark = (epoch.query, epoch.number, epoch.digest)
                db.execute("INSERT INTO _epochs VALUES (?, ?, ?)", mark)
                if self.mode is OutputMode.REPLACE:
                    db.execute(f"DELETE FROM {table}")  # noqa: S608
                for file in staged:
                    with ipc.open_file(str(file)) as rows:
                        for batch in map(rows.get_batch, range(rows.num_record_batches)):
                            by_row = zip(*batch.to_pydict().values(), strict=True)
                            db.executemany(f"INSERT INTO {into} VALUES ({values})", by_row)  # noqa: S608
            except (sqlite3.Error, ArrowException, OSError) as error:  # also a mark that exists
                raise errors.CommitRejected(f"epoch {epoch.number}: {error}") from error
            db.commit()  # an error in here means: it may have happened
        self._sweep(epoch)

    def _sweep(self, epoch: Epoch) -> None:  # also leftovers of attempts that never reported
        own = self._file(epoch.query, "").name
        for file in self.options.path.parent.iterdir():
            if (
                file.name.startswith(own)
                and int(file.name[len(own) :].split("-")[0]) <= epoch.number
            ):
                file.unlink(missing_ok=True)

    def discard(self, staged: Sequence[Path]) -> None:  # anywhere, any number of times
        for file in staged:
            file.unlink(missing_ok=True)


class SqliteDataSource(datasource.KrishivDataSource):
    """Register it with ``spark.dataSource.register``, then write ``.format("sqlite")``."""

    format_name, writer_type = "sqlite", _Writer
