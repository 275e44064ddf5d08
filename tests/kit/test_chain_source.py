"""``krishiv-chain`` under the kit: rows go to a real broker, and a query lands some in a table."""

import errno
import uuid
from itertools import count

import pytest
from iceberg_tables import make_table
from kafka_topics import make_topic
from landings import Landing, land
from timed_rows import REQUESTS, TIMED, send, timed_row

from krishiv_spark.formats import ChainDataSource
from krishiv_spark.testing import FILES, SourceConformance, SourceUnderTest

# Files of the table are read by Arrow, which the kit does not see.
SEEN = {
    **FILES,
    "pyiceberg.io.pyarrow:PyArrowFile.open": lambda text: OSError(errno.EIO, text),
    **REQUESTS,
}


@pytest.mark.variant  # the sources of which it is a chain have suites of their own
class TestChainSource(SourceConformance):
    """Whenever a query begins, its rows are those of the table, and those of the topic since."""

    random_sequences = 10

    @pytest.fixture(autouse=True)
    def _environment(self, cluster, producer):
        self.cluster, self.producer = cluster, producer

    def source(self, folder):
        topic, turns = f"t-{uuid.uuid4().hex}", count()
        make_topic(self.cluster.bootstrap, topic)
        make_table(folder, TIMED)
        kafka = {"kafka.bootstrap.servers": self.cluster.bootstrap, "subscribe": topic}
        landing = Landing(folder, TIMED, valueFormat="json", **kafka)
        landing.epoch()  # of no rows, for which the sink makes no snapshot
        land(folder, 0, landing.position.to_dict(), rows=TIMED.empty_table())

        def add(rows):
            send(self.producer, topic, rows)
            if next(turns) % 2:
                landing.epoch()

        return SourceUnderTest(
            source=ChainDataSource,
            options={
                "path": "db.t",
                "first.warehouse": str(folder),
                "then.valueFormat": "json",
                "then.maxFetchBytes": "1m",
                **{f"then.{name}": text for name, text in kafka.items()},
            },
            add=add,
            schema=TIMED,
            row=timed_row,
            any_value=("text",),
            event_time="timestamp",
            small_tasks={"then.maxRecordsPerPartition": "1"},
            outside=SEEN,
        )
