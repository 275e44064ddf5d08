"""HDFS over HTTP: settings, addresses, folders with atomic renames, files and uploads.

The module `krishiv_spark.storage.webhdfs` sends the requests.
"""

from __future__ import annotations

import errno
import os
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from pydantic import Field, SecretStr
from typing_extensions import override

from krishiv_spark.errors import OptionError, StorageError
from krishiv_spark.runtime.retry import map_in_parallel
from krishiv_spark.storage.base import BaseStore, StoreUrl, split_authority
from krishiv_spark.storage.files import (
    MOST_BYTES,
    Files,
    Folder,
    FolderEntry,
    Identity,
    OpenedFile,
    StoredEntry,
    WalkFilter,
)
from krishiv_spark.storage.no_links import check_size
from krishiv_spark.storage.ranged import TAIL_BYTES, RangedFile
from krishiv_spark.storage.settings import StoreSettings
from krishiv_spark.storage.uploads import RenameUploads, StagedEntry, StagedWriter, StagingStore

if TYPE_CHECKING:
    from krishiv_spark.storage.webhdfs import HdfsStatus, WebHdfs

__all__ = ["HdfsSettings", "HdfsStore", "web_addresses"]


class HdfsSettings(StoreSettings):
    """Settings of HDFS over WebHDFS or HttpFS; `endpoint` may name several NameNodes."""

    user: str | None = Field(default=None, description="User name, if no login proves the user.")
    token: SecretStr | None = Field(default=None, description="Delegation token of HDFS.")
    kerberos: bool = Field(
        default=False, description="If `true`, log in with Kerberos; requires `requests-kerberos`."
    )

    def login(self) -> Mapping[str, str]:
        """Return the parameters of a request that name the user or contain credentials."""
        if self.token is not None:
            return {"delegation": self.token.get_secret_value()}
        user = self.user or os.environ.get("HADOOP_USER_NAME")
        return {} if user is None or self.kerberos else {"user.name": user}


@dataclass(frozen=True)
class HdfsStore(BaseStore):
    """A location in HDFS."""

    kind = "hdfs"
    schemes = ("hdfs", "viewfs", "webhdfs", "swebhdfs")
    settings_type = HdfsSettings
    login_options = "'storage.hdfs.user' or '.token'"

    settings: HdfsSettings

    @override
    @classmethod
    def parse_url(cls, text: str, scheme: str) -> StoreUrl:
        return StoreUrl(cls.kind, scheme, *split_authority(text))

    @override
    def folder(self) -> HdfsFolder:
        return HdfsFolder(self)

    @override
    def files(self) -> HdfsFiles:
        return HdfsFiles(self)

    @override
    def uploads(self) -> RenameUploads:
        return RenameUploads(self.url, RenamedFiles(self))

    @override
    def is_named(self, named: Iterable[StoreUrl]) -> bool:
        has_login = self.settings.token is not None or self.settings.kerberos
        if not has_login or self.settings.endpoint is not None:
            return True
        known = {address for url in named for address in _known_addresses(url)}
        return set(_known_addresses(self.url)) <= known

    @override
    def plain_logins(self) -> Iterator[tuple[str, str]]:
        if self.settings.token is not None:
            for address in self.addresses():
                yield address, "the delegation token 'storage.hdfs.token'"

    def addresses(self) -> list[str]:
        """Return the addresses of the NameNodes.

        Raises:
            OptionError: If neither the URL nor a setting names one.
        """
        return web_addresses(self.url, self.settings.endpoint)

    def connect(self, addresses: Sequence[str]) -> WebHdfs:
        """Return a client, for one thread.

        Raises:
            OptionError: If the login needs a package that is missing.
        """
        from krishiv_spark.storage.webhdfs import WebHdfs

        return WebHdfs(self, addresses, self.settings.login, self._kerberos())

    def _kerberos(self) -> Any:
        if not self.settings.kerberos:
            return None
        try:
            return import_module("requests_kerberos").HTTPKerberosAuth()
        except ImportError as error:
            raise OptionError(
                "'storage.hdfs.kerberos' needs the package requests-kerberos, on every machine"
            ) from error


# --- addresses

_HTTP_PORT, _HTTPS_PORT = 9870, 9871
"""Default ports of NameNodes since Hadoop 3."""


def web_addresses(url: StoreUrl, endpoint: str | None = None) -> list[str]:
    """Return the addresses of NameNodes, each as ``http://host:port``; one of them is active.

    Args:
        url: Of HDFS. If it names a service of several NameNodes, or no authority, the files
            ``core-site.xml`` and ``hdfs-site.xml`` in ``HADOOP_CONF_DIR`` contain the addresses.
        endpoint: Addresses of the user, separated by commas, which take precedence.

    Raises:
        OptionError: If no address is known.
    """
    if endpoint is not None:
        return [_add_scheme(part.strip().rstrip("/")) for part in endpoint.split(",")]
    if url.scheme in {"webhdfs", "swebhdfs"}:
        return [f"{'https' if url.scheme == 'swebhdfs' else 'http'}://{url.authority}"]
    found = [] if url.scheme == "viewfs" else _from_hadoop(url, _read_configuration())
    if not found:
        raise OptionError(
            f"{url} does not say where HDFS answers over HTTP: set 'storage.hdfs.endpoint' to the "
            "addresses of its NameNodes (http://host:9870), or of an HttpFS; or HADOOP_CONF_DIR"
        )
    return found


def _known_addresses(url: StoreUrl) -> list[str]:
    with suppress(OptionError):
        return web_addresses(url)
    return []


def _add_scheme(address: str) -> str:
    return address if "://" in address else f"http://{address}"


def _from_hadoop(url: StoreUrl, values: Mapping[str, str]) -> list[str]:
    default = StoreUrl.parse(values.get("fs.defaultFS", "file:/"))
    authority = url.authority or (default.authority if default.scheme == "hdfs" else "")
    scheme = "https" if values.get("dfs.http.policy") == "HTTPS_ONLY" else "http"
    nodes = values.get(f"dfs.ha.namenodes.{authority}", "").split(",")
    keys = [f".{authority}.{node.strip()}" for node in nodes if node.strip()]
    is_described = bool(keys) or authority == default.authority
    known = values if is_described else {}  # the files describe the default cluster only
    found = [_address(scheme, key, authority, known) for key in keys or [""]]
    return [f"{scheme}://{address}" for address in found if address]


def _address(scheme: str, key: str, authority: str, values: Mapping[str, str]) -> str:
    """Return host and port of a NameNode; empty if no host is known.

    If it listens on every interface, its host is that of the RPC address.
    """
    configured = values.get(f"dfs.namenode.{scheme}-address{key}", "")
    host, _, port = configured.partition(":")
    if host in {"", "0.0.0.0"}:  # noqa: S104  read, not bound
        host = values.get(f"dfs.namenode.rpc-address{key}", authority).partition(":")[0]
    port = port or str(_HTTPS_PORT if scheme == "https" else _HTTP_PORT)
    return f"{host}:{port}" if host else ""


def _read_configuration() -> dict[str, str]:
    """Return the values of Hadoop's files on this machine; none without files."""
    home = os.environ.get("HADOOP_HOME")
    folder = os.environ.get("HADOOP_CONF_DIR") or (f"{home}/etc/hadoop" if home else None)
    values: dict[str, str] = {}
    for name in ("core-site.xml", "hdfs-site.xml") if folder else ():
        path = Path(f"{folder}/{name}")
        for item in ET.parse(path).iter("property") if path.is_file() else ():  # noqa: S314  own
            values[item.findtext("name", "")] = item.findtext("value", "").strip()
    return values


# --- folders


class HdfsFolder(Folder):
    """A folder of HDFS, which need not exist.

    Args:
        store: The location and its settings.

    Raises:
        OptionError: If no address is known.
    """

    def __init__(self, store: HdfsStore) -> None:
        self.url = store.url
        self._store = store
        self._addresses = store.addresses()
        self._client: WebHdfs | None = None

    def __repr__(self) -> str:
        return str(self.url)

    @override
    def names(self) -> Mapping[str, str]:
        return {status.name: "" for status in self._hdfs.list_folder(self.url.path)}

    @override
    def read(self, name: str, most: int = MOST_BYTES) -> bytes | None:
        data = self._hdfs.read(self._path(name), 0, most + 1)
        if data is not None:
            check_size(f"{self}/{name}", len(data), most)
        return data

    @override
    def read_each(self, names: Sequence[str]) -> Sequence[bytes | None]:
        return [self.read(name) for name in names]  # the client supports one thread

    @override
    def iter_files(self) -> Iterator[str]:
        folders = [""]
        while folders:
            within = folders.pop()
            for status in self._hdfs.list_folder(self._path(within)):
                if status.is_folder:
                    folders.append(f"{within}{status.name}/")
                else:
                    yield f"{within}{status.name}"

    @override
    def tail(self, name: str, size: int) -> bytes | None:
        status = self._hdfs.status(self._path(name))
        if status is None:
            return None
        return self._hdfs.read(self._path(name), max(0, status.size - size))

    @override
    def create(self, name: str, data: bytes) -> bool:
        """Write a file under another name, and rename it: a rename does not replace a file."""
        staged = self._stage(name, data)
        # If the answer to a rename is lost, its repetition is refused, but the staged file does not
        # exist.
        if self._hdfs.rename(staged, self._path(name)) or not self._hdfs.exists(staged):
            return True
        is_taken = self._hdfs.exists(self._path(name))
        self._hdfs.delete(staged)
        if not is_taken:
            raise StorageError(
                f"HDFS does not rename {staged} to {name}, although the name is free"
            )
        return False

    @override
    def replace(self, name: str, data: bytes, *, durable: bool = True) -> None:
        staged = self._stage(name, data)
        if self._hdfs.rename(staged, self._path(name), overwrite=True):
            return
        if self._hdfs.exists(staged):  # HttpFS has no such rename
            self._hdfs.delete(self._path(name))
            self._rename(staged, self._path(name), name)

    @override
    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            self._hdfs.delete(self._path(name))

    @override
    def move(self, name: str, to: str) -> None:
        path, target = self._path(name), self._path(to)
        if not self._hdfs.exists(path):
            return
        self._hdfs.make_folder(target.rpartition("/")[0])
        self._hdfs.delete(target)  # a rename does not replace a file
        self._rename(path, target, target)

    @override
    def destroy(self) -> None:
        self._hdfs.delete(self.url.path, recursive=True)

    def _rename(self, path: str, to: str, shown: str) -> None:
        if not self._hdfs.rename(path, to) and self._hdfs.exists(path):
            raise StorageError(f"HDFS does not rename {path} to {shown}")

    def _stage(self, name: str, data: bytes) -> str:
        path = self._path(f".{name}.{uuid.uuid4().hex}")
        self._hdfs.write(path, data)
        return path

    def _path(self, name: str) -> str:
        return f"{self.url.path.rstrip('/')}/{name}"

    @property
    def _hdfs(self) -> WebHdfs:
        if self._client is None:
            self._client = self._store.connect(self._addresses)
        return self._client

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_client": None}


# --- files

_NS_PER_MS = 1_000_000


class HdfsFiles(Files):
    """Files of HDFS by their URLs.

    Args:
        store: Any location in HDFS, with its settings.

    Raises:
        OptionError: If no address is known.
    """

    resolution_ns = 1  # HDFS has milliseconds, without digits that distinguish versions
    is_remote = True

    def __init__(self, store: HdfsStore) -> None:
        self._store = store
        self._addresses = store.addresses()
        self._clients = threading.local()

    @override
    def walk(self, folder: str, take: WalkFilter) -> bool:
        """Walk with one request for each folder."""
        folder = folder.rstrip("/")
        if not self._require(folder).is_folder:
            return False
        inside = [""]
        while inside:
            prefix = inside.pop()
            with suppress(FileNotFoundError):  # it was deleted during the walk
                names = take(prefix, self.entries(f"{folder}/{prefix}".rstrip("/")))
                inside += [f"{prefix}{name}" for name in names]
        return True

    @override
    def entries(self, folder: str) -> Iterator[FolderEntry]:
        for page in self._hdfs.pages(self._path(folder)):
            for status in page:
                yield _entry(status.name, status)

    @override
    def entry(self, path: str) -> FolderEntry | None:
        status = self._hdfs.status(self._path(path))
        return None if status is None else _entry(path.rpartition("/")[2], status)

    @override
    def identity(self, path: str) -> Identity | None:
        status = self._hdfs.status(self._path(path))
        return None if status is None or status.is_folder else _identity(status)

    @override
    def tail(self, path: str, count: int, size: int | None = None) -> tuple[Identity, bytes]:
        identity = _identity(self._require(path))
        end = min(identity.size, identity.size if size is None else size)
        return identity, self._read(path, max(0, end - count), end)

    @override
    @contextmanager
    def open(self, path: str, size: int | None = None) -> Iterator[OpenedFile]:
        """Open a file, and compare its identity when it is closed, since HDFS has no versions."""
        identity, tail = self.tail(path, TAIL_BYTES)
        source = RangedFile(identity.size, tail, lambda start, end: self._read(path, start, end))
        try:
            yield OpenedFile(source, identity, source.expect)
        finally:
            if self.identity(path) not in (identity, None):
                raise OSError(errno.ESTALE, "replaced while it was read", path)

    @override
    def touch(self, path: str) -> bool:
        return self._hdfs.touch(self._path(path), time.time_ns() // _NS_PER_MS)

    @override
    def map(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
        return iter(map_in_parallel(function, items))

    def _read(self, path: str, start: int, end: int) -> bytes:
        if start >= end:
            return b""
        data = self._hdfs.read(self._path(path), start, end)
        if data is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        if len(data) != end - start:
            raise OSError(errno.ESTALE, "replaced while it was read", path)
        return data

    def _require(self, path: str) -> HdfsStatus:
        status = self._hdfs.status(self._path(path))
        if status is None:
            raise FileNotFoundError(errno.ENOENT, "no such file or folder", path)
        return status

    def _path(self, path: str) -> str:
        return path[len(self._store.url.root) :] or "/"

    @property
    def _hdfs(self) -> WebHdfs:
        """The client of this thread."""
        found: WebHdfs | None = getattr(self._clients, "hdfs", None)
        if found is None:
            found = self._clients.hdfs = self._store.connect(self._addresses)
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_clients"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _clients=threading.local())


def _identity(status: HdfsStatus) -> Identity:
    return Identity(status.size, status.modified_ms * _NS_PER_MS)


def _entry(name: str, status: HdfsStatus) -> StoredEntry:
    return StoredEntry(name, None if status.is_folder else _identity(status))


# --- uploads

_WAITING = 4
"""Number of pieces that wait to be sent; their sizes are those in which pyarrow writes them."""


class RenamedFiles(StagingStore):
    """Staged files in HDFS.

    Args:
        store: The location to which paths are relative.

    Raises:
        OptionError: If no address is known.
    """

    def __init__(self, store: HdfsStore) -> None:
        self._store = store
        self._addresses = store.addresses()

    @override
    def create(self, path: str) -> StagedWriter:
        return _StreamedFile(self._connect(), self._path(path))

    @override
    def move(self, path: str, to: str) -> bool:
        hdfs = self._connect()
        if hdfs.rename(self._path(path), self._path(to)):
            return True
        if not hdfs.exists(self._path(path)):
            return False
        hdfs.make_folder(self._path(to).rpartition("/")[0])  # the folder may have been missing
        return hdfs.rename(self._path(path), self._path(to))

    @override
    def exists(self, path: str) -> bool:
        return self._connect().exists(self._path(path))

    @override
    def delete(self, path: str) -> None:
        self._connect().delete(self._path(path))

    @override
    def files(self, path: str) -> Iterator[StagedEntry]:
        for status in self._connect().list_folder(self._path(path)):
            yield StagedEntry(status.name, status.modified_ms)

    def _path(self, path: str) -> str:
        return f"{self._store.url.path.rstrip('/')}/{path}"

    def _connect(self) -> WebHdfs:
        """Return a new client: several threads call these methods."""
        return self._store.connect(self._addresses)


class _StreamedFile(StagedWriter):
    """A staged file that is written by one request, whose body a thread sends meanwhile."""

    def __init__(self, hdfs: WebHdfs, path: str) -> None:
        self._hdfs = hdfs
        self._path = path
        self._pieces: queue.Queue[bytes | None] = queue.Queue(_WAITING)
        self._error: Exception | None = None
        self._is_aborted = False
        self._thread = threading.Thread(target=self._send, name="krishiv-hdfs", daemon=True)

    @override
    def write(self, data: bytes) -> None:
        self._put(data)

    @override
    def close(self) -> None:
        self._put(None)
        self._thread.join()
        if self._error is not None:
            raise self._error

    @override
    def abort(self) -> None:
        self._is_aborted = True
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
            self._hdfs.stream(self._path, self._iter_pieces())
        except Exception as error:  # noqa: BLE001  otherwise the file would count as written
            self._error = error

    def _iter_pieces(self) -> Iterator[bytes]:
        while (piece := self._pieces.get()) is not None:
            if piece:  # an empty one would end a chunked body
                yield piece
        if self._is_aborted:
            raise StorageError(f"the upload of {self._path} was aborted")
