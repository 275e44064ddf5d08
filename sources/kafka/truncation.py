"""Whether a partition's log is still the one in which a position was found (KIP-320).

A leader that was elected although it had not replicated everything, or whose disk was lost, cuts
the log off, and new records take the offsets of those that have gone. Offsets alone do not show
that. Each leader numbers its reign, its *leader epoch*, and knows where each reign has ended in its
log: the end of a reign before a position that was found in it shows that something was cut off.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from krishiv_spark.kafka.client import Client
from krishiv_spark.kafka.lookups import epoch_ends
from krishiv_spark.kafka.offset_lookups import list_offsets
from krishiv_spark.kafka.topic_partition import LATEST, FoundOffset, TopicPartition
from krishiv_spark.runtime.retry import Backoff
from krishiv_spark.sources.kafka.position import Position

__all__ = ["Cut", "cut_of", "cuts", "find_cuts"]


@dataclass(frozen=True)
class Cut:
    """The log in which a position was found has lost its end.

    Attributes:
        offset: What lies before it is still there; new records may follow.
        why: How that is known, for people.
        is_certain: Whether no broker that lags behind others could have said the same.
    """

    offset: int
    why: str
    is_certain: bool


def _is_doubtful(position: Position, end: FoundOffset) -> bool:
    """Whether the log may not reach a position any more, by the end that its leader gives.

    Args:
        position: Where the query stands.
        end: The high watermark, or the last stable offset.
    """
    is_another = position.epoch != end.epoch and position.epoch >= 0
    return is_another or end.offset < position.offset


def cut_of(position: Position, high_watermark: FoundOffset, epoch_end: int = -1) -> Cut | None:
    """What became of the log in which a position was found.

    Args:
        position: Where the query stands.
        high_watermark: That of now. The last stable offset may lie before a position at which
            uncommitted records were read.
        epoch_end: Where the records of the position's leader epoch, and of those before it, end in
            the log of today's leader; -1 if it was not asked, or does not know.

    Returns:
        None if the log still reaches the position.
    """
    if 0 <= high_watermark.epoch < position.epoch:
        # Elections only count up: the log is another one, or the broker has not heard of the last.
        why = f"its leader epoch has gone back from {position.epoch} to {high_watermark.epoch}"
        return Cut(min(position.offset, high_watermark.offset), why, is_certain=False)
    if epoch_end >= 0:
        why = f"its new leader has only what lies before offset {epoch_end} of that"
        return Cut(epoch_end, why, is_certain=True) if epoch_end < position.offset else None
    if high_watermark.offset < position.offset:
        return Cut(
            high_watermark.offset,
            f"the partition ends at {high_watermark.offset}",
            is_certain=False,
        )
    return None


def cuts(
    client: Client,
    positions: Mapping[TopicPartition, Position],
    high_watermarks: Mapping[TopicPartition, FoundOffset],
) -> dict[TopicPartition, Cut]:
    """The partitions whose log has lost its end.

    Args:
        client: Of this process.
        positions: Where the query, or a batch of it, stands or ends in these partitions.
        high_watermarks: They must have been looked up before: whoever goes on in their leader
            epochs is then told of every election after this look.

    Raises:
        KafkaFailedError: If a partition has no answer in time.
    """
    asked = {
        p: position.epoch
        for p, position in positions.items()
        if 0 <= position.epoch < high_watermarks[p].epoch
    }
    ends = epoch_ends(client, asked) if asked else {}
    found = {
        p: cut_of(position, high_watermarks[p], ends.get(p, -1))
        for p, position in positions.items()
    }
    return {tp: cut for tp, cut in found.items() if cut is not None}


def find_cuts(
    client: Client,
    positions: Mapping[TopicPartition, Position],
    ends: Mapping[TopicPartition, FoundOffset],
) -> dict[TopicPartition, Cut]:
    """The positions that the log may not reach any more, looked at until that is certain.

    Args:
        client: Of this process.
        positions: Where the query stands.
        ends: Where these partitions end: the high watermark, or the last stable offset. Whatever
            they leave no doubt about is not asked for again.

    Raises:
        KafkaFailedError: If a partition has no answer in time.
    """
    doubtful = {tp: each for tp, each in positions.items() if _is_doubtful(each, ends[tp])}
    found: dict[TopicPartition, Cut] = {}
    backoff = Backoff(client.connection.api_timeout_s)
    while doubtful:
        high_watermarks = list_offsets(client, dict.fromkeys(doubtful, LATEST), committed=False)
        found = {tp: cut for tp, cut in found.items() if tp not in doubtful}
        found |= cuts(client, doubtful, high_watermarks)
        doubtful = {tp: positions[tp] for tp, cut in found.items() if not cut.is_certain}
        client.forget_leaders({tp.topic for tp in doubtful})
        if doubtful and not backoff.pause():
            break
    return found
