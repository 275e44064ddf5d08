"""Files of HDFS, over HTTP."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from krishiv_spark.runtime.parallel import side_by_side
from krishiv_spark.storage.files import FolderEntry, Identity, OpenedFile, StoredEntry, Take
from krishiv_spark.storage.hadoop import web_addresses
from krishiv_spark.storage.ranged import TAIL_BYTES, RangedFile
from krishiv_spark.storage.settings import HdfsSettings
from krishiv_spark.storage.urls import StoreUrl
from krishiv_spark.storage.webhdfs import WebHdfs

__all__ = ["HdfsFiles"]

_NS_PER_MS = 1_000_000


class HdfsFiles:
    """Files by their URLs. See `krishiv_spark.storage.Files`.

    Args:
        url: Of any place in it.
        settings: How it is reached.

    Raises:
        OptionError: If nothing says at which address it answers over HTTP.
    """

    resolution_ns = 1  # of the milliseconds that it tells, none means a version
    is_remote = True

    def __init__(self, url: StoreUrl, settings: HdfsSettings) -> None:
        self._root = f"{url.scheme}://{url.authority}"
        self._settings = settings
        self._addresses = web_addresses(url, settings.endpoint)
        self._opened = threading.local()

    def walk(self, folder: str, take: Take) -> bool:
        """See `Files`. A request for each folder."""
        folder = folder.rstrip("/")
        if not _is_folder(self._found(folder)):
            return False
        inside = [""]
        while inside:
            prefix = inside.pop()
            with suppress(FileNotFoundError):  # it went away while the listing was made
                names = take(prefix, self.entries(f"{folder}/{prefix}".rstrip("/")))
                inside += [f"{prefix}{name}" for name in names]
        return True

    def entries(self, folder: str) -> Iterator[FolderEntry]:
        """See `Files`."""
        for status in self._hdfs.listing(self._path(folder)):
            yield _entry(status["pathSuffix"], status)

    def entry(self, path: str) -> FolderEntry | None:
        """See `Files`."""
        status = self._hdfs.status(self._path(path))
        return None if status is None else _entry(path.rpartition("/")[2], status)

    def identity(self, path: str) -> Identity | None:
        """See `Files`."""
        status = self._hdfs.status(self._path(path))
        return None if status is None or _is_folder(status) else _identity(status)

    def tail(self, path: str, count: int, size: int | None = None) -> tuple[Identity, bytes]:
        """See `Files`."""
        identity = _identity(self._found(path))
        end = min(identity.size, identity.size if size is None else size)
        return identity, self._read(path, max(0, end - count), end)

    @contextmanager
    def opened(self, path: str, size: int | None = None) -> Iterator[OpenedFile]:
        """See `Files`. HDFS cannot be asked for a version: it is compared again at the end."""
        del size
        identity, tail = self.tail(path, TAIL_BYTES)
        source = RangedFile(identity.size, tail, lambda start, end: self._read(path, start, end))
        try:
            yield OpenedFile(source, identity, source.expect)
        finally:
            if self.identity(path) not in (identity, None):
                raise OSError(errno.ESTALE, "replaced while it was read", path)

    def touch(self, path: str) -> bool:
        """See `Files`."""
        return self._hdfs.touch(self._path(path), time.time_ns() // _NS_PER_MS)

    def each(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
        """See `Files`."""
        return iter(side_by_side(function, items))

    def _read(self, path: str, start: int, end: int) -> bytes:
        if start >= end:
            return b""
        data = self._hdfs.read(self._path(path), start, end)
        if data is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        if len(data) != end - start:
            raise OSError(errno.ESTALE, "replaced while it was read", path)
        return data

    def _found(self, path: str) -> Mapping[str, Any]:
        status = self._hdfs.status(self._path(path))
        if status is None:
            raise FileNotFoundError(errno.ENOENT, "no such file or folder", path)
        return status

    def _path(self, path: str) -> str:
        return path[len(self._root) :] or "/"

    @property
    def _hdfs(self) -> WebHdfs:
        """Of this thread."""
        found: WebHdfs | None = getattr(self._opened, "hdfs", None)
        if found is None:
            found = self._opened.hdfs = WebHdfs(self._addresses, self._settings)
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_opened"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _opened=threading.local())


def _is_folder(status: Mapping[str, Any]) -> bool:
    return bool(status["type"] == "DIRECTORY")


def _identity(status: Mapping[str, Any]) -> Identity:
    return Identity(status["length"], status["modificationTime"] * _NS_PER_MS)


def _entry(name: str, status: Mapping[str, Any]) -> StoredEntry:
    return StoredEntry(name, None if _is_folder(status) else _identity(status))
