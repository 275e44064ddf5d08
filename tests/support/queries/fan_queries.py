"""A query into several targets: files of Parquet, and a table of Iceberg."""

import pyarrow as pa
from replays import Stream
from sink_life import SCHEMA, rows

from krishiv_spark.sinks.base import OutputMode
from krishiv_spark.sinks.fanout.writer import FanoutWriter

COLUMNS = pa.schema([(route, pa.struct(list(SCHEMA))) for route in ("files", "lake")])


class Fan(Stream):
    """Each row goes to both routes; or to the files alone, in epochs that `lake` does not have.

    Attributes:
        without_lake: The epochs without rows for the table.
    """

    def __init__(self, checkpoint, routes, *, without_lake=()):
        super().__init__(FanoutWriter, checkpoint)
        self.without_lake = {*without_lake}
        given = {**routes, "checkpointLocation": str(checkpoint)}
        options = FanoutWriter.options_type.parse(given, "krishiv-fanout")
        self._make = lambda: FanoutWriter(options, COLUMNS, OutputMode.APPEND)

    def run_to_commit(self, number, end=None):
        self._number = number
        super().run_to_commit(number, end)

    def rows(self, begin, end):
        batch = rows(begin, end - begin).to_struct_array()
        is_left_out = getattr(self, "_number", None) in self.without_lake
        lake = pa.nulls(len(batch), batch.type) if is_left_out else batch
        return pa.record_batch([batch, lake], schema=COLUMNS)


def routes_below(place):
    """The options of the routes, with all targets in a folder."""
    return {
        "route.files.format": "krishiv-parquet",
        "route.files.path": f"{place}/t",
        "route.lake.format": "krishiv-iceberg",
        "route.lake.warehouse": f"{place}/w",
        "route.lake.table": "db.t",
    }
