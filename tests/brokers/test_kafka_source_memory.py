"""One task reads 64 partitions of records of 1 MB each, in bounded memory."""

import subprocess
import sys

import pytest
from kafka import KafkaProducer
from kafka_topics import make_topic
from patience import PATIENCE

from krishiv_spark.kafka.dev import open_cluster
from krishiv_spark.kafka.records import warm_up

PARTITIONS, EACH, SIZE = 64, 12, 2**20
LIMIT_MB = 500

READER = """
import sys
from krishiv_spark.sources.base import UNLIMITED
from krishiv_spark.sources.kafka.reader import KafkaReader, KafkaSourceOptions

given = {"kafka.bootstrap.servers": sys.argv[1], "subscribe": "large"}
reader = KafkaReader(KafkaSourceOptions.parse(given, "krishiv-kafka"), None, streaming=False)
start = reader.initial()
tasks = reader.plan(start, reader.latest(start, UNLIMITED))
task = tuple(each for ranges in tasks for each in ranges)
rows = sum(len(batch) for batch in reader.read(task))
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(len(task), rows, int(peak.split()[1]) // 1024)
"""


@pytest.fixture
def cluster():
    warm_up()  # compiled code is no part of what a task holds
    settings = {"message.max.bytes": str(4 * SIZE)}
    with open_cluster(settings=settings) as found:
        make_topic(found.bootstrap, "large", partitions=PARTITIONS)
        fill(found.bootstrap)
        yield found


def fill(bootstrap: str) -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap, max_request_size=4 * SIZE)
    value = bytes(SIZE)
    for number in range(PARTITIONS * EACH):
        producer.send("large", value, partition=number % PARTITIONS)
    producer.flush()
    producer.close()


@pytest.mark.long  # the kit measures with small ones
def test_a_task_with_many_large_records_stays_under_500_mb(cluster):
    command = [sys.executable, "-c", READER, cluster.bootstrap]
    run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert run.returncode == 0, run.stderr
    ranges, rows, peak_mb = map(int, run.stdout.split())
    print(f"peak {peak_mb} MB")
    assert (ranges, rows) == (PARTITIONS, PARTITIONS * EACH)
    assert 50 < peak_mb < LIMIT_MB
