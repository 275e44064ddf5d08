"""The folder on the driver's machine that holds results and pushes.

aside/                  files that are not visible yet, and the marks of batch jobs
names/<name>/           log: which query a name means, and the rows of batch jobs
queries/<id>/epochs/    log: the epochs of a streaming query
queries/<id>/as.<name>  the query has taken the name
pushes/<name>/log/      log: what was pushed into a source
pushes/<name>/schema    the source's schema, as an empty Arrow IPC stream
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from getpass import getuser
from urllib.parse import quote, unquote

from krishiv_spark.durable import is_folder
from krishiv_spark.errors import OptionError
from krishiv_spark.memory.log import Log

__all__ = ["Store", "open_store", "quote_name"]

# File systems allow 255 bytes, and some paths have a prefix before the name.
_LONGEST_NAME = 200
_SHARED_MEMORY = "/dev/shm"  # noqa: S108  only a folder of the user's own in it is used


@dataclass(frozen=True)
class Store:
    """The paths in the store."""

    root: str

    @property
    def aside(self) -> str:
        """The folder for files that are not visible yet."""
        return f"{self.root}/aside"

    def log(self, *parts: str) -> Log:
        """Return the log in a folder of the store."""
        return Log("/".join([self.root, *parts]), self.aside)

    def folder(self, kind: str, name: str) -> str:
        """Return the folder of a name or query."""
        return f"{self.root}/{kind}/{quote_name(name)}"

    def known(self, kind: str) -> list[str]:
        """Return the names of a kind that exist, sorted."""
        try:
            return sorted(unquote(name) for name in os.listdir(f"{self.root}/{kind}"))
        except FileNotFoundError:
            return []


@lru_cache(maxsize=256)  # each step of an epoch asks for the same few
def quote_name(name: str) -> str:
    """Return a name as a file name.

    Raises:
        OptionError: If it is empty, or too long for a file name.
    """
    text = quote(name, safe=" ").replace(".", "%2E")  # "." and ".." name other folders
    if not 0 < len(text) <= _LONGEST_NAME:
        raise OptionError(
            f"krishiv-memory: name {name!r} must have 1 to {_LONGEST_NAME} characters"
        )
    return text


def open_store() -> Store:
    """Return the store of this user on this machine; create it if it does not exist.

    ``KRISHIV_MEMORY_DIR`` names it; Spark's Python workers have the variable only if it was set
    before the session started. Otherwise it is in shared memory, or in the folder for temporary
    files if there is none.

    Raises:
        OptionError: If the folder belongs to another user, or cannot be created.
    """
    root = os.environ.get("KRISHIV_MEMORY_DIR") or _default_root()
    try:
        if not is_folder(root):
            os.makedirs(root, mode=0o700, exist_ok=True)
        _refuse_foreign(root)
    except OSError as error:
        raise OptionError(f"KRISHIV_MEMORY_DIR: cannot use {root}: {error}") from error
    return Store(root)


def _default_root() -> str:
    is_usable = os.path.isdir(_SHARED_MEMORY) and os.access(_SHARED_MEMORY, os.W_OK | os.X_OK)
    parent = _SHARED_MEMORY if is_usable else tempfile.gettempdir()
    return os.path.join(parent, f"krishiv-memory-{_user()}")


def _user() -> str:
    return str(os.getuid()) if hasattr(os, "getuid") else getuser()


def _refuse_foreign(root: str) -> None:
    # All users may write to the parent, and the name can be guessed.
    if hasattr(os, "getuid") and os.stat(root, follow_symlinks=False).st_uid != os.getuid():
        raise OptionError(
            f"{root} belongs to another user: set KRISHIV_MEMORY_DIR to a folder of your own"
        )
