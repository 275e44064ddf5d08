"""Huge pages for the memory of a test process, so that its forks cost less. Linux.

A fork copies a page table of 8 bytes for each 4 KiB. After the collection of all tests, a process
has 560 MB, and a fork that ends at once took 31 ms; with huge pages it takes 14 ms. The kit's
suites of sinks for memory and Parquet took 69 s of processor time, and take 58 s.
"""

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path

_COLLAPSE = 25  # MADV_COLLAPSE of linux/mman.h, since Linux 6.1
_HUGE = 2 * 2**20


def collapse_memory() -> None:
    """Collapse the private memory of this process into huge pages, as far as the system can."""
    if sys.platform != "linux":
        return
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for start, end in find_ranges(Path("/proc/self/maps").read_text()):
        advise(
            start, end - start, _COLLAPSE
        )  # an older kernel or one that is short of memory refuses


def find_ranges(maps: str) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of the writable memory without a file, in whole huge pages."""
    for line in maps.splitlines():
        addresses, access, _, _, _, *path = line.split()
        if access == "rw-p" and path in ([], ["[heap]"]):
            first, last = (int(address, 16) for address in addresses.split("-"))
            start, end = -(-first // _HUGE) * _HUGE, last // _HUGE * _HUGE
            if start < end:
                yield start, end
