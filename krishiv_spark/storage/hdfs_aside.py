"""Files that HDFS takes as they are written, and renames."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

from krishiv_spark.errors import StorageError
from krishiv_spark.storage.aside import AsideFile
from krishiv_spark.storage.hadoop import web_addresses
from krishiv_spark.storage.settings import HdfsSettings
from krishiv_spark.storage.urls import StoreUrl
from krishiv_spark.storage.webhdfs import WebHdfs

__all__ = ["HdfsAside"]

_WAITING = 4
"""Pieces, of the sizes in which pyarrow writes them, that wait to be sent."""


class HdfsAside:
    """See `krishiv_spark.storage.aside.AsideStore`.

    Args:
        url: The place to which paths are relative.
        settings: How it is reached.
    """

    def __init__(self, url: StoreUrl, settings: HdfsSettings) -> None:
        self._url = url
        self._settings = settings
        self._addresses = web_addresses(url, settings.endpoint)

    def create(self, path: str) -> _SentFile:
        """See `AsideStore`."""
        return _SentFile(self._hdfs(), self._path(path))

    def move(self, path: str, to: str) -> bool:
        """See `AsideStore`."""
        hdfs = self._hdfs()
        if hdfs.rename(self._path(path), self._path(to)):
            return True
        if not hdfs.exists(self._path(path)):
            return False
        hdfs.make_folder(self._path(to).rpartition("/")[0])  # perhaps that was missing
        return hdfs.rename(self._path(path), self._path(to))

    def exists(self, path: str) -> bool:
        """See `AsideStore`."""
        return self._hdfs().exists(self._path(path))

    def delete(self, path: str) -> None:
        """See `AsideStore`."""
        self._hdfs().delete(self._path(path))

    def files(self, path: str) -> Iterator[AsideFile]:
        """See `AsideStore`."""
        for item in self._hdfs().statuses(self._path(path)):
            yield AsideFile(item["pathSuffix"], item["modificationTime"])

    def _path(self, path: str) -> str:
        return f"{self._url.path.rstrip('/')}/{path}"

    def _hdfs(self) -> WebHdfs:
        """Each thread needs one of its own."""
        return WebHdfs(self._addresses, self._settings)


class _SentFile:
    """One request, whose body is sent by a thread as it is written."""

    def __init__(self, hdfs: WebHdfs, path: str) -> None:
        self._hdfs = hdfs
        self._path = path
        self._pieces: queue.Queue[bytes | None] = queue.Queue(_WAITING)
        self._error: Exception | None = None
        self._is_dropped = False
        self._thread = threading.Thread(target=self._send, name="krishiv-hdfs", daemon=True)

    def write(self, data: bytes) -> None:
        self._put(data)

    def close(self) -> None:
        self._put(None)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def drop(self) -> None:
        self._is_dropped = True
        if self._thread.is_alive():
            self._put(None)
            self._thread.join()

    def _put(self, piece: bytes | None) -> None:
        if self._thread.ident is None:
            self._thread.start()
        while True:
            if self._error is not None and piece is not None:
                raise self._error
            try:
                return self._pieces.put(piece, timeout=0.1)
            except queue.Full:
                if not self._thread.is_alive():
                    return None

    def _send(self) -> None:
        try:
            self._hdfs.stream(self._path, self._taken())
        except Exception as error:  # noqa: BLE001  else the file would count as written
            self._error = error

    def _taken(self) -> Iterator[bytes]:
        while (piece := self._pieces.get()) is not None:
            if piece:  # an empty one would end a chunked body
                yield piece
        if self._is_dropped:
            raise StorageError(f"{self._path} is given up")
