"""Counters of this process's calls, and of its requests to the system, while a block runs.

Nothing of the code under test is replaced but `os.fsync`, `os.stat` and `os.lstat`, which tell no
audit hook. What C++ opens by itself (Arrow's files) shows in the system calls only.
"""

from __future__ import annotations

import functools
import os
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.counts.count import Seen

__all__ = ["calls", "calls_beside_broker", "listening", "outside", "requests", "transfers"]

_EVENTS = {
    "os.rename": "files renamed",
    "os.link": "files linked",
    "os.remove": "files removed",
    "os.mkdir": "folders made",
    "os.rmdir": "folders removed",
    "os.listdir": "folders listed",
    "os.scandir": "folders listed",
    "sqlite3.connect": "databases opened",
}
"""Of audit hooks."""

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_IO = Path("/proc/self/io")
_TRANSFERS = {
    "syscr": ("reads", "system calls"),
    "syscw": ("writes", "system calls"),
    "rchar": ("bytes read", "bytes"),
    "wchar": ("bytes written", "bytes"),
}
"""Of Linux: files and pipes, by whichever library; what goes through sockets is not in it."""


# --- calls


@contextmanager
def calls(seen: Seen, unit: str = "calls") -> Iterator[None]:
    """Count the calls of functions, those of C as well, as a profiler does.

    Of this thread and of those that are started meanwhile: a thread that was there before, as that
    of Kafka's connections, turns as often as it is woken up.
    """
    counted = [_begun()]
    threading.setprofile(lambda *event: counted.append(_begun(*event)))
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]  # as its documentation says
    seen["calls", unit] += sum(each["call"] + each["c_call"] for each in counted)


def calls_beside_broker(seen: Seen) -> AbstractContextManager[None]:
    """Count calls, some of which wait for answers, and are more the longer these take."""
    return calls(seen, "calls beside a broker")


def _begun(*first: Any) -> dict[str, int]:
    """Begin to count those of the running thread, the first of them perhaps having come already."""
    events = dict.fromkeys(("call", "return", "c_call", "c_return", "c_exception"), 0)

    def hear(_frame: Any, event: str, _argument: Any) -> None:
        events[event] += 1

    if first:
        hear(*first)
    sys.setprofile(hear)
    return events


# --- files, databases


_heard: list[Seen] = []
"""The object that is counted into; an audit hook stays for as long as its process."""


@contextmanager
def listening() -> Iterator[None]:
    """Have databases that are opened in the block say their statements, whenever they are counted.

    A pool of connections opens them before anything is counted.
    """
    own = sqlite3.connect

    def connect(*args: Any, **named: Any) -> sqlite3.Connection:
        made = own(*args, **named)
        made.set_trace_callback(_trace)
        return made

    with (
        mock.patch.object(sqlite3, "connect", connect),
        mock.patch.object(sqlite3.dbapi2, "connect", connect),
    ):
        yield


def _trace(_statement: str) -> None:
    if _heard:
        _heard[-1]["SQL statements", "statements"] += 1


@contextmanager
def outside(seen: Seen) -> Iterator[None]:
    """Count what is asked of the file system, and the statements of databases (`listening`)."""
    _hook()
    with (
        _patched("fsync", "files synced", "files", seen),
        _patched("stat", "looks", "looks", seen),
        _patched("lstat", "looks", "looks", seen),
        transfers(seen),
    ):
        _heard.append(seen)
        try:
            yield
        finally:
            _heard.pop()


@functools.cache
def _hook() -> None:
    sys.addaudithook(_hear)


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if not _heard:
        return
    name = _EVENTS.get(event)
    if event == "open":
        name = "files opened to write" if arguments[2] & _WRITES else "files opened to read"
    if name is not None:
        _heard[-1][name, "files"] += 1


def _patched(function: str, name: str, unit: str, seen: Seen) -> Any:
    own: Callable[..., Any] = getattr(os, function)

    def counting(*args: Any, **named: Any) -> Any:
        seen[name, unit] += 1
        return own(*args, **named)

    return mock.patch.object(os, function, counting)


@contextmanager
def transfers(seen: Seen) -> Iterator[None]:
    """Count what the whole process reads and writes, where Linux says so."""
    first, before = _transferred(), _transferred()
    try:
        yield
    finally:
        after = _transferred()
        for name, value in after.items():
            own = before[name] - first[name]  # of a look itself
            seen[_TRANSFERS[name]] += max(value - before[name] - own, 0)


def _transferred() -> dict[str, int]:
    try:
        lines = _IO.read_text().splitlines()
    except OSError:
        return {}
    found = dict(line.split(": ") for line in lines)
    return {name: int(found[name]) for name in _TRANSFERS}


# --- brokers


@contextmanager
def requests(seen: Seen) -> Iterator[None]:
    """Count what is sent to brokers, by its kind: by kafka-python's thread, and by who waits."""
    from krishiv_spark.kafka.transport import BlockingConnection, Transport

    send, answer = Transport._send, BlockingConnection._exchange  # noqa: SLF001  the seams

    def count(request: Any) -> None:
        plain = getattr(request, "_plain", request)
        seen[type(plain).__name__.removesuffix("Request"), "requests"] += 1

    def sending(self: Transport, request: Any, node: Any) -> Any:
        count(request)
        return send(self, request, node)

    def answering(self: BlockingConnection, request: Any, within_s: float | None) -> Any:
        count(request)
        return answer(self, request, within_s)

    with (
        mock.patch.object(Transport, "_send", sending),
        mock.patch.object(BlockingConnection, "_exchange", answering),
    ):
        yield
