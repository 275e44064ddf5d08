"""Work in a process of its own, and how much memory that process holds."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, TypeVar

import psutil

__all__ = ["apart", "resident_mib"]

T = TypeVar("T")

_MEBIBYTE = 2**20


def apart(work: Callable[..., T], *given: Any) -> T:
    """Call a function in a new process, whose memory nobody else's work has grown.

    Args:
        work: Found by its name there; so are the classes of what it is given and returns.
        given: Its arguments.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(work, *given).result()


def resident_mib() -> float:
    """Resident memory of this process, in MiB, without what waits to be collected or given back."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)
    return float(psutil.Process().memory_info().rss) / _MEBIBYTE
