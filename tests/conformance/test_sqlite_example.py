import sqlite3
from contextlib import closing, suppress

from examples.sqlite_sink import SqliteDataSource
from krishiv_spark.testing import SinkConformance, SinkUnderTest


class TestSqliteSink(SinkConformance):
    def sink(self, folder):
        def rows():
            with closing(sqlite3.connect(folder / "db")) as db, suppress(sqlite3.OperationalError):
                db.row_factory = sqlite3.Row
                yield from map(dict, db.execute('SELECT * FROM "a ""table"'))

        options = {"path": f"{folder}/db", "table": 'a "table', "timeout": "50 ms"}
        return SinkUnderTest(source=SqliteDataSource, options=options, oracle=rows)
