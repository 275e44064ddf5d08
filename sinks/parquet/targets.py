"""Whether files can take their places in a table: looked at before an epoch is true."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote

from krishiv_spark.durable import make_folder
from krishiv_spark.errors import CommitRejected, OptionError
from krishiv_spark.parquet.layout import visible_files

__all__ = ["check_partitioning", "make_targets"]


def make_targets(staged: Path, folders: Collection[Path]) -> None:
    """Make the folders into which staged files are going to be renamed. Committer.

    Raises:
        CommitRejected: If a file cannot be renamed into one of them, now or ever: it cannot be
            made, or it is on another file system.
    """
    device = os.stat(staged).st_dev
    for folder in sorted(folders):
        try:
            make_folder(folder)
            elsewhere = os.stat(folder).st_dev != device
        except OSError as error:
            raise CommitRejected(f"folder {folder} cannot be made: {error}; {_NOTHING}") from error
        if elsewhere:
            raise CommitRejected(
                f"folder {folder} is on another file system than {staged}, so that files cannot "
                "appear in it in one step: is it, or one above it, a link or a mount? Make it a "
                f"plain folder, or write into a table of its own; {_NOTHING}"
            )


_NOTHING = "nothing is visible of the epoch: restart the query then"


@lru_cache(maxsize=64)  # the columns of a query are fixed, and a folder is long to list
def check_partitioning(table: Path, partition_by: tuple[str, ...]) -> None:
    """Refuse rows that a reader of the whole table would not find. Planner, once in a process.

    Readers take the partition columns of a table from its folders: files beside them, or in other
    folders, are passed over, or refused.

    Raises:
        OptionError: If the files that are there lie in folders of other columns.
    """
    there = next(visible_files(table), None)
    if there is None:
        return
    parents = there.relative_to(table).parts[:-1]
    found = tuple(unquote(part.partition("=")[0]) for part in parents if "=" in part)
    if found != partition_by:
        raise OptionError(
            f"krishiv-parquet: 'partitionBy' is {_listed(partition_by)}, but the files of {table} "
            f"are partitioned by {_listed(found)}, as {there} shows, and readers would not find "
            "all rows: give the same columns, or write into another folder"
        )


def _listed(columns: Sequence[str]) -> str:
    return ", ".join(map(repr, columns)) or "nothing"
