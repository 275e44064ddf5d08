"""Disks without space: said as an error of ours, with the folders that may be meant."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import Final

from krishiv_spark.errors import OptionError, StorageError
from krishiv_spark.options import Options
from krishiv_spark.storage import StoreUrl
from krishiv_spark.workers import local_folder

__all__ = ["naming_full_disks"]

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_PLACES: Final = (
    "path",
    "warehouse",
    "location",
    "epoch_log",
    "state_location",
    "checkpoint_location",
)
"""Fields of options that name where something is written."""


@contextlib.contextmanager
def naming_full_disks(options: Options) -> Iterator[None]:
    """Turn what the system says of a full disk into an error that says where, and what to do.

    Args:
        options: Of the connector; they name folders.

    Raises:
        StorageError: In the place of an OSError that says that no space, or no quota, is left.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise StorageError(
            f"{os.strerror(error.errno)}{_named(error)} on this machine ({os.uname().nodename}). "
            f"Free now: {', '.join(_spaces(options))}. Make room and start the query again: it "
            "goes on where it was, and no row is lost or there twice"
        ) from error


def _named(error: OSError) -> str:
    return "" if error.filename is None else f": {os.fsdecode(error.filename)}"


def _spaces(options: Options) -> Iterator[str]:
    places = {str(local_folder()): "what tasks put aside", **dict(_folders(options))}
    for place, what in places.items():
        folder = place
        while not os.path.exists(folder):
            folder = os.path.dirname(folder)
        found = os.statvfs(folder)
        yield f"{found.f_bavail * found.f_frsize:,} bytes for {what} ({place})"


def _folders(options: Options) -> Iterator[tuple[str, str]]:
    """Local folders that options name, and how the options are called."""
    written = {field: name for name, field in options.offered().items()}
    for field in _PLACES:
        text = getattr(options, field, None)
        if isinstance(text, str) and os.path.sep in text:
            with contextlib.suppress(OptionError):
                url = StoreUrl.parse(text)
                if url.kind == "disk":
                    yield url.path, repr(written.get(field, field))
