"""Files aside in a bucket, which it copies to their places without sending them: Google's.

A copy within a bucket takes one request, whatever the file's size: what is stored is shared. It is
asked for under the condition that there is no such object, and fails once the file aside is gone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from krishiv_spark.errors import StorageError
from krishiv_spark.storage.aside import AsideFile
from krishiv_spark.storage.objects import Bucket
from krishiv_spark.storage.settings import StoreSettings
from krishiv_spark.storage.urls import StoreUrl

__all__ = ["ObjectAside"]

_PART = 8 * 2**20
"""10 000 of them, which is Google's limit, hold 80 GB."""

_SENDERS = 2


class ObjectAside:
    """See `krishiv_spark.storage.aside.AsideStore`.

    Args:
        url: The place to which paths are relative.
        settings: How it is reached.
    """

    def __init__(self, url: StoreUrl, settings: StoreSettings) -> None:
        self._url = url
        self._bucket = Bucket(url, settings)

    def create(self, path: str) -> _SentObject:
        """See `AsideStore`."""
        return _SentObject(self._bucket, self._url / path)

    def move(self, path: str, to: str) -> bool:
        """See `AsideStore`. In two steps: if it dies in between, the next finds the name taken."""
        try:
            found = self._copy(path, to)
        except StorageError:  # its answer may be lost: what has a condition is not sent again
            found = self._copy(path, to)
        if found is not None:
            self.delete(path)
        return bool(found)

    def _copy(self, path: str, to: str) -> bool | None:
        """False if the new name is taken, None if there is nothing to copy."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        def copy(store: Any) -> bool:
            source, target = (self._url / path).path, (self._url / to).path
            try:
                obstore.copy(store, source, target, overwrite=False)
            except AlreadyExistsError:
                return False
            return True

        return self._bucket.find(f"copy {self._url}/{path} to {self._url}/{to}", copy)

    def exists(self, path: str) -> bool:
        """See `AsideStore`."""
        import obstore

        def look(store: Any) -> object:
            return obstore.head(store, (self._url / path).path)

        return self._bucket.find(f"look at {self._url}/{path}", look) is not None

    def delete(self, path: str) -> None:
        """See `AsideStore`."""
        import obstore

        def delete(store: Any) -> None:
            obstore.delete(store, (self._url / path).path)

        self._bucket.find(f"remove {self._url}/{path}", delete)

    def files(self, path: str) -> Iterator[AsideFile]:
        """See `AsideStore`."""
        import obstore

        prefix = f"{(self._url / path).path}/"
        found = self._bucket.ask(
            f"list {self._url}/{path}",
            lambda store: obstore.list_with_delimiter(store, prefix=prefix),
        )
        for item in found["objects"]:
            modified_ms = int(item["last_modified"].timestamp() * 1000)
            yield AsideFile(item["path"][len(prefix) :], modified_ms)


class _SentObject:
    """One multipart upload, or one request if it is small."""

    def __init__(self, bucket: Bucket, url: StoreUrl) -> None:
        self._bucket = bucket
        self._url = url
        self._file: Any = None
        self._part = bytearray()

    def write(self, data: bytes) -> None:
        self._part += data
        if len(self._part) >= _PART:
            self._send()

    def close(self) -> None:
        self._send(is_last=True)

    def drop(self) -> None:
        """What is completed can be removed; parts would stay."""
        if self._file is not None and not self._file.closed():
            with contextlib.suppress(StorageError):
                self.close()

    def _send(self, *, is_last: bool = False) -> None:
        import obstore

        def send(store: Any) -> None:
            if self._file is None:
                self._file = obstore.open_writer(
                    store, self._url.path, buffer_size=_PART, max_concurrency=_SENDERS
                )
            self._file.write(bytes(self._part))
            self._part.clear()
            if is_last:
                self._file.close()

        self._bucket.ask(f"write {self._url}", send)
