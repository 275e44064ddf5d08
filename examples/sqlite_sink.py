"""Rows into SQLite, exactly once. COMMIT of an epoch's rows and mark is the point of truth."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from pyarrow import ArrowException, RecordBatch, Table, feather

from krishiv_spark import datasource, durable, errors, options
from krishiv_spark.sinks.base import Epoch, Mark, OutputMode, Task, TwoPhaseWriter

_TABLE = "CREATE TABLE IF NOT EXISTS _epochs (query, epoch, digest, UNIQUE (query, epoch))"
_NEWEST = "SELECT epoch, digest FROM _epochs WHERE query = ? ORDER BY epoch DESC"


class _Options(options.Options):
    path: Path  # of the database, in a folder that the executors share with the driver
    table: str
    timeout: options.Duration = 5_000  # how long to wait for a lock


class _Writer(TwoPhaseWriter[Path]):
    options_type = _Options

    def stage(self, batches: Iterator[RecordBatch], task: Task) -> Path:  # executor
        file = Path(f"{self.options.path}-{task.query}-{task.epoch}-{task.nonce}.arrow")
        feather.write_feather(Table.from_batches(batches, self.schema), file)
        durable.sync_file(file)
        return file

    def last_committed(self, query: str) -> Mark | None:  # driver, before tasks and before publish
        with closing(sqlite3.connect(self.options.path, timeout=self.options.timeout / 1000)) as db:
            db.execute(_TABLE)
            row = db.execute(_NEWEST, [query]).fetchone()
            return Mark(*row) if row else None

    def publish(self, epoch: Epoch, staged: Sequence[Path]) -> None:  # driver
        names = (name.replace('"', '""') for name in (self.options.table, *self.schema.names))
        table, *columns = (f'"{name}"' for name in names)
        into, values = f"{table} ({', '.join(columns)})", ", ".join("?" * len(columns))
        with closing(sqlite3.connect(self.options.path, timeout=self.options.timeout / 1000)) as db:
            try:  # all that is in here is void without the COMMIT
                db.executescript(f"PRAGMA synchronous=EXTRA; CREATE TABLE IF NOT EXISTS {into}")
                mark = (epoch.query, epoch.number, epoch.digest)
                db.execute("INSERT INTO _epochs VALUES (?, ?, ?)", mark)
                if self.mode is OutputMode.REPLACE:
                    db.execute(f"DELETE FROM {table}")  # noqa: S608
                for file in staged:
                    rows = zip(*feather.read_table(file).to_pydict().values(), strict=True)
                    db.executemany(f"INSERT INTO {into} VALUES ({values})", rows)  # noqa: S608
            except (sqlite3.Error, ArrowException, OSError) as error:  # a mark that is there, too
                raise errors.CommitRejected(f"epoch {epoch.number}: {error}") from error
            db.commit()  # an error in here means: it may have happened
        self.discard(staged)

    def discard(self, staged: Sequence[Path]) -> None:  # anywhere, any number of times
        for file in staged:
            file.unlink(missing_ok=True)


class SqliteDataSource(datasource.KrishivDataSource):
    """Register it with ``spark.dataSource.register``, then write ``.format("sqlite")``."""

    format_name, writer_type = "sqlite", _Writer
