"""Uploads where a store can move or copy a file in one step: written aside, then moved."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from krishiv_spark.errors import StorageError
from krishiv_spark.storage.paths import check_file_name
from krishiv_spark.storage.uploads import Became, PendingUpload, Upload
from krishiv_spark.storage.urls import StoreUrl

__all__ = ["AsideFile", "AsideStore", "AsideUploads", "WritesAside"]

_FOLDER = "_krishiv/uploads"
_SUFFIX = ".staged"
"""No glob for Parquet finds it, and readers pass over the folder."""


class WritesAside(Protocol):
    """A file that is being written aside."""

    def write(self, data: bytes) -> None:
        """Append bytes; holds some in memory."""
        ...

    def close(self) -> None:
        """Make it durable."""
        ...

    def drop(self) -> None:
        """Give it up; what was written may stay."""
        ...


class AsideFile(NamedTuple):
    """A file that lies aside.

    Attributes:
        name: In its folder.
        modified_ms: Milliseconds since 1970, by the store's clock.
    """

    name: str
    modified_ms: int


class AsideStore(Protocol):
    """What is asked of a store. Paths are relative to one place. Any thread."""

    def create(self, path: str) -> WritesAside:
        """Begin a file, and make the folders above it. Nothing is asked yet."""
        ...

    def move(self, path: str, to: str) -> bool:
        """Move a file; False if it is not there, or the new name is taken.

        It appears in one step. Where it is gone from aside in a second one, that follows whenever
        the new name is taken.
        """
        ...

    def exists(self, path: str) -> bool:
        """Whether a file is there."""
        ...

    def delete(self, path: str) -> None:
        """Remove a file; what is gone already is no error."""
        ...

    def files(self, path: str) -> Iterator[AsideFile]:
        """The files of a folder; none if it is not there."""
        ...


class AsideUploads:
    """See `krishiv_spark.storage.Uploads`.

    Args:
        url: The place below which they are.
        store: Whose paths are relative to that place.
    """

    def __init__(self, url: StoreUrl, store: AsideStore) -> None:
        self.url = url
        self._store = store

    def open(self, key: str) -> _AsideUpload:
        """See `Uploads`."""
        return _AsideUpload(self._store, key)

    def complete(self, upload: Upload) -> bool:
        """See `Uploads`."""
        aside = _path_of(upload)
        return self._store.move(aside, upload.key) or self._store.exists(upload.key)

    def look(self, upload: Upload) -> Became:
        """See `Uploads`."""
        if self._store.exists(_path_of(upload)):
            return Became.OPEN
        return Became.VISIBLE if self._store.exists(upload.key) else Became.GONE

    def abort(self, upload: Upload) -> None:
        """See `Uploads`."""
        self._store.delete(_path_of(upload))

    def discard(self, upload: Upload) -> None:
        """See `Uploads`."""
        self.abort(upload)

    def pending(self) -> Iterator[PendingUpload]:
        """See `Uploads`. A key is known without its folder."""
        for file in self._store.files(_FOLDER):
            name = file.name.removesuffix(_SUFFIX)
            upload = Upload(
                key=name, id=f"{_FOLDER}/{file.name}", size=0, nonce="", begun_ms=file.modified_ms
            )
            yield PendingUpload(upload, file.modified_ms, f"{self.url}/{upload.id}")

    def verify(self) -> None:
        """See `Uploads`."""
        probe = self.open(f"probe-{uuid.uuid4().hex}")
        upload = probe.close()
        list(self.pending())
        self.abort(upload)


def _path_of(upload: Upload) -> str:
    """Return the path of what an upload has written aside, which its id is.

    Raises:
        StorageError: If the id, which comes out of an epoch log, is that of another file.
    """
    folder, _, name = upload.id.rpartition("/")
    try:
        if folder == _FOLDER:
            return f"{_FOLDER}/{check_file_name(name)}"
    except ValueError:
        pass
    raise StorageError(
        f"the upload of {upload.key!r} has the id {upload.id[:200]!r}, which is no file in "
        f"{_FOLDER}: the epoch log that names it is damaged, or was not written by krishiv-spark; "
        "nothing was read or changed. Put the log back from a copy"
    )


class _AsideUpload:
    """See `krishiv_spark.storage.uploads.OpenUpload`."""

    def __init__(self, store: AsideStore, key: str) -> None:
        self.closed = False
        self._store = store
        self._key = key
        self._path = f"{_FOLDER}/{key.rpartition('/')[2]}{_SUFFIX}"
        self._begun_ms = time.time_ns() // 1_000_000
        self._size = 0
        self._file = store.create(self._path)

    def write(self, data: bytes) -> int:
        size = memoryview(data).nbytes
        self._file.write(bytes(data))
        self._size += size
        return size

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """What is written is on its way."""

    def close(self) -> Upload:
        self.closed = True
        self._file.close()
        return Upload(
            key=self._key, id=self._path, size=self._size, nonce="", begun_ms=self._begun_ms
        )

    def drop(self) -> None:
        self.closed = True
        self._file.drop()
        self._store.delete(self._path)
