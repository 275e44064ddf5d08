"""Numbered entries that can be created once: the storage under an epoch log."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from krishiv_spark.durable import make_folder, sync_folder, write_aside
from krishiv_spark.errors import LogError

__all__ = [
    "DiskJournal",
    "Journal",
    "Listing",
    "ObjectJournal",
    "check_exclusive",
    "child_names",
    "open_journal",
]

# Over all names at once, each between two slashes, which no name can hold: a log is listed several
# times in an epoch, and one match for each name was an eighth of a Parquet commit.
_ENTRY = re.compile(r"/([0-9]{20})\.json(?=/)")
_SNAPSHOT = re.compile(r"/([0-9]{20})\.snapshot\.json(?=/)")
# link(2): EPERM where a file system has no hard links, EMLINK where it allows none besides the name
# itself; the others are what network file systems and FUSE answer.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)


@dataclass(frozen=True)
class Listing:
    """What a journal holds at one look, ascending."""

    entries: tuple[int, ...] = ()
    snapshots: tuple[int, ...] = ()

    @property
    def newest_snapshot(self) -> int:
        """Its number; 0 without one."""
        return self.snapshots[-1] if self.snapshots else 0

    @classmethod
    def of(cls, names: Iterable[str]) -> Listing:
        """Sort names into entries and snapshots; other names are passed over."""
        text = f"/{'/'.join(names)}/"
        entries, snapshots = _ENTRY.findall(text), _SNAPSHOT.findall(text)
        return cls(tuple(sorted(map(int, entries))), tuple(sorted(map(int, snapshots))))


class Journal(Protocol):
    """Storage of numbered entries and snapshots. An entry is whole or absent."""

    def list(self) -> Listing:
        """What is there; not atomic against concurrent writers."""
        ...

    def read(self, name: str) -> bytes | None:
        """The content under a name, or None when it is not there."""
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Create durably, exclusively. False when the name is taken, by whomever.

        Raises:
            LogError: If the storage cannot create exclusively.
        """
        ...

    def replace(self, name: str, data: bytes) -> None:
        """Create or overwrite durably."""
        ...

    def remove(self, names: Iterable[str]) -> None:
        """Remove in the order given; what is gone already is no error."""
        ...

    def destroy(self) -> None:
        """Remove everything, for a log that nobody will ask again."""
        ...


class DiskJournal:
    """A folder on a POSIX file system: written aside, synced, linked to its number."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __repr__(self) -> str:
        return str(self.folder)

    def list(self) -> Listing:
        """See `Journal`."""
        return Listing.of(self.names())

    def names(self) -> Sequence[str]:
        """What is in the folder; nothing if it is not there."""
        try:
            return os.listdir(self.folder)
        except FileNotFoundError:
            return []

    def read(self, name: str) -> bytes | None:
        """See `Journal`."""
        try:
            with open(f"{self.folder}/{name}", "rb", buffering=0) as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def create(self, name: str, data: bytes) -> bool:
        """See `Journal`."""
        aside = self._aside(name, data)
        try:
            # O_EXCL would show the name before its content, and rename(2) would overwrite: a link
            # appears whole, and only where no name is.
            os.link(aside, self.folder / name)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno in _NO_LINKS:
                raise self._without_links(error) from error
            raise
        finally:
            # A process that is killed before this leaves a name that is no entry's.
            aside.unlink(missing_ok=True)
        sync_folder(self.folder)
        return True

    def replace(self, name: str, data: bytes) -> None:
        """See `Journal`."""
        self._aside(name, data).replace(self.folder / name)
        sync_folder(self.folder)

    def remove(self, names: Iterable[str]) -> None:
        """See `Journal`."""
        for name in names:
            # Not synced: what comes back with the power is at or below a snapshot that is on the
            # disk.
            (self.folder / name).unlink(missing_ok=True)

    def destroy(self) -> None:
        """See `Journal`. In one step: half a log would be a damaged one."""
        gone = self.folder.with_name(f".{self.folder.name}.{uuid.uuid4().hex}")
        with contextlib.suppress(FileNotFoundError):
            self.folder.rename(gone)
        # What is left of it has a hidden name, under which nobody looks for a log.
        shutil.rmtree(gone, ignore_errors=True)

    def _aside(self, name: str, data: bytes) -> Path:
        make_folder(self.folder)
        aside = self.folder / f".{name}.{uuid.uuid4().hex}"
        write_aside(aside, data)
        return aside

    def _without_links(self, error: OSError) -> LogError:
        return LogError(
            f"the file system of {self.folder} cannot create a hard link ({error.strerror}), which "
            "the epoch log needs to decide between drivers: put it on a POSIX file system or an "
            "object store with the option 'epochLog'"
        )


class ObjectJournal:
    """A prefix in an object store that knows put-if-absent: S3, Google Cloud Storage, Azure.

    Args:
        url: Such as ``s3://bucket/prefix``; credentials come from the environment, as the
            store's own tools read them.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._opened: Any = None

    def __repr__(self) -> str:
        return self.url

    def list(self) -> Listing:
        """See `Journal`."""
        import obstore

        pages = obstore.list(self._store)
        return Listing.of(item["path"].rsplit("/", 1)[-1] for page in pages for item in page)

    def folders(self) -> Sequence[str]:
        """The names below the prefix that are prefixes themselves."""
        import obstore

        found = obstore.list_with_delimiter(self._store)["common_prefixes"]
        return [prefix.rstrip("/").rsplit("/", 1)[-1] for prefix in found]

    def read(self, name: str) -> bytes | None:
        """See `Journal`."""
        import obstore

        try:
            return bytes(obstore.get(self._store, name).bytes())
        except FileNotFoundError:
            return None

    def create(self, name: str, data: bytes) -> bool:
        """See `Journal`."""
        import obstore
        from obstore.exceptions import AlreadyExistsError, NotSupportedError

        try:
            obstore.put(self._store, name, data, mode="create")
        except AlreadyExistsError:
            return False
        except (NotSupportedError, NotImplementedError) as error:
            raise LogError(
                f"{self.url} cannot create an object exclusively: {error}; choose another place "
                "for the epoch log with the option 'epochLog'"
            ) from error
        return True

    def replace(self, name: str, data: bytes) -> None:
        """See `Journal`."""
        import obstore

        obstore.put(self._store, name, data)

    def remove(self, names: Iterable[str]) -> None:
        """See `Journal`."""
        import obstore

        for name in names:
            with contextlib.suppress(FileNotFoundError):
                obstore.delete(self._store, name)

    def destroy(self) -> None:
        """See `Journal`."""
        import obstore

        self.remove([item["path"] for page in obstore.list(self._store) for item in page])

    @property
    def _store(self) -> Any:
        if self._opened is None:
            from obstore.store import from_url

            self._opened = from_url(self.url)
        return self._opened

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self.url, "_opened": None}


def child_names(location: str) -> Sequence[str]:
    """The names right below a path or URL; none if it is not there.

    Raises:
        LogError: As `open_journal`.
    """
    journal = open_journal(location)
    if isinstance(journal, DiskJournal):
        return journal.names()
    return journal.folders() if isinstance(journal, ObjectJournal) else []


def check_exclusive(journal: Journal) -> None:
    """Create one name twice: the second time has to be refused, and to change nothing.

    Stores and proxies that do not know ``If-None-Match`` pass over it, answer "created" and
    overwrite: two drivers would both publish an epoch.

    Raises:
        LogError: If it does not hold.
    """
    name = f"probe-{uuid.uuid4().hex}"
    try:
        journal.create(name, b"first")  # a lost answer, asked for again, may say "taken"
        again = journal.create(name, b"second")
        found = journal.read(name)
    finally:
        journal.remove([name])
    if again or found != b"first":
        raise LogError(
            f"{journal} does not create exclusively, though it says so: a name that was there "
            "could be created once more. Two drivers could publish one epoch there. Put the epoch "
            "log elsewhere with the option 'epochLog': on a POSIX file system, or in an object "
            "store that knows put-if-absent ('If-None-Match: *')"
        )


def open_journal(location: str) -> Journal:
    """The journal at a path or URL.

    Raises:
        LogError: If the URL is of a kind on which no entry can be created exclusively.
    """
    # Hadoop writes file:/x, others file:///x.
    path = Path(re.sub("^file:(//)?", "", location))
    if path.is_absolute():
        return DiskJournal(path)
    scheme, _, _ = location.partition("://")
    if scheme in {"s3", "s3a", "gs", "az", "abfs", "abfss", "memory"}:
        return ObjectJournal(location.replace("s3a://", "s3://", 1))
    raise LogError(
        f"an epoch log cannot live at {location!r}, which is no place with exclusive create: use "
        "an absolute path, s3://, gs:// or az:// in the option 'epochLog'"
    )
