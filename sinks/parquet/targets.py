"""Whether files can take their places in a table: looked at before an epoch is true."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection
from pathlib import Path

from krishiv_spark.durable import make_folder
from krishiv_spark.errors import CommitRejected

__all__ = ["make_targets"]


def make_targets(staged: str, folders: Collection[str]) -> None:
    """Make the folders into which staged files are going to be renamed. Committer.

    Raises:
        CommitRejected: If a file cannot be renamed into one of them, now or ever: it cannot be
            made, or it is on another file system.
    """
    device = os.stat(staged).st_dev
    for folder in sorted(folders):
        try:
            elsewhere = _device_of(folder) != device
        except OSError as error:
            raise CommitRejected(f"folder {folder} cannot be made: {error}; {_NOTHING}") from error
        if elsewhere:
            raise CommitRejected(
                f"folder {folder} is on another file system than {staged}, so that files cannot "
                "appear in it in one step: is it, or one above it, a link or a mount? Make it a "
                f"plain folder, or write into a table of its own; {_NOTHING}"
            )


def _device_of(folder: str) -> int:
    with contextlib.suppress(FileNotFoundError):
        found = os.stat(folder)
        if stat.S_ISDIR(found.st_mode):
            return found.st_dev
    make_folder(Path(folder))
    return os.stat(folder).st_dev


_NOTHING = "nothing is visible of the epoch: restart the query then"
