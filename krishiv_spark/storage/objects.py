"""Prefixes of buckets: S3 and what speaks its language, Google Cloud Storage, Azure."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache, partial
from typing import Any, TypeVar

from krishiv_spark.errors import NotExclusiveError, OptionError, StorageError
from krishiv_spark.storage.hints import hint, one_line
from krishiv_spark.storage.profiles import profile_credentials
from krishiv_spark.storage.settings import S3Settings, StoreSettings
from krishiv_spark.storage.urls import StoreUrl

__all__ = ["Bucket", "ObjectFolder"]

_T = TypeVar("_T")

_FIRST_CONTACT_S = 10
"""A wrong endpoint or host fails after this. A store that has answered once may be away longer."""

_PATIENCE_S = 180
_RETRIES = 1000  # time is the limit
_CODE = re.compile(r"<Code>(\w+)</Code>")


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

    def read(self, name: str) -> bytes | None:
        """See `Folder`."""
        import obstore

        def read(store: Any) -> bytes | None:
            try:
                return bytes(obstore.get(store, self._key(name)).bytes())
            except FileNotFoundError:
                return None

        return self._ask("read", name, read)

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
                raise NotExclusiveError(f"{self} cannot create exclusively: {error}") from error
            return True

        return self._ask("create", name, create)

    def replace(self, name: str, data: bytes) -> None:
        """See `Folder`."""
        import obstore

        self._ask("write", name, lambda store: obstore.put(store, self._key(name), data))

    def remove(self, names: Iterable[str]) -> None:
        """See `Folder`."""
        for name in names:
            self._remove(name)

    def _remove(self, name: str) -> None:
        import obstore

        def remove(store: Any) -> None:
            with contextlib.suppress(FileNotFoundError):
                obstore.delete(store, self._key(name))

        self._ask("remove", name, remove)

    def destroy(self) -> None:
        """See `Folder`."""
        self.remove(list(self.below()))

    def below(self) -> Iterator[str]:
        """See `Folder`."""
        import obstore

        prefix = self._key("")
        pages = self._ask("list", "", lambda store: obstore.list(store, prefix=prefix))
        while (page := self._ask("list", "", lambda _: next(pages, None))) is not None:
            yield from (item["path"][len(prefix) :] for item in page)

    def tail(self, name: str, size: int) -> bytes | None:
        """See `Folder`."""

        def read(store: Any) -> bytes | None:
            try:
                return self._tail(store, self._key(name), size)
            except FileNotFoundError:
                return None

        return self._ask("read", name, read)

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

    def ask(self, what: str, function: Callable[[Any], _T]) -> _T:
        """What a function makes of obstore's store.

        Args:
            what: It does, for the message, as a verb and its object.
            function: Takes the store.

        Raises:
            StorageError: If that fails, in one line, without secrets.
            OptionError: As `profile_credentials`.
        """
        from obstore.exceptions import BaseError

        if self.url.kind != "memory":
            _check_not_forked()
        key = (os.getpid(), self.url.scheme, self.url.authority, self.settings)
        patient = key in _answered or self.url.kind == "memory"
        patience_s = _PATIENCE_S if patient else _FIRST_CONTACT_S
        try:
            found = function(open_store(*key, patience_s))
        except OptionError:  # is a ValueError too
            raise
        except (BaseError, OSError, ValueError) as error:
            raise StorageError(f"cannot {what}: {explain(error)}") from error
        _answered.add(key)
        return found


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


_answered: set[tuple[int, str, str, StoreSettings]] = set()
"""The buckets that have answered this process."""


@lru_cache(maxsize=32)
def open_store(
    process: int,  # noqa: ARG001  connections do not survive a fork
    scheme: str,
    authority: str,
    settings: StoreSettings,
    retry_s: float,
) -> Any:
    """Obstore's store of a bucket; failed requests are sent again for some seconds."""
    from obstore import store

    url = StoreUrl.parse(f"{scheme}://{authority}")
    limits: Any = {
        "client_options": settings.client(),
        "retry_config": {"retry_timeout": timedelta(seconds=retry_s), "max_retries": _RETRIES},
    }
    config: Any = settings.config()
    if url.kind == "memory":
        return store.MemoryStore()
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


def explain(error: Exception) -> str:
    """What obstore says, in one line; signatures and logins in URLs are cut out."""
    text = str(error) or type(error).__name__
    code = _CODE.search(text)
    line = one_line(text)
    if code is None:
        return line
    return f"{hint(code[1])} ({code[1]}): {line.partition(': <')[0]}"
