"""Single commits of a table's log, read as JSON. Driver.

The library reads the state of a table, and this module what one commit has changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from krishiv_spark.delta.opening import LOG, log_folder
from krishiv_spark.delta.options import DeltaOptions
from krishiv_spark.durable import sync_file, sync_folder

__all__ = ["commit_name", "list_actions", "read_commit", "read_commit_info", "sync_commit"]


def commit_name(version: int) -> str:
    """Return the name of a commit's file in the log."""
    return f"{version:020}.json"


def read_commit(options: DeltaOptions, version: int) -> bytes | None:
    """Return a commit of the log; None if it does not exist, or was cleaned up.

    Raises:
        StorageError: If it cannot be read.
    """
    return log_folder(options).read(commit_name(version))


def list_actions(commit: bytes) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the kind and the content of each action of a commit.

    Raises:
        ValueError: If it is damaged.
    """
    for line in commit.splitlines():
        if line.strip():
            yield from json.loads(line).items()


def read_commit_info(options: DeltaOptions, version: int) -> Mapping[str, Any]:
    """Return what the writer of a commit has recorded about it; empty if that is not known.

    Raises:
        StorageError: If the commit cannot be read.
    """
    commit = read_commit(options, version)
    try:
        return next(
            (body for kind, body in list_actions(commit or b"") if kind == "commitInfo"), {}
        )
    except ValueError:
        return {}


def sync_commit(options: DeltaOptions, version: int) -> None:
    """Bring a commit to the disk: the library leaves that to the system. A store needs nothing."""
    if options.is_local:
        folder = Path(options.url.path) / LOG
        sync_file(folder / commit_name(version))
        sync_folder(folder)
