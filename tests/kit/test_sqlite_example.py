import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from examples.sqlite_sink import SqliteDataSource
from krishiv_spark.testing import SinkConformance, SinkUnderTest


class TestSqliteSink(SinkConformance):
    def sink(self, folder: Path) -> SinkUnderTest:
        def rows() -> Iterator[dict[str, Any]]:
            with closing(sqlite3.connect(folder / "db")) as db, suppress(sqlite3.OperationalError):
                db.row_factory = sqlite3.Row
                yield from map(dict, db.execute('SELECT * FROM "a ""table"'))

        options = {"path": f"{folder}/db", "table": 'a "table', "timeout": "50 ms"}
        return SinkUnderTest(source=SqliteDataSource, options=options, oracle=rows)
