"""Where a batch begins, and where options say that reading begins or ends, as offsets. Driver."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from krishiv_spark.errors import OptionError
from krishiv_spark.kafka.client import Client
from krishiv_spark.kafka.offset_lookups import list_offsets
from krishiv_spark.kafka.topic_partition import EARLIEST, LATEST, FoundOffset, TopicPartition
from krishiv_spark.sources.kafka.losses import Losses
from krishiv_spark.sources.kafka.options import KafkaSourceOptions
from krishiv_spark.sources.kafka.position import Position, QueryPosition
from krishiv_spark.sources.kafka.starting_position import StartingPosition
from krishiv_spark.sources.kafka.topics import ClusterSnapshot
from krishiv_spark.sources.kafka.truncation import find_cuts

__all__ = ["OffsetLookup"]


@dataclass(frozen=True)
class OffsetLookup:
    """Looks up where to begin and end.

    Attributes:
        client: Of this process.
        options: With start, end and isolation level.
        losses: What becomes of offsets that are named and have gone.
    """

    client: Client
    options: KafkaSourceOptions
    losses: Losses

    def begins(
        self, position: QueryPosition, snapshot: ClusterSnapshot
    ) -> dict[TopicPartition, int]:
        """Where the batch after a position begins, if the cluster still has that.

        A position after the last stable offset stays where it is: the records up to it were read
        when uncommitted ones were asked for. Partitions that are new begin with the first offset
        that they have.

        Args:
            position: Where the batch before ended.
            snapshot: What the cluster has.

        Returns:
            For each partition of the snapshot an offset that is there.

        Raises:
            DataLossError: If something has gone, and losses are errors.
            KafkaFailedError: If the cluster does not answer in time.
        """
        known = self._find_known(position, snapshot)
        begins = {tp: each.offset for tp, each in known.items()}
        # First what was cut off, since that leads back to where records may have aged out.
        for tp, cut in find_cuts(self.client, known, snapshot.newest).items():
            self.losses.report_cut_off(tp, begins[tp], cut)
            begins[tp] = cut.offset
        # Where nothing waits, nothing that has aged out is missed.
        waiting = [tp for tp, offset in begins.items() if offset < snapshot.ends[tp]]
        asked = [*(snapshot.ends.keys() - known.keys()), *waiting]
        for tp, oldest in list_offsets(self.client, dict.fromkeys(asked, EARLIEST)).items():
            if oldest.offset > begins.setdefault(tp, oldest.offset):
                self.losses.report_aged_out(tp, begins[tp], oldest.offset)
                begins[tp] = oldest.offset
        return begins

    def _find_known(
        self, position: QueryPosition, snapshot: ClusterSnapshot
    ) -> dict[TopicPartition, Position]:
        """The positions in partitions that are still there; the others are lost."""
        gone: dict[str, dict[TopicPartition, int]] = {}
        known = {}
        for tp, each in {**position.left, **position.read}.items():
            # What the options do not ask for now is not missed, even if it has gone.
            if tp in snapshot.left:
                continue
            if tp in snapshot.ends and not _is_other(position, snapshot, tp.topic):
                known[tp] = each
            else:
                gone.setdefault(tp.topic, {})[tp] = each.offset
        for name, offsets in gone.items():
            self.losses.report_topic_deleted(_what_became(position, snapshot, name), offsets)
        return known

    def first(
        self, partitions: Collection[TopicPartition], *, streaming: bool
    ) -> dict[TopicPartition, int]:
        """Where a new query begins.

        Raises:
            OptionError: If the start names other partitions than are read, a time for which there
                is no record, or, in a batch read, the latest offset.
            DataLossError: If an offset is named that is no longer there, and losses are errors.
        """
        where = self.options.start(streaming=streaming)
        if not streaming and where.uses(LATEST):
            raise self._error("a batch read cannot start at the latest offset")
        otherwise = self.options.starting_offsets_by_timestamp_strategy == "latest"
        return self._found(where, partitions, "start", latest_otherwise=otherwise)

    def last(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Where a batch read ends.

        Raises:
            OptionError: If the end names other partitions than are read, or an offset that does
                not exist yet.
            DataLossError: If an offset is named that is no longer there, and losses are errors.
        """
        return self._found(self.options.end(), partitions, "end", latest_otherwise=True)

    def newest(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The end of each partition: the last stable offset, unless all rows are asked for."""
        return self._look(dict.fromkeys(partitions, LATEST))

    def oldest(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset that each partition still has."""
        return self._look(dict.fromkeys(partitions, EARLIEST))

    def at_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The offset of the first record that is not older; -1 if there is none."""
        return self._look(times)

    def records_at(
        self, times: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, FoundOffset]:
        """`at_times`, with the timestamp of the record."""
        return list_offsets(self.client, times, committed=self.options.committed)

    def _look(self, asked: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return {tp: each.offset for tp, each in self.records_at(asked).items()}

    def _found(
        self,
        where: StartingPosition,
        partitions: Collection[TopicPartition],
        what: str,
        *,
        latest_otherwise: bool,
    ) -> dict[TopicPartition, int]:
        self._check_named(where, partitions, what)
        asked = {tp: where.of(tp) for tp in partitions}
        if where.is_time:
            return self._timed(asked, latest_otherwise=latest_otherwise)
        named = {tp: offset for tp, offset in asked.items() if offset >= 0}
        words = {tp: offset for tp, offset in asked.items() if offset < 0}
        return {**self._look(words), **self._there(named, what)}

    def _timed(
        self, asked: Mapping[TopicPartition, int], *, latest_otherwise: bool
    ) -> dict[TopicPartition, int]:
        found = self.at_times(asked)
        missing = [tp for tp, offset in found.items() if offset < 0]
        if missing and not latest_otherwise:
            raise self._error(
                f"{missing[0]} has no record at or after {asked[missing[0]]} ms since 1970, the "
                "starting timestamp; to start at the end in this case, set "
                "'startingOffsetsByTimestampStrategy' to 'latest'"
            )
        return {**found, **self.newest(missing)}

    def _check_named(
        self, where: StartingPosition, partitions: Collection[TopicPartition], what: str
    ) -> None:
        if where.everywhere is not None or where.each.keys() == set(partitions):
            return
        missing = sorted(set(partitions) - where.each.keys())
        extra = sorted(where.each.keys() - set(partitions))
        found = f"no offset for {missing[0]}" if missing else f"{extra[0]}, which is not read"
        raise self._error(
            f"the {what} must be given for exactly the partitions that are read; it has {found}"
        )

    def _there(self, named: Mapping[TopicPartition, int], what: str) -> dict[TopicPartition, int]:
        """Offsets that users name, or the oldest ones, where those have gone."""
        newest, oldest = self.newest(named), self.oldest(named)
        for tp, offset in named.items():
            if offset > newest[tp]:
                raise self._error(
                    f"the {what} in {tp} is given as offset {offset}, but the newest is "
                    f"{newest[tp]}"
                )
            if offset < oldest[tp]:
                self.losses.report_named_aged_out(tp, what, offset, oldest[tp])
        return {tp: max(offset, oldest[tp]) for tp, offset in named.items()}

    def _error(self, text: str) -> OptionError:
        return OptionError(f"{self.options.format_name}: {text}")


def _is_other(position: QueryPosition, snapshot: ClusterSnapshot, name: str) -> bool:
    """Whether a topic is not the one that was read; without ids there is no telling."""
    before, now = position.ids.get(name), snapshot.ids.get(name)
    return before is not None and now is not None and before != now


def _what_became(position: QueryPosition, snapshot: ClusterSnapshot, name: str) -> str:
    if name not in snapshot.topics:
        return f"topic {name!r} was deleted"
    if _is_other(position, snapshot, name):
        return (
            f"topic {name!r} was deleted and recreated (its id was {position.ids[name]} and is "
            f"{snapshot.ids[name]})"
        )
    return f"topic {name!r} has only {len(snapshot.topics[name].leaders)} partitions now"
