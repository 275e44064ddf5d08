"""Servers that this application has reached, and the resulting timeouts.

A wrong address causes an error soon, before a row is written. If a server that has answered before
does not answer, it is in trouble, and a running query waits for it. Spark ends idle Python
processes after a minute, so contacts are recorded in the folder that the processes of one driver
share.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from krishiv_spark.runtime.workers import application, local_folder

__all__ = [
    "TimeoutPolicy",
    "has_contacted",
    "record_contact",
    "timeout_policy",
    "use_long_timeouts",
]

_contacted: set[str] = set()
"""Servers that this process has reached; in a fork, also those of its parent until the fork."""


def has_contacted(name: str) -> bool:
    """Return True if a process of this application on this machine has reached a server.

    Args:
        name: Name of the server, as it was recorded.
    """
    return name in _contacted or (application() is not None and _marker_file(name).exists())


def record_contact(name: str) -> None:
    """Record that a server has answered, for all processes of this application on this machine.

    Args:
        name: Name of the server and of its settings. It contains no secret, since other users may
            see its digest.
    """
    if name in _contacted:
        return
    _contacted.add(name)
    if application() is None:  # no other process would find the file
        return
    with contextlib.suppress(OSError):  # a full disk is reported by the code that needs it
        _marker_file(name).parent.mkdir(mode=0o700, exist_ok=True)
        _marker_file(name).touch()


def _marker_file(name: str) -> Path:
    return local_folder() / "krishiv-reached" / hashlib.sha256(name.encode()).hexdigest()


# --- timeouts

# Together less than 10 s: a request that starts at the end of the first contact gets its full time.
_FIRST_CONTACT_S = 5.0
_FIRST_REQUEST_S = 4.0

_LATER_CONTACT_S = 180.0


@dataclass(frozen=True)
class TimeoutPolicy:
    """The time limits of a server.

    Attributes:
        total_s: Seconds during which failed requests are sent again.
        request_s: Maximum duration of one request, in seconds.
        is_first_contact: True if the server has not answered yet.
    """

    total_s: float
    request_s: float
    is_first_contact: bool


_waiting_processes: set[int] = set()
"""The ids of processes that use long timeouts: this process, if any. It is a set, so that tests can
replace it."""


def use_long_timeouts() -> None:
    """Use the timeouts of servers that have answered before. Executor and commit process.

    The planner has reached them, and the first requests of these processes may be large.
    """
    _waiting_processes.add(os.getpid())


def timeout_policy(name: str, timeout_ms: int, *, is_user_set: bool) -> TimeoutPolicy:
    """Return the current timeouts for a server.

    Args:
        name: Name of the server, as for `record_contact`.
        timeout_ms: Maximum duration of one request.
        is_user_set: True if the user has set that duration, which then also applies to the first
            request.
    """
    request_s = timeout_ms / 1000
    if os.getpid() in _waiting_processes or has_contacted(name):
        return TimeoutPolicy(_LATER_CONTACT_S, request_s, is_first_contact=False)
    first_s = request_s if is_user_set else min(request_s, _FIRST_REQUEST_S)
    return TimeoutPolicy(_FIRST_CONTACT_S, first_s, is_first_contact=True)
