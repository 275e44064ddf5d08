"""Spark's file source: what its log says was read (``FileStreamSourceLog``), as our position."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple
from urllib.parse import unquote

from krishiv_spark.errors import OptionError
from krishiv_spark.sources.parquet.listing import ROOT_ITSELF, FoundFile, SourcePath
from krishiv_spark.sources.parquet.offset import ParquetOffset, ReadFileIds
from krishiv_spark.sources.parquet.offset_store import BatchEnd, OffsetStore
from krishiv_spark.sources.parquet.options import ParquetSourceOptions
from krishiv_spark.spark.checkpoint import SparkCheckpoint
from krishiv_spark.storage import Folder, StoreUrl

__all__ = ["ReadFile", "SeenFiles", "files_read", "log_offset"]

_NS_PER_MS = 1_000_000
_COMPACT = ".compact"


class ReadFile(NamedTuple):
    """A file that Spark's source has read.

    Attributes:
        url: Its whole path, nothing in it escaped.
        modified_ms: Time of its last modification, milliseconds since 1970 UTC.
    """

    url: str
    modified_ms: int


def log_offset(text: str) -> int | None:
    """Up to which entry of its log the source has read; None if the offset is another one's."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    if isinstance(value, dict) and value.keys() == {"logOffset"}:
        found = value["logOffset"]
        return found if isinstance(found, int) else None
    return None


def files_read(folder: Folder, upto: int) -> list[ReadFile]:
    """The files that the source has read.

    Args:
        folder: With its log, ``sources/<number>`` of a checkpoint.
        upto: Number of the last entry that counts.

    Raises:
        OptionError: If an entry is missing, or of a form that is not known.
    """
    names = folder.names().keys()
    compacted = [int(n.removesuffix(_COMPACT)) for n in names if _is_compacted(n)]
    newest = max(compacted, default=-1)
    wanted = [] if newest < 0 else [f"{newest}{_COMPACT}"]
    # A compacted entry has all before it, and says of each file of which entry it is.
    wanted += [str(number) for number in range(newest + 1, upto + 1)]
    found = []
    for name, data in zip(wanted, folder.read_each(wanted), strict=True):
        if data is None:
            raise OptionError(
                f"{folder}/{name}, which records the files that were read, is missing"
            )
        found += [
            file for entry, file in _entries(data.decode(), f"{folder}/{name}") if entry <= upto
        ]
    return found


def _is_compacted(name: str) -> bool:
    return name.endswith(_COMPACT) and name.removesuffix(_COMPACT).isdecimal()


def _entries(text: str, place: str) -> Iterator[tuple[int, ReadFile]]:
    version, *lines = text.removesuffix("\n").split("\n")
    if version != "v1":
        raise OptionError(f"{place} has the form {version[:20]!r}, which is not known: upgrade")
    for line in lines:
        try:
            entry = json.loads(line)
            # ``SparkPath.urlEncoded``
            file = ReadFile(unquote(str(entry["path"])), int(entry["timestamp"]))
            yield int(entry["batchId"]), file
        except (ValueError, LookupError, TypeError) as error:
            raise OptionError(f"{place} is damaged: {error}") from error


@dataclass(frozen=True)
class SeenFiles:
    """Makes our positions of Spark's.

    Attributes:
        old: The checkpoint of Spark's query.
        options: Of the ``krishiv-parquet`` source that will go on.
    """

    old: SparkCheckpoint
    options: Mapping[str, str]

    @cached_property
    def _parsed(self) -> ParquetSourceOptions:
        return ParquetSourceOptions.parse(dict(self.options), "krishiv-parquet")

    @cached_property
    def _place(self) -> SourcePath:
        return SourcePath.parse(self._parsed.path, self._parsed.storage)

    def check_listed(self) -> None:
        """Refuse a folder that Spark's source does not list, but reads the log of.

        Raises:
            OptionError: If it is one.
        """
        if self._place.has_sink_log():
            raise OptionError(
                f"{self._place.root} was written by Spark's own file sink: its _spark_metadata "
                "lists the valid files, and krishiv-parquet would read files of failed tasks "
                "as well, whose rows are there twice. Continue with Spark's source, or have "
                "krishiv-parquet write that folder"
            )

    def found(self, source: str, upto: int) -> list[FoundFile]:
        """The files that were read, as our source names them.

        Args:
            source: Name or place of Spark's source.
            upto: See `files_read`.

        Raises:
            OptionError: As `files_read`; or if one is not where the options look for files.
        """
        read = files_read(self.old.folder(f"sources/{source}"), upto)
        return [
            FoundFile(self._relative(file.url), 0, file.modified_ms * _NS_PER_MS) for file in read
        ]

    def _relative(self, text: str) -> str:
        url, root = StoreUrl.parse(text), StoreUrl.parse(self._place.root)
        folder = f"{root.path.rstrip('/')}/" if root.path else ""
        same_store = (url.kind, url.authority) == (root.kind, root.authority)
        if same_store and url.path == root.path:
            return ROOT_ITSELF
        if not same_store or not url.path.startswith(folder):
            raise OptionError(
                f"the old query has read {text}, which is not below {self._place.root}: give the "
                "'path' that it was given, -o path=..."
            )
        return url.path.removeprefix(folder)

    def position(self, source: str, upto: int) -> ParquetOffset:
        """Where our source stands when it has read the same files; writes its state.

        Raises:
            OptionError: As `found`; or if there are too many for an offset, and state cannot be
                kept.
        """
        store = OffsetStore(self._parsed.state_location_of(self._place), bounded=True)
        files = self.found(source, upto)
        # Without a newest time: no file that the old query has left is too old for the new one.
        end = BatchEnd((), ReadFileIds().union(files), {}, None)
        offset, _ = store.make_offset(ParquetOffset(), end, lambda: [file.path for file in files])
        return offset.model_copy(update={"root": self._place.root})
