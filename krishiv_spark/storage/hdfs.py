"""Folders of HDFS: files are written aside and renamed, which the NameNode does in one step."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from krishiv_spark.errors import StorageError
from krishiv_spark.storage.folder import MOST_BYTES
from krishiv_spark.storage.hadoop import web_addresses
from krishiv_spark.storage.no_links import check_size
from krishiv_spark.storage.settings import HdfsSettings
from krishiv_spark.storage.urls import StoreUrl
from krishiv_spark.storage.webhdfs import WebHdfs

__all__ = ["HdfsFolder"]


class HdfsFolder:
    """A folder of HDFS. See `krishiv_spark.storage.Folder`.

    Args:
        url: The folder, which need not be there.
        settings: How it is reached.

    Raises:
        OptionError: If nothing says at which address it answers over HTTP.
    """

    def __init__(self, url: StoreUrl, settings: HdfsSettings) -> None:
        self.url = url
        self._settings = settings
        self._addresses = web_addresses(url, settings.endpoint)
        self._opened: WebHdfs | None = None

    def __repr__(self) -> str:
        return str(self.url)

    def names(self) -> Mapping[str, str]:
        """See `Folder`."""
        return dict.fromkeys(self._hdfs.names(self.url.path), "")

    def read(self, name: str, most: int = MOST_BYTES) -> bytes | None:
        """See `Folder`."""
        data = self._hdfs.read(self._path(name), 0, most + 1)
        if data is not None:
            check_size(f"{self}/{name}", len(data), most)
        return data

    def read_each(self, names: Sequence[str]) -> Sequence[bytes | None]:
        """See `Folder`."""
        return [self.read(name) for name in names]  # its client is one thread's

    def below(self) -> Iterator[str]:
        """See `Folder`."""
        folders = [""]
        while folders:
            within = folders.pop()
            for name, is_folder in self._hdfs.entries(self._path(within)):
                if is_folder:
                    folders.append(f"{within}{name}/")
                else:
                    yield f"{within}{name}"

    def tail(self, name: str, size: int) -> bytes | None:
        """See `Folder`."""
        length = self._hdfs.length(self._path(name))
        if length is None:
            return None
        return self._hdfs.read(self._path(name), max(0, length - size))

    def create(self, name: str, data: bytes) -> bool:
        """See `Folder`. A rename does not replace what is there."""
        aside = self._write_aside(name, data)
        # A rename whose answer was lost is refused the second time, but then nothing is aside.
        if self._hdfs.rename(aside, self._path(name)) or not self._hdfs.exists(aside):
            return True
        taken = self._hdfs.exists(self._path(name))
        self._hdfs.delete(aside)
        if not taken:
            raise StorageError(f"HDFS does not rename {aside} to {name}, though nothing is there")
        return False

    def replace(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """See `Folder`."""
        del durable
        aside = self._write_aside(name, data)
        if self._hdfs.rename(aside, self._path(name), overwrite=True):
            return
        if self._hdfs.exists(aside):  # HttpFS knows no such rename
            self._hdfs.delete(self._path(name))
            if not self._hdfs.rename(aside, self._path(name)) and self._hdfs.exists(aside):
                raise StorageError(f"HDFS does not rename {aside} to {name}")

    def remove(self, names: Iterable[str]) -> None:
        """See `Folder`."""
        for name in names:
            self._hdfs.delete(self._path(name))

    def move(self, name: str, to: str) -> None:
        """See `Folder`."""
        path, target = self._path(name), self._path(to)
        if not self._hdfs.exists(path):
            return
        self._hdfs.make_folder(target.rpartition("/")[0])
        self._hdfs.delete(target)  # a rename does not replace what is there
        if not self._hdfs.rename(path, target) and self._hdfs.exists(path):
            raise StorageError(f"HDFS does not rename {path} to {target}")

    def destroy(self) -> None:
        """See `Folder`."""
        self._hdfs.delete(self.url.path, recursive=True)

    def _write_aside(self, name: str, data: bytes) -> str:
        aside = self._path(f".{name}.{uuid.uuid4().hex}")
        self._hdfs.write(aside, data)
        return aside

    def _path(self, name: str) -> str:
        return f"{self.url.path.rstrip('/')}/{name}"

    @property
    def _hdfs(self) -> WebHdfs:
        if self._opened is None:
            self._opened = WebHdfs(self._addresses, self._settings)
        return self._opened

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_opened": None}
