"""What this application has reached before: who was there once is waited for, when it is away.

A wrong address is an error soon, and before a row moves. What has answered is in trouble if it does
not answer, and a query that runs waits for it. Spark ends Python processes that have nothing to do
for a minute, so that is kept in the folder that those of one driver share.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

from krishiv_spark.runtime.workers import application, local_folder

__all__ = ["note_reached", "was_reached"]

_here: set[str] = set()
"""What this process has reached; in a fork, also what the one that it is of had."""


def was_reached(name: str) -> bool:
    """Whether a process of this application on this machine has reached it.

    Args:
        name: Of what is asked, as it was noted.
    """
    return name in _here or (application() is not None and _mark(name).exists())


def note_reached(name: str) -> None:
    """It has answered.

    Args:
        name: Of what is asked, and for whom. Without secrets: others may see its digest.
    """
    if name in _here:
        return
    _here.add(name)
    if application() is None:  # nobody else would find it
        return
    with contextlib.suppress(OSError):  # a full disk is told of by those who need it
        _mark(name).parent.mkdir(mode=0o700, exist_ok=True)
        _mark(name).touch()


def _mark(name: str) -> Path:
    return local_folder() / "krishiv-reached" / hashlib.sha256(name.encode()).hexdigest()
