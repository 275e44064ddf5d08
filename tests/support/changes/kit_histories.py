"""Histories of a database table as sinks under the kit."""

from functools import partial
from pathlib import Path

from history_life import COLUMNS, TIMED_RECORDS, HistoryRows
from iceberg_onlooker import ChangeOnlooker, options

from krishiv_spark.formats import IcebergDataSource
from krishiv_spark.testing import SinkConformance, SinkUnderTest, back_up_folder


class HistorySuite(SinkConformance):
    """Events of Debezium, of transactions that overlap, after a snapshot."""

    random_sequences = 10
    more = {}  # noqa: RUF012  further options

    def sink(self, folder: Path) -> SinkUnderTest:
        onlooker, rows = ChangeOnlooker(folder), HistoryRows()
        given = {"mode": "scd2", "keyColumns": "id", "changeFormat": "debezium"}
        return SinkUnderTest(
            source=IcebergDataSource,
            options={**options(folder), **given, "tableSchema": COLUMNS, **self.more},
            oracle=onlooker.rows,
            schema=TIMED_RECORDS,
            row=rows.make_row,
            result=rows.result,
            complete=False,
            overwrite=False,
            several_queries=False,
            batch=False,
            backup=partial(back_up_folder, folder),
            leftovers=onlooker.unnamed,
            sweeps=False,
        )
