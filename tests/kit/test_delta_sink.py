"""``krishiv-delta`` as a sink, under the kit: PyArrow reads the files that the log names."""

from dataclasses import replace

import pyarrow as pa
import pytest
from delta_kit import delta_sink

from krishiv_spark.formats import DeltaDataSource
from krishiv_spark.testing import SinkConformance
from krishiv_spark.testing.processes.write_roles import in_foreach_batch


# Deaths at any call and random sequences, which stay, go through the same steps.
@pytest.mark.long_cases(
    "test_a_rolled_back_checkpoint_is_refused",
    "test_a_stale_driver_cannot_publish",
    "test_an_unknown_outcome_is_looked_up",
    "test_death_while_recovering",
    "test_nothing_stays_staged",
)
@pytest.mark.core_cases
class TestDeltaSink(SinkConformance):
    @pytest.fixture(autouse=True)
    def _name(self, request):
        self.case = request.node.name

    def sink(self, folder):
        return delta_sink(folder, self.case)


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
