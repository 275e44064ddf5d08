"""Runs a function in a new interpreter."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
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
]

START = """
import sys
sys.path[:] = {path!r}
from krishiv_spark.testing.processes.elsewhere import answer
answer({homes!r})
"""

loaded_by_file: set[str] = set()
"""Modules of this process that cannot be imported by their name."""


def run_elsewhere(function: Callable[..., str], *args: Any) -> str:
    """Call a function in a new interpreter.

    Args:
        function: Something that travels by cloudpickle; its modules are loaded from their files.
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
    # A connector may print; what it returns comes after the last NUL.
    return run.stdout.decode().rpartition("\0")[2]


def answer(homes: dict[str, str]) -> None:
    """The other side: read an order from standard input, print what it returns."""
    load_homes(homes)
    function, args = unpickled(sys.stdin.buffer.read())
    sys.stdout.write(f"\0{function(*args)}")


def load_homes(homes: dict[str, str]) -> None:
    """Load the modules that `homes_of` has found, if they cannot be imported by their name."""
    for name, home in homes.items():
        _load(name, home)


def homes_of(args: Iterable[object]) -> dict[str, str]:
    """Files of the modules that define the classes in some arguments."""
    kinds = (getattr(arg, "source", type(arg)) for arg in args)
    # What `__main__` defines travels by value with cloudpickle.
    names = {kind.__module__ for kind in kinds} - {"__main__"}
    return {name: home for name in names if (home := _home(name))}


def package_path() -> str:
    """``PYTHONPATH`` with which another interpreter finds what this one finds."""
    return os.pathsep.join(filter(None, sys.path))


def _home(module: str) -> str:
    return str(getattr(sys.modules.get(module), "__file__", None) or "")


def _load(name: str, home: str) -> None:
    # By file: a test module is not importable under the name that pytest gives it.
    spec = importlib.util.spec_from_file_location(name, home)
    if spec is not None and spec.loader is not None and importlib.util.find_spec(name) is None:
        loaded_by_file.add(name)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
