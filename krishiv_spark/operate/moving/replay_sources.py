"""A check of each source of a query: whether it still has the rows after a position."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from krishiv_spark.errors import KrishivError, OptionError
from krishiv_spark.operate.inspection.positions import describe_position, offsets_by_topic
from krishiv_spark.operate.moving.boundaries import RestorePoint
from krishiv_spark.spark.checkpoint import SparkCheckpoint

__all__ = ["SourceCheck", "source_options"]

_CLUSTER = {"kafka.bootstrap.servers", "bootstrap.servers"}
_CATALOG = {"warehouse", "catalog.uri", "catalog.type", "catalog.py-catalog-impl"}
_MOST_NAMED = 3
_LATER = "Nothing was changed: replay from a later epoch"


def source_options(general: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a source: its own, and general ones that do not contradict them.

    Args:
        general: Options that others share, such as those of the sink.
        own: The options of the source. If they name a catalog, the general catalog options are
            ignored; the same applies to a table.
    """
    named = {_plain(key) for key in own}
    is_elsewhere = bool(named & _CATALOG)

    def counts(key: str) -> bool:
        name = _plain(key)
        is_of_catalog = name in _CATALOG or name.startswith("catalog.")
        is_of_other = (is_elsewhere and is_of_catalog) or ("table" in named and name == "path")
        return name not in named and not is_of_other

    return {**{key: text for key, text in general.items() if counts(key)}, **own}


def _plain(key: str) -> str:
    return key.lower().removeprefix("iceberg.")


@dataclass(frozen=True)
class SourceCheck:
    """A check that the sources of a query still have the rows that are to be read again.

    Attributes:
        checkpoint: The checkpoint of the query.
        boundary: The end of the last epoch that is kept. The rows after it are needed.
        newest: The newest epoch that was planned.
        given: The options of the sources. An option of one source starts with the name or index of
            the source and a dot.
    """

    checkpoint: SparkCheckpoint
    boundary: RestorePoint
    newest: int
    given: Mapping[str, str] = field(repr=False)

    def _select_options(self, source: str) -> Mapping[str, str]:
        own: dict[str, dict[str, str]] = {f"{one}.": {} for one in self.boundary.sources}
        common: dict[str, str] = {}
        for key, text in self.given.items():
            prefix = next(filter(key.startswith, own), None)
            (common if prefix is None else own[prefix])[key.removeprefix(prefix or "")] = text
        return source_options(common, own[f"{source}."])

    def lines(self) -> list[str]:
        """Return a line for each source; changes nothing.

        Raises:
            OptionError: If a source no longer has the rows, or the options do not specify how to
                connect to it.
            KrishivError: If it cannot be reached.
        """
        found = []
        for source, text in self.boundary.sources.items():
            try:
                said = self._ask(source, text)
            except KrishivError as error:
                raise OptionError(
                    f"source {source} ({describe_position(text)}): {error}"
                ) from error
            found.append(f"source {source}: is rewound to {describe_position(text)}; {said}")
        return found

    def _ask(self, source: str, text: str) -> str:
        try:
            offset = json.loads(text)
        except ValueError:
            offset = None
        if not isinstance(offset, dict) or "at" in offset:
            if text != "-":
                return _NOT_ASKED
            return "it has no position yet, and starts from the beginning again"
        return self._ask_kind(source, offset, text)

    def _ask_kind(self, source: str, offset: Mapping[str, object], text: str) -> str:
        kind = offset.get("kind")
        if kind == "chain":
            is_read = _spot_of(offset["first"]).get("file") is None
            parts = ["then"] if is_read else ["first", "then"]
            return "; ".join(self._ask(source, json.dumps(offset[part])) for part in parts)
        if kind == "parquet":
            return self._ask_files(source, text)
        if kind == "iceberg":
            return self._ask_table(source, text)
        if kind == "memory":
            return _ask_pushes(text)
        if kind in {None, "kafka"} and (topics := offsets_by_topic(offset)):
            return self._ask_topics(source, topics, _texts_of(offset.get("ids")))
        return _NOT_ASKED

    # --- Kafka, by krishiv-kafka or by Spark's own source

    def _ask_topics(
        self, source: str, topics: Mapping[str, Mapping[int, int]], ids: Mapping[str, str]
    ) -> str:
        from krishiv_spark.kafka.client import open_client
        from krishiv_spark.kafka.list_offsets import list_offsets
        from krishiv_spark.kafka.topic_partition import EARLIEST, LATEST, TopicPartition
        from krishiv_spark.operate.inspection.live import topic_options

        given = self._select_options(source)
        if not any(key.lower() in _CLUSTER for key in given):
            raise OptionError(
                "give the settings of its cluster, to check that it still has the rows: -o "
                "kafka.bootstrap.servers=HOST:PORT, with the query's other 'kafka.…' options"
            )
        topics = self._with_new_partitions(source, topics)
        needed = {TopicPartition(t, p): n for t, each in topics.items() for p, n in each.items()}
        client = open_client(topic_options(given, topics).kafka, at_start=True)
        if others := [
            f"topic {name} was deleted and created again since"
            for name, found in client.fetch_topics(topics).items()
            if (now := found.usable_id) and now != ids.get(name, now)
        ]:
            raise OptionError(_describe_gone(sorted(others)))
        oldest = list_offsets(client, dict.fromkeys(needed, EARLIEST))
        newest = list_offsets(client, dict.fromkeys(needed, LATEST), committed=False)
        gone = [
            f"topic {tp.topic}, partition {tp.partition}: the rows from offset {offset} on are "
            f"needed, and there are those from {oldest[tp].offset} to {newest[tp].offset}"
            for tp, offset in sorted(needed.items())
            if not oldest[tp].offset <= offset <= newest[tp].offset
        ]
        if gone:
            raise OptionError(_describe_gone(gone))
        return f"its {len(needed)} partitions still have the rows from there on"

    def _with_new_partitions(
        self, source: str, topics: Mapping[str, Mapping[int, int]]
    ) -> Mapping[str, Mapping[int, int]]:
        """Return the positions, with the start of each partition that was first read later."""
        found = {topic: dict(each) for topic, each in topics.items()}
        for text in self._later(source):
            offset = json.loads(text)
            offset = offset["then"] if offset.get("kind") == "chain" else offset
            began = offsets_by_topic(offset.get("began", {}))
            for topic, each in began.items():
                for partition, number in each.items():
                    found.setdefault(topic, {}).setdefault(partition, number)
        return found

    # --- krishiv-parquet

    def _ask_files(self, source: str, text: str) -> str:
        from krishiv_spark.sources.parquet.listing import SourcePath, describe_files
        from krishiv_spark.sources.parquet.offset import ParquetOffset
        from krishiv_spark.sources.parquet.offset_store import OffsetStore
        from krishiv_spark.sources.parquet.options import ParquetSourceOptions

        stands = ParquetOffset.from_json(text)
        offsets = [ParquetOffset.from_json(each) for each in self._later(source)]
        roots = [offset.root for offset in (stands, *offsets) if offset.root is not None]
        own = ParquetSourceOptions.select(self._select_options(source))
        path = roots[0] if roots else own.get("path", own.get("parquet.path"))
        if path is None:
            raise OptionError("its offsets do not name its folder: give it with -s path=…")
        options = ParquetSourceOptions.parse({**own, "path": path}, "krishiv-spark replay")
        place = SourcePath.parse(path, options.storage)
        store = OffsetStore(options.state_location_of(place), bounded=False)
        _ = store.read_ids(stands), store.epochs(stands)  # these raise if its state is missing
        read = {file.path for offset in offsets for file in store.files(offset)}
        there = {file.path for file in describe_files(place, sorted(read))}
        if read != there:
            raise OptionError(
                _describe_gone([place.absolute(path) for path in sorted(read - there)])
            )
        return f"the {len(read)} files that were read since are still there"

    def _later(self, source: str) -> Iterator[str]:
        """Yield the offsets of a source at the ends of the epochs that are processed again.

        Raises:
            OptionError, OSError, StorageError: As `SparkCheckpoint.read_offset_seq`. An epoch that
                is left out would not be checked.
        """
        for epoch in range(self.boundary.epoch + 1, self.newest + 1):
            text = self.checkpoint.read_offset_seq(epoch).sources.get(source, "-")
            if text.startswith("{"):
                yield text

    # --- krishiv-iceberg

    def _ask_table(self, source: str, text: str) -> str:
        from krishiv_spark.iceberg.catalogs import open_table
        from krishiv_spark.sources.iceberg.history import History
        from krishiv_spark.sources.iceberg.offset import IcebergOffset
        from krishiv_spark.sources.iceberg.options import IcebergSourceOptions

        offset = IcebergOffset.from_json(text)
        own = IcebergSourceOptions.select(self._select_options(source))
        if offset.spot is None:
            return _NOT_ASKED
        if not any(key.lower() in {"table", "iceberg.table"} for key in own):
            raise OptionError(
                "name its table, which is asked whether it still has the snapshots: -s table=… "
                "with the options of its catalog, such as -s warehouse=…"
            )
        options = IcebergSourceOptions.parse(own, "krishiv-spark replay")
        metadata = open_table(options).metadata
        if offset.table not in {None, str(metadata.table_uuid)}:
            raise OptionError(
                f"the options name table {options.table_name} with the UUID {metadata.table_uuid}, "
                f"and the query reads the table with the UUID {offset.table}: give the options of "
                "the source with -s"
            )
        history = History.of_branch(options.table_name, metadata, options.branch)
        later = history.list_unread(offset.spot)
        if offset.spot.file is not None and history.find(offset.spot.snapshot) is None:
            raise OptionError(
                _describe_gone([f"snapshot {offset.spot.snapshot}, which was half read"])
            )
        return f"the {len(later)} snapshots after it are still there"


def _ask_pushes(text: str) -> str:
    from krishiv_spark.memory.store import open_store
    from krishiv_spark.sources.memory.handle import Pushed
    from krishiv_spark.sources.memory.reader import MemoryOffset

    offset, store = MemoryOffset.from_json(text), open_store()
    for name in store.known("pushes"):
        pushed = Pushed(store, name)
        if offset.origin == pushed.origin():
            if pushed.log.first() > offset.next:
                raise OptionError(
                    _describe_gone([f"the pushes before {pushed.log.first()} of {name!r}"])
                )
            return f"the pushes into {name!r} from there on are still there"
    raise OptionError(_describe_gone([f"pushes of krishiv-memory on this machine, {store.root}"]))


def _texts_of(found: object) -> Mapping[str, str]:
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, Mapping) else {}


def _spot_of(offset: object) -> Mapping[str, object]:
    spot = offset.get("spot") if isinstance(offset, Mapping) else None
    return spot if isinstance(spot, Mapping) else {}


def _describe_gone(gone: list[str]) -> str:
    more = f"; and {len(gone) - _MOST_NAMED} more" if len(gone) > _MOST_NAMED else ""
    return (
        f"rows that must be read again no longer exist: {'; '.join(gone[:_MOST_NAMED])}{more}. "
        f"{_LATER}"
    )


_NOT_ASKED = (
    "NOT CHECKED: it is not a source of krishiv-spark's, so see yourself that it still has the rows"
)
