"""``krishiv-kafka`` as a source, under the kit: another program produces into a real broker."""

import uuid
from functools import partial

import pytest
from kafka_topics import make_topic
from timed_rows import REQUESTS, TIMED, send, timed_row

from krishiv_spark.formats import KafkaDataSource
from krishiv_spark.testing import FILES, SourceConformance, SourceUnderTest


@pytest.mark.core_cases
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
            add=partial(send, self.producer, topic),
            schema=TIMED,
            row=timed_row,
            any_value=("text",),
            event_time="timestamp",
            latest={"startingOffsets": "latest"},
            two_rows={"maxOffsetsPerTrigger": "2"},
            small_tasks={"maxRecordsPerPartition": "1"},
            outside={**FILES, **REQUESTS},
        )
