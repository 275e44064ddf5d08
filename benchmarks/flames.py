"""Flame graphs of the driver and of the Python workers below it, by py-spy."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from tempfile import TemporaryFile
from typing import IO

__all__ = ["Unseen", "watched"]

_RATE = "200"  # samples a second
_GRAPH, _RAW = ("--format", "flamegraph"), ("--format", "raw", "--idle")
_STARTED = "Sampling process"
_PATIENCE_S = 60


class Unseen(Exception):  # noqa: N818  it names what the process stays
    """There is no flame graph."""


@contextmanager
def watched(file: Path, *, raw: bool = False) -> Iterator[None]:
    """Sample this process and those below it while the block runs.

    Each process has a tower of its own, which stands on that of the process that started it. A
    sample stops a process for a moment, which slows it down.

    Args:
        file: The graph: one SVG, complete in itself. It is not there if nothing was seen.
        raw: Write the stacks instead, one in a line with its count; also of threads that wait.

    Raises:
        Unseen: Before the block, if py-spy is not there or may not look at this process.
    """
    file.unlink(missing_ok=True)
    with TemporaryFile("w+") as told:
        watcher = _started(file, told, _RAW if raw else _GRAPH)
        try:
            yield
        finally:
            _end(watcher)


def _started(file: Path, told: IO[str], form: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a watcher, and return when it observes the process."""
    which_one = ["--pid", str(os.getpid()), "--subprocesses"]
    how = ["--rate", _RATE, "--function", *form, "--output", str(file)]
    command = [_program(), "record", *which_one, *how]
    watcher = subprocess.Popen(command, stdout=told, stderr=subprocess.STDOUT)
    until = time.monotonic() + _PATIENCE_S
    while _STARTED not in _text(told):
        if watcher.poll() is not None or time.monotonic() > until:
            watcher.kill()
            watcher.wait()
            raise Unseen(f"py-spy cannot look at this process: {_text(told).strip()[-500:]}")
        time.sleep(0.05)
    return watcher


def _end(watcher: subprocess.Popen[bytes]) -> None:
    """Let it write what it has seen; a figure is not lost for want of a graph."""
    watcher.send_signal(signal.SIGINT)
    try:
        watcher.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        watcher.kill()
        watcher.wait()


def _text(told: IO[str]) -> str:
    """Return the samples so far; pread keeps the position, at which the watcher writes."""
    return os.pread(told.fileno(), 1_000_000, 0).decode(errors="replace")


def _program() -> str:
    found = which("py-spy", path=os.pathsep.join((str(Path(sys.executable).parent), os.defpath)))
    if found is None:
        raise Unseen("py-spy is not installed: pip install py-spy")
    return found
