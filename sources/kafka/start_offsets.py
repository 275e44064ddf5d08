"""The offsets at which a batch starts, and a query or a batch read starts and ends. Driver."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from krishiv_spark.errors import OptionError
from krishiv_spark.kafka.client import KafkaClient
from krishiv_spark.kafka.list_offsets import list_offsets
from krishiv_spark.kafka.topic_partition import EARLIEST, LATEST, FoundOffset, TopicPartition
from krishiv_spark.sources.kafka.losses import DataLossPolicy, find_truncations
from krishiv_spark.sources.kafka.offset import PartitionPosition, QueryPosition
from krishiv_spark.sources.kafka.options import KafkaSourceOptions, StartingPosition
from krishiv_spark.sources.kafka.subscription import ClusterSnapshot

__all__ = ["OffsetResolver"]


@dataclass(frozen=True)
class OffsetResolver:
    """A resolver of starts and ends to offsets that exist.

    Attributes:
        client: The client of this process.
        options: They specify start, end and isolation level.
        losses: The policy for records that were deleted.
    """

    client: KafkaClient
    options: KafkaSourceOptions
    losses: DataLossPolicy

    def resume(
        self, position: QueryPosition, snapshot: ClusterSnapshot
    ) -> dict[TopicPartition, int]:
        """Return the start of the batch after a position, in each partition of a snapshot.

        A position after the last stable offset stays unchanged: an earlier run read the records up
        to it as uncommitted ones. New partitions start at their first offset. If that is not 0,
        records were deleted before they were read, as Spark's ``KafkaOffsetReader`` has it too;
        but a topic or partition that the user has added to the options may be an old one.

        Args:
            position: The end of the previous batch.
            snapshot: The state of the cluster.

        Returns:
            An existing offset of each partition, or its end.

        Raises:
            DataLossError: If records were deleted before they were read, and losses are errors.
            KafkaFailedError: If the cluster does not respond in time.
        """
        existing = self._find_existing(position, snapshot)
        starts = {tp: each.offset for tp, each in existing.items()}
        # Truncation comes first: it moves the start back, to where records may have aged out.
        for tp, truncation in find_truncations(self.client, existing, snapshot.newest).items():
            self.losses.report_truncated(tp, starts[tp], truncation)
            starts[tp] = truncation.offset
        # A partition without a backlog misses no record that has aged out.
        unread = [tp for tp, offset in starts.items() if offset < snapshot.ends[tp]]
        asked = [*(snapshot.ends.keys() - existing.keys()), *unread]
        for tp, oldest in list_offsets(self.client, dict.fromkeys(asked, EARLIEST)).items():
            if tp in existing and oldest.offset > starts[tp]:
                self.losses.report_aged_out(tp, starts[tp], oldest.offset)
            elif oldest.offset > 0 and self._is_added(tp, position):
                self.losses.report_added_aged_out(tp, oldest.offset)
            starts[tp] = max(oldest.offset, starts.get(tp, 0))
        return starts

    def _is_added(self, tp: TopicPartition, position: QueryPosition) -> bool:
        """Return True if a partition is new, and the user has not added it to the options."""
        if self.options.assign is not None or tp in position.read or tp in position.left:
            return False
        known = (each.topic for each in (*position.read, *position.left))
        return self.options.subscribe_pattern is not None or tp.topic in known

    def _find_existing(
        self, position: QueryPosition, snapshot: ClusterSnapshot
    ) -> dict[TopicPartition, PartitionPosition]:
        """Return the positions in partitions that still exist, and report the others as lost."""
        lost: dict[str, dict[TopicPartition, int]] = {}
        existing = {}
        for tp, each in {**position.left, **position.read}.items():
            # A partition that the options no longer include is not missed, even if it was deleted.
            if tp in snapshot.left:
                continue
            if tp in snapshot.ends and not _is_other(position, snapshot, tp.topic):
                existing[tp] = each
            else:
                lost.setdefault(tp.topic, {})[tp] = each.offset
        for name, offsets in lost.items():
            self.losses.report_topic_deleted(_describe_loss(position, snapshot, name), offsets)
        return existing

    def resolve_start(
        self, partitions: Collection[TopicPartition], *, streaming: bool
    ) -> dict[TopicPartition, int]:
        """Return the start of a new query.

        Raises:
            OptionError: If the start names other partitions than the query reads, a time without a
                later record, or, in a batch read, the latest offset.
            DataLossError: If a named offset was deleted, and losses are errors.
        """
        where = self.options.start(streaming=streaming)
        if not streaming and where.uses(LATEST):
            raise self._error("a batch read cannot start at the latest offset")
        otherwise = self.options.starting_offsets_by_timestamp_strategy == "latest"
        return self._resolve(where, partitions, "start", latest_otherwise=otherwise)

    def resolve_end(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end of a batch read, exclusive.

        Raises:
            OptionError: If the end names other partitions than the query reads, or an offset that
                does not exist yet.
            DataLossError: If a named offset was deleted, and losses are errors.
        """
        return self._resolve(self.options.end(), partitions, "end", latest_otherwise=True)

    def _fetch_newest(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return self._fetch(dict.fromkeys(partitions, LATEST))

    def _fetch_oldest(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return self._fetch(dict.fromkeys(partitions, EARLIEST))

    def find_records(
        self, times: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, FoundOffset]:
        """Return the first record of each partition with a timestamp or a later one."""
        return list_offsets(self.client, times, committed=self.options.committed)

    def _fetch(self, asked: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return {tp: each.offset for tp, each in self.find_records(asked).items()}

    def _resolve(
        self,
        where: StartingPosition,
        partitions: Collection[TopicPartition],
        what: str,
        *,
        latest_otherwise: bool,
    ) -> dict[TopicPartition, int]:
        self._check_partitions(where, partitions, what)
        asked = {tp: where.get(tp) for tp in partitions}
        if where.is_time:
            return self._resolve_times(asked, latest_otherwise=latest_otherwise)
        named = {tp: offset for tp, offset in asked.items() if offset >= 0}
        words = {tp: offset for tp, offset in asked.items() if offset < 0}
        return {**self._fetch(words), **self._check_named_offsets(named, what)}

    def _resolve_times(
        self, asked: Mapping[TopicPartition, int], *, latest_otherwise: bool
    ) -> dict[TopicPartition, int]:
        # The ends come first: a record that appears between the requests is read.
        newest = self._fetch_newest(asked) if latest_otherwise else {}
        found = self._fetch(asked)
        missing = [tp for tp, offset in found.items() if offset < 0]
        if missing and not latest_otherwise:
            raise self._error(
                f"{missing[0]} has no record at or after {asked[missing[0]]} ms since 1970, the "
                "starting timestamp; to start at the end in this case, set "
                "'startingOffsetsByTimestampStrategy' to 'latest'"
            )
        return {**found, **{tp: newest[tp] for tp in missing}}

    def _check_partitions(
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

    def _check_named_offsets(
        self, named: Mapping[TopicPartition, int], what: str
    ) -> dict[TopicPartition, int]:
        """Return offsets that options name; the oldest one of the partition if it was deleted."""
        newest, oldest = self._fetch_newest(named), self._fetch_oldest(named)
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
    """Return True if a topic was recreated. Without ids, this cannot be detected."""
    before, now = position.ids.get(name), snapshot.ids.get(name)
    return before is not None and now is not None and before != now


def _describe_loss(position: QueryPosition, snapshot: ClusterSnapshot, name: str) -> str:
    if name not in snapshot.topics:
        return f"topic {name!r} was deleted"
    if _is_other(position, snapshot, name):
        return (
            f"topic {name!r} was deleted and recreated (its id was {position.ids[name]} and is "
            f"{snapshot.ids[name]})"
        )
    return f"topic {name!r} has only {len(snapshot.topics[name].leaders)} partitions now"
