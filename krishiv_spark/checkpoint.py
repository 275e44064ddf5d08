"""Ids of queries, and what a sink can learn from Spark's checkpoint folder."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from typing import Any

from pyarrow import fs

from krishiv_spark.errors import OptionError
from krishiv_spark.offsets.planned import PlannedOffsets

__all__ = [
    "BATCH_PREFIX",
    "OffsetSeq",
    "has_commits",
    "is_committed",
    "offset_seq",
    "offsets_of",
    "planned_offsets",
    "query_id",
]


BATCH_PREFIX = "batch-"
"""The id of a batch job is this and a random part; that of a streaming query is Spark's."""

_QUERY_ID = re.compile(r"[A-Za-z0-9_-]{1,100}")


def query_id(location: str) -> str:
    """The id of the streaming query that a checkpoint belongs to. Driver.

    Spark writes ``<checkpointLocation>/metadata`` before the first batch (``StreamMetadata``).

    Raises:
        OptionError: If there is no readable checkpoint at the location.
    """
    try:
        return _checked_id(json.loads(_read(f"{location}/metadata"))["id"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise OptionError(
            f"no query id in {location}/metadata: {error}; 'checkpointLocation' must be the one "
            "that Spark uses, readable from the driver's machine"
        ) from error


def _checked_id(query: object) -> str:
    """Spark's is a UUID; it becomes a part of paths and of transactional ids."""
    if not isinstance(query, str) or not _QUERY_ID.fullmatch(query):
        raise ValueError(f"{query!r} is no id of a query")
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


def offset_seq(location: str, epoch: int) -> OffsetSeq | None:
    """What Spark wrote down for an epoch; None if that is not there, or cannot be read."""
    try:
        return OffsetSeq.parse(_read(f"{location}/offsets/{epoch}"))
    except (OSError, ValueError):
        return None


def planned_offsets(location: str) -> PlannedOffsets:
    """What Spark planned for the epoch that it is at. Planner.

    Spark writes ``offsets/<epoch>`` before it asks for the epoch's writer, so the newest one is
    that of the epoch (``MicroBatchExecution``: ``walCommit``, then ``runBatch``).

    Raises:
        OptionError: If there is none.
    """
    epochs = _epochs(f"{location}/offsets")
    if not epochs:
        raise OptionError(
            f"no offsets in {location}/offsets, though Spark writes them before an epoch is begun; "
            "'checkpointLocation' must be the one that Spark uses, readable from the driver's "
            "machine"
        )
    return offsets_of(location, max(epochs))


def offsets_of(location: str, epoch: int) -> PlannedOffsets:
    """What Spark planned for an epoch; begun at the offsets of the one before, if that is there.

    Raises:
        FileNotFoundError: If Spark has removed it (``spark.sql.streaming.minBatchesToRetain``).
        ValueError: As `OffsetSeq.parse`.
    """
    ends = OffsetSeq.parse(_read(f"{location}/offsets/{epoch}"))
    try:
        begins = OffsetSeq.parse(_read(f"{location}/offsets/{epoch - 1}")).sources
    except FileNotFoundError:
        begins = {}
    return PlannedOffsets.of(epoch, begins, ends.sources)


def is_committed(location: str, epoch: int) -> bool:
    """Whether Spark has written down that an epoch is over (``<location>/commits/<epoch>``).

    It does so when the sink's commit has returned, and before the next epoch begins.

    Raises:
        OSError: If that cannot be found out: who takes it for "no" ends transactions once more,
            whose ids may be in use again.
    """
    try:
        _read(f"{location}/commits/{epoch}")
    except FileNotFoundError:
        return False
    return True


def has_commits(location: str) -> bool:
    """Whether Spark has written down that some epoch is over."""
    return bool(_epochs(f"{location}/commits"))


def _epochs(folder: str) -> list[int]:
    """The numbers in one of Spark's logs (``HDFSMetadataLog``), in no order."""
    # Others are ``9.compact`` and Hadoop's temporary and checksum files.
    return [int(name) for name in _names(folder) if name.isdigit()]


def _names(folder: str) -> list[str]:
    """What is in a folder; nothing if it is not there."""
    try:
        if (local := _local(folder)) is not None:
            return os.listdir(local)  # pyarrow's listing looks at each file as well
        filesystem, inner = fs.FileSystem.from_uri(folder)
        return [info.base_name for info in filesystem.get_file_info(fs.FileSelector(inner))]
    except FileNotFoundError:
        return []


def _read(path: str) -> str:
    if (local := _local(path)) is not None:
        with open(local, "rb", buffering=0) as file:
            return file.read().decode()
    filesystem, inner = fs.FileSystem.from_uri(path)
    with filesystem.open_input_stream(inner) as stream:
        return bytes(stream.read()).decode()


def _local(path: str) -> str | None:
    """The path on this machine; None for a URL of another place."""
    if path.startswith("file:/"):  # file:/x or file:///x: Hadoop escapes nothing in it
        return "/" + path.removeprefix("file:").lstrip("/")
    return None if ":" in path.split("/", 1)[0] else path
