"""Which partition each row goes to. Executor."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from krishiv_spark.errors import SchemaError
from krishiv_spark.kafka.client import KafkaClient
from krishiv_spark.kafka.records import RecordColumns, partition_rows
from krishiv_spark.sinks.kafka.rows import TopicRows
from krishiv_spark.sinks.kafka.topics import PlannedTopic, partition_count

__all__ = ["Partitioner"]


class Partitioner:
    """Spreads the rows of one task over the partitions of their topics.

    Keys are spread over as many partitions as all tasks of an epoch agree upon, or those of one key
    would come to lie in two. For the topic of the option ``topic`` that is what the planner saw.
    Of a topic that only rows name, the number is looked up by each task, when it first meets it,
    and may be as old as ``metadata.max.age.ms``, as in Java's producer.

    Args:
        client: Of this process.
        planned: The topic of the option ``topic``; None to look it up.
        first: Which partition rows without a key go to first; the next ones follow in turn.
    """

    def __init__(self, client: KafkaClient, planned: PlannedTopic | None, first: int) -> None:
        self._client = client
        self._turn = first
        self._counts: dict[str, int] = {}
        if planned is not None:
            self._counts[planned.name] = planned.partitions

    def turn(self) -> None:
        """Rows without a key go to the next partition from now on."""
        self._turn += 1

    def of(self, rows: TopicRows) -> NDArray[np.int32]:
        """The partition of each row.

        Raises:
            SchemaError: If a row names one that the topic does not have.
            KafkaFailedError: If there is no such topic, or it may not be seen.
        """
        count = self._count(rows.topic)
        columns: RecordColumns = rows.columns
        if columns.key is None and rows.partition is None:
            return np.full(len(columns.value), self._turn % count, np.int32)
        given = (columns.key, rows.partition, count, self._turn % count)
        try:
            return partition_rows(*given)
        except SchemaError:  # a partition may have been added
            return partition_rows(*given, nameable=partition_count(self._client, rows.topic, 0))

    def _count(self, topic: str) -> int:
        if topic not in self._counts:
            age_s = self._client.config.metadata_age_s
            self._counts[topic] = partition_count(self._client, topic, age_s)
        return self._counts[topic]
