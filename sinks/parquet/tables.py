"""A table's folder, as the sink needs it: on a disk, or in a store. Driver, and executor."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from krishiv_spark.durable import explain_refusal, make_folder
from krishiv_spark.errors import OptionError, StorageError
from krishiv_spark.parquet.corrections import stored_schema
from krishiv_spark.parquet.inputs import open_input
from krishiv_spark.parquet.layout import META, SINK_LOG, linked_folders, visible_files
from krishiv_spark.parquet.names import is_data, is_hidden
from krishiv_spark.parquet.store_progress import StoreTableLog
from krishiv_spark.parquet.tails import MAGIC
from krishiv_spark.runtime.retry import map_in_parallel
from krishiv_spark.storage import Folder, Storage, StoreUrl, Uploads
from krishiv_spark.storage.disk import DISK, DiskFolder

__all__ = ["DiskTable", "StoreTable", "TableFolder"]


class TableFolder(Protocol):
    """The folder of a table. It prints as its path or URL."""

    def __hash__(self) -> int:
        """What was found out about it is remembered."""
        ...

    def check_writable(self, *, makes: bool = True) -> None:
        """Planner: refuse a folder that cannot be written, before any row moves.

        Args:
            makes: Whether it may be made, where folders are something.

        Raises:
            OptionError: If it is so.
        """
        ...

    def visible(self) -> Iterator[str]:
        """Every Parquet file that an ordinary reader sees, relative, in no order."""
        ...

    def links(self) -> Iterator[str]:
        """Subfolders that are links, into which readers go and `visible` does not; relative."""
        ...

    def schema_of(self, name: str) -> pa.Schema:
        """Return the columns of a visible file that can be read, as readers read them.

        None at all if it is damaged, or just being removed.
        """
        ...

    def has_sink_log(self) -> bool:
        """Whether Spark's own file sink has its log in it."""
        ...

    def meta(self, *names: str) -> Folder:
        """``_krishiv`` in it, or a folder further down."""
        ...

    def move(self, name: str, to: str) -> None:
        """Operator: give a file another path in the table's folder. See `Folder.move`."""
        ...


@dataclass(frozen=True)
class DiskTable:
    """A folder on a disk. See `TableFolder`.

    Attributes:
        path: Absolute.
    """

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def check_writable(self, *, makes: bool = True) -> None:
        """See `TableFolder`. It is made if it is not there."""
        if not makes and not self.path.is_dir():
            self._check_makeable()
            return
        try:
            make_folder(self.path)
        except OSError as error:
            why = f"{error}{self._hint_of_link()}"
            raise OptionError(f"krishiv-parquet: 'path' {self} cannot be created: {why}") from error
        if not os.access(self.path, os.W_OK | os.X_OK):
            why = explain_refusal(self.path)
            raise OptionError(f"krishiv-parquet: 'path' {self} cannot be written: {why}")

    def _hint_of_link(self) -> str:
        """Return the end of a message about a path that leads nowhere."""
        if not self.path.is_symlink() or self.path.exists():
            return ""
        return (
            f". It is a link to {self.path.readlink()}, which does not exist: is its disk mounted?"
        )

    def _check_makeable(self) -> None:
        nearest = next(place for place in (self.path, *self.path.parents) if place.exists())
        why = explain_refusal(nearest) if nearest.is_dir() else f"{nearest} is not a folder"
        if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
            raise OptionError(f"krishiv-parquet: 'path' {self} cannot be created: {why}")

    def visible(self) -> Iterator[str]:
        """See `TableFolder`."""
        for path in visible_files(self.path):
            yield path.relative_to(self.path).as_posix()

    def links(self) -> Iterator[str]:
        """See `TableFolder`."""
        for path in linked_folders(self.path):
            yield path.relative_to(self.path).as_posix()

    def schema_of(self, name: str) -> pa.Schema:
        """See `TableFolder`."""
        try:
            with DISK.opened(f"{self.path}/{name}") as file:
                return stored_schema(open_input(file.source))
        except (pa.ArrowException, OSError):
            return pa.schema([])

    def has_sink_log(self) -> bool:
        """See `TableFolder`."""
        return bool(DiskFolder(self.path / SINK_LOG).names())

    def meta(self, *names: str) -> Folder:
        """See `TableFolder`."""
        return DiskFolder(self.path.joinpath(META, *names))

    def move(self, name: str, to: str) -> None:
        """See `TableFolder`."""
        DiskFolder(self.path).move(name, to)


@dataclass(frozen=True)
class StoreTable:
    """A folder in a store. See `TableFolder`.

    Attributes:
        url: Of it.
        storage: How the store is reached.
    """

    url: StoreUrl
    storage: Storage

    def __str__(self) -> str:
        return str(self.url)

    @property
    def uploads(self) -> Uploads:
        """To places in the folder."""
        return self.storage.uploads(self.url)

    def check_writable(self, *, makes: bool = True) -> None:
        """See `TableFolder`. Once in a process: what the store allows does not change."""
        del makes  # there are no folders
        _check_allowed(self)

    def visible(self) -> Iterator[str]:
        """See `TableFolder`. A request for each thousand files."""
        for name in self._folder.below():
            *folders, file = name.split("/")
            if is_data(file) and not any(map(is_hidden, (*folders, file))):  # noqa: SIM102  reads
                if "." in file or self._ends_as_parquet(name):
                    yield name

    def links(self) -> Iterator[str]:
        """See `TableFolder`. Stores have none."""
        return iter(())

    def schema_of(self, name: str) -> pa.Schema:
        """See `TableFolder`. The footer alone is read."""
        try:
            length = int.from_bytes((self._folder.tail(name, 8) or b"")[:4], "little")
            footer = pa.BufferReader(self._folder.tail(name, length + 8) or b"")
            return stored_schema(open_input(footer))
        except pa.ArrowException:
            return pa.schema([])

    def has_sink_log(self) -> bool:
        """See `TableFolder`. A request."""
        return bool(self.storage.folder(self.url / SINK_LOG).names())

    def meta(self, *names: str) -> Folder:
        """See `TableFolder`."""
        return self.storage.folder(self.meta_url(*names))

    def move(self, name: str, to: str) -> None:
        """See `TableFolder`. A copy in the store, and a removal."""
        self._folder.move(name, to)

    def meta_url(self, *names: str) -> StoreUrl:
        """Where `meta` is."""
        url = self.url / META
        for name in names:
            url /= name
        return url

    def log_of(self, query: str, epoch_logs: tuple[str, ...] = ()) -> StoreTableLog:
        """What a query or a batch job keeps in the folder.

        Args:
            query: Id of the query or job.
            epoch_logs: As for `QueryLog`.
        """
        return StoreTableLog(self.url, query, self.storage, epoch_logs)

    def remove(self, names: Iterable[str]) -> None:
        """Remove files, side by side; what is gone already is no error."""
        map_in_parallel(lambda name: self._folder.remove([name]), list(names))

    def _ends_as_parquet(self, name: str) -> bool:
        return (self._folder.tail(name, 8) or b"")[4:] in MAGIC

    @property
    def _folder(self) -> Folder:
        return self.storage.folder(self.url)


@lru_cache(maxsize=64)
def _check_allowed(table: StoreTable) -> None:
    """Try what epochs will do: list, begin an upload, list uploads, abort one."""
    try:
        next(iter(table.visible()), None)
        table.uploads.verify()
    except StorageError as error:
        raise OptionError(f"krishiv-parquet: 'path' {table} cannot be written: {error}") from error
