"""The content of offsets: in the offset while it is small, otherwise in files of its stream.

Driver.

An offset names such files by their content, so it means the same wherever and whenever it is read:
a file exists and is right, or it is an error. They are on the disk before the offset that names
them is handed to Spark. A crash in between leaves a file that no offset names; a file that no query
has needed for a week is deleted.

A running query touches the files that it needs. So two queries that continue from copies of one
checkpoint do not delete each other's files, and a query that is rolled back finds those of a week.

Beside the state, tasks record the data that they skip: a task has no other way to report it. These
notes stay until they are deleted by hand. No decision about reading depends on them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import time
import uuid
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from krishiv_spark.durable import exists
from krishiv_spark.errors import OffsetError, OptionError, StorageError
from krishiv_spark.messages.suggestions import NEW_CHECKPOINT
from krishiv_spark.offsets import canonical_json
from krishiv_spark.sources.parquet.listing import FoundFile
from krishiv_spark.sources.parquet.offset import ParquetOffset, ReadFileIds
from krishiv_spark.storage import ENVIRONMENT, Folder, Storage, StoreUrl

__all__ = [
    "SKIPPED_FOLDER",
    "BatchEnd",
    "OffsetLimits",
    "OffsetStore",
    "SkippedRange",
    "StateLocation",
    "StreamState",
    "all_skipped_ranges",
    "record_skipped_range",
    "recorded_skipped_ranges",
]

_log = logging.getLogger(__name__)

_IDS_WITHOUT_STATE = 32 * 2**10  # characters
_PER_FILE = 64  # characters that a file takes in addition to its path


@dataclass(frozen=True)
class OffsetLimits:
    """The most that an offset contains; together less than 64 KiB of text.

    Spark keeps the start and the end of a hundred batches in the driver's memory, and as many on
    the disk.

    Attributes:
        files: Characters of a batch's files.
        ids: Ids of files; one that is alone in its hour takes 28 characters.
        epochs: Characters of epochs.
    """

    files: int = 20 * 2**10
    ids: int = 768
    epochs: int = 8 * 2**10


@dataclass(frozen=True)
class BatchEnd:
    """The content of the offset at the end of a batch.

    Attributes:
        files: Files of the batch.
        ids: All read files, without those that are recorded by their epoch.
        epochs: See `ParquetOffset`.
        newest: See `ParquetOffset`.
        floor_ns: Files modified before this are too old; None if none is.
    """

    files: Sequence[FoundFile]
    ids: ReadFileIds
    epochs: Mapping[str, int]
    newest: int | None
    floor_ns: int | None = None


class OffsetStore:
    """A store that makes offsets, and reads the content that they name.

    Args:
        location: Location of the state.
        bounded: True if offsets must be small. Those of a batch read are never written.
        always: True if a stream has its own folder even if its offsets are small.
        limits: The most that an offset contains.
    """

    def __init__(
        self,
        location: StateLocation,
        *,
        bounded: bool,
        always: bool = False,
        limits: OffsetLimits | None = None,
    ) -> None:
        self._location = location
        self._limits = limits or OffsetLimits()
        self._bounded = bounded
        self._always = always
        self._states: dict[str, StreamState] = {}
        self._skipped: dict[str, SkippedRange] = {}

    @cached_property
    def _is_writable(self) -> bool:
        writable = self._location.is_writable()
        if not writable and self._location.is_configured:
            raise OptionError(
                f"krishiv-parquet: 'stateLocation' {self._location.own} cannot be written: "
                "permission denied, or its file system is read-only"
            )
        if not writable:
            _log.warning(
                "krishiv-parquet: %s cannot be written. While the list of read files is short, "
                "it is kept in the offsets, and batches are small; set the option "
                "'stateLocation' to a folder for it",
                self._location.own,
            )
        return writable

    @property
    def room(self) -> int | None:
        """Characters that the files of a batch may take, see `cost_of`; None for no bound.

        One unit may always be taken.
        """
        return self._limits.files if self._bounded and not self._is_writable else None

    @staticmethod
    def cost_of(files: Sequence[FoundFile]) -> int:
        """Return an upper bound of the characters that some files take in an offset."""
        return sum(len(canonical_json(file.path)) + _PER_FILE for file in files)

    def state_of(self, offset: ParquetOffset) -> StreamState | None:
        """Return the state of the stream that an offset belongs to, if it has any."""
        return None if offset.stream is None else self._open(offset.stream)

    def keep(self, offset: ParquetOffset) -> None:
        """Keep the files that an offset names. See `StreamState.keep`."""
        state = self.state_of(offset)
        if state is not None:
            state.keep(offset.state_names)

    def skipped_ranges(self, offset: ParquetOffset) -> list[SkippedRange]:
        """Return the data that tasks skipped, as far as they could record it."""
        state = self.state_of(offset)
        if state is None or not self._always:
            return []
        return recorded_skipped_ranges(state.folder(SKIPPED_FOLDER), self._skipped)

    def _open(self, stream: str) -> StreamState:
        return self._states.setdefault(stream, StreamState(self._location, stream))

    # --- reading

    def files(self, offset: ParquetOffset) -> tuple[FoundFile, ...]:
        """Return the files of the batch that ended at an offset.

        Raises:
            OffsetError: If the state that names them is missing.
        """
        if offset.files_in is None:
            return offset.files
        columns = self._require_state(offset).read(offset.files_in).to_pydict().values()
        return tuple(map(FoundFile, *columns))

    def read_ids(self, offset: ParquetOffset) -> ReadFileIds:
        """Return the files that were read; raises like `files`."""
        state = self._require_state(offset) if offset.seen_in else None
        return ReadFileIds.load(offset.seen, offset.seen_in, state)

    def epochs(self, offset: ParquetOffset) -> Mapping[str, int]:
        """Return the epochs that were read; raises like `files`."""
        if offset.epochs_in is None:
            return offset.epochs
        keys, epochs = self._require_state(offset).read(offset.epochs_in).to_pydict().values()
        return dict(zip(keys, epochs, strict=True))

    def _require_state(self, offset: ParquetOffset) -> StreamState:
        state = self.state_of(offset)
        if state is None:
            raise OffsetError("damaged parquet offset: it names state files, but no 'stream'")
        return state

    # --- writing

    def make_offset(
        self, start: ParquetOffset, end: BatchEnd, present: Callable[[], Collection[str]]
    ) -> tuple[ParquetOffset, ReadFileIds]:
        """Return the offset at the end of a batch, without its watermark, and its read files.

        The files that it names are on the disk.

        Args:
            start: Offset at the start of the batch.
            end: The content of the offset.
            present: Returns the paths of the existing files; see `ReadFileIds.move_to_block`.

        Raises:
            OptionError: If it is too much for an offset, and state cannot be written.
        """
        offset = ParquetOffset(
            files=tuple(end.files),
            seen=end.ids.recent,
            seen_in=end.ids.blocks,
            newest=end.newest,
            epochs=dict(end.epochs),
            stream=start.stream,
        )
        if not self._bounded:
            return offset, end.ids
        if not self._is_writable:
            self._check_small(offset)
            return offset, end.ids
        return self._shorten(offset, end, present)

    def _shorten(
        self,
        offset: ParquetOffset,
        end: BatchEnd,
        present: Callable[[], Collection[str]],
    ) -> tuple[ParquetOffset, ReadFileIds]:
        stream, ids = offset.stream or secrets.token_hex(8), end.ids
        # A stream without an id gets one only if a state file is written, which most never need:
        # to cache the object that was made for each of their batches would be a leak.
        is_new = offset.stream is None
        state = StreamState(self._location, stream) if is_new else self._open(stream)
        changes: dict[str, object] = {}
        if self.cost_of(offset.files) > self._limits.files:
            table = _to_table(FoundFile._fields, offset.files)
            changes |= {"files": (), "files_in": state.write(table)}
        if ids.recent_count > self._limits.ids:
            ids = ids.move_to_block(state, end.floor_ns, present)
            changes |= {"seen": ids.recent, "seen_in": ids.blocks}
        if len(canonical_json(offset.epochs)) > self._limits.epochs:
            # Sorted, since a state file is named by its content.
            rows = sorted(offset.epochs.items())
            table = _to_table(("key", "epoch"), rows)
            changes |= {"epochs": {}, "epochs_in": state.write(table)}
        if not changes and not self._always:
            return offset, ids
        self._states[stream] = state
        return offset.model_copy(update={**changes, "stream": stream}), ids

    def _check_small(self, offset: ParquetOffset) -> None:
        if (
            len(canonical_json(offset.seen)) > _IDS_WITHOUT_STATE
            or len(canonical_json(offset.epochs)) > self._limits.epochs
            or self.cost_of(offset.files) > self._limits.files
        ):
            raise OptionError(
                "krishiv-parquet: there are too many files to remember in an offset, and the "
                "folder of 'path' cannot be written: give the query its own folder with the "
                "option 'stateLocation', such as one next to its checkpoint, and restart it; "
                "nothing is lost"
            )


def _to_table(names: Sequence[str], rows: Sequence[tuple[object, ...]]) -> pa.Table:
    columns = map(list, zip(*rows, strict=True))
    return pa.table(dict(zip(names, columns, strict=True)))


# --- the state of a stream

_NS_PER_S = 1_000_000_000
_GUARD_S = 7 * 86_400
_SWEEP_EVERY_S = 3_600
_ARROW = b"ARROW1"
_ADVICE = (
    "only this file records the files that the query has read: restore it from a backup, check "
    f"whether the option 'stateLocation' has changed, or start the query with {NEW_CHECKPOINT}"
)


@dataclass(frozen=True)
class StateLocation:
    """The location of the state of streams.

    Attributes:
        own: Folder in which each stream has its own folder; new files are written there.
        others: Folders in which earlier files may be: the default, if another one is configured.
        storage: Access to their stores.
    """

    own: StoreUrl
    others: tuple[StoreUrl, ...] = ()
    storage: Storage = ENVIRONMENT

    @property
    def is_configured(self) -> bool:
        """True if the user configured it."""
        return bool(self.others)

    def is_writable(self) -> bool:
        """Return True if files can be created there.

        On a disk, this checks the nearest folder that exists. In a store, only a write shows it.
        """
        if self.own.kind != "disk":
            return self._can_write()
        folder = Path(self.own.path)
        while not exists(folder):
            folder = folder.parent
        return os.access(folder, os.W_OK | os.X_OK)

    def _can_write(self) -> bool:
        folder, name = self.storage.folder(self.own), f".probe-{uuid.uuid4().hex}"
        try:
            folder.replace(name, b"")
            folder.remove([name])
        except StorageError as error:
            _log.warning("krishiv-parquet: %s", error)
            return False
        return True


class StreamState:
    """The state files of one stream.

    Args:
        location: Location of the state.
        stream: Id of the stream.
    """

    def __init__(self, location: StateLocation, stream: str) -> None:
        self._own = _StateFolder(location.own / stream, location.storage)
        self._folders = [
            self._own,
            *(_StateFolder(other / stream, location.storage) for other in location.others),
        ]
        self._swept_s: float | None = None

    def folder(self, name: str) -> Folder:
        """Return a folder inside that of the stream."""
        return self._own.folder(name)

    def write(self, table: pa.Table) -> str:
        """Write a table durably.

        Returns:
            The name by which `read` finds it.

        Raises:
            OptionError: If the folder cannot be written.
        """
        data = _to_bytes(table)
        name = _digest(data)
        try:
            self._own.write(name, data)
        except (PermissionError, NotADirectoryError, StorageError) as error:
            raise OptionError(
                f"krishiv-parquet: {self._own} cannot be written "
                f"({getattr(error, 'strerror', error)}): set the option 'stateLocation' to a "
                "folder that can be written"
            ) from error
        return name

    def read(self, name: str) -> pa.Table:
        """Read a table that this stream wrote, in any process.

        Raises:
            OffsetError: If its file is missing or damaged.
        """
        for folder in self._folders:
            data = folder.read(name)
            if data is not None:
                if _digest(data) != name:
                    raise OffsetError(f"krishiv-parquet: {folder}/{name} is damaged; {_ADVICE}")
                return _from_bytes(data)
        folders = ", ".join(map(str, self._folders))
        raise OffsetError(f"krishiv-parquet: there is no {name} in {folders}; {_ADVICE}")

    def keep(self, names: Collection[str]) -> None:
        """Touch the needed files, and delete those that no query needed for a week.

        Does this at most once an hour.
        """
        now_s = time.monotonic()  # a wall clock that is set back would stop it
        if self._swept_s is not None and now_s - self._swept_s < _SWEEP_EVERY_S:
            return
        self._swept_s = now_s
        for folder in self._folders:
            for name in names:
                with suppress(PermissionError):
                    folder.touch(name)
        self._own.remove_older(time.time() - _GUARD_S, names)


class _StateFolder:
    """A folder of files that do not change, and are touched when they are needed."""

    def __init__(self, url: StoreUrl, storage: Storage) -> None:
        self._url = url
        self._storage = storage
        self._folder = storage.folder(url)
        self._files = storage.files(url)

    def __str__(self) -> str:
        return str(self._url)

    def folder(self, name: str) -> Folder:
        return self._storage.folder(self._url / name)

    def read(self, name: str) -> bytes | None:
        return self._folder.read(name)

    def write(self, name: str, data: bytes) -> None:
        """Write a file, unless one of its name, and therefore of its content, exists."""
        if not self.touch(name):
            self._folder.replace(name, data)

    def touch(self, name: str) -> bool:
        return self._files.touch(f"{self._url}/{name}")

    def remove_older(self, than_s: float, names: Collection[str]) -> None:
        """Remove files last touched before a time, in seconds since 1970, except those named."""
        with suppress(FileNotFoundError):
            entries = [entry for entry in self._files.entries(str(self._url)) if not entry.is_dir()]
            for name in {entry.name for entry in entries}.difference(names):
                identity = self._files.identity(f"{self._url}/{name}")
                if identity is not None and identity.modified_ns < than_s * _NS_PER_S:
                    self._folder.remove([name])


def _to_bytes(table: pa.Table) -> bytes:
    """Return Arrow's file format; compressed if there are names, since ids do not compress."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    data = bytes(sink.getvalue())
    has_names = pa.string() in table.schema.types
    return zlib.compress(data, 1) if has_names else data  # not every pyarrow has a codec


def _from_bytes(data: bytes) -> pa.Table:
    plain = data if data.startswith(_ARROW) else zlib.decompress(data)
    return pa.ipc.open_file(pa.py_buffer(plain)).read_all()


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


# --- notes of tasks about the data that they skipped

SKIPPED_FOLDER = "skipped"
"""Folder of the notes within that of a stream's state."""

_ENDING = ".json"


class SkippedRange(NamedTuple):
    """A range of a file that a task skipped, from some row on.

    Attributes:
        path: Whole path or URL of the file.
        start: First byte of the range.
        end: Byte after its last one.
        rows: Number of rows of the range that were delivered.
        reason: Text of the error.
    """

    path: str
    start: int
    end: int
    rows: int
    reason: str


def record_skipped_range(folder: Folder | None, skipped: SkippedRange) -> None:
    """Write a note. Executor; an error of the store is only logged."""
    if folder is None:
        return
    # One note for a range, however many attempts its task has.
    name = hashlib.blake2b(f"{skipped.start} {skipped.path}".encode(), digest_size=8).hexdigest()
    try:
        folder.replace(f"{name}{_ENDING}", json.dumps(skipped._asdict(), indent=1).encode())
    except (OSError, StorageError) as error:
        _log.warning("this could not be recorded: %s", error)


def recorded_skipped_ranges(folder: Folder, cache: dict[str, SkippedRange]) -> list[SkippedRange]:
    """Return the notes in a folder, in no order. Driver.

    Args:
        folder: Folder of the notes.
        cache: Notes that were read before, by name; others are added.
    """
    names = {name for name in folder.names() if name.endswith(_ENDING)}
    for name in names.difference(cache):
        with suppress(ValueError, TypeError, StorageError):  # not a note, or deleted meanwhile
            cache[name] = SkippedRange(**json.loads(folder.read(name) or b""))
    return [skipped for name, skipped in cache.items() if name in names]


def all_skipped_ranges(url: StoreUrl, storage: Storage) -> Iterator[tuple[str, SkippedRange]]:
    """Yield the notes of all streams whose state is in a folder, each with its stream's id.

    Raises:
        FileNotFoundError: If there is no such folder; in a bucket, every folder exists.
        StorageError: If it cannot be listed.
    """
    for entry in sorted(storage.files(url).entries(str(url)), key=lambda found: found.name):
        if entry.is_dir():
            folder = storage.folder(url / entry.name / SKIPPED_FOLDER)
            for skipped in recorded_skipped_ranges(folder, {}):
                yield entry.name, skipped
