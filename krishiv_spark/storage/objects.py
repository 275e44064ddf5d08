"""Prefixes of buckets: S3 and what speaks its language, Google Cloud Storage, Azure."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache, partial
from typing import Any, TypeVar

from krishiv_spark.errors import KrishivError, NotExclusiveError, StorageError
from krishiv_spark.messages.exception_chains import describe, raise_alone
from krishiv_spark.runtime.parallel import side_by_side
from krishiv_spark.storage.answers import explain, is_absent, is_busy
from krishiv_spark.storage.folder import MOST_BYTES
from krishiv_spark.storage.no_links import check_size
from krishiv_spark.storage.patience import Patience
from krishiv_spark.storage.profiles import profile_credentials
from krishiv_spark.storage.settings import (
    AZURE_ENDPOINTS,
    S3_ENDPOINTS,
    AzureSettings,
    S3Settings,
    StoreSettings,
    said,
)
from krishiv_spark.storage.urls import StoreUrl

__all__ = ["Bucket", "ObjectFolder"]

_T = TypeVar("_T")

_RETRIES = 1000  # time is the limit


class ObjectFolder:
    """A prefix of a bucket. See `krishiv_spark.storage.Folder`.

    Args:
        url: The folder, which need not be there.
        settings: Credentials, endpoint and the like; what they do not say comes from the
            environment, as the store's own tools read it.
    """

    def __init__(self, url: StoreUrl, settings: StoreSettings) -> None:
        self.url = url
        self._bucket = Bucket(url, settings)

    def __repr__(self) -> str:
        return str(self.url)

    def names(self) -> Mapping[str, str]:
        """See `Folder`."""
        import obstore

        below = self._key("")
        found = self._ask("list", "", partial(obstore.list_with_delimiter, prefix=below))
        paths = dict.fromkeys(found["common_prefixes"], "")
        paths.update((item["path"], item["e_tag"] or "") for item in found["objects"])
        named = {path[len(below) :].rstrip("/"): version for path, version in paths.items()}
        # Hadoop's clients leave objects that stand for folders, such as this one, or one below.
        named.pop("", None)
        return named

    def read(self, name: str, most: int = MOST_BYTES) -> bytes | None:
        """See `Folder`."""
        import obstore

        def read(store: Any) -> bytes:
            found = obstore.get(store, self._key(name))
            check_size(f"{self}/{name}", found.meta["size"], most)
            return bytes(found.bytes())

        return self._find("read", name, read)

    def read_each(self, names: Sequence[str]) -> Sequence[bytes | None]:
        """See `Folder`."""
        return side_by_side(self.read, names)

    def create(self, name: str, data: bytes) -> bool:
        """See `Folder`."""
        import obstore
        from obstore.exceptions import AlreadyExistsError, NotSupportedError

        def create(store: Any) -> bool:
            try:
                obstore.put(store, self._key(name), data, mode="create")
            except AlreadyExistsError:
                return False
            except (NotSupportedError, NotImplementedError) as error:
                why = describe(error, self._bucket.settings.secrets())
                raise_alone(NotExclusiveError(f"{self} cannot create exclusively: {why}"))
            return True

        return self._ask("create", name, create)

    def replace(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """See `Folder`."""
        del durable
        import obstore

        self._ask("write", name, lambda store: obstore.put(store, self._key(name), data))

    def remove(self, names: Iterable[str]) -> None:
        """See `Folder`."""
        for name in names:
            self._remove(name)

    def _remove(self, name: str) -> None:
        import obstore

        self._find("remove", name, lambda store: obstore.delete(store, self._key(name)))

    def move(self, name: str, to: str) -> None:
        """See `Folder`. A copy within the bucket, whatever the file's size, and a removal."""
        import obstore

        def copy(store: Any) -> bool:
            obstore.copy(store, self._key(name), self._key(to))
            return True

        if self._bucket.find(f"move {self}/{name} to {self}/{to}", copy):
            self._remove(name)

    def destroy(self) -> None:
        """See `Folder`. In the order of the names; a log counts on it (`EpochLog.destroy`)."""
        self.remove(sorted(self.below()))

    def below(self) -> Iterator[str]:
        """See `Folder`."""
        import obstore

        prefix = self._key("")
        pages = partial(obstore.list, prefix=prefix)
        for page in self._bucket.pages(f"list {self}", pages):
            yield from (item["path"][len(prefix) :] for item in page)

    def tail(self, name: str, size: int) -> bytes | None:
        """See `Folder`."""
        return self._find("read", name, lambda store: self._tail(store, self._key(name), size))

    def _tail(self, store: Any, key: str, size: int) -> bytes:
        """Azure cannot count from the end, nor others where nothing is: the size is asked for."""
        import obstore
        from obstore.exceptions import BaseError

        if self.url.kind != "azure":
            with contextlib.suppress(BaseError):
                return bytes(obstore.get(store, key, options={"range": {"suffix": size}}).bytes())
        end = obstore.head(store, key)["size"]
        return (
            bytes(obstore.get_range(store, key, start=max(0, end - size), end=end)) if end else b""
        )

    def _ask(self, verb: str, name: str, function: Callable[[Any], _T]) -> _T:
        return self._bucket.ask(f"{verb} {self}/{name}".rstrip("/"), function)

    def _find(self, verb: str, name: str, function: Callable[[Any], _T]) -> _T | None:
        return self._bucket.find(f"{verb} {self}/{name}", function)

    def _key(self, name: str) -> str:
        return (self.url / name).path


@dataclass(frozen=True)
class Bucket:
    """A bucket and how it is reached. Its connections are kept for the life of the process.

    Attributes:
        url: Of any place in it.
        settings: See `ObjectFolder`.
    """

    url: StoreUrl
    settings: StoreSettings

    def ask(
        self,
        what: str,
        function: Callable[[Any], _T],
        as_ours: Callable[[Exception, str], Exception] | None = None,
    ) -> _T:
        """What a function makes of obstore's store.

        Args:
            what: It does, for the message, as a verb and its object.
            function: Takes the store. It is called again if a store that was never asked is busy.
            as_ours: Makes the error that is raised of obstore's own and a text; None makes a
                `StorageError`.

        Raises:
            StorageError: If that fails, in one line, without secrets and without obstore's error.
            OptionError: As `profile_credentials`.
        """
        if self.url.kind != "memory":
            _check_not_forked()
        place = (self.url.scheme, self.url.authority)
        patience = self.settings.patience(place)
        try:
            found = function(open_store(os.getpid(), *place, self.settings, patience))
        except KrishivError:
            raise
        except Exception as error:  # noqa: BLE001  obstore raises built-in classes too
            if patience.is_short and is_busy(error):
                self.settings.note_answer(place)  # it is there, and asked too much
                return self.ask(what, function, as_ours)
            why = self.settings.redacted(explain(self.url.kind, error))
            text = f"cannot {what}: {why}"
            raise_alone(StorageError(text) if as_ours is None else as_ours(error, text))
        self.settings.note_answer(place)
        return found

    def find(self, what: str, function: Callable[[Any], _T]) -> _T | None:
        """As `ask`, of an object; None if there is none, but an error if there is no bucket."""

        def found(store: Any) -> _T | None:
            try:
                return function(store)
            except FileNotFoundError as error:
                if is_absent(error):
                    return None
                raise

        return self.ask(what, found)

    def pages(self, what: str, begin: Callable[[Any], Iterator[_T]]) -> Iterator[_T]:
        """The pages of a listing, each asked for when it is wanted.

        Args:
            what: As `ask`.
            begin: Makes the listing of obstore's store. That asks nothing yet.

        Raises:
            StorageError: As `ask`.
        """
        pages, page = self.ask(what, lambda store: _begun(begin(store)))
        while page is not None:
            yield page
            page = self.ask(what, lambda _: next(pages, None))


def _begun(pages: Iterator[_T]) -> tuple[Iterator[_T], _T | None]:
    return pages, next(pages, None)


_asked_by: dict[str, int] = {}
"""The id of the process that was the first to ask."""


def _check_not_forked() -> None:
    """Refuse to ask in a process that was forked from one that has asked.

    The threads of obstore are not in the fork, and what both would wait on is shared between them:
    the fork would wait for ever, or end the process that it is of.
    """
    if _asked_by.setdefault("process", os.getpid()) != os.getpid():
        raise StorageError(
            "this process was forked from one that had asked a store: start it anew instead, as "
            "multiprocessing does with the method 'spawn'"
        )


@lru_cache(maxsize=32)
def open_store(
    process: int,  # noqa: ARG001  connections do not survive a fork
    scheme: str,
    authority: str,
    settings: StoreSettings,
    patience: Patience,
) -> Any:
    """Obstore's store of a bucket."""
    from obstore import store

    url = StoreUrl.parse(f"{scheme}://{authority}")
    limits: Any = {
        "client_options": settings.client(patience.request_s, _endpoint(url, settings)),
        "retry_config": {
            "retry_timeout": timedelta(seconds=patience.total_s),
            "max_retries": _RETRIES,
        },
    }
    config: Any = settings.config()
    if url.kind == "memory":
        return _in_memory(authority)
    if isinstance(settings, S3Settings):
        login = profile_credentials(settings)
        return store.S3Store(url.bucket, config=config, credential_provider=login, **limits)
    if url.kind == "gcs":
        return store.GCSStore(url.bucket, config=config, **limits)
    if url.account:
        config = {"account_name": url.account, **config}
    if url.endpoint is not None:
        config = {"endpoint": url.endpoint, **config}
    return store.AzureStore(url.bucket, config=config, **limits)


def _endpoint(url: StoreUrl, settings: StoreSettings) -> str | None:
    """Return where obstore asks, if it is not a provider's own public address."""
    if isinstance(settings, S3Settings):
        return said(settings.endpoint, *S3_ENDPOINTS)
    if isinstance(settings, AzureSettings):
        return said(settings.endpoint or url.endpoint, *AZURE_ENDPOINTS)
    return settings.endpoint


@lru_cache
def _in_memory(authority: str) -> Any:  # noqa: ARG001  by which it is known
    """The same one each time: nobody else has what is in it."""
    from obstore import store

    return store.MemoryStore()
