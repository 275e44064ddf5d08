"""``krishiv-chain`` under the kit: rows go to a real broker, and a query lands some in a table."""

import datetime as dt
import errno
import json
import uuid
from itertools import count

import pyarrow as pa
import pytest
from iceberg_tables import make_table
from kafka import KafkaProducer
from kafka.errors import KafkaConnectionError
from kafka_topics import make_topic
from landings import Landing, land

from krishiv_spark.formats.chain import ChainDataSource
from krishiv_spark.kafka.client import KafkaFailedError
from krishiv_spark.testing import FILES, ROW_SCHEMA, SourceConformance, SourceUnderTest
from krishiv_spark.testing.subjects import default_row

pytestmark = pytest.mark.xdist_group("kafka")
# Files of the table are read by Arrow, which the kit does not see.
SEEN = {
    **FILES,
    "pyiceberg.io.pyarrow:PyArrowFile.open": lambda text: OSError(errno.EIO, text),
    "krishiv_spark.kafka.client:Client.ask": KafkaFailedError,
    "krishiv_spark.kafka.client:Client.submit": KafkaFailedError,
    "krishiv_spark.kafka.client:Client.wait": KafkaConnectionError,  # tried again
}
TIMED = pa.schema([*ROW_SCHEMA, ("timestamp", pa.timestamp("us", "UTC"))])
NEW_YEAR = dt.datetime(2013, 1, 1, tzinfo=dt.timezone.utc)


@pytest.fixture(scope="module")
def producer(cluster):
    # What is sent at once is one batch of records, which appears as a whole.
    producer = KafkaProducer(
        bootstrap_servers=cluster.bootstrap, acks="all", linger_ms=20, batch_size=2**20
    )
    yield producer
    producer.close()


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
            self.send(topic, rows)
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
            row=lambda n: (*default_row(n), NEW_YEAR + dt.timedelta(minutes=n)),
            any_value=("text",),
            event_time="timestamp",
            small_tasks={"then.maxRecordsPerPartition": "1"},
            outside=SEEN,
        )

    def send(self, topic, rows):
        for number, text, at in rows:
            value = json.dumps({"id": number, "text": text}).encode()
            self.producer.send(topic, value, timestamp_ms=int(at.timestamp() * 1000))
        self.producer.flush()
