"""``krishiv-delta`` as a sink, under the kit: PyArrow reads the files that the log names."""

from dataclasses import replace

import pyarrow as pa
import pytest
from delta_kit import delta_sink

from krishiv_spark.formats import DeltaDataSource
from krishiv_spark.testing import SinkConformance
from krishiv_spark.testing.processes.write_roles import in_foreach_batch


@pytest.mark.core_cases
class TestDeltaSink(SinkConformance):
    def sink(self, folder):
        return delta_sink(folder)


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
