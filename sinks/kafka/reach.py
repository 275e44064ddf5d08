"""Comparison of the end offsets of topics with where records were acknowledged. Driver."""

from __future__ import annotations

import time
from collections.abc import Mapping

from krishiv_spark.kafka.client import Client
from krishiv_spark.kafka.expected_topics import ExpectedTopic
from krishiv_spark.kafka.offset_lookups import RepeatedLookup
from krishiv_spark.kafka.partition_rows import PartitionRows
from krishiv_spark.kafka.topic_partition import LATEST, TopicPartition

__all__ = ["reach_below"]

_LOOKS, _PAUSE_S, _WITHIN_S = 10, 0.2, 5.0
"""A leader that was just elected may report a lower high watermark for a moment."""


def reach_below(
    client: Client, offsets: Mapping[TopicPartition, int], ids: Mapping[str, str]
) -> set[TopicPartition]:
    """Return the partitions whose end offset is not beyond an offset, after two seconds at most.

    Args:
        client: Of this process.
        offsets: Of acknowledged records, by partition.
        ids: Of the topics when the records were written. A topic without an id, or with another one
            by now, is not compared: it was deleted on purpose.

    Raises:
        KafkaFailedError: If the cluster does not answer.
    """
    asked = _still_the_same(client, offsets, ids)
    for look in range(_LOOKS):
        if not asked:
            break
        if look:
            time.sleep(_PAUSE_S)
            client.forget_leaders({tp.topic for tp in asked})
        rows = PartitionRows(asked)
        found, is_known = RepeatedLookup(LATEST, committed=False).gather(client, rows, _WITHIN_S)
        ends = zip(rows.partitions, found.offsets, is_known, strict=True)
        asked = {tp for tp, end, known in ends if known and end <= offsets[tp]}
    return asked


def _still_the_same(
    client: Client, offsets: Mapping[TopicPartition, int], ids: Mapping[str, str]
) -> set[TopicPartition]:
    names = {tp.topic for tp in offsets if ids.get(tp.topic)}
    topics = client.topics(names) if names else {}
    same = {
        name
        for name, topic in topics.items()
        if ExpectedTopic(ids[name], frozenset()).is_same(topic)
    }
    return {tp for tp in offsets if tp.topic in same and tp.partition in topics[tp.topic].leaders}
