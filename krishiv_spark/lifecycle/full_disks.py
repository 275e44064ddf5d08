"""Errors of disks that take no data, full or read-only, with the folders that may be meant."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping
from typing import Final

from krishiv_spark.errors import OptionError, StorageError
from krishiv_spark.options import Options
from krishiv_spark.runtime.workers import local_folder
from krishiv_spark.storage import StoreUrl

__all__ = ["explain_disk_full"]

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_REFUSING: Final = (*_FULL, errno.EROFS)
_PLACES: Final = (
    "path",
    "warehouse",
    "location",
    "epoch_log",
    "state_location",
    "checkpoint_location",
)
"""Fields of options that name where something is written."""

_OF_ROUTES: Final = ("path", "warehouse", "location")
"""Likewise, options of a fan-out's routes."""


@contextlib.contextmanager
def explain_disk_full(options: Options) -> Iterator[None]:
    """Turn a full or read-only disk into an error that states the folders and the way on.

    Args:
        options: Of the connector; they name folders.

    Raises:
        StorageError: In the place of an OSError that reports that no space, or no quota, is left,
            or that the file system is read-only.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _REFUSING:
            raise
        what = f"{os.strerror(error.errno)}{_named(error)} on this machine ({os.uname().nodename})"
        free = f"Free now: {', '.join(_spaces(options))}"
        if error.errno == errno.EROFS:
            raise StorageError(
                f"{what}. {free}. Have it mounted for writing and restart the query: it "
                "continues from its position, and no row is lost or there twice"
            ) from error
        raise StorageError(
            f"{what}. {free}. Make room and restart the query: it continues from its position, "
            "and no row is lost or there twice"
        ) from error


def _named(error: OSError) -> str:
    return "" if error.filename is None else f": {os.fsdecode(error.filename)}"


def _spaces(options: Options) -> Iterator[str]:
    places = {str(local_folder()): "what tasks put aside", **dict(_folders(options))}
    for place, what in places.items():
        folder = place
        while not os.path.exists(folder):
            folder = os.path.dirname(folder)
        yield f"{_space_at(folder)} for {what} ({place})"


def _space_at(folder: str) -> str:
    found = os.statvfs(folder)
    if found.f_flag & os.ST_RDONLY:
        return "read-only"
    free = f"{found.f_bavail * found.f_frsize:,} bytes"
    # Some file systems have no such limit, and report 0 of 0.
    return f"{free}, but no inode (no new file)" if found.f_files and not found.f_favail else free


def _folders(options: Options) -> Iterator[tuple[str, str]]:
    """Local folders that options name, and how the options are called."""
    written = {field: name for name, field in options.offered().items()}
    named = {field: getattr(options, field, None) for field in _PLACES}
    texts = {repr(written.get(field, field)): text for field, text in named.items()}
    routes: Mapping[str, Mapping[str, str]] = getattr(options, "routes", {})
    for route, given in routes.items():
        texts |= {f"'route.{route}.{name}'": given.get(name) for name in _OF_ROUTES}
    for name, text in texts.items():
        if isinstance(text, str) and os.path.sep in text:
            with contextlib.suppress(OptionError):
                url = StoreUrl.parse(text)
                if url.kind == "disk":
                    yield url.path, name
