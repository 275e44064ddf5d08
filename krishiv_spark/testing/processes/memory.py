"""How much memory a process holds."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import re
import resource
import sys
from pathlib import Path

import pyarrow as pa

__all__ = ["give_back_memory", "memory_now", "memory_peak"]

_KIB = 1024
_STATUS = Path("/proc/self/status")


def give_back_memory() -> None:
    """Give back what is free, or it would be filled before the process seems to grow."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    with contextlib.suppress(AttributeError, OSError):  # glibc has it
        ctypes.CDLL(None).malloc_trim(0)


def memory_now() -> int:
    """Bytes that this process holds; its peak where nothing else is known."""
    return _status("VmRSS")


def memory_peak() -> int:
    """Bytes of this process at its largest."""
    return _status("VmHWM")


def _status(name: str) -> int:
    if _STATUS.exists():  # on Linux, ru_maxrss is no less than that of the process that called exec
        found = re.search(rf"{name}:\s*(\d+) kB", _STATUS.read_text())
        return int(found[1]) * _KIB if found else 0
    # getrusage counts bytes on macOS, and KiB on Linux.
    unit = 1 if sys.platform == "darwin" else _KIB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
