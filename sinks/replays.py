"""The part of a replay that a sink does: its target goes back to the end of an epoch. Operator."""

from __future__ import annotations

from dataclasses import dataclass, replace

from krishiv_spark.offsets import PlannedOffsets
from krishiv_spark.offsets.query_parts import part_of_query

__all__ = ["Replay", "kafka_cannot"]


@dataclass(frozen=True)
class Replay:
    """A query whose epochs from one on are processed again. It does not run.

    Attributes:
        checkpoint: Path or URL of its checkpoint, for messages.
        query: Its id; of a route, that of the part that goes there.
        name: Of this replay. Folders that keep what is taken back have it; a second run of a
            replay that died has the same.
        before: The offsets that Spark had planned for the last epoch that stays.
    """

    checkpoint: str
    query: str
    name: str
    before: PlannedOffsets

    @property
    def first(self) -> int:
        """The first epoch that is processed again."""
        return self.before.epoch + 1

    def of_route(self, route: str) -> Replay:
        """Return the same for the part of each epoch that goes one route."""
        return replace(self, query=part_of_query(self.query, route))


def kafka_cannot(checkpoint: str, first: int) -> str:
    """Return why a topic cannot go back, and the two ways on, for an error.

    Args:
        checkpoint: Path or URL of the query's checkpoint.
        first: The first epoch that was to be processed again.
    """
    log = f"--format kafka --checkpoint {checkpoint} -o … (the options of the query's writer)"
    return (
        "krishiv-kafka cannot take records back: a topic keeps what was committed, and readers "
        "have it already. Nothing was changed. Two ways on: (1) into another topic, which has each "
        f"row once: 'krishiv-spark checkpoint copy {checkpoint} NEW --to {first - 1}', then start "
        "the query with the checkpoint NEW and another topic (of a fan-out, another target for "
        "each route); (2) into the same topic, where the "
        f"rows of epoch {first} and later are then there TWICE, for readers that keep the last "
        f"record of a key: 'krishiv-spark log resolve {log}', 'krishiv-spark checkpoint rewind "
        f"{checkpoint} --to {first - 1}', then 'krishiv-spark log adopt {log}'"
    )
