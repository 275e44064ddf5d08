"""Machines that share no folder: mount namespaces of this one, each with disks of its own.

What is installed is on every one of them, and cannot be written. What programs write lies in memory
of that machine's: /tmp, its cache, shared memory. Processes and loopback are this machine's, so
that a test sees and kills what runs where.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import psutil
import pytest
from typing_extensions import Self

_OWN = ("/tmp", "/var/tmp", "/dev/shm")
"""Folders of a machine that programs write to; all others are read-only."""

_INSTALLED = (Path(__file__).parents[3], Path(sys.prefix), Path(sys.base_prefix), Path.home())
"""Each machine has these, wherever they are here: perhaps in one of the folders above."""

_MOUNTS = f"""
set -e
for installed in "$@"; do exec {{number}}< "$installed"; numbers="$numbers $number"; done
for folder in {" ".join(_OWN)}; do mount -t tmpfs own $folder; done
for number in $numbers; do
  mkdir -p "$1"
  mount --no-canonicalize --bind /proc/self/fd/$number "$1"
  mount -o remount,bind,ro "$1"
  shift
done
mount -o remount,bind,ro /
mkdir /tmp/work /tmp/cache
echo ready
exec cat
"""
"""For bash. What is hidden by then is found by what was opened before.

It ends with its input: also if who started it is killed.
"""

_TOOLS = ("unshare", "nsenter", "setpriv")

ENVIRONMENT = {"TMPDIR": "/tmp", "XDG_CACHE_HOME": "/tmp/cache"}
"""Environment variables that differ between programs on a machine and those outside of it."""


@cache
def explain_missing_tools() -> str | None:
    """Return the reason why machines are impossible here; None if they are possible."""
    lacking = [name for name in _TOOLS if shutil.which(name) is None]
    if lacking:
        return f"{', '.join(lacking)} (util-linux) is missing"
    tried = subprocess.run(
        ["unshare", "--mount", "mount", "-t", "tmpfs", "own", "/tmp"],
        capture_output=True,
        text=True,
        check=False,
    )
    return None if tried.returncode == 0 else f"no mount namespaces: {tried.stderr.strip()}"


class Machine:
    """One of several, until the end of the context: then all that runs on it is killed.

    Args:
        name: For people.
        host: Its address, of loopback.
    """

    def __init__(self, name: str, host: str) -> None:
        self.name, self.host = name, host
        self._keeper: subprocess.Popen[str] | None = None

    def __repr__(self) -> str:
        return self.name

    def __enter__(self) -> Self:
        if reason := explain_missing_tools():
            pytest.skip(reason)
        self._keeper = subprocess.Popen(
            ["unshare", "--mount", "bash", "-c", _MOUNTS, "machine", *_hidden()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._keeper.stdout.readline() == "ready\n"
        return self

    def __exit__(self, *_: object) -> None:
        while others := [each for each in self.processes() if each.pid != self._keeper.pid]:
            for each in others:
                _kill(each)
        self._keeper.communicate()

    def command(self, *words: str) -> list[str]:
        """By which a program runs on it, in its /tmp/work; it dies with who started it."""
        entered = ["nsenter", f"--mount=/proc/{self._keeper.pid}/ns/mnt"]
        return [*entered, "env", "--chdir=/tmp/work", "setpriv", "--pdeathsig", "KILL", *words]

    def environment(self, **more: str) -> dict[str, str]:
        """Of its programs."""
        return {**os.environ, **ENVIRONMENT, "SPARK_LOCAL_IP": self.host, **more}

    def path(self, inside: str) -> Path:
        """A file of it, as the test can open it."""
        return Path(f"/proc/{self._keeper.pid}/root{inside}")

    def processes(self) -> list[psutil.Process]:
        """Return the processes on the machine."""
        own = _namespace(self._keeper.pid)
        return [each for each in psutil.process_iter() if _namespace(each.pid) == own]

    def kill(self, is_meant: Callable[[Sequence[str]], bool]) -> int:
        """``kill -9`` of what runs on it with such a command line; how many those were."""
        meant = [each for each in self.processes() if is_meant(_command_line(each))]
        return sum(map(_kill, meant))


def _hidden() -> list[str]:
    """Return installed folders that each machine has separately; none of them within another."""
    own = [path for path in _INSTALLED if any(path.is_relative_to(folder) for folder in _OWN)]
    return [str(path) for path in dict.fromkeys(own) if not set(path.parents) & set(own)]


def _namespace(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")
    except OSError:  # it has just ended
        return None


def _command_line(process: psutil.Process) -> Sequence[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return ()


def _kill(process: psutil.Process) -> bool:
    try:
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    except psutil.NoSuchProcess:
        return False
    except psutil.TimeoutExpired:
        pass  # it is dead, and whoever started it has not looked
    return True
