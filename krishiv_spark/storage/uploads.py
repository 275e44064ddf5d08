"""Uploads: files that a store receives as a whole, and that readers see only when completed.

The contracts are at the top. Stores implement them in one of two ways: `PartsUpload` sends a file
in parts that the store joins, `RenameUploads` writes it under another name and renames it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from pydantic import BaseModel
from typing_extensions import override

from krishiv_spark.errors import StorageError
from krishiv_spark.storage.paths import NameWithin, check_file_name

__all__ = [
    "OpenUpload",
    "PartSender",
    "PartsUpload",
    "PendingUpload",
    "RenameUploads",
    "StagedEntry",
    "StagedWriter",
    "StagingStore",
    "Upload",
    "UploadState",
    "Uploads",
    "part_size",
]


class Upload(BaseModel, frozen=True):
    """The values with which any process can complete a file, check its state, or abort it.

    Attributes:
        key: Path of the visible file, relative to the location of its `Uploads`.
        id: The store's id of it: S3's upload id, or the path of the staged file; empty for Azure,
            where the key suffices. A store that uses it as a path checks it.
        parts: Its parts, in order: S3's ETags or ids of Azure's blocks; empty in other stores.
        size: Size in bytes.
        nonce: A random text that the visible file contains, if the store can store it.
        begun_ms: Start time, milliseconds since 1970, by the clock of the process that started it.
    """

    key: NameWithin
    id: str
    parts: tuple[str, ...] = ()
    size: int
    nonce: str
    begun_ms: int


class UploadState(Enum):
    """The state of an upload."""

    OPEN = "open"
    VISIBLE = "visible"
    MISSING = "missing"
    """It was aborted, or its visible file has been deleted."""


@dataclass(frozen=True)
class PendingUpload:
    """An upload that the store contains and that no process has completed.

    Attributes:
        upload: The upload. Its size, parts and nonce are unknown.
        begun_ms: Start time, milliseconds since 1970, by the store's clock.
        shown: Description for messages.
    """

    upload: Upload
    begun_ms: int
    shown: str


class OpenUpload(Protocol):
    """A file that is being written, with the methods that pyarrow calls. One thread writes."""

    closed: bool
    """True if it takes no more bytes."""

    def write(self, data: bytes) -> int:
        """Append all bytes. A few parts are kept in memory.

        Raises:
            StorageError: If the store fails.
            UploadGoneError: If another process has aborted it.
        """
        ...

    def tell(self) -> int:
        """Return the number of bytes written so far."""
        ...

    def flush(self) -> None:
        """Do nothing: bytes are sent in parts."""
        ...

    def close(self) -> Upload:
        """Send the remaining bytes. The file is durable, and not visible.

        Raises:
            StorageError, UploadGoneError: As `write`.
        """
        ...

    def abort(self) -> None:
        """Delete the sent bytes, as `Uploads.discard` does. It may be called repeatedly.

        Raises:
            StorageError: If the store fails.
        """
        ...


class Uploads(Protocol):
    """Uploads to paths below one location in a store. Any process, any thread.

    Each method raises a `StorageError` if the store fails or refuses the request.
    """

    def open(self, key: str) -> OpenUpload:
        """Start an upload. Nothing is sent yet.

        Args:
            key: Path relative to the location. No other upload ever uses it.
        """
        ...

    def complete(self, upload: Upload) -> bool:
        """Make a file visible, in one step.

        Any process; it may be called repeatedly and in parallel.

        Returns:
            True if it is visible; False if neither the upload nor the file exists.
        """
        ...

    def state(self, upload: Upload) -> UploadState:
        """Return the state of an upload."""
        ...

    def abort(self, upload: Upload) -> None:
        """Prevent any process from completing it; a completed file stays.

        Called for the uploads that an intent names, since a fenced driver may be about to complete
        them.
        """
        ...

    def discard(self, upload: Upload) -> None:
        """Delete the sent bytes of an upload that no process will complete.

        If the store cannot do so without making a file visible, it deletes them itself, days later.
        """
        ...

    def pending(self) -> Iterator[PendingUpload]:
        """Yield the uploads below the location that are not completed and can be discarded."""
        ...

    def verify(self) -> None:
        """Start an upload, list it and abort it, to check the permissions. Planner.

        Raises:
            StorageError: If a permission is missing.
        """
        ...


# --- files that are sent in parts

_FIRST_PART = 8 * 2**20
_GROWTH = 110_000
"""Growth of the part size. With it, 10 000 parts, which is S3's limit, have 5.5 TB; a file of 1 GB
has 90."""

_THREADS = 2


def part_size(number: int) -> int:
    """Return the size of a part by its number from 0: at least S3's 5 MiB, at most its 5 GiB."""
    return _FIRST_PART + number * _GROWTH


class PartSender(Protocol):
    """The requests of one upload to a store."""

    def begin(self, nonce: str) -> str:
        """Start the upload and return its id; the visible file will contain the nonce."""
        ...

    def send(self, number: int, data: bytes) -> str:
        """Send a part, by its number from 0, and return its entry in `Upload.parts`."""
        ...

    def discard(self) -> None:
        """Delete the sent parts, as `Uploads.discard`."""
        ...


class PartsUpload(OpenUpload):
    """A file that is sent in parts by two threads. Executor.

    The part that is being filled and the two that are being sent are in memory.

    Args:
        key: See `Upload`.
        sender: Sends the parts.
    """

    closed = False

    def __init__(self, key: str, sender: PartSender) -> None:
        self._key = key
        self._sender = sender
        self._nonce = uuid.uuid4().hex
        self._id: str | None = None
        self._begun_ms = 0
        self._size = 0
        self._part = bytearray()
        self._sent: list[Future[str]] = []
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="krishiv-parts")

    @override
    def write(self, data: bytes) -> int:
        size = memoryview(data).nbytes
        self._part += data
        self._size += size
        while len(self._part) >= (full := part_size(len(self._sent))):
            self._send(bytes(self._part[:full]))
            del self._part[:full]
        return size

    @override
    def tell(self) -> int:
        return self._size

    @override
    def flush(self) -> None:
        pass

    @override
    def close(self) -> Upload:
        self.closed = True
        if self._part or not self._sent:  # an empty file also has one part
            self._send(bytes(self._part))
            self._part.clear()
        parts = tuple(sent.result() for sent in self._sent)
        self._threads.shutdown()
        return Upload(
            key=self._key,
            id=self._id or "",
            parts=parts,
            size=self._size,
            nonce=self._nonce,
            begun_ms=self._begun_ms,
        )

    @override
    def abort(self) -> None:
        self.closed = True
        # Threads are stopped first: a part that arrives after the abort would remain in the store.
        self._threads.shutdown(cancel_futures=True)
        if self._id is not None:
            self._sender.discard()

    def _send(self, data: bytes) -> None:
        if self._id is None:
            self._begun_ms = time.time_ns() // 1_000_000
            self._id = self._sender.begin(self._nonce)
        number = len(self._sent)
        if number >= _THREADS:
            # No more parts are being sent than there are threads.
            self._sent[number - _THREADS].result()
        self._sent.append(self._threads.submit(self._sender.send, number, data))


# --- files that are written under another name

_FOLDER = "_krishiv/uploads"
_SUFFIX = ".staged"
"""Suffix of staged files. No glob for Parquet matches it, and readers skip the folder."""


class StagedWriter(Protocol):
    """A staged file that is being written."""

    def write(self, data: bytes) -> None:
        """Append bytes; some are kept in memory."""
        ...

    def close(self) -> None:
        """Make the file durable."""
        ...

    def abort(self) -> None:
        """Stop writing; the written bytes may remain."""
        ...


class StagedEntry(NamedTuple):
    """A staged file in a listing.

    Attributes:
        name: Its name in its folder.
        modified_ms: Time of its last modification, milliseconds since 1970, by the store's clock.
    """

    name: str
    modified_ms: int


class StagingStore(Protocol):
    """The operations of a store that stages files. Paths are relative to a location. Any thread."""

    def create(self, path: str) -> StagedWriter:
        """Start a file, and create the folders above it, without a request yet."""
        ...

    def move(self, path: str, to: str) -> bool:
        """Move a file; return False if it does not exist, or the new name does.

        It appears in one step. A store that deletes the staged file in a second step also does so
        whenever the new name exists.
        """
        ...

    def exists(self, path: str) -> bool:
        """Return True if a file exists."""
        ...

    def delete(self, path: str) -> None:
        """Delete a file; a missing one is no error."""
        ...

    def files(self, path: str) -> Iterator[StagedEntry]:
        """Yield the files of a folder; none if it does not exist."""
        ...


class RenameUploads(Uploads):
    """Uploads to a store that renames or copies a file in one step.

    Args:
        location: The location of the files, for messages.
        store: The store, whose paths are relative to the location.
    """

    def __init__(self, location: object, store: StagingStore) -> None:
        self._location = location
        self._store = store

    @override
    def open(self, key: str) -> OpenUpload:
        return _StagedUpload(self._store, key)

    @override
    def complete(self, upload: Upload) -> bool:
        path = _staged_path(upload)
        return self._store.move(path, upload.key) or self._store.exists(upload.key)

    @override
    def state(self, upload: Upload) -> UploadState:
        if self._store.exists(_staged_path(upload)):
            return UploadState.OPEN
        is_visible = self._store.exists(upload.key)
        return UploadState.VISIBLE if is_visible else UploadState.MISSING

    @override
    def abort(self, upload: Upload) -> None:
        self._store.delete(_staged_path(upload))

    @override
    def discard(self, upload: Upload) -> None:
        self.abort(upload)

    @override
    def pending(self) -> Iterator[PendingUpload]:
        """Yield the uploads that are not completed. Their keys lack the folder."""
        for file in self._store.files(_FOLDER):
            name = file.name.removesuffix(_SUFFIX)
            upload = Upload(
                key=name, id=f"{_FOLDER}/{file.name}", size=0, nonce="", begun_ms=file.modified_ms
            )
            yield PendingUpload(upload, file.modified_ms, f"{self._location}/{upload.id}")

    @override
    def verify(self) -> None:
        probe = self.open(f"probe-{uuid.uuid4().hex}")
        upload = probe.close()
        list(self.pending())
        self.abort(upload)


def _staged_path(upload: Upload) -> str:
    """Return the path of an upload's staged file, which is its id.

    Raises:
        StorageError: If the id, which comes from an epoch log, names another file.
    """
    folder, _, name = upload.id.rpartition("/")
    try:
        if folder == _FOLDER:
            return f"{_FOLDER}/{check_file_name(name)}"
    except ValueError:
        pass
    raise StorageError(
        f"the upload of {upload.key!r} has the id {upload.id[:200]!r}, which is not a file in "
        f"{_FOLDER}: the epoch log that names it is damaged, or was not written by "
        "krishiv-spark; nothing was read or changed. Put the log back from a copy"
    )


class _StagedUpload(OpenUpload):
    closed = False

    def __init__(self, store: StagingStore, key: str) -> None:
        self._store = store
        self._key = key
        self._path = f"{_FOLDER}/{key.rpartition('/')[2]}{_SUFFIX}"
        self._begun_ms = time.time_ns() // 1_000_000
        self._size = 0
        self._file = store.create(self._path)

    @override
    def write(self, data: bytes) -> int:
        size = memoryview(data).nbytes
        self._file.write(bytes(data))
        self._size += size
        return size

    @override
    def tell(self) -> int:
        return self._size

    @override
    def flush(self) -> None:
        pass

    @override
    def close(self) -> Upload:
        self.closed = True
        self._file.close()
        return Upload(
            key=self._key, id=self._path, size=self._size, nonce="", begun_ms=self._begun_ms
        )

    @override
    def abort(self) -> None:
        self.closed = True
        self._file.abort()
        self._store.delete(self._path)
