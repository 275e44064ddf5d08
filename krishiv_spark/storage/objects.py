"""Object stores that obstore reaches: prefixes of buckets as folders, and objects as files.

A folder consists of the keys that share a prefix, so each folder exists, and those without an
object are empty. An object appears as a whole. If another one replaces it under its key, their
ETags differ. Objects without bytes are skipped as files, since many programs create one to
represent a folder.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from typing_extensions import override

from krishiv_spark.errors import NotExclusiveError, StorageError
from krishiv_spark.messages.exception_chains import describe, raise_alone
from krishiv_spark.runtime.contact import TimeoutPolicy
from krishiv_spark.runtime.retry import map_in_parallel
from krishiv_spark.storage.base import BaseStore, StoreUrl, split_authority
from krishiv_spark.storage.clients import (
    StoreClient,
    explain_obstore,
    is_absent,
    is_busy_answer,
)
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

if TYPE_CHECKING:
    from obstore import GetOptions

__all__ = ["MemoryStore", "ObjectClient", "ObjectFiles", "ObjectFolder", "ObjectStore"]

_T = TypeVar("_T")

_RETRIES = 1000  # time is the limit


@dataclass(frozen=True)
class ObjectStore(BaseStore):
    """A store that obstore reaches. A subclass opens it and declares its differences."""

    lists_from_key: ClassVar[bool] = True
    """True if it can list from a key on. Otherwise obstore lists all keys and drops earlier
    ones."""

    reads_suffixes: ClassVar[bool] = True
    """True if it returns the last bytes of an object of unknown size."""

    deletes_many: ClassVar[bool] = False
    """True if one request deletes many objects, of which some may be missing."""

    is_local: ClassVar[bool] = False
    """True if it is in the memory of the process and has no connections."""

    @abstractmethod
    def open_obstore(self, **limits: Any) -> Any:
        """Return obstore's store of the bucket.

        Args:
            limits: Timeouts and attempts, as arguments of obstore's classes.

        Raises:
            OptionError: If there are no credentials.
        """

    def public_endpoint(self) -> str | None:
        """Return the address of obstore's requests; None if it is the provider's own."""
        return self.settings.endpoint

    @override
    def folder(self) -> ObjectFolder:
        return ObjectFolder(self)

    @override
    def files(self) -> ObjectFiles:
        return ObjectFiles(self)

    @override
    def explain_error(self, error: Exception) -> str:
        return explain_obstore(self, error)


@dataclass(frozen=True)
class MemoryStore(ObjectStore):
    """A store in the memory of this process, for tests."""

    kind = "memory"
    schemes = ("memory",)
    is_offered = False
    lists_from_key = False
    is_local = True

    @override
    @classmethod
    def parse_url(cls, text: str, scheme: str) -> StoreUrl:
        authority, path = split_authority(text)
        return StoreUrl(cls.kind, scheme, authority, path[1:])

    @override
    def open_obstore(self, **limits: Any) -> Any:
        return _open_memory(self.url.authority)


@lru_cache
def _open_memory(authority: str) -> Any:  # noqa: ARG001  its name
    """Return the same store each time, since no other object has its content."""
    from obstore import store

    return store.MemoryStore()


# --- asking


@dataclass(frozen=True)
class ObjectClient(StoreClient):
    """The client of obstore for a bucket."""

    store: ObjectStore

    @override
    def open(self, timeouts: TimeoutPolicy) -> Any:
        if not self.store.is_local:
            _check_not_forked()
        endpoint = self.store.public_endpoint()
        return self.store.open_obstore(
            client_options=self.store.settings.http_options(timeouts.request_s, endpoint),
            retry_config={
                "retry_timeout": timedelta(seconds=timeouts.total_s),
                "max_retries": _RETRIES,
            },
        )

    @override
    def is_busy(self, error: Exception) -> bool:
        return is_busy_answer(error)

    def find(self, what: str, function: Callable[[Any], _T]) -> _T | None:
        """Call `ask` for an object; return None if it does not exist.

        Raises:
            StorageError: As `ask`; also if the bucket does not exist.
        """

        def find(store: Any) -> _T | None:
            try:
                return function(store)
            except FileNotFoundError as error:
                if is_absent(error):
                    return None
                raise

        return self.ask(what, find)

    def pages(self, what: str, start: Callable[[Any], Iterator[_T]]) -> Iterator[_T]:
        """Yield the pages of a listing, each requested when it is needed.

        Args:
            what: As `ask`.
            start: Creates the listing from obstore's store, without a request.

        Raises:
            StorageError: As `ask`.
        """
        pages, page = self.ask(what, lambda store: _start(start(store)))
        while page is not None:
            yield page
            page = self.ask(what, lambda _: next(pages, None))


def _start(pages: Iterator[_T]) -> tuple[Iterator[_T], _T | None]:
    return pages, next(pages, None)


_asked_by: dict[str, int] = {}
"""The id of the first process that opened a client."""


def _check_not_forked() -> None:
    """Refuse to open a client in a process that was forked from one with an open client.

    A fork lacks the threads of obstore, but shares the locks that they release: it would wait
    permanently, or end its parent.
    """
    if _asked_by.setdefault("process", os.getpid()) != os.getpid():
        raise StorageError(
            "this process was forked from one that had used a store: start a new process "
            "instead, as multiprocessing does with the method 'spawn'"
        )


# --- folders


class ObjectFolder(Folder):
    """A prefix of a bucket, which need not have objects.

    Args:
        store: The location and its settings.
    """

    def __init__(self, store: ObjectStore) -> None:
        self.url = store.url
        self._store = store
        self._client = ObjectClient(store)

    def __repr__(self) -> str:
        return str(self.url)

    @override
    def names(self) -> Mapping[str, str]:
        import obstore

        below = self._key("")
        # obstore's types also name a table of arro3, which this call does not return.
        found: Any = self._ask("list", "", partial(obstore.list_with_delimiter, prefix=below))
        paths = dict.fromkeys(found["common_prefixes"], "")
        paths.update((item["path"], item["e_tag"] or "") for item in found["objects"])
        named = {path[len(below) :].rstrip("/"): version for path, version in paths.items()}
        # Hadoop's clients leave objects that represent folders, such as this one or an inner one.
        named.pop("", None)
        return named

    @override
    def read(self, name: str, most: int = MOST_BYTES) -> bytes | None:
        import obstore

        def read(store: Any) -> bytes:
            found = obstore.get(store, self._key(name))
            check_size(f"{self}/{name}", found.meta["size"], most)
            return bytes(found.bytes())

        return self._find("read", name, read)

    @override
    def read_each(self, names: Sequence[str]) -> Sequence[bytes | None]:
        return map_in_parallel(self.read, names)

    @override
    def create(self, name: str, data: bytes) -> bool:
        import obstore
        from obstore.exceptions import AlreadyExistsError, NotSupportedError

        def create(store: Any) -> bool:
            try:
                obstore.put(store, self._key(name), data, mode="create")
            except AlreadyExistsError:
                return False
            except (NotSupportedError, NotImplementedError) as error:
                why = describe(error, self._store.settings.secrets())
                raise_alone(NotExclusiveError(f"{self} cannot create exclusively: {why}"))
            return True

        return self._ask("create", name, create)

    @override
    def replace(self, name: str, data: bytes, *, durable: bool = True) -> None:
        import obstore

        self._ask("write", name, lambda store: obstore.put(store, self._key(name), data))

    @override
    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            self._remove(name)

    def _remove(self, name: str) -> None:
        import obstore

        self._find("remove", name, lambda store: obstore.delete(store, self._key(name)))

    @override
    def discard(self, names: Sequence[str]) -> None:
        import obstore

        keys = [self._key(name) for name in names]
        if len(keys) > 1 and self._store.deletes_many:
            # Some stores that speak the protocol lack this request.
            with contextlib.suppress(StorageError):
                self._ask("remove files of", "", lambda store: obstore.delete(store, keys))
                return
        self.remove(names)

    @override
    def move(self, name: str, to: str) -> None:
        """Copy a file within the bucket by one request, and delete it when the copy is complete.

        S3 copies at most 5 GiB by one request, and refuses larger files. Azure may copy in the
        background.
        """
        import obstore

        def copy(store: Any) -> tuple[int, int]:
            size = int(obstore.head(store, self._key(name))["size"])
            obstore.copy(store, self._key(name), self._key(to))
            return size, int(obstore.head(store, self._key(to))["size"])

        sizes = self._client.find(f"move {self}/{name} to {self}/{to}", copy)
        if sizes is None:
            return
        size, copied = sizes
        if size != copied:
            raise StorageError(
                f"{self}/{name} has {size} bytes, and its copy {to} has {copied} so far: the file "
                "was not deleted. The store may still be copying: run the command again later"
            )
        self._remove(name)

    @override
    def destroy(self) -> None:
        """Delete all files in the order of their names, on which `EpochLog.destroy` relies."""
        self.remove(sorted(self.iter_files()))

    @override
    def iter_files(self) -> Iterator[str]:
        import obstore

        prefix = self._key("")
        pages = partial(obstore.list, prefix=prefix)
        for page in self._client.pages(f"list {self}", pages):
            yield from (item["path"][len(prefix) :] for item in page)

    @override
    def tail(self, name: str, size: int) -> bytes | None:
        return self._find("read", name, lambda store: self._tail(store, self._key(name), size))

    def _tail(self, store: Any, key: str, size: int) -> bytes:
        """Return the last bytes. An empty object needs a request for its size as well."""
        import obstore
        from obstore.exceptions import BaseError

        if self._store.reads_suffixes:
            with contextlib.suppress(BaseError):
                return bytes(obstore.get(store, key, options={"range": {"suffix": size}}).bytes())
        end = obstore.head(store, key)["size"]
        return (
            bytes(obstore.get_range(store, key, start=max(0, end - size), end=end)) if end else b""
        )

    def _ask(self, verb: str, name: str, function: Callable[[Any], _T]) -> _T:
        return self._client.ask(f"{verb} {self}/{name}".rstrip("/"), function)

    def _find(self, verb: str, name: str, function: Callable[[Any], _T]) -> _T | None:
        return self._client.find(f"{verb} {self}/{name}", function)

    def _key(self, name: str) -> str:
        return (self.url / name).path


# --- files

_PAGE = 1_000
_LAST = "\U0010ffff"
"""A text after the last key in a folder: stores compare keys by their UTF-8."""

_SECOND_NS = 1_000_000_000
_DAY_S = 86_400


class ObjectFiles(Files):
    """Objects by their URLs.

    Args:
        store: Any location in the bucket, with its settings.
    """

    resolution_ns = _SECOND_NS
    is_remote = True

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._client = ObjectClient(store)

    @override
    def walk(self, folder: str, take: WalkFilter) -> bool:
        """Walk with one request for a thousand objects, across folders."""
        found = _FolderSorter(take)
        prefix = self._prefix(folder)
        after: str | None = None
        while True:
            for page in self._pages(folder, prefix, after):
                found.add([(item["path"][len(prefix) :], item) for item in page])
                last = f"{prefix}{found.beyond}/{_LAST}"
                can_skip = found.beyond is not None and self._store.lists_from_key
                # With a store that ignores the key, the loop would not end.
                if can_skip and last != after:
                    after = last
                    break
            else:
                return found.has_any

    def _pages(
        self, folder: str, prefix: str, after: str | None
    ) -> Iterator[Sequence[Mapping[str, Any]]]:
        import obstore

        pages = partial(obstore.list, prefix=prefix, offset=after, chunk_size=_PAGE)
        return self._client.pages(f"list {folder}", pages)

    @override
    def entries(self, folder: str) -> Iterator[FolderEntry]:
        import obstore

        prefix = self._prefix(folder)
        found = self._client.ask(
            f"list {folder}", lambda store: obstore.list_with_delimiter(store, prefix=prefix)
        )
        for path in found["common_prefixes"]:
            yield StoredEntry(path.rstrip("/")[len(prefix) :])
        for item in found["objects"]:
            if item["size"]:
                yield StoredEntry(item["path"][len(prefix) :], _identity(item))

    @override
    def entry(self, path: str) -> FolderEntry | None:
        name = path.rpartition("/")[2]
        identity = self.identity(path)
        if identity is not None and identity.size:
            return StoredEntry(name, identity)
        return StoredEntry(name) if any(self._pages(path, self._prefix(path), None)) else None

    @override
    def identity(self, path: str) -> Identity | None:
        import obstore

        key = self._key(path)
        if not key:
            return None
        try:
            return _identity(self._ask("inspect", path, lambda store: obstore.head(store, key)))
        except FileNotFoundError:
            return None

    @override
    def tail(self, path: str, count: int, size: int | None = None) -> tuple[Identity, bytes]:
        return self._tail(path, count, size)[:2]

    @override
    @contextmanager
    def open(self, path: str, size: int | None = None) -> Iterator[OpenedFile]:
        """Open an object. Later requests specify the version that the first one returned."""
        identity, tail, tag = self._tail(path, TAIL_BYTES, size)
        same: GetOptions = {} if tag is None else {"if_match": tag}

        def fetch(start: int, end: int) -> bytes:
            return self._get(path, {"range": (start, end), **same})[1]

        source = RangedFile(identity.size, tail, fetch)
        yield OpenedFile(source, identity, source.expect)

    def _tail(self, path: str, count: int, size: int | None) -> tuple[Identity, bytes, str | None]:
        """Return identity, last bytes and ETag by one request, or two without suffix ranges."""
        if size is None and not self._store.reads_suffixes:
            size = self._require(path).size
        ranges: GetOptions = {"range": {"suffix": count}}
        if size is not None:
            ranges = {"range": (max(0, size - count), max(1, size))}
        try:
            return self._get(path, ranges)
        except StorageError:
            identity = self._require(path)
            if identity.size >= max(size or 0, 1):
                raise  # the range exists, so the request has failed
            return identity, b"", None  # the object is empty, or shorter than it was

    def _require(self, path: str) -> Identity:
        identity = self.identity(path)
        if identity is None:
            raise FileNotFoundError(errno.ENOENT, "no such object", path)
        return identity

    def _get(self, path: str, options: GetOptions) -> tuple[Identity, bytes, str | None]:
        """Return the identity of an object, the requested bytes, and its ETag."""
        import obstore

        def get(store: Any) -> tuple[Identity, bytes, str | None]:
            found = obstore.get(store, self._key(path), options=options)
            return _identity(found.meta), bytes(found.bytes()), found.meta["e_tag"]

        return self._ask("read", path, get)

    @override
    def touch(self, path: str) -> bool:
        """Write the object again, at most once a day."""
        import obstore

        identity = self.identity(path)
        if identity is None:
            return False
        if identity.modified_ns // _SECOND_NS < time.time() - _DAY_S:
            data = self._get(path, {})[1]
            self._ask("write", path, lambda store: obstore.put(store, self._key(path), data))
        return True

    @override
    def map(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
        return iter(map_in_parallel(function, items))

    def _ask(self, verb: str, path: str, function: Callable[[Any], _T]) -> _T:
        return self._client.ask(f"{verb} {path}", function, partial(_translate, path))

    def _key(self, path: str) -> str:
        return path[len(self._store.url.root) :].strip("/")

    def _prefix(self, folder: str) -> str:
        key = self._key(folder)
        return f"{key}/" if key else ""


class _FolderSorter:
    """A sorter that assigns objects, which arrive in the order of their keys, to folders."""

    def __init__(self, take: WalkFilter) -> None:
        self._take = take
        # For each folder, the topmost folder on its path that the walk does not enter.
        self._closed_by: dict[str, str | None] = {"": None}
        self.has_any = False
        self.beyond: str | None = None
        """The folder, not entered, that contains all objects of the last page."""

    def add(self, page: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        """Pass the objects in folders that the walk enters to its filter."""
        found: dict[str, list[StoredEntry]] = {}
        closed: set[str | None] = set()
        for path, item in page:
            folder, _, name = path.rpartition("/")
            closed.add(self._find_closed(folder))
            if self._find_closed(folder) is None and name and item["size"]:
                found.setdefault(folder, []).append(StoredEntry(name, _identity(item)))
        for folder, entries in found.items():
            self._take(f"{folder}/" if folder else "", entries)
        self.has_any = self.has_any or bool(page)
        self.beyond = closed.pop() if len(closed) == 1 else None

    def _find_closed(self, folder: str) -> str | None:
        if folder not in self._closed_by:
            above, _, name = folder.rpartition("/")
            closed = self._find_closed(above)
            if closed is None and not self._take(f"{above}/" if above else "", [StoredEntry(name)]):
                closed = folder
            self._closed_by[folder] = closed
        return self._closed_by[folder]


def _identity(item: Mapping[str, Any]) -> Identity:
    """Return the identity of an object.

    Some answers of a store contain whole seconds only. So the nanoseconds contain a digest of the
    ETag. Azure's listings write it without the quotes of other answers.
    """
    tag = (item["e_tag"] or "").removeprefix("W/").strip('"')
    digest = hashlib.blake2b(tag.encode(), digest_size=8).digest()
    version = int.from_bytes(digest, "big") % _SECOND_NS
    return Identity(item["size"], int(item["last_modified"].timestamp()) * _SECOND_NS + version)


def _translate(path: str, error: Exception, text: str) -> Exception:
    """Return the error that a disk would raise, for an error about one object."""
    from obstore.exceptions import PermissionDeniedError, PreconditionError

    if isinstance(error, FileNotFoundError) and is_absent(error):
        return FileNotFoundError(errno.ENOENT, "no such object", path)
    if isinstance(error, PermissionDeniedError):
        return PermissionError(errno.EACCES, text, path)
    if isinstance(error, PreconditionError):
        return OSError(errno.ESTALE, "replaced while it was read", path)
    return StorageError(text)
