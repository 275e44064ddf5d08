"""Huge pages for the memory of a test process, so that its forks cost less. Linux.

A fork copies a page table with 8 bytes for each 4 KiB. A process that has collected all tests has
560 MB: a fork that ends at once takes 31 ms, and 14 ms with huge pages. The kit's cases of the
memory and Parquet sinks take 58 s of processor time instead of 69 s.
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
        # An older kernel refuses, and one without free huge pages. Forks cost more then.
        advise(start, end - start, _COLLAPSE)


def find_ranges(maps: str) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of the writable memory without a file, in whole huge pages."""
    for line in maps.splitlines():
        addresses, access, _, _, _, *path = line.split()
        if access == "rw-p" and path in ([], ["[heap]"]):
            first, last = (int(address, 16) for address in addresses.split("-"))
            start, end = -(-first // _HUGE) * _HUGE, last // _HUGE * _HUGE
            if start < end:
                yield start, end
