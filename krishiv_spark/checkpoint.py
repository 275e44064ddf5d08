"""Ids of queries, and what a sink can learn from Spark's checkpoint folder."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Protocol

from krishiv_spark.errors import OptionError, StorageError
from krishiv_spark.offsets.planned import PlannedOffsets
from krishiv_spark.storage import ENVIRONMENT, Folder, Storage, StoreUrl

__all__ = ["BATCH_PREFIX", "OffsetSeq", "SparkCheckpoint", "checked_id"]


BATCH_PREFIX = "batch-"
"""The id of a batch job is this and a random part; that of a streaming query is Spark's."""

_QUERY_ID = re.compile(r"[A-Za-z0-9_-]{1,100}")


def checked_id(query: object) -> str:
    """The id of a query; it becomes a part of paths and of transactional ids.

    Raises:
        ValueError: If it is none.
    """
    if not isinstance(query, str) or not _QUERY_ID.fullmatch(query):
        raise ValueError(f"{query!r} is no id of a query: up to 100 letters, digits, '-' and '_'")
    return query


@dataclass(frozen=True)
class OffsetSeq:
    """What Spark wrote down for an epoch before it ran it: an entry of its offset log.

    Attributes:
        metadata: Spark's own, with ``batchWatermarkMs``.
        sources: By name, the offset of each source at the end of the epoch, as text; "-" where it
            has none yet. A source without a name has its place among the sources as its name.
    """

    metadata: dict[str, Any]
    sources: dict[str, str]

    @classmethod
    def parse(cls, text: str) -> OffsetSeq:
        """From the text of ``<checkpointLocation>/offsets/<epoch>``.

        A line with the version, one of metadata, then a line a source: in version 1 its offset, in
        the order of the sources (``OffsetSeqLog``); in version 2, of Spark 4.2, its name, a colon
        and its offset (``OffsetMap``).

        Raises:
            ValueError: If it is damaged, or of a version that is not known.
        """
        # Not `splitlines`: an offset of somebody else's source may hold U+2028 and the like.
        version, metadata, *lines = text.removesuffix("\n").split("\n")
        if version == "v1":
            sources = {str(place): line for place, line in enumerate(lines)}
        elif version == "v2":
            sources = {name: text for name, _, text in (line.partition(":") for line in lines)}
        else:
            raise ValueError(
                f"Spark's offset log has the form {version[:20]!r}, which this version of "
                "krishiv-spark does not know: upgrade it"
            )
        return cls(json.loads(metadata), sources)

    @property
    def objects(self) -> list[dict[str, Any]]:
        """The offsets that are JSON objects, parsed, in the order of the sources."""
        return [json.loads(text) for text in self.sources.values() if text.startswith("{")]

    @property
    def watermark_ms(self) -> int | None:
        """Spark's own watermark, milliseconds since 1970 UTC; None if it has none."""
        # Spark writes 0 as long as there is none.
        return self.metadata.get("batchWatermarkMs") or None

    @property
    def source_watermarks_ms(self) -> list[int]:
        """The watermarks inside the offsets of sources of ours, where there are any."""
        marks = (offset.get("watermark") for offset in self.objects)
        found = [mark.get("ms") for mark in marks if isinstance(mark, dict)]
        return [ms for ms in found if isinstance(ms, int)]


class _NamesCheckpoint(Protocol):
    """Options of a sink that names its checkpoint."""

    @property
    def checkpoint_location(self) -> str | None: ...

    @property
    def query_id(self) -> str | None: ...

    @property
    def storage(self) -> Storage: ...


@dataclass(frozen=True)
class SparkCheckpoint:
    """Spark's folder of a streaming query. Any process of the driver.

    Attributes:
        location: Path or URL, as the user gave it to Spark.
        storage: How its store is reached.
    """

    location: str
    storage: Storage = ENVIRONMENT

    @classmethod
    def of(cls, options: _NamesCheckpoint) -> SparkCheckpoint | None:
        """The one that options name; None without it, and where it is not to be read."""
        location = options.checkpoint_location
        if location is None or options.query_id is not None:
            return None
        return cls(location, options.storage)

    def query_id(self) -> str:
        """The id of the streaming query.

        Spark writes ``metadata`` before the first batch (``StreamMetadata``).

        Raises:
            OptionError: If there is no readable checkpoint at the location.
        """
        try:
            return checked_id(json.loads(self._read("metadata"))["id"])
        except (OSError, StorageError, ValueError, LookupError, TypeError) as error:
            raise OptionError(
                f"no query id in {self.location}/metadata: {error}; 'checkpointLocation' must be "
                "the one that Spark uses, readable from the driver's machine: as a whole URL if "
                "Spark's default file system is not the local one, with 'storage.…' options if the "
                "environment does not say how its store is reached"
            ) from error

    def offset_seq(self, epoch: int) -> OffsetSeq | None:
        """What Spark wrote down for an epoch; None if that is not there, or cannot be read."""
        try:
            return OffsetSeq.parse(self._read("offsets", epoch))
        except (OSError, StorageError, ValueError):
            return None

    def planned_offsets(self) -> PlannedOffsets:
        """What Spark planned for the epoch that it is at. Planner.

        Spark writes ``offsets/<epoch>`` before it asks for the epoch's writer, so the newest one
        is that of the epoch (``MicroBatchExecution``: ``walCommit``, then ``runBatch``).

        Raises:
            OptionError: If there is none.
        """
        epochs = self._epochs("offsets")
        if not epochs:
            raise OptionError(
                f"no offsets in {self.location}/offsets, though Spark writes them before an epoch "
                "is begun; 'checkpointLocation' must be the one that Spark uses, readable from the "
                "driver's machine"
            )
        return self.offsets_of(max(epochs))

    def offsets_of(self, epoch: int) -> PlannedOffsets:
        """What Spark planned for an epoch; begun at the offsets of the one before, if it is there.

        Raises:
            FileNotFoundError: If Spark has removed it (``spark.sql.streaming.minBatchesToRetain``).
            ValueError: As `OffsetSeq.parse`.
        """
        ends = OffsetSeq.parse(self._read("offsets", epoch))
        try:
            begins = OffsetSeq.parse(self._read("offsets", epoch - 1)).sources
        except FileNotFoundError:
            begins = {}
        return PlannedOffsets.of(epoch, begins, ends.sources)

    def is_committed(self, epoch: int) -> bool:
        """Whether Spark has written down that an epoch is over (``commits/<epoch>``).

        It does so when the sink's commit has returned, and before the next epoch begins.

        Raises:
            OSError: If that cannot be found out on a disk: who takes it for "no" ends transactions
                once more, whose ids may be in use again.
            StorageError: Likewise, in another store.
        """
        try:
            self._read("commits", epoch)
        except FileNotFoundError:
            return False
        return True

    def has_commits(self) -> bool:
        """Whether Spark has written down that some epoch is over."""
        return bool(self._epochs("commits"))

    def _epochs(self, log: str) -> list[int]:
        """The numbers in one of Spark's logs (``HDFSMetadataLog``), in no order."""
        # Others are ``9.compact`` and Hadoop's temporary and checksum files.
        return [int(name) for name in self._folder(log).names() if name.isdigit()]

    def _read(self, log: str, epoch: int | None = None) -> str:
        """The text of an entry of one of Spark's logs, or of a file of its own.

        Raises:
            FileNotFoundError: If it is not there.
        """
        folder, name = ("", log) if epoch is None else (log, str(epoch))
        data = self._folder(folder).read(name)
        if data is None:
            raise FileNotFoundError(f"{self.location}/{folder}/{name} is not there")
        return data.decode()

    def _folder(self, name: str) -> Folder:
        url = StoreUrl.parse(self.location)
        return self.storage.folder(url / name if name else url)
