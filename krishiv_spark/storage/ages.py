"""The time at which ages of files are measured. Operator.

Files are dated by the clock of their file system or store. To a machine whose clock is ahead of
that, all of them look older than they are, also what a running query has just staged.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from krishiv_spark.messages.exception_chains import scrub

__all__ = ["aging_time_s", "read_disk_time_s"]

_log = logging.getLogger(__name__)

_TOLERANCE_S = 60.0
"""Stores date files to the second, and clocks differ a little."""


_FIRST_S = 1_700_000_000.0
"""November 2023. Some emulators date all uploads at one time, long before: that is no clock."""


def aging_time_s(read_time_s: Callable[[], float], location: object) -> float:
    """Return the time at which ages are measured, in epoch seconds: the earlier of two clocks.

    Args:
        read_time_s: Writes a file to the location, deletes it, and returns the time that it was
            dated. If that fails, the local clock decides.
        location: For the log.
    """
    now_s = time.time()
    try:
        dated_s = read_time_s()
    except Exception as error:  # noqa: BLE001  of any store: who may delete need not be able to write
        _log.info("the clock of %s is not known", location, exc_info=scrub(error))
        return now_s
    if now_s - dated_s <= _TOLERANCE_S or dated_s < _FIRST_S:
        return now_s
    _log.warning(
        "the clock of this machine is %d s ahead of that of %s: ages of files are measured by the "
        "latter. Correct the clock (NTP)",
        now_s - dated_s,
        location,
    )
    return dated_s


def read_disk_time_s(folder: Path) -> float:
    """Return the time that the file system of a folder gives a new file.

    Raises:
        OSError: If no file can be created there.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        return os.fstat(file.fileno()).st_mtime
