"""Runs cases, each in a process of its own, so that none sees what another one has left behind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from benchmarks.bench import MEMORY, scratch
from benchmarks.counts.case import Case, Server
from benchmarks.counts.count import Count
from benchmarks.stores import open_bucket
from benchmarks.topics import open_topics
from servers.programs import NotInstalledError

__all__ = ["Ran", "run_all"]

_ROOT = Path(__file__).parents[2]
_PATIENCE_S = 300
_SHOWN = 2_000

_Told = Callable[[str], object]


@dataclass
class Ran:
    """The results of the cases.

    Attributes:
        counts: Of each case that ran, by its name.
        failed: Why a case failed.
        missing: Why a case could not run, since its server is not to be had.
    """

    counts: dict[str, list[Count]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


class _Servers:
    """Those that cases need, started by the first one that does."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._folder = stack.enter_context(scratch(MEMORY))

    def of(self, case: Case) -> dict[Server, Mapping[str, str]]:
        """Return the addresses of the servers that a case needs."""
        return {name: getattr(self, name) for name in case.needs}

    @cached_property
    def kafka(self) -> Mapping[str, str]:
        """A broker."""
        return {"bootstrap": self._stack.enter_context(open_topics(self._folder)).bootstrap}

    @cached_property
    def bucket(self) -> Mapping[str, str]:
        """An S3."""
        store = self._stack.enter_context(open_bucket(self._folder)).store
        return {"url": store.url, **store.options}

    @cached_property
    def strace(self) -> Mapping[str, str]:
        """No server, but what may be missing as well: the program, and the right to trace."""
        tried = ["strace", "-o", os.devnull, sys.executable, "-c", "pass"]
        if shutil.which("strace") is None or subprocess.run(tried, check=False).returncode:
            raise NotInstalledError("strace is not installed, or may not trace here")
        return {}


def run_all(cases: Sequence[Case], told: _Told) -> Ran:
    """Run cases, one after the other; one that fails leaves the others alone.

    Args:
        cases: Which.
        told: Called with the name of each case that is over, and how long it took.
    """
    ran = Ran()
    with ExitStack() as stack:
        servers = _Servers(stack)
        for case in cases:
            begin = time.monotonic()
            try:
                ran.counts[case.name] = _counted(case, servers.of(case))
            except NotInstalledError as error:
                ran.missing[case.name] = str(error).splitlines()[0]
            except subprocess.SubprocessError as error:
                ran.failed[case.name] = _why(error)
            told(f"{case.name}: {time.monotonic() - begin:.0f} s")
    return ran


def _counted(case: Case, servers: Mapping[Server, Mapping[str, str]]) -> list[Count]:
    command = [sys.executable, "-m", "benchmarks.counts.child", case.name]
    # Sets are in one order in each run, and what is imported was compiled before.
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        command,
        cwd=_ROOT,
        env=environment,
        input=json.dumps(servers),
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
        check=True,
    )
    return [Count(**each) for each in json.loads(done.stdout)]


def _why(error: subprocess.SubprocessError) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return str(error.stderr)[-_SHOWN:].strip()
    return str(error)
