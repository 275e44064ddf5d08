"""Programs of servers, which the first call brings into the user's cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from krishiv_spark.errors import KrishivError
from krishiv_spark.runtime.caches import user_cache

__all__ = ["NotInstalledError", "ToolMissingError", "from_go", "from_npm"]


class NotInstalledError(KrishivError):
    """A server is not there, and cannot be installed."""


class ToolMissingError(NotInstalledError):
    """Tools that would build or install a server are not on this machine."""


def from_go(module: str) -> str:
    """Return a program of a Go module, written as ``path@version``.

    Raises:
        ToolMissingError: If there is neither the program nor Go.
        NotInstalledError: If it cannot be built.
    """
    path, _, version = module.partition("@")
    name = f"{path.rsplit('/', 1)[-1]}-{version}"
    install = ("go", "install", module)
    folder = _brought(name, "go", lambda aside: ["env", f"GOBIN={aside}", *install])
    return str(next(folder.iterdir()))


def from_npm(lock: Path, program: str) -> str:
    """Return the path of a program of a package, after installing the package as its lock says.

    Scripts of packages do not run. After a change of ``package.json``, in its folder::

        npm install --package-lock-only --omit-lockfile-registry-resolved

    Args:
        lock: Folder with a ``package.json`` and a ``package-lock.json``, which has the hash of each
            package and the address of none.
        program: Name of the program.

    Raises:
        ToolMissingError: If there is neither the package nor npm.
        NotInstalledError: If it cannot be installed.
    """
    files = [lock / name for name in ("package.json", "package-lock.json")]
    digest = hashlib.sha256(files[1].read_bytes()).hexdigest()[:12]

    def install(aside: Path) -> list[str]:
        aside.mkdir(parents=True)
        for file in files:
            shutil.copy(file, aside)
        return ["npm", "ci", "--silent", "--ignore-scripts", "--prefix", str(aside)]

    folder = _brought(f"{lock.name}-{digest}", "npm", install)
    return str(folder / "node_modules" / ".bin" / program)


def _brought(name: str, tool: str, install: Callable[[Path], list[str]]) -> Path:
    """Return a folder of the cache; on first use, the command of a tool fills it."""
    folder = user_cache() / name
    if folder.exists():
        return folder
    if shutil.which(tool) is None:
        raise ToolMissingError(f"{tool} is missing, by which {name} is installed")
    aside = folder.with_name(f".{name}-{os.getpid()}")
    made = subprocess.run(install(aside), capture_output=True, text=True, check=False)
    if made.returncode != 0:
        raise NotInstalledError(f"{name} cannot be installed: {made.stdout}{made.stderr}")
    if not folder.exists():
        aside.rename(folder)
    return folder
