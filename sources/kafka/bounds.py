"""Positions that users ask for, as offsets of partitions. Driver."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from krishiv_spark.errors import OptionError
from krishiv_spark.kafka.client import Client
from krishiv_spark.kafka.lookups import list_offsets
from krishiv_spark.kafka.places import EARLIEST, LATEST, Place
from krishiv_spark.sources.kafka.losses import Losses
from krishiv_spark.sources.kafka.options import KafkaSourceOptions
from krishiv_spark.sources.kafka.where import Where

__all__ = ["Bounds"]


@dataclass(frozen=True)
class Bounds:
    """Looks up where to begin and end.

    Attributes:
        client: The cluster.
        options: The options.
        losses: What becomes of offsets that are named and have gone.
    """

    client: Client
    options: KafkaSourceOptions
    losses: Losses

    def first(self, places: Collection[Place], *, streaming: bool) -> dict[Place, int]:
        """Where a new query begins.

        Raises:
            OptionError: If the start names other partitions than are read, a time for which there
                is no record, or, in a batch read, the latest offset.
            DataLossError: If an offset is named that is no longer there, and losses are errors.
        """
        where = self.options.start(streaming=streaming)
        if not streaming and where.uses(LATEST):
            raise self._error("a batch read cannot begin at the latest offset")
        otherwise = self.options.starting_offsets_by_timestamp_strategy == "latest"
        return self._found(where, places, "start", latest_otherwise=otherwise)

    def last(self, places: Collection[Place]) -> dict[Place, int]:
        """Where a batch read ends.

        Raises:
            OptionError: If the end names other partitions than are read, or an offset that does
                not exist yet.
            DataLossError: If an offset is named that is no longer there, and losses are errors.
        """
        return self._found(self.options.end(), places, "end", latest_otherwise=True)

    def newest(self, places: Collection[Place]) -> dict[Place, int]:
        """The end of each partition: the last stable offset, unless all rows are asked for."""
        return self._look(dict.fromkeys(places, LATEST))

    def oldest(self, places: Collection[Place]) -> dict[Place, int]:
        """The first offset that each partition still has."""
        return self._look(dict.fromkeys(places, EARLIEST))

    def at_times(self, times: Mapping[Place, int]) -> dict[Place, int]:
        """The offset of the first record that is not older; -1 if there is none."""
        return self._look(times)

    def _look(self, asked: Mapping[Place, int]) -> dict[Place, int]:
        if not asked:
            return {}
        found = list_offsets(self.client, asked, committed=self.options.committed)
        return {place: each.offset for place, each in found.items()}

    def _found(
        self, where: Where, places: Collection[Place], what: str, *, latest_otherwise: bool
    ) -> dict[Place, int]:
        self._check_named(where, places, what)
        asked = {place: where.of(place) for place in places}
        if where.is_time:
            return self._timed(asked, latest_otherwise=latest_otherwise)
        named = {place: offset for place, offset in asked.items() if offset >= 0}
        words = {place: offset for place, offset in asked.items() if offset < 0}
        return {**self._look(words), **self._there(named, what)}

    def _timed(self, asked: Mapping[Place, int], *, latest_otherwise: bool) -> dict[Place, int]:
        found = self.at_times(asked)
        missing = [place for place, offset in found.items() if offset < 0]
        if missing and not latest_otherwise:
            raise self._error(
                f"{missing[0]} has no record at or after {asked[missing[0]]} ms since 1970, where "
                "the query should start; to begin at the end then, set "
                "'startingOffsetsByTimestampStrategy' to 'latest'"
            )
        return {**found, **self.newest(missing)}

    def _check_named(self, where: Where, places: Collection[Place], what: str) -> None:
        if where.everywhere is not None or where.each.keys() == set(places):
            return
        missing = sorted(set(places) - where.each.keys())
        extra = sorted(where.each.keys() - set(places))
        found = f"no offset for {missing[0]}" if missing else f"{extra[0]}, which is not read"
        raise self._error(
            f"the {what} must be given for all partitions that are read, and for no others; it "
            f"has {found}"
        )

    def _there(self, named: Mapping[Place, int], what: str) -> dict[Place, int]:
        """Offsets that users name, or the oldest ones, where those have gone."""
        newest, oldest = self.newest(named), self.oldest(named)
        for place, offset in named.items():
            if offset > newest[place]:
                raise self._error(
                    f"the {what} in {place} is given as offset {offset}, but the newest is "
                    f"{newest[place]}"
                )
            if offset < oldest[place]:
                self.losses.named_aged_out(place, what, offset, oldest[place])
        return {place: max(offset, oldest[place]) for place, offset in named.items()}

    def _error(self, text: str) -> OptionError:
        return OptionError(f"{self.options.format_name}: {text}")
