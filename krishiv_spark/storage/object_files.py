"""Files of buckets: objects by the prefixes of their keys.

A folder is what keys have in common, so any is there, and those without an object are empty. An
object appears whole, and is replaced by another under its key: its ETag tells them apart. Objects
of no bytes are passed over: many programs put one where a folder is to be seen.
"""

from __future__ import annotations

import errno
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from krishiv_spark.errors import StorageError
from krishiv_spark.runtime.parallel import side_by_side
from krishiv_spark.storage.answers import is_absent
from krishiv_spark.storage.files import FolderEntry, Identity, OpenedFile, StoredEntry, Take
from krishiv_spark.storage.objects import Bucket
from krishiv_spark.storage.ranged import TAIL_BYTES, RangedFile

if TYPE_CHECKING:
    from obstore import GetOptions

__all__ = ["ObjectFiles"]

_T = TypeVar("_T")

_PAGE = 1_000
_LAST = "\U0010ffff"
"""No key in a folder sorts after this one: stores compare keys by their UTF-8."""

_LISTS_FROM = ("s3", "gcs")
"""Stores that list from a key on. For others obstore asks for everything and drops what is not."""

_SECOND_NS = 1_000_000_000
_DAY_S = 86_400


@dataclass(frozen=True)
class ObjectFiles:
    """Objects by their URLs. See `krishiv_spark.storage.Files`.

    Attributes:
        bucket: Where they are, and how it is reached.
    """

    bucket: Bucket

    resolution_ns = _SECOND_NS
    is_remote = True

    def walk(self, folder: str, take: Take) -> bool:
        """See `Files`. One request for a thousand objects, whatever folders they are in."""
        found = _Sorter(take)
        prefix = self._prefix(folder)
        after: str | None = None
        while True:
            for page in self._pages(folder, prefix, after):
                found.add([(item["path"][len(prefix) :], item) for item in page])
                last = f"{prefix}{found.beyond}/{_LAST}"
                is_apart = found.beyond is not None and self.bucket.url.kind in _LISTS_FROM
                if is_apart and last != after:  # or a store that knows no offset has no end
                    after = last
                    break
            else:
                return found.has_any

    def _pages(
        self, folder: str, prefix: str, after: str | None
    ) -> Iterator[Sequence[Mapping[str, Any]]]:
        import obstore

        pages = partial(obstore.list, prefix=prefix, offset=after, chunk_size=_PAGE)
        return self.bucket.pages(f"list {folder}", pages)

    def entries(self, folder: str) -> Iterator[FolderEntry]:
        """See `Files`."""
        import obstore

        prefix = self._prefix(folder)
        found = self.bucket.ask(
            f"list {folder}", lambda store: obstore.list_with_delimiter(store, prefix=prefix)
        )
        for path in found["common_prefixes"]:
            yield StoredEntry(path.rstrip("/")[len(prefix) :])
        for item in found["objects"]:
            if item["size"]:
                yield StoredEntry(item["path"][len(prefix) :], _identity(item))

    def entry(self, path: str) -> FolderEntry | None:
        """See `Files`."""
        name = path.rpartition("/")[2]
        identity = self.identity(path)
        if identity is not None and identity.size:
            return StoredEntry(name, identity)
        return StoredEntry(name) if any(self._pages(path, self._prefix(path), None)) else None

    def identity(self, path: str) -> Identity | None:
        """See `Files`."""
        import obstore

        key = self._key(path)
        if not key:
            return None
        try:
            return _identity(self._ask("look at", path, lambda store: obstore.head(store, key)))
        except FileNotFoundError:
            return None

    def tail(self, path: str, count: int, size: int | None = None) -> tuple[Identity, bytes]:
        """See `Files`."""
        return self._tail(path, count, size)[:2]

    @contextmanager
    def opened(self, path: str, size: int | None = None) -> Iterator[OpenedFile]:
        """See `Files`. Later requests ask for the version that the first one found."""
        identity, tail, tag = self._tail(path, TAIL_BYTES, size)
        same: GetOptions = {} if tag is None else {"if_match": tag}

        def fetch(start: int, end: int) -> bytes:
            return self._get(path, {"range": (start, end), **same})[1]

        source = RangedFile(identity.size, tail, fetch)
        yield OpenedFile(source, identity, source.expect)

    def _tail(self, path: str, count: int, size: int | None) -> tuple[Identity, bytes, str | None]:
        """The last bytes in one request, or in two where a store cannot count from the end."""
        if size is None and self.bucket.url.kind == "azure":
            size = self._existing(path).size
        ranges: GetOptions = {"range": {"suffix": count}}
        if size is not None:
            ranges = {"range": (max(0, size - count), max(1, size))}
        try:
            return self._get(path, ranges)
        except StorageError:
            identity = self._existing(path)
            if identity.size >= max(size or 0, 1):
                raise  # what was asked for is there: the store could not be asked
            return identity, b"", None  # it is empty, or shorter than it was

    def _existing(self, path: str) -> Identity:
        identity = self.identity(path)
        if identity is None:
            raise FileNotFoundError(errno.ENOENT, "no such object", path)
        return identity

    def _get(self, path: str, options: GetOptions) -> tuple[Identity, bytes, str | None]:
        """What an object is, what was asked for of it, and its ETag."""
        import obstore

        def get(store: Any) -> tuple[Identity, bytes, str | None]:
            found = obstore.get(store, self._key(path), options=options)
            return _identity(found.meta), bytes(found.bytes()), found.meta["e_tag"]

        return self._ask("read", path, get)

    def touch(self, path: str) -> bool:
        """See `Files`. The object is written again, at most once a day."""
        import obstore

        identity = self.identity(path)
        if identity is None:
            return False
        if identity.modified_ns // _SECOND_NS < time.time() - _DAY_S:
            data = self._get(path, {})[1]
            self._ask("write", path, lambda store: obstore.put(store, self._key(path), data))
        return True

    def each(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
        """See `Files`."""
        return iter(side_by_side(function, items))

    def _ask(self, verb: str, path: str, function: Callable[[Any], _T]) -> _T:
        return self.bucket.ask(f"{verb} {path}", function, partial(_of_file, path))

    def _key(self, path: str) -> str:
        url = self.bucket.url
        return path[len(f"{url.scheme}://{url.authority}") :].strip("/")

    def _prefix(self, folder: str) -> str:
        key = self._key(folder)
        return f"{key}/" if key else ""


class _Sorter:
    """Sorts objects that come in the order of their keys into folders."""

    def __init__(self, take: Take) -> None:
        self._take = take
        # For each folder the topmost one above it, or itself, that is not gone into.
        self._closed_by: dict[str, str | None] = {"": None}
        self.has_any = False
        self.beyond: str | None = None
        """The folder, not gone into, that all of the last page was in."""

    def add(self, page: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        """Hand over what is in folders that are gone into."""
        found: dict[str, list[StoredEntry]] = {}
        closed: set[str | None] = set()
        for path, item in page:
            folder, _, name = path.rpartition("/")
            closed.add(self._closing(folder))
            if self._closing(folder) is None and name and item["size"]:
                found.setdefault(folder, []).append(StoredEntry(name, _identity(item)))
        for folder, entries in found.items():
            self._take(f"{folder}/" if folder else "", entries)
        self.has_any = self.has_any or bool(page)
        self.beyond = closed.pop() if len(closed) == 1 else None

    def _closing(self, folder: str) -> str | None:
        if folder not in self._closed_by:
            above, _, name = folder.rpartition("/")
            closed = self._closing(above)
            if closed is None and not self._take(f"{above}/" if above else "", [StoredEntry(name)]):
                closed = folder
            self._closed_by[folder] = closed
        return self._closed_by[folder]


def _identity(item: Mapping[str, Any]) -> Identity:
    """What an object is.

    Times are whole seconds, at least in one of a store's answers. So in the nanoseconds is a digest
    of the ETag, which is written in quotes, or without them in Azure's lists.
    """
    tag = (item["e_tag"] or "").removeprefix("W/").strip('"')
    digest = hashlib.blake2b(tag.encode(), digest_size=8).digest()
    version = int.from_bytes(digest, "big") % _SECOND_NS
    return Identity(item["size"], int(item["last_modified"].timestamp()) * _SECOND_NS + version)


def _of_file(path: str, error: Exception, text: str) -> Exception:
    """Return what a disk would raise for what a store says of one object, without its own error."""
    from obstore.exceptions import PermissionDeniedError, PreconditionError

    if isinstance(error, FileNotFoundError) and is_absent(error):
        return FileNotFoundError(errno.ENOENT, "no such object", path)
    if isinstance(error, PermissionDeniedError):
        return PermissionError(errno.EACCES, text, path)
    if isinstance(error, PreconditionError):
        return OSError(errno.ESTALE, "replaced while it was read", path)
    return StorageError(text)
