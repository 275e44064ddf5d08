"""The folders that compiled kernels are kept in. Driver and executor.

Numba unpickles what it finds in its cache, so a folder that another user of the machine may write
to would let that user run code here: such a folder is not used. Numba itself uses only a folder
that it may write to; here a folder that was filled while an image was built may be read-only.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from krishiv_spark.runtime.caches import find_stranger
from krishiv_spark.runtime.once import warn_once

__all__ = ["keep_compiled"]

_log = logging.getLogger(__name__)


def keep_compiled(dispatcher: Any, function: Callable[..., Any]) -> None:
    """Let a compiled function be loaded from the folders that can be trusted, and be kept in one.

    Args:
        dispatcher: Made by ``numba.njit`` without ``cache``.
        function: The function itself.
    """
    kept = [_cache_in(folder, function) for folder in _folders(Path(function.__code__.co_filename))]
    dispatcher._cache = _Chain(kept)  # noqa: SLF001  numba has no other way to name a folder


class _Chain:
    """Caches of numba, of which the first that has a function is taken.

    Args:
        caches: Those that may be read; functions are added to the first that may be written.
    """

    def __init__(self, caches: list[Any]) -> None:
        self._caches = caches
        self._writable = [one for one in caches if os.access(one.cache_path, os.W_OK)]

    @property
    def cache_path(self) -> str | None:
        """Return the folder of the first; numba shows it among its figures."""
        return self._caches[0].cache_path if self._caches else None

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Return what was compiled for a signature; None if it has to be compiled."""
        found = (cache.load_overload(signature, context) for cache in self._caches)
        return next((one for one in found if one is not None), None)

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Keep what was compiled, if there is a folder for it."""
        for cache in self._writable[:1]:
            cache.save_overload(signature, compiled)


class _Locator:
    """Tells numba which folder is meant, and by which sources code that is kept is known.

    Those are all modules of kernels, since functions of one are compiled into those of another.
    Of a file the content counts: its time, by which older versions of numba go, is rounded when an
    image is stored.
    """

    def __init__(self, folder: Path, function: Callable[..., Any]) -> None:
        self._folder = folder
        self._py_file = function.__code__.co_filename  # numba names it in a warning
        self._line = function.__code__.co_firstlineno

    def from_function(self, function: object, file: object) -> _Locator:
        """Return itself: numba asks classes for a locator."""
        del function, file
        return self

    def get_cache_path(self) -> str:
        """Return the folder."""
        return str(self._folder)

    def get_source_stamp(self) -> str:
        """Return what the index has to have."""
        return _digest(Path(self._py_file).parent)

    def get_disambiguator(self) -> str:
        """Return what tells functions of one name apart."""
        return str(self._line)

    def ensure_cache_path(self) -> None:
        """Do nothing: the folder is there."""


def _cache_in(folder: Path, function: Callable[..., Any]) -> Any:
    from numba.core import caching

    locator = _Locator(folder, function)
    implementation = type(
        "_Kept", (caching.CompileResultCacheImpl,), {"_locator_classes": [locator]}
    )
    return type("_Cache", (caching.FunctionCache,), {"_impl_class": implementation})(function)


@functools.cache
def _digest(folder: Path) -> str:
    found = hashlib.sha256()
    for file in sorted(folder.glob("*.py")):
        found.update(file.read_bytes())
    return found.hexdigest()


@functools.cache
def _folders(file: Path) -> list[Path]:
    """Return the folders that may be used; none if the one that the user has named may not."""
    found = []
    for folder, is_given in _candidates(file):
        try:
            folder.mkdir(0o755, parents=True, exist_ok=True)
            reason = find_stranger(folder) or _find_shared_file(folder)
        except OSError:
            continue
        if reason is None:
            found.append(folder)
        elif is_given or os.access(folder, os.W_OK):
            _warn(folder, reason)
        if is_given:
            break
    return found


def _find_shared_file(folder: Path) -> str | None:
    """Return how another user could change code that is kept; None if none can."""
    for entry in os.scandir(folder):
        if entry.name.endswith((".nbi", ".nbc")):
            mode = entry.stat(follow_symlinks=False).st_mode
            if stat.S_ISLNK(mode) or mode & stat.S_IWOTH:
                return f"other users may write to {entry.path}"
    return None


def _candidates(file: Path) -> Iterator[tuple[Path, bool]]:
    """Yield folders, and whether the user has named one."""
    from numba.core import config

    name = f"{file.parent.name}_{hashlib.sha256(str(file.parent).encode()).hexdigest()[:40]}"
    settings: Any = config
    if settings.CACHE_DIR:
        yield Path(settings.CACHE_DIR, name), True
    yield file.parent / "__pycache__", False
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    yield Path(base, "numba", name), False


def _warn(folder: Path, reason: str) -> None:
    warn_once(
        _log,
        folder,
        "compiled code is neither loaded from %s nor kept there: %s. Numba runs code that it finds "
        "there: let only this user, or root, write to it, or name another folder by "
        "NUMBA_CACHE_DIR",
        folder,
        reason,
    )
