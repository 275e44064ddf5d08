"""A table for each topic, under the kit: rows of three topics, and who looks at all tables."""

import sqlite3
from contextlib import closing
from functools import partial

import pyarrow as pa
from iceberg_onlooker import Onlooker, options
from pyiceberg.table import StaticTable

from krishiv_spark.formats import IcebergDataSource
from krishiv_spark.testing import SinkUnderTest, back_up_folder

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string()), ("topic", pa.string())])


def row_of_topic(number):
    return (number, f"row {number}", f"x.t{number % 3}")


class TopicsOnlooker(Onlooker):
    """PyIceberg by itself, at the places of all tables that the catalog names."""

    def places(self):
        """The location of the metadata of each table, by its name."""
        if not (self.folder / "catalog.db").exists():
            return {}
        with closing(sqlite3.connect(self.folder / "catalog.db")) as catalog:
            try:
                found = catalog.execute("SELECT table_name, metadata_location FROM iceberg_tables")
                return dict(found.fetchall())
            except sqlite3.OperationalError:  # it has just been made
                return {}

    def rows(self):
        """The rows with the topic that their table is of."""
        parts = []
        for name, place in self.places().items():
            rows = self._read(StaticTable.from_metadata(place))
            topic = pa.array([f"x.{name}"] * rows.num_rows, pa.string())
            parts.append(rows.append_column("topic", topic).cast(SCHEMA))  # of texts of any size
        return pa.concat_tables(parts) if parts else []

    def unnamed(self):
        """Data files that are in no table."""
        named = set()
        for place in self.places().values():
            files = StaticTable.from_metadata(place).inspect.files()["file_path"].to_pylist()
            named |= {name.removeprefix("file://") for name in files}
        return {str(file) for file in self.folder.rglob("*.parquet")} - named


def make_topics(folder, outside):
    """A sink with three tables; an epoch may be in one before it is in another."""
    onlooker = TopicsOnlooker(folder)
    given = {key: text for key, text in options(folder).items() if key != "path"}
    return SinkUnderTest(
        source=IcebergDataSource,
        options={**given, "table": "db.${topic.last}"},
        schema=SCHEMA,
        row=row_of_topic,
        oracle=onlooker.rows,
        leftovers=onlooker.unnamed,
        backup=partial(back_up_folder, folder),
        sweeps=False,
        most_held=2**26,
        whole_epochs=False,
        complete=False,
        overwrite=False,
        batch=False,
        outside=outside,
    )
