"""The contract of stores and their URLs, and the registry of their kinds.

A kind of store is one class, a subclass of `BaseStore` in its own module, and one registration: a
line in `_BUILT_IN`, or, for a store of another package, an entry point of the group
``krishiv_spark.stores`` whose name is the kind. Other modules call the class.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from posixpath import normpath
from typing import ClassVar

from krishiv_spark.errors import OptionError, StorageError
from krishiv_spark.messages.redaction import first_line
from krishiv_spark.storage.files import Files, Folder
from krishiv_spark.storage.paths import has_dot_part, url_scheme
from krishiv_spark.storage.settings import StoreSettings
from krishiv_spark.storage.uploads import Uploads

__all__ = ["BaseStore", "Hint", "StoreUrl", "check_stays", "store_kinds", "store_type"]


@dataclass(frozen=True)
class StoreUrl:
    """A location in a store.

    Attributes:
        kind: ``disk``, ``s3`` or another kind of a registered store.
        scheme: As written, in lower case; ``file`` for a path.
        authority: Bucket, Azure's container with or without an account, HDFS's NameNode or name
            of a service; empty on disks.
        path: Absolute on disks and HDFS; in a bucket the prefix. It does not end in a slash, and a
            prefix does not begin with one.
    """

    kind: str
    scheme: str
    authority: str
    path: str

    @staticmethod
    def kind_of(text: str) -> str | None:
        """Return the kind of the store of a path or URL; None if its scheme is not known."""
        found = _find_by_scheme(url_scheme(text) or "file")
        return None if found is None else found.kind

    @classmethod
    def parse(cls, text: str) -> StoreUrl:
        """Parse a location of a user or of Spark; nothing in it is escaped, as in Hadoop.

        Raises:
            OptionError: If the scheme is unknown, a bucket is missing, or a ``file:`` URL names
                another machine.
        """
        scheme = url_scheme(text) or "file"
        found = _find_by_scheme(scheme)
        if found is None:
            raise OptionError(
                f"{text!r} is on {scheme!r}, which is not known; known: {_known_schemes()}. What "
                "is mounted on the driver's machine is written as a path, for Spark too. A "
                "checkpoint may be where only Spark can read it, if the option 'queryId' names "
                "the query and 'epochLog' a place for its epoch log"
            )
        return found.parse_url(text, scheme)

    @property
    def has_bucket(self) -> bool:
        """True if the authority names a bucket; False for disks and file systems such as HDFS."""
        return not self.path.startswith("/")

    @property
    def root(self) -> str:
        """Scheme and authority; empty for a disk."""
        return "" if self.kind == "disk" else f"{self.scheme}://{self.authority}"

    @property
    def store(self) -> tuple[str, str]:
        """The kind and the authority, which are equal for URLs that are certainly in one store.

        The schemes of a bucket are equivalent. Those of HDFS are not: they select the service of
        the NameNode, and whether a login is encrypted.
        """
        is_one = self.has_bucket or self.kind == "disk"
        return self.kind if is_one else self.scheme, self.authority

    @property
    def bucket(self) -> str:
        """The name of the bucket, or of Azure's container."""
        return self.authority.partition("@")[0]

    @property
    def host(self) -> str:
        """The host after a container's name and ``@``, as in Azure's URLs; empty if none."""
        return self.authority.partition("@")[2]

    @property
    def account(self) -> str:
        """The first part of `host`, Azure's storage account; empty if the URL has none."""
        return self.host.partition(".")[0]

    def __str__(self) -> str:
        if self.kind == "disk":
            return self.path
        return f"{self.scheme}://{self.authority}/{self.path.lstrip('/')}".rstrip("/")

    def __truediv__(self, name: str) -> StoreUrl:
        """Return the location of a name below this one.

        Raises:
            StorageError: If the name leads out of this location: clients resolve ``..`` before they
                send a request, or the store does.
        """
        check_stays(f"{self}/{name}", name)
        path = f"{self.path.rstrip('/')}/{name}" if self.path else name
        return StoreUrl(self.kind, self.scheme, self.authority, path)


def check_stays(shown: str, path: str) -> None:
    """Reject a path that a client or store would resolve to another one.

    Names from logs and offsets are checked when those are read; this is the last check.

    Raises:
        StorageError: If it has a ``.`` or ``..`` part, or NUL.
    """
    if has_dot_part(path) or "\0" in path:
        raise StorageError(
            f"{shown!r} leads to another location, so nothing was asked of the store: a name in it "
            "has a part '.' or '..', or NUL, which no file of a table has"
        )


@dataclass(frozen=True)
class Hint:
    """The meaning of a store's error code.

    Attributes:
        means: The cause, as a clause.
        advice: The next step for the user; ``{keys}`` is replaced by `BaseStore.login_options`.
    """

    means: str
    advice: str


@dataclass(frozen=True)
class BaseStore(ABC):
    """A store at a location, with its settings and its operations. Any process; pickles.

    A subclass sets the class variables below, and implements `folder` and `files`. No request is
    sent before a method of the returned objects is called. A subclass with more settings declares
    ``settings`` again, with their type.

    Attributes:
        url: The location.
        settings: Options of the store, of the type `settings_type`.
    """

    kind: ClassVar[str]
    """Name of the kind, as in the options ``storage.<kind>.<setting>``."""

    schemes: ClassVar[tuple[str, ...]]
    """Schemes of its URLs, in lower case."""

    settings_type: ClassVar[type[StoreSettings]] = StoreSettings

    is_offered: ClassVar[bool] = True
    """False for a store that error texts do not offer, such as one for tests."""

    title: ClassVar[str] = ""
    """The name of the store in error texts, such as "Azure"."""

    login_options: ClassVar[str] = "the options 'storage.…'"
    """The options for credentials, in error texts, such as "'storage.x.key' and '.secret'"."""

    endpoint_options: ClassVar[str] = ""
    """The options that select the server, in error texts; `storage.<kind>.endpoint` if empty."""

    authority_form: ClassVar[re.Pattern[str]] = re.compile(r".+")
    """The form of the authorities of its URLs. They become part of a host name, which '#' would
    end."""

    hints: ClassVar[Mapping[str, Hint]] = {}
    """Meanings of the store's own error codes. They take precedence over those of all stores."""

    packages: ClassVar[Mapping[str, str]] = {}
    """Packages, by module, that are needed to write Parquet files; the extra `kind` contains
    them."""

    url: StoreUrl
    settings: StoreSettings

    @classmethod
    def parse_url(cls, text: str, scheme: str) -> StoreUrl:
        """Parse a URL with one of the store's schemes.

        The default implementation requires a bucket.

        Raises:
            OptionError: If it names no bucket.
        """
        authority, path = split_authority(text)
        if not authority.partition("@")[0]:
            raise OptionError(f"{text!r} names no bucket: write {scheme}://<bucket>/<path>")
        if not cls.authority_form.fullmatch(authority):
            raise OptionError(f"{text!r}: {authority!r} is not the name of a bucket or container")
        return StoreUrl(cls.kind, scheme, authority, path[1:])

    @abstractmethod
    def folder(self) -> Folder:
        """Return the folder at the location."""

    @abstractmethod
    def files(self) -> Files:
        """Return the files of the store."""

    def uploads(self) -> Uploads:
        """Return the uploads to paths below the location; by default, there are none.

        Raises:
            OptionError: If the store has no uploads, or a package is missing.
        """
        kinds = [
            one for one in map(store_type, store_kinds()) if one.uploads is not BaseStore.uploads
        ]
        *others, last = [f"{one.schemes[0]}:" for one in kinds]
        raise OptionError(
            f"tables cannot be written to {self.url}: only to disks, {', '.join(others)} and {last}"
        )

    def explain_error(self, error: Exception) -> str:
        """Return the meaning of an error of the store's client, and the next step, in one line."""
        return first_line(str(error) or type(error).__name__, self.settings.secrets())

    def is_named(self, named: Iterable[StoreUrl]) -> bool:
        """Return True if the login goes to a server that the user has named, or to the provider's.

        Args:
            named: Locations in stores of this kind that the user has named. They do not include the
                store's URL, which may come from a file in a table that others can write.
        """
        del named
        return True

    def plain_logins(self) -> Iterator[tuple[str, str]]:
        """Yield the address and the description of each secret that is sent without a signature."""
        return iter(())


def split_authority(text: str) -> tuple[str, str]:
    """Return the authority of a URL, and its path, normalized as Hadoop's Path does."""
    rest = text.partition(":")[2]
    authority, _, path = rest[2:].partition("/") if rest.startswith("//") else ("", "", rest)
    return authority, normpath(f"/{path.strip('/')}")


# --- the registry

_ROOM = "krishiv_spark.storage"
_BUILT_IN = {
    "s3": f"{_ROOM}.s3:S3Store",
    "gcs": f"{_ROOM}.gcs:GcsStore",
    "azure": f"{_ROOM}.azure:AzureStore",
    "hdfs": f"{_ROOM}.hdfs:HdfsStore",
    "disk": f"{_ROOM}.disk:DiskStore",
    "memory": f"{_ROOM}.objects:MemoryStore",
}
"""The class of each kind of store, by name, since a process imports only those that it uses."""

_DISK_SCHEMES = ("file", "dbfs")
"""Schemes of disks, which are looked up without importing other stores, since most locations are
paths."""

_GROUP = "krishiv_spark.stores"


def store_kinds() -> list[str]:
    """Return the kinds of all stores, those of installed packages last."""
    return [*_BUILT_IN, *sorted(_find_installed().keys() - _BUILT_IN.keys())]


def is_store_kind(kind: str) -> bool:
    """Return True if a store of a kind is registered."""
    return kind in _BUILT_IN or kind in _find_installed()


@cache
def store_type(kind: str) -> type[BaseStore]:
    """Return the class of a kind of store.

    Raises:
        OptionError: If the kind is not registered, or its package does not define such a store.
    """
    if kind in _BUILT_IN:
        module, _, name = _BUILT_IN[kind].partition(":")
        found: object = getattr(import_module(module), name)
    elif kind in _find_installed():
        found = _load(_find_installed()[kind])
    else:
        raise OptionError(f"{kind!r} is no kind of store; known: {', '.join(store_kinds())}")
    if isinstance(found, type) and issubclass(found, BaseStore) and found.kind == kind:
        return found
    raise OptionError(
        f"the entry point {kind!r} of {_GROUP} is no subclass of BaseStore of that kind"
    )


def _load(found: EntryPoint) -> object:
    try:
        return found.load()
    except Exception as error:
        raise OptionError(
            f"the store {found.name!r} is installed, but {found.value} cannot be imported: "
            f"{type(error).__name__}: {first_line(str(error))}"
        ) from error


@cache
def _find_installed() -> dict[str, EntryPoint]:
    """Return the entry points of installed stores.

    The search reads the metadata of each package.
    """
    return {found.name: found for found in entry_points(group=_GROUP)}


@lru_cache(maxsize=64)  # a table can name any schemes
def _find_by_scheme(scheme: str) -> type[BaseStore] | None:
    if scheme in _DISK_SCHEMES:
        return store_type("disk")
    built_in = (store_type(kind) for kind in _BUILT_IN)
    found = next((one for one in built_in if scheme in one.schemes), None)
    if found is None:
        installed = (store_type(kind) for kind in store_kinds() if kind not in _BUILT_IN)
        found = next((one for one in installed if scheme in one.schemes), None)
    return found


def _known_schemes() -> str:
    offered = [one for one in map(store_type, store_kinds()) if one.is_offered]
    return ", ".join(["a path", *(f"{scheme}:" for one in offered for scheme in one.schemes)])
