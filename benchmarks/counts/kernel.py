"""System calls of an epoch, of all libraries and threads, by strace."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bare_commits import Loop, synced_files
from benchmarks.counts.case import Given, case
from benchmarks.counts.count import Count, Seen, per
from benchmarks.lives import iceberg_life, memory_life, parquet_life
from benchmarks.writers import Life

__all__ = ["PROGRAM", "bare", "iceberg", "memory", "parquet"]

PROGRAM = "strace"
_WARM, _COUNTED = 32, 64
_MEMORY = {"mmap", "munmap", "mremap", "mprotect", "madvise", "brk"}
_WAITS = {"poll", "ppoll", "select", "epoll_wait", "clock_gettime", "clock_nanosleep"}
_SIGNALS = {"rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "restart_syscall"}
_THREADS = {"futex", "sched_yield", "clone", "clone3", "set_robust_list", "rseq", "exit"}
_SELF = {"getpid", "gettid", "sched_getaffinity", "getrandom", "getrusage"}
_SUM = {"total"}
_OTHERS = _MEMORY | _WAITS | _SIGNALS | _THREADS | _SELF | _SUM
"""The number of mappings of memory and of waits between threads varies from run to run."""

_STAT, _ACCESS = ("fstat", "lstat", "newfstatat", "statx"), ("faccessat", "faccessat2")
_SAME = {**dict.fromkeys(_STAT, "stat"), **dict.fromkeys(_ACCESS, "access")}
_SAME |= {"renameat": "rename", "renameat2": "rename", "openat": "open", "mkdirat": "mkdir"}
_SAME |= {"unlinkat": "unlink", "linkat": "link", "readlinkat": "readlink", "fchmodat": "chmod"}
"""A C library chooses between these calls, so that they are counted as one."""


@case("kernel.none", PROGRAM)
def bare(given: Given) -> Iterator[Count]:
    """System calls of a loop that writes and syncs a file and a mark."""
    yield from _counted(given, "none")


@case("kernel.memory", PROGRAM)
def memory(given: Given) -> Iterator[Count]:
    """System calls of an epoch of the memory sink."""
    yield from _counted(given, "memory")


@case("kernel.parquet", PROGRAM)
def parquet(given: Given) -> Iterator[Count]:
    """System calls of an epoch of the Parquet sink with one task."""
    yield from _counted(given, "parquet")


@case("kernel.iceberg", PROGRAM)
def iceberg(given: Given) -> Iterator[Count]:
    """System calls of an epoch of the Iceberg sink with one task."""
    yield from _counted(given, "iceberg")


def _counted(given: Given, sink: str) -> Iterator[Count]:
    """Yield the counts of further epochs, so that starting and importing cancel out.

    The first interpreter of an environment compiles what it imports, which is not counted.
    """
    _traced(given.folder, sink, 1)
    few, many = (_traced(given.folder, sink, count) for count in (_WARM, _WARM + _COUNTED))
    more = Seen({key: many[key] - few[key] for key in many if many[key] > few[key]})
    yield from per(more, _COUNTED)


def _traced(folder: Path, sink: str, epochs: int) -> Seen:
    """Return the calls of the kernel for so many epochs in a new interpreter."""
    place, told = folder / f"{sink}-{epochs}", folder / f"{sink}-{epochs}.txt"
    place.mkdir()
    tracing = [str(shutil.which(PROGRAM)), "-f", "-qq", "-c", "-U", "calls,name", "-o", str(told)]
    work = [sys.executable, "-m", "benchmarks.counts.kernel", sink, str(epochs), str(place)]
    environment = {**os.environ, "KRISHIV_MEMORY_DIR": str(place)}
    subprocess.run([*tracing, *work], check=True, stdout=subprocess.DEVNULL, env=environment)
    seen: Seen = Seen()
    for line in told.read_text().splitlines():
        number, _, rest = line.strip().partition(" ")
        name = rest.strip()
        if number.isdecimal() and name not in _OTHERS:
            seen[_SAME.get(name, name), "kernel calls"] += int(number)
    return seen


# --- in the process that is traced


def _made(sink: str, folder: Path) -> Life | Loop:
    if sink == "none":
        return synced_files(folder)
    if sink == "memory":
        return memory_life("kernel")
    return iceberg_life(folder) if sink == "iceberg" else parquet_life(folder)


def main() -> None:
    """Commit so many epochs."""
    sink, epochs, folder = sys.argv[1:]
    _made(sink, Path(folder)).commits(int(epochs))


if __name__ == "__main__":
    main()
