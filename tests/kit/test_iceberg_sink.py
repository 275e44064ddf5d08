"""``krishiv-iceberg`` as a sink, under the kit: PyIceberg by itself reads what is in the table."""

import errno
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pytest
from iceberg_onlooker import Onlooker, UpsertOnlooker, options
from keyed_rows import KEYED_ROWS
from kit_histories import HistorySuite
from kit_mirrors import MirrorSuite
from kit_topic_tables import make_topics

from krishiv_spark.formats import IcebergDataSource
from krishiv_spark.sinks.iceberg.maintenance import compaction, compaction_groups
from krishiv_spark.testing import (
    FILES,
    OUTSIDE,
    SQLITE,
    SinkConformance,
    SinkUnderTest,
    back_up_folder,
)
from krishiv_spark.testing.processes.write_roles import in_foreach_batch


def io_error(text):
    return OSError(errno.EIO, text)


# Data files are written by Arrow, which the kit does not see.
SEEN = {**OUTSIDE, "krishiv_spark.sinks.iceberg.data_files:_OpenDataFile.close": io_error}

# Changes and position deletes too, by another way.
SEEN_UPSERTS = {**SEEN, "pyarrow.parquet.core:ParquetWriter.close": io_error}


# An epoch has thousands of calls: the first goes through all of them, the second through many.
@pytest.mark.long_cases(
    "test_an_unknown_outcome_is_looked_up", "test_a_stale_driver_cannot_publish"
)
@pytest.mark.core_cases
class TestIcebergSink(SinkConformance):
    def sink(self, folder):
        onlooker = Onlooker(folder)
        return SinkUnderTest(
            source=IcebergDataSource,
            options=options(folder),
            oracle=onlooker.rows,
            leftovers=onlooker.unnamed,
            backup=partial(back_up_folder, folder),
            sweeps=False,  # krishiv-spark iceberg vacuum does, when nobody can need them any more
            most_held=2**26,  # a row group
            outside=SEEN,
        )


@pytest.mark.variant  # the same epochs, as batch jobs with numbers
class TestIcebergSinkInForeachBatch(TestIcebergSink):
    random_sequences = 10

    def sink(self, folder):
        return replace(super().sink(folder), source=in_foreach_batch(IcebergDataSource))


@pytest.mark.long  # the log and the parts are those of a fan-out, whose suites are shorter
@pytest.mark.variant
class TestTopicTables(SinkConformance):
    random_sequences = 10

    def sink(self, folder):
        return make_topics(folder, {**FILES, **SQLITE, **SEEN})


@pytest.mark.variant  # who commits what, and when, is the same with partitions
class TestPartitionedIcebergSink(SinkConformance):
    random_sequences = 10

    def sink(self, folder):
        onlooker = Onlooker(folder)
        given = {"partitionBy": "day, bucket(2, id)", "sortBy": "id", "keepSnapshots": "1"}
        return SinkUnderTest(
            source=IcebergDataSource,
            options={**options(folder), **given, "keepMetadataFiles": "1"},
            oracle=onlooker.rows,
            schema=pa.schema([("id", pa.int64()), ("day", pa.string())]),
            row=lambda number: (number, f"d{number % 2}"),
            leftovers=onlooker.unnamed,
            backup=partial(back_up_folder, folder),
            sweeps=False,
            outside=SEEN,
        )

    # What these prove does not depend on partitions, and takes a minute.
    test_complete_mode = None
    test_a_stale_driver_cannot_publish = None
    test_an_unknown_outcome_is_looked_up = None


@pytest.mark.variant  # the same marks, with deletes beside the rows
class TestMergeOnReadUpserts(SinkConformance):
    """Rows are deleted by their positions, in the snapshot that adds the new ones."""

    random_sequences = 20
    way = "merge-on-read"
    more = {}  # noqa: RUF012  further options

    def sink(self, folder):
        onlooker = UpsertOnlooker(folder)
        given = {"mode": "upsert", "keyColumns": "id", "opColumn": "op", "orderColumn": "number"}
        return SinkUnderTest(
            source=IcebergDataSource,
            options={**options(folder), **given, "upsertMode": self.way, **self.more},
            oracle=onlooker.rows,
            **KEYED_ROWS,
            backup=partial(back_up_folder, folder),
            leftovers=onlooker.unnamed,
            sweeps=False,
            outside=SEEN_UPSERTS,
        )


@pytest.mark.variant  # the older way, which tables from before keep
class TestCopyOnWriteUpserts(TestMergeOnReadUpserts):
    """Files with replaced rows are written again."""

    way = "copy-on-write"


@pytest.mark.long
@pytest.mark.variant  # the same deletes, after a comparison with the rows of the table
class TestOrderedUpserts(TestMergeOnReadUpserts):
    """The order of rows is compared with that of the table's rows."""

    random_sequences = 5
    more = {"orderScope": "table"}  # noqa: RUF012


@pytest.fixture
def _compact_often(monkeypatch):
    monkeypatch.setattr(compaction, "_EPOCHS", 1)
    monkeypatch.setattr(compaction_groups, "_FANOUT", 2)


@pytest.mark.variant  # the same epochs, with a second commit after each
@pytest.mark.usefixtures("_compact_often")
class TestCompactingUpserts(TestMergeOnReadUpserts):
    """Files are compacted after each epoch, as many at a time as there are."""

    more = {"compact": "auto"}  # noqa: RUF012


@pytest.mark.long
@pytest.mark.variant
@pytest.mark.usefixtures("_compact_often")
class TestCompactingAppends(TestIcebergSink):
    """The same, for rows without keys, which show an epoch that is there twice."""

    def sink(self, folder):
        made = super().sink(folder)
        return replace(made, options={**made.options, "compact": "auto"}, leftovers=list)


@pytest.mark.variant  # the same upserts, whose rows are events of a database
class TestMirror(MirrorSuite):
    def sink(self, folder):
        return replace(super().sink(folder), outside=SEEN_UPSERTS)


@pytest.mark.long
@pytest.mark.variant
class TestCopyOnWriteMirror(TestMirror):
    """The same, where files with replaced rows are written again."""

    mode = "copy-on-write"


@pytest.mark.variant  # events of a database again, which become versions
class TestHistory(HistorySuite):
    def sink(self, folder):
        return replace(super().sink(folder), outside=SEEN_UPSERTS)


@pytest.mark.long
@pytest.mark.variant
@pytest.mark.usefixtures("_compact_often")
class TestCompactingHistory(TestHistory):
    """The same, where files are compacted after each epoch."""

    random_sequences = 5

    more = {"compact": "auto", "partitionBy": "is_current"}  # noqa: RUF012
