"""Beginning where another query of ``krishiv-kafka`` stands. Driver; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from krishiv_spark.errors import OptionError
from krishiv_spark.kafka.topic_partition import LATEST
from krishiv_spark.sources.kafka.options import KafkaSourceOptions
from krishiv_spark.sources.kafka.position import KafkaOffset, QueryPosition
from krishiv_spark.sources.kafka.topics import Subscription

__all__ = ["begun_at", "check_exact", "taken_over"]

_BY_HAND = "set 'snapshot' and 'then.startingOffsets'"


def taken_over(options: KafkaSourceOptions, given: Mapping[str, Any]) -> KafkaOffset:
    """The position of another query, without its event time.

    It keeps topics' ids and leader epochs, so that a topic that was made anew since, another
    cluster, or a log that was cut off is found out, as with the query's own positions. Partitions
    that it does not have are newer, and begin at their oldest record, as in that query.

    Args:
        options: Of the source that begins there.
        given: The offset, as Spark keeps it.

    Raises:
        OptionError: See `SupportsBackfillTarget`.
        OffsetError: If the offset is damaged, or of a newer version.
    """
    _refuse_starts(options)
    if given.get("kind") != KafkaOffset.kind:
        what = "of Spark itself" if "kind" not in given else f"of kind {given['kind']!r}"
        raise OptionError(
            f"{options.format_name}: the rows came from a source {what}, and not from "
            f"{options.format_name}, so its position cannot be used here: {_BY_HAND}"
        )
    offset = KafkaOffset.from_dict(given)
    _check_topics(options, QueryPosition.of(offset))
    return KafkaOffset(topics=offset.topics, ids=offset.ids, epochs=offset.epochs, left=offset.left)


def check_exact(options: KafkaSourceOptions) -> None:
    """Refuse a start that is no offset of each partition.

    Raises:
        OptionError: If it is.
    """
    start = options.start(streaming=True)
    if start.is_time or start.everywhere is not None or start.uses(LATEST):
        raise OptionError(
            f"{options.format_name}: 'startingOffsets' must specify the offset of each "
            'partition at which the rows read before end, as JSON such as \'{"orders": {"0": '
            '23, "1": -2}}\' (-2: oldest, if there are no rows of the partition)'
        )


def begun_at(end: KafkaOffset) -> KafkaOffset:
    """Where the first batch of a query began, by its end."""
    return KafkaOffset(topics=end.began, ids=end.ids)


def _refuse_starts(options: KafkaSourceOptions) -> None:
    for name in options.starts:
        raise OptionError(
            f"{options.format_name}: option {name!r} would start at another position than the "
            "end of the rows read before; remove it, or set 'snapshot' too, whose rows end "
            "there"
        )


def _check_topics(options: KafkaSourceOptions, position: QueryPosition) -> None:
    known = {*position.read, *position.left}
    subscription = Subscription(options)
    unread = sorted(tp for tp in position.read if not subscription.asks_for(tp))
    if unread:
        raise OptionError(
            f"{options.format_name}: the rows read before come from {unread[0]} too, which the "
            f"options do not include: include all topics that were read, or {_BY_HAND}"
        )
    named = {*(options.subscribe or ())}
    topics = {f"topic {name!r}" for name in named - {tp.topic for tp in known}}
    partitions = {f"partition {tp}" for tp in {*(options.assign or ())} - known}
    unlanded = sorted(topics | partitions)
    if unlanded or not position.read:
        which = unlanded[0] if unlanded else "any topic"
        raise OptionError(
            f"{options.format_name}: there are no rows of {which} among the rows read before, "
            f"which end in {', '.join(sorted(position.topics)) or 'none'}. Remove it, or "
            f"{_BY_HAND}"
        )
