"""``krishiv-delta`` as a sink, under the kit: PyArrow reads the files that the log names."""

from dataclasses import replace
from functools import partial

import pyarrow as pa
import pytest
from delta_reader import LogReader

from krishiv_spark.formats import DeltaDataSource
from krishiv_spark.testing import OUTSIDE, Look, SinkConformance, SinkUnderTest, back_up_folder
from krishiv_spark.testing.processes.write_roles import in_foreach_batch

# The library writes the log without Python, and Arrow the files.
SEEN = {
    **OUTSIDE,
    "deltalake.table:DeltaTable.create_write_transaction": OSError,
    "deltalake.table:DeltaTable.create": OSError,
    "deltalake.table:DeltaTable.__init__": Look(OSError),
    "pyarrow.parquet.core:ParquetWriter.close": OSError,
}


@pytest.mark.core_cases
class TestDeltaSink(SinkConformance):
    def sink(self, folder):
        table = folder / "table"
        reader = LogReader(table)
        return SinkUnderTest(
            source=DeltaDataSource,
            options={"path": str(table), "commitTimeout": "300 ms"},
            oracle=reader.rows,
            leftovers=reader.leftovers,
            backup=partial(back_up_folder, folder),
            special_doubles=True,
            sweeps=False,  # VACUUM does, when nobody can need them any more
            most_held=2**26,  # a row group
            outside=SEEN,
        )


@pytest.mark.variant  # the same epochs, as batch jobs with numbers
class TestDeltaSinkInForeachBatch(TestDeltaSink):
    random_sequences = 10

    def sink(self, folder):
        return replace(super().sink(folder), source=in_foreach_batch(DeltaDataSource))


@pytest.mark.variant  # who commits what, and when, is the same with partitions
class TestPartitionedDeltaSink(TestDeltaSink):
    random_sequences = 10

    def sink(self, folder):
        made = super().sink(folder)
        return replace(
            made,
            options={**made.options, "partitionBy": "day"},
            schema=pa.schema([("id", pa.int64()), ("day", pa.string())]),
            row=lambda number: (number, f"d{number % 2}/é %"),
        )
