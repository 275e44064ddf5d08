"""How a table's folder is laid out, for the sink that writes it and the source that follows it.

    <table>/part-0000000012-00003-000-<tag>-<nonce>-2of7.parquet   visible, of epoch 12, task 3
    <table>/day=2013-01-01/part-....parquet                        the same, partitioned
    <table>/_krishiv/<query id>/log/                               the epoch log: the point of truth
    <table>/_krishiv/<query id>/staged/<generation>/*.staged       what no glob for Parquet finds
    <table>/_krishiv/<query id>/staged/<generation>.done/keep      empty: its epoch is visible
    <table>/_krishiv/<query id>/replayed/<replay>/*.replayed       taken out, for the user to keep

and in any folder that is read, since ``_krishiv`` tells a table from a copy of some of its files:

    <folder>/_krishiv_sources/<stream id>/                         what a source remembers

The tag is the start of the query's id, so that a file says which query and epoch it belongs to. Of
how many files the epoch consists is known when it is published; staged names do not have it yet.
Files of earlier versions do not say it.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator
from pathlib import Path

from krishiv_spark.durable import exists
from krishiv_spark.errors import OptionError
from krishiv_spark.parquet.names import is_data, is_hidden
from krishiv_spark.parquet.tails import look
from krishiv_spark.storage.no_links import META, SOURCES

__all__ = [
    "DONE_SUFFIX",
    "KEEP",
    "META",
    "PATH_OPTION",
    "SINK_LOG",
    "SOURCES",
    "check_shared",
    "done_generations",
    "linked_folders",
    "log_folder",
    "log_within",
    "replayed_within",
    "staged_folder",
    "staged_within",
    "visible_files",
    "walk",
]

PATH_OPTION = "krishiv-parquet: 'path'"
"""How messages name the option that says where the folder is."""

DONE_SUFFIX = ".done"

KEEP = "keep"
"""Empty, in the folder of a generation that is done."""

SINK_LOG = "_spark_metadata"
"""Where Spark's own file sink says which files of a folder count, for Spark's readers."""


def log_within(query: str) -> str:
    """Where the epoch log of a query lives, relative to the table."""
    return f"{META}/{query}/log"


def log_folder(table: Path, query: str) -> Path:
    """Where the epoch log of a query lives."""
    return table / log_within(query)


def check_shared(folder: str | Path) -> None:
    """Look whether this machine has a folder that the driver's has. Executor.

    Raises:
        OptionError: If it has not.
    """
    if not exists(folder):
        raise OptionError(
            f"{PATH_OPTION}: {folder} is on the driver's machine, and not on {platform.node()}: it "
            "must be in a folder that all machines share, or in a store"
        )


def staged_within(query: str, generation: int) -> str:
    """Where the tasks of one generation stage their files, relative to the table."""
    return f"{META}/{query}/staged/{generation}"


def staged_folder(table: Path, query: str, generation: int) -> Path:
    """Where the tasks of one generation stage their files."""
    return table / staged_within(query, generation)


def replayed_within(query: str, replay: str) -> str:
    """Return where a replay puts the files that it takes out of a table, relative to the table."""
    return f"{META}/{query}/replayed/{replay}"


def done_generations(names: Iterable[str]) -> list[int]:
    """Return the generations whose epochs are visible, by names under ``staged/``, in order."""
    found = (name.removesuffix(DONE_SUFFIX) for name in names if name.endswith(DONE_SUFFIX))
    return sorted(int(number) for number in found if number.isdecimal())


def visible_files(table: Path) -> Iterator[Path]:
    """Every Parquet file that an ordinary reader of the folder sees, in no order.

    A name without an ending counts if the file ends as Parquet files do: nobody wants to see a
    README replaced.

    Raises:
        OSError: If a folder cannot be listed, or such a file not be read; what is gone is no file.
    """
    for folder, subfolders, names in walk(table):
        subfolders[:] = [name for name in subfolders if not is_hidden(name)]
        for name in names:
            if is_data(name) and not is_hidden(name):
                path = Path(folder, name)
                if "." in name or _ends_as_parquet(path):
                    yield path


def linked_folders(table: Path) -> Iterator[Path]:
    """Every link to a folder into which an ordinary reader of the table goes, in no order.

    Raises:
        OSError: If a folder cannot be listed; one that is gone is empty.
    """
    for folder, subfolders, _ in walk(table):
        subfolders[:] = [name for name in subfolders if not is_hidden(name)]
        yield from (path for name in subfolders if (path := Path(folder, name)).is_symlink())


def _ends_as_parquet(path: Path) -> bool:
    try:
        return look(path).whole
    except FileNotFoundError:
        return False


def walk(folder: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """`os.walk`, which passes over a folder that it cannot list.

    Raises:
        OSError: If a folder cannot be listed; one that is gone is empty.
    """
    return os.walk(folder, onerror=_refuse_unless_gone)


def _refuse_unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
