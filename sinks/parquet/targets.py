"""Whether files can take their places in a table: looked at before an epoch is true."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from krishiv_spark.errors import CommitRejected, LinkError
from krishiv_spark.storage.no_links import open_folder

__all__ = ["make_targets"]


def make_targets(table: Path, staged: str, device: int, folders: Iterable[str]) -> None:
    """Make the folders into which staged files are going to be renamed. Committer.

    Args:
        table: Folder of the table.
        staged: Folder in which the files are staged, relative to the table.
        device: Number of the file system of that folder (``st_dev``).
        folders: Folders into which the files go, relative to the table.

    Raises:
        CommitRejected: If a file cannot be renamed into one of them, now or ever: it cannot be
            made, is a link, or is on another file system.
    """
    for folder in sorted(folders):
        try:
            with open_folder(table, folder, make=True) as descriptor:
                is_elsewhere = os.fstat(descriptor).st_dev != device
        except LinkError as error:
            raise CommitRejected(
                f"{error}, as a plain folder; or write into a table of its own; {_NOTHING}"
            ) from error
        except OSError as error:
            raise CommitRejected(
                f"folder {table}/{folder} cannot be made: {error}; {_NOTHING}"
            ) from error
        if is_elsewhere:
            raise CommitRejected(
                f"folder {table}/{folder} is on another file system than {table}/{staged}, so that "
                "files cannot appear in it in one step: is it, or one above it, a mount? Make it a "
                f"plain folder, or write into a table of its own; {_NOTHING}"
            )


_NOTHING = "nothing is visible of the epoch: restart the query then"
