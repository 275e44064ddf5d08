"""Mirrors of a database table as sinks under the kit."""

from functools import partial
from pathlib import Path

from database_life import COLUMNS, make_change_rows
from iceberg_onlooker import ChangeOnlooker, options

from krishiv_spark.formats import IcebergDataSource
from krishiv_spark.testing import SinkConformance, SinkUnderTest, back_up_folder


class MirrorSuite(SinkConformance):
    """Events of Debezium, some without the values that have not changed."""

    random_sequences = 20
    mode = "merge-on-read"

    def sink(self, folder: Path) -> SinkUnderTest:
        onlooker = ChangeOnlooker(folder)
        given = {"mode": "upsert", "keyColumns": "id", "changeFormat": "debezium"}
        return SinkUnderTest(
            source=IcebergDataSource,
            options={**options(folder), **given, "upsertMode": self.mode, "tableSchema": COLUMNS},
            oracle=onlooker.rows,
            **make_change_rows(),
            backup=partial(back_up_folder, folder),
            leftovers=onlooker.unnamed,
            sweeps=False,
        )
