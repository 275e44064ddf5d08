"""``krishiv-delta`` as a source, under the kit: versions are written without the library."""

import errno
from dataclasses import replace

import pyarrow as pa
import pytest
from delta_reader import LogWriter

from krishiv_spark.formats import DeltaDataSource
from krishiv_spark.testing import OUTSIDE, ROW_SCHEMA, Look, SourceConformance, SourceUnderTest
from krishiv_spark.testing.rows import columns


def io_error(text):
    return OSError(errno.EIO, text)


@pytest.mark.long_cases("test_a_restart_at_each_point", "test_limits_are_honoured")
@pytest.mark.core_cases
class TestDeltaSource(SourceConformance):
    random_sequences = 30

    def source(self, folder):
        table = LogWriter(folder / "table", ROW_SCHEMA)
        return SourceUnderTest(
            source=DeltaDataSource,
            options={"path": str(folder / "table")},
            add=lambda rows: table.append(pa.table(columns(ROW_SCHEMA, rows), schema=ROW_SCHEMA)),
            any_value=("text",),
            latest={"startingVersion": "latest"},
            small_tasks={"maxPartitionBytes": "1"},
            outside={**OUTSIDE, "deltalake.table:DeltaTable.__init__": Look(io_error)},
        )


@pytest.mark.variant  # the same versions, whole, as changes
class TestDeltaChangeFeed(TestDeltaSource):
    random_sequences = 10

    def source(self, folder):
        made = super().source(folder)
        names = ",".join(ROW_SCHEMA.names)
        options = {**made.options, "readChangeFeed": "true", "columns": names}
        return replace(made, options=options, batch=False)
