"""Folders of a POSIX file system: files are written aside, synced, and linked to their names."""

from __future__ import annotations

import errno
import os
import stat
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from krishiv_spark.durable import remove_file, write_aside
from krishiv_spark.errors import NotExclusiveError
from krishiv_spark.storage.folder import MOST_BYTES
from krishiv_spark.storage.no_links import (
    make_folders,
    open_folder,
    open_own,
    read_file,
    remove_tree,
    split_at_own,
    status_in,
)

__all__ = ["DiskFolder"]

# link(2): EPERM where a file system has no hard links, EMLINK where it allows none besides the name
# itself; the others are what network file systems and FUSE answer.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)

_MODE = 0o644
"""Of a new file, as far as its folder has these bits too: in a private folder it is private."""


class DiskFolder:
    """A folder on a POSIX file system. See `krishiv_spark.storage.Folder`.

    Files are plain ones. Below folders that krishiv-spark keeps in those of others, no link is
    followed (`krishiv_spark.storage.no_links`).

    Args:
        path: Absolute.

    Raises:
        LinkError: By each call, if there is a link where none is followed.
        OSError: By each call, if the disk fails.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._text = str(path)

    def __repr__(self) -> str:
        return self._text

    def names(self) -> Mapping[str, str]:
        """See `Folder`."""
        try:
            with open_own(self._text) as folder:
                return dict.fromkeys(os.listdir(folder), "")
        except FileNotFoundError:
            return {}

    def read(self, name: str, most: int = MOST_BYTES) -> bytes | None:
        """See `Folder`."""
        return self._read(name, most)

    def read_each(self, names: Sequence[str]) -> Sequence[bytes | None]:
        """See `Folder`."""
        return [self.read(name) for name in names]

    def below(self) -> Iterator[str]:
        """See `Folder`."""
        # Through links too, as whoever opens a path goes: a disk of its own may hold a part.
        for parent, _, names in os.walk(self.path, onerror=_refuse_unless_gone, followlinks=True):
            yield from (Path(parent, name).relative_to(self.path).as_posix() for name in names)

    def tail(self, name: str, size: int) -> bytes | None:
        """See `Folder`."""
        return self._read(name, size, size)

    def _read(self, name: str, most: int, last: int | None = None) -> bytes | None:
        return read_file(f"{self._text}/{name}", most, last)

    def create(self, name: str, data: bytes) -> bool:
        """See `Folder`."""
        with self._written_aside(name, data) as (folder, aside):
            try:
                # O_EXCL would show the name before its content, and rename(2) would overwrite: a
                # link appears whole, and only where no name is.
                os.link(aside, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno in _NO_LINKS:
                    raise NotExclusiveError(
                        f"the file system of {self.path} cannot create a hard link "
                        f"({error.strerror}), by which a file is created exclusively"
                    ) from error
                raise
            finally:
                # A process that is killed before this leaves a name that is no entry's.
                remove_file(aside, folder=folder)
            os.fsync(folder)
        return True

    def replace(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """See `Folder`."""
        with self._written_aside(name, data, durable=durable) as (folder, aside):
            os.replace(aside, name, src_dir_fd=folder, dst_dir_fd=folder)
            if durable:
                os.fsync(folder)

    def remove(self, names: Iterable[str]) -> None:
        """See `Folder`."""
        listed = list(names)
        if not listed:
            return
        with suppress(FileNotFoundError), open_own(self._text) as folder:
            for name in listed:
                # Not synced: what comes back with the power is no more than it was before.
                remove_file(name, folder=folder)

    def move(self, name: str, to: str) -> None:
        """See `Folder`."""
        (above, _, base), (above_to, _, base_to) = name.rpartition("/"), to.rpartition("/")
        with suppress(FileNotFoundError), ExitStack() as opened:
            source = opened.enter_context(open_folder(self._text, above))
            if status_in(source, base) is None:
                return
            target = opened.enter_context(open_folder(self._text, above_to, make=True))
            os.rename(base, base_to, src_dir_fd=source, dst_dir_fd=target)
            # In this order: after a power cut a name may be there twice, and is never missing.
            os.fsync(target)
            os.fsync(source)

    def destroy(self) -> None:
        """See `Folder`. In one step: half of what was there might mean something else."""
        gone = f".{self.path.name}.{uuid.uuid4().hex}"
        root, within = split_at_own(self.path.parent)
        with suppress(FileNotFoundError), open_folder(root, within) as above:
            os.rename(self.path.name, gone, src_dir_fd=above, dst_dir_fd=above)
            remove_tree(root, f"{within}/{gone}".lstrip("/"))

    @contextmanager
    def _written_aside(
        self, name: str, data: bytes, *, durable: bool = True
    ) -> Iterator[tuple[int, str]]:
        """Write a file under another name; yield the descriptor of the folder, and that name."""
        aside = f".{name}.{uuid.uuid4().hex}"
        with ExitStack() as opened:
            try:
                folder = opened.enter_context(self._writing(aside, data, durable))
            except FileNotFoundError:
                make_folders(self.path)
                folder = opened.enter_context(self._writing(aside, data, durable))
            yield folder, aside

    @contextmanager
    def _writing(self, name: str, data: bytes, durable: bool) -> Iterator[int]:
        with open_own(self._text) as folder:
            mode = _MODE & stat.S_IMODE(os.fstat(folder).st_mode)
            write_aside(name, data, folder=folder, mode=mode, durable=durable)
            yield folder


def _refuse_unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
