"""The Kafka source step by step, as Spark drives it, and logs that lose records."""

import struct
from pathlib import Path

from krishiv_spark.sources.base import UNLIMITED
from krishiv_spark.sources.kafka.reader import KafkaReader, KafkaSourceOptions

HASTE = {"kafka.default.api.timeout.ms": "3000"}
"""For readers whose patience is to run out."""


def reader(bootstrap, topic, *, streaming=True, **options):
    given = {"kafka.bootstrap.servers": bootstrap, "startingOffsets": "earliest", **options}
    if not given.keys() & {"assign", "subscribePattern"}:
        given.setdefault("subscribe", topic)
    return KafkaReader(KafkaSourceOptions.parse(given, "krishiv-kafka"), None, streaming=streaming)


def find_batch_end(reader, start=None):
    """The end of the next batch."""
    return reader.latest(reader.initial() if start is None else start, UNLIMITED)


def batches(reader, start, end):
    """The values of a batch's rows, as lists of numbers."""
    for share in reader.plan(start, end):
        for batch in reader.read(share):
            yield [int(value) for value in batch.column("value").to_pylist()]


def rows(reader, start, end):
    """The values of a batch's rows."""
    return [value for some in batches(reader, start, end) for value in some]


def read_on(reader, start=None):
    """The next batch: its rows, and where it ends."""
    start = reader.initial() if start is None else start
    end = find_batch_end(reader, start)
    return rows(reader, start, end), end


def cut_log(broker, topic, offset, partition=0):
    """Remove a log's records from an offset on, as a lost disk does; the broker must not run."""
    log = _log(broker, topic, partition)
    with log.open("r+b") as file:
        file.truncate(_position(log.read_bytes(), offset))
    for index in [*log.parent.glob("*.index"), *log.parent.glob("*.timeindex")]:
        index.unlink()


def damage_log(broker, topic, offset, partition=0):
    """Give a batch a length that cannot be; returns what mends it. The broker may run."""
    log = _log(broker, topic, partition)
    data = log.read_bytes()
    at = _position(data, offset) + 8
    _write(log, at, struct.pack(">i", -1))
    return lambda: _write(log, at, data[at : at + 4])


def _log(broker, topic, partition):
    (log,) = Path(broker.folder, "data", f"{topic}-{partition}").glob("*.log")
    return log


def _write(log, at, data):
    with log.open("r+b") as file:
        file.seek(at)
        file.write(data)


def _position(data, offset):
    at = 0
    while at < len(data):
        base, length = struct.unpack_from(">qi", data, at)
        if base >= offset:
            return at
        at += 12 + length
    raise AssertionError(f"the log ends before offset {offset}")
