"""New interpreters, which share nothing with this one, under a hash seed if needed."""

from __future__ import annotations

import atexit
import importlib.util
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from multiprocessing.connection import Connection, Pipe
from typing import Any

from krishiv_spark.testing.processes.pickling import pickled, unpickled

__all__ = [
    "START",
    "answer",
    "homes_of",
    "load_homes",
    "loaded_by_file",
    "package_path",
    "run_elsewhere",
    "run_under_seed",
    "serve",
]

START = """
import sys
sys.path[:] = {path!r}
from krishiv_spark.testing.processes.interpreters import answer
answer({homes!r})
"""

loaded_by_file: set[str] = set()
"""Modules of this process that cannot be imported by their name."""


def run_elsewhere(function: Callable[..., str], *args: Any) -> str:
    """Call a function in a new interpreter.

    Args:
        function: A function that cloudpickle can send; its modules are loaded from their files.
        args: Its arguments.

    Raises:
        RuntimeError: If it fails there, with what it printed.
    """
    order = pickled((function, args))
    run = subprocess.run(  # noqa: S603  our own interpreter
        [sys.executable, "-c", START.format(path=sys.path, homes=homes_of(args))],
        input=order,
        capture_output=True,
        check=False,
    )
    if run.returncode:
        raise RuntimeError(run.stderr.decode(errors="replace"))
    # A connector may print; the result comes after the last NUL.
    return run.stdout.decode().rpartition("\0")[2]


def answer(homes: dict[str, str]) -> None:
    """Read an order from standard input and print its result; runs in the new interpreter."""
    load_homes(homes)
    function, args = unpickled(sys.stdin.buffer.read())
    sys.stdout.write(f"\0{function(*args)}")


def load_homes(homes: dict[str, str]) -> None:
    """Load the modules that `homes_of` has found, if they cannot be imported by their name."""
    for name, home in homes.items():
        _load(name, home)


def homes_of(args: Iterable[object]) -> dict[str, str]:
    """Return the files of the modules that define the classes of some arguments."""
    kinds = (getattr(arg, "source", type(arg)) for arg in args)
    # Definitions of `__main__` travel by value with cloudpickle.
    names = {kind.__module__ for kind in kinds} - {"__main__"}
    return {name: home for name in names if (home := _home(name))}


def package_path() -> str:
    """Return a ``PYTHONPATH`` with which another interpreter finds the same modules."""
    return os.pathsep.join(filter(None, sys.path))


def _home(module: str) -> str:
    return str(getattr(sys.modules.get(module), "__file__", None) or "")


def _load(name: str, home: str) -> None:
    # By file: a test module cannot be imported under the name that pytest gives it.
    spec = importlib.util.spec_from_file_location(name, home)
    if spec is not None and spec.loader is not None and importlib.util.find_spec(name) is None:
        loaded_by_file.add(name)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)


_START = """
import sys
sys.path[:] = {path!r}
from krishiv_spark.testing.processes.interpreters import serve
serve({fd})
"""


def run_under_seed(seed: int, function: Callable[..., str], *args: Any) -> str:
    """Call a function under a hash seed.

    Args:
        seed: The value of ``PYTHONHASHSEED``.
        function: A function that cloudpickle can send; its modules are loaded from their files.
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
    """Start an interpreter that ends with this process; a start costs seconds of imports."""
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
    """Serve calls in the new interpreter, each in a fork: no call sees another's leftovers."""
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
        answer, modules = _receive(ours)
        os.wait()
        calls.send(answer)
        _import(modules)


def _answer(
    connection: Connection, environment: dict[str, str], homes: dict[str, str], order: bytes
) -> None:
    known = set(sys.modules)
    try:
        # This interpreter outlives many tests: it has variables that were removed since.
        os.environ.clear()
        os.environ.update(environment)
        load_homes(homes)
        function, args = unpickled(order)
        answer = True, function(*args)
    except BaseException:  # noqa: BLE001  whatever it is, the caller hears of it
        answer = False, traceback.format_exc()
    # Modules with a file have no name to import them by, and are loaded for each call.
    connection.send((answer, [*sys.modules.keys() - known - homes.keys()]))
    # A fork runs none of the handlers that its interpreter has registered for its own end.
    os._exit(0)


def _receive(connection: Connection) -> tuple[tuple[bool, str], list[str]]:
    with connection:
        try:
            received: tuple[tuple[bool, str], list[str]] = connection.recv()
        except EOFError:
            return (False, "the process ended without an answer"), []
    return received


def _pipe() -> tuple[Connection, Connection]:
    return Pipe()  # pyright: ignore[reportReturnType]  # it thinks of that of Windows


def _import(modules: list[str]) -> None:
    """Import the modules that a call needed, so that the next fork has them."""
    for name in modules:
        try:
            import_module(name)
        except Exception:  # noqa: BLE001, S112  the code that needs it reports it
            continue
