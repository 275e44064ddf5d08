"""``krishiv-parquet`` as a sink, under the kit: whoever finds the files reads them."""

from dataclasses import replace
from functools import partial

import pyarrow as pa
import pytest
from parquet_files import rows, staged

from krishiv_spark.formats import ParquetDataSource
from krishiv_spark.testing import SinkConformance, SinkUnderTest, back_up_folder
from krishiv_spark.testing.processes.write_roles import in_foreach_batch


class TestParquetSink(SinkConformance):
    def sink(self, folder):
        return SinkUnderTest(
            source=ParquetDataSource,
            options={"path": str(folder)},
            oracle=lambda: rows(folder),
            backup=partial(back_up_folder, folder),
            leftovers=lambda: staged(folder),
            most_held=2**26,  # a row group
            whole_epochs=False,  # files appear one by one while an epoch is being committed
        )


@pytest.mark.variant  # more files of an epoch, in folders; it is the same log that commits them
class TestPartitionedParquetSink(SinkConformance):
    random_sequences = 20

    def sink(self, folder):
        return SinkUnderTest(
            source=ParquetDataSource,
            options={"path": str(folder), "partitionBy": "day"},
            oracle=lambda: rows(folder),
            schema=pa.schema([("id", pa.int64()), ("day", pa.string())]),
            row=lambda number: (number, f"d{number % 2}"),
            backup=partial(back_up_folder, folder),
            leftovers=lambda: staged(folder),
            whole_epochs=False,
        )


@pytest.mark.variant  # the same, but that nobody reads the checkpoint
class TestNamedParquetSink(TestParquetSink):
    # Who sees no checkpoint cannot see that its newest epoch was planned anew, as docs/storage.md
    # says; and a name is one query's: tests/unit/test_named_queries.py.
    test_a_rolled_back_checkpoint_is_refused = None
    test_queries_have_epochs_of_their_own = None
    test_random_sequences = None  # they hold both
    # Its log has an intent that the older copy lacks: that is refused as CommitUnknown.
    test_a_target_that_went_back_is_refused_for_numbered_batches = None

    def sink(self, folder):
        found = super().sink(folder)
        named = {"queryId": folder.name, "epochLog": str(folder.with_name(f"{folder.name}-log"))}
        return replace(found, options={**found.options, **named})


@pytest.mark.variant  # the same epochs, as batch jobs with numbers
class TestParquetSinkInForeachBatch(TestParquetSink):
    def sink(self, folder):
        return replace(super().sink(folder), source=in_foreach_batch(ParquetDataSource))
