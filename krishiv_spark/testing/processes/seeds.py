"""Runs functions under hash seeds of their own, in processes that know nothing of this one."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from functools import cache
from importlib import import_module
from multiprocessing.connection import Connection, Pipe
from typing import Any

from krishiv_spark.testing.processes.elsewhere import homes_of, load_homes
from krishiv_spark.testing.processes.pickling import pickled, unpickled

__all__ = ["run_under_seed", "serve"]

_START = """
import sys
sys.path[:] = {path!r}
from krishiv_spark.testing.processes.seeds import serve
serve({fd})
"""


def run_under_seed(seed: int, function: Callable[..., str], *args: Any) -> str:
    """Call a function under a hash seed.

    Args:
        seed: For ``PYTHONHASHSEED``.
        function: Something that travels by cloudpickle; its modules are loaded from their files.
        args: Its arguments.

    Raises:
        RuntimeError: If it fails there, with its traceback.
    """
    connection = _interpreter(seed)
    connection.send((dict(os.environ), homes_of(args), pickled((function, args))))
    has_returned, text = connection.recv()
    if not has_returned:
        raise RuntimeError(text)
    return str(text)


@cache
def _interpreter(seed: int) -> Connection:
    """A new interpreter, which ends with this process: to start one costs seconds of imports."""
    ours, theirs = _pipe()
    process = subprocess.Popen(  # noqa: S603  our own interpreter
        [sys.executable, "-c", _START.format(path=sys.path, fd=theirs.fileno())],
        env={**os.environ, "PYTHONHASHSEED": str(seed)},
        pass_fds=[theirs.fileno()],
    )
    theirs.close()
    atexit.register(_end, process, ours)
    return ours


def _end(process: subprocess.Popen[bytes], connection: Connection) -> None:
    connection.close()
    process.kill()
    process.wait()


def serve(fd: int) -> None:
    """The other side: a fork for each call, so that none finds what another has left."""
    calls = Connection(fd)
    while True:
        try:
            environment, homes, order = calls.recv()
        except (EOFError, ConnectionError):
            return
        ours, theirs = _pipe()
        if os.fork() == 0:
            _answer(theirs, environment, homes, order)
        theirs.close()
        answer, modules = _received(ours)
        os.wait()
        calls.send(answer)
        _import(modules)


def _answer(
    connection: Connection, environment: dict[str, str], homes: dict[str, str], order: bytes
) -> None:
    known = set(sys.modules)
    try:
        # This interpreter outlives many tests: it has variables that were taken back since.
        os.environ.clear()
        os.environ.update(environment)
        load_homes(homes)
        function, args = unpickled(order)
        answer = True, function(*args)
    except BaseException:  # noqa: BLE001  whatever it is, the caller hears of it
        answer = False, traceback.format_exc()
    # Those with a home have no name to import them by, and are loaded for each call.
    connection.send((answer, [*sys.modules.keys() - known - homes.keys()]))
    # A fork runs none of the handlers that its interpreter has for its own end.
    os._exit(0)


def _received(connection: Connection) -> tuple[tuple[bool, str], list[str]]:
    with connection:
        try:
            received: tuple[tuple[bool, str], list[str]] = connection.recv()
        except EOFError:
            return (False, "the process ended without an answer"), []
    return received


def _pipe() -> tuple[Connection, Connection]:
    return Pipe()  # pyright: ignore[reportReturnType]  # it thinks of that of Windows


def _import(modules: list[str]) -> None:
    """Import what a call needed, so that the next one has it when it is forked."""
    for name in modules:
        try:
            import_module(name)
        except Exception:  # noqa: BLE001, S112  whoever needs it hears of it then
            continue
