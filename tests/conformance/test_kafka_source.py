"""``krishiv-kafka`` as a source, under the kit: another program produces into a real broker."""

import datetime as dt
import json
import uuid

import pyarrow as pa
import pytest
from kafka import KafkaProducer
from kafka.errors import KafkaConnectionError
from kafka_topics import make_topic

from krishiv_spark.formats.kafka import KafkaDataSource
from krishiv_spark.kafka.client import KafkaFailedError
from krishiv_spark.testing import FILES, ROW_SCHEMA, SourceConformance, SourceUnderTest
from krishiv_spark.testing.subjects import default_row

pytestmark = pytest.mark.xdist_group("kafka")
REQUESTS = {
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


class TestKafkaSource(SourceConformance):
    random_sequences = 20

    @pytest.fixture(autouse=True)
    def _environment(self, cluster, producer):
        self.cluster, self.producer = cluster, producer

    def source(self, folder):
        del folder
        topic = f"t-{uuid.uuid4().hex}"
        make_topic(self.cluster.bootstrap, topic)
        return SourceUnderTest(
            source=KafkaDataSource,
            options={
                "kafka.bootstrap.servers": self.cluster.bootstrap,
                "subscribe": topic,
                "startingOffsets": "earliest",
                "valueFormat": "json",
                "maxFetchBytes": "1m",
            },
            add=lambda rows: self.send(topic, rows),
            schema=TIMED,
            row=lambda n: (*default_row(n), NEW_YEAR + dt.timedelta(minutes=n)),
            any_value=("text",),
            event_time="timestamp",
            latest={"startingOffsets": "latest"},
            two_rows={"maxOffsetsPerTrigger": "2"},
            small_tasks={"maxRecordsPerPartition": "1"},
            outside={**FILES, **REQUESTS},
        )

    def send(self, topic, rows):
        for number, text, at in rows:
            value = json.dumps({"id": number, "text": text}).encode()
            self.producer.send(topic, value, timestamp_ms=int(at.timestamp() * 1000))
        self.producer.flush()
