"""Whether a partition's log is still the one in which a position was found (KIP-320).

A leader that was elected although it had not replicated everything, or whose disk was lost, cuts
the log off, and new records take the offsets of those that have gone. Offsets alone do not show
that. Each leader numbers its reign, its *leader epoch*, and knows where each reign has ended in its
log: the end of a reign before a position that was found in it shows that something was cut off.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from krishiv_spark.kafka.client import Client
from krishiv_spark.kafka.lookups import epoch_ends, list_offsets
from krishiv_spark.kafka.pauses import Pauses
from krishiv_spark.kafka.places import LATEST, FoundOffset, Place

__all__ = ["Cut", "Stand", "certain_cuts", "cut_of", "cuts", "is_doubtful"]


class Stand(NamedTuple):
    """A position in a partition.

    Attributes:
        offset: The next offset; everything before it was there when the position was found.
        epoch: Leader epoch of the leader that was asked then; -1 if it is not known.
    """

    offset: int
    epoch: int = -1


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


def is_doubtful(stand: Stand, end: FoundOffset) -> bool:
    """Whether the log may not reach a position any more, by the end that its leader gives.

    Args:
        stand: The position.
        end: The high watermark, or the last stable offset.
    """
    is_another = stand.epoch != end.epoch and stand.epoch >= 0
    return is_another or end.offset < stand.offset


def cut_of(stand: Stand, high: FoundOffset, epoch_end: int = -1) -> Cut | None:
    """What became of the log in which a position was found.

    Args:
        stand: The position.
        high: The high watermark now. The last stable offset may lie before a position at which
            uncommitted records were read.
        epoch_end: Where the records of the position's leader epoch, and of those before it, end in
            the log of today's leader; -1 if it was not asked, or does not know.

    Returns:
        None if the log still reaches the position.
    """
    if 0 <= high.epoch < stand.epoch:
        why = f"its leader epoch has gone back from {stand.epoch} to {high.epoch}"
        return Cut(min(stand.offset, high.offset), why, is_certain=False)
    if epoch_end >= 0:
        why = f"its new leader has only what lies before offset {epoch_end} of that"
        return Cut(epoch_end, why, is_certain=True) if epoch_end < stand.offset else None
    if high.offset < stand.offset:
        return Cut(high.offset, f"the partition ends at {high.offset}", is_certain=False)
    return None


def cuts(
    client: Client, stands: Mapping[Place, Stand], highs: Mapping[Place, FoundOffset]
) -> dict[Place, Cut]:
    """The partitions whose log has lost its end.

    Args:
        client: The cluster.
        stands: Positions.
        highs: The high watermarks. They must have been looked up before: whoever goes on in their
            leader epochs is then told of every election after this look.

    Raises:
        KafkaFailedError: If a partition has no answer in time.
    """
    asked = {p: stand.epoch for p, stand in stands.items() if 0 <= stand.epoch < highs[p].epoch}
    ends = epoch_ends(client, asked) if asked else {}
    found = {p: cut_of(stand, highs[p], ends.get(p, -1)) for p, stand in stands.items()}
    return {place: cut for place, cut in found.items() if cut is not None}


def certain_cuts(client: Client, stands: Mapping[Place, Stand]) -> dict[Place, Cut]:
    """`cuts`, looked for again until they are certain, or patience is over.

    Raises:
        KafkaFailedError: If a partition has no answer in time.
    """
    found: dict[Place, Cut] = {}
    doubtful, pauses = dict(stands), Pauses(client.connection.patience_s)
    while doubtful:
        highs = list_offsets(client, dict.fromkeys(doubtful, LATEST), committed=False)
        found = {place: cut for place, cut in found.items() if place not in doubtful}
        found |= cuts(client, doubtful, highs)
        doubtful = {place: stands[place] for place, cut in found.items() if not cut.is_certain}
        client.forget_leaders({place.topic for place in doubtful})
        if doubtful and not pauses.pause():
            break
    return found
