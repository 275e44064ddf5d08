"""Kernels: compiled by numba and cached in folders, or interpreted if numba is not installed.

Kernels are written so that both ways give the same results: whole numbers stay within 64 signed
bits, and each index is compared with an end before its use, since compiled code checks none.

Numba unpickles the files of its cache. If another user of the machine may write to a folder, that
user could run code here; such a folder is not used. Numba uses only folders that it may write to;
here a folder that was filled while an image was built may be read-only.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from krishiv_spark.runtime.caches import find_stranger
from krishiv_spark.runtime.once import warn_once

__all__ = ["COMPILED", "copy", "inner", "kernel", "peek"]

_log = logging.getLogger(__name__)

njit: Any = None
try:
    import numba

    njit = numba.njit
except ImportError as error:  # a numba that does not fit the version of numpy raises it too
    _log.warning(
        "Kafka records are decoded and encoded many times slower than possible (%s): "
        "pip install 'krishiv-spark[fast]'",
        error,
    )


def _find_uncounted_option() -> dict[str, bool]:
    """Return the option that disables counting references to arrays, which kernels only borrow.

    The counting takes longer than all the rest. The option is not public, and may be removed.
    """
    options = {"_nrt": False}
    try:
        njit(**options)(lambda: None)
    except KeyError:
        return {}
    return options


COMPILED = njit is not None
_UNCOUNTED = _find_uncounted_option() if COMPILED else {}

Result = TypeVar("Result")


def kernel(function: Callable[..., Result]) -> Callable[..., Result]:
    """Compile a function of NumPy arrays and whole numbers that Python calls."""
    return _compile(function) if COMPILED else _interpret(function)


def inner(function: Callable[..., Result]) -> Callable[..., Result]:
    """Compile a function that only kernels call."""
    return _compile(function) if COMPILED else function


def _compile(function: Callable[..., Any]) -> Callable[..., Any]:

    # Without the GIL, kafka-python's thread receives the next response meanwhile.
    compiled: Callable[..., Any] = njit(nogil=True, **_UNCOUNTED)(function)
    _set_cache(compiled, function)
    return compiled


def _interpret(function: Callable[..., Result]) -> Callable[..., Result]:
    """Pass arrays as memoryviews, whose items are whole numbers that do not overflow."""

    def call(*arguments: Any) -> Result:
        return function(
            # Before Python 3.12 no type describes the buffer protocol.
            *(memoryview(x) if isinstance(x, np.ndarray) else x for x in arguments)  # type: ignore[arg-type]
        )

    return call


def _set_cache(dispatcher: Any, function: Callable[..., Any]) -> None:
    """Set the cache of a compiled function to the trusted folders.

    Args:
        dispatcher: The result of ``numba.njit`` without ``cache``.
        function: The function that is compiled.
    """
    caches = [
        _make_cache(folder, function)
        for folder in _find_folders(Path(function.__code__.co_filename))
    ]
    dispatcher._cache = _CacheChain(caches)  # noqa: SLF001  numba has no other way to name a folder


class _CacheChain:
    """A cache that reads several caches of numba in their order.

    Args:
        caches: The readable caches. Functions are added to the first one that is writable.
    """

    def __init__(self, caches: list[Any]) -> None:
        self._caches = caches
        self._writable = [one for one in caches if os.access(one.cache_path, os.W_OK)]

    @property
    def cache_path(self) -> str | None:
        """Return the folder of the first cache; numba's statistics contain it."""
        return self._caches[0].cache_path if self._caches else None

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Return the compiled code for a signature; None if it must be compiled."""
        found = (cache.load_overload(signature, context) for cache in self._caches)
        return next((one for one in found if one is not None), None)

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Save compiled code, if a cache is writable."""
        for cache in self._writable[:1]:
            cache.save_overload(signature, compiled)


class _FolderLocator:
    """The folder of a cache for numba, and the sources that cached code depends on.

    These are all modules of kernels, since a function of one is compiled into those of another. The
    content of a file counts. Older versions of numba compare its time, which is rounded when an
    image is stored.
    """

    def __init__(self, folder: Path, function: Callable[..., Any]) -> None:
        self._folder = folder
        self._py_file = function.__code__.co_filename  # numba names it in a warning
        self._line = function.__code__.co_firstlineno

    def from_function(self, function: object, file: object) -> _FolderLocator:
        """Return itself: numba calls this on the class of a locator."""
        del function, file
        return self

    def get_cache_path(self) -> str:
        """Return the folder."""
        return str(self._folder)

    def get_source_stamp(self) -> str:
        """Return the stamp that the index of the cache must have."""
        # Kernels of other folders use those of this one, and are compiled with them.
        # In this order in every process: another text would have all of them compiled again.
        folders = dict.fromkeys((Path(__file__).parent, Path(self._py_file).parent))
        return "".join(map(_hash_sources, folders))

    def get_disambiguator(self) -> str:
        """Return a text that distinguishes functions of one name."""
        return str(self._line)

    def ensure_cache_path(self) -> None:
        """Do nothing: the folder exists."""


def _make_cache(folder: Path, function: Callable[..., Any]) -> Any:
    from numba.core import caching

    locator = _FolderLocator(folder, function)
    implementation = type(
        "_Kept", (caching.CompileResultCacheImpl,), {"_locator_classes": [locator]}
    )
    return type("_Cache", (caching.FunctionCache,), {"_impl_class": implementation})(function)


@functools.cache
def _hash_sources(folder: Path) -> str:
    found = hashlib.sha256()
    for file in sorted(folder.glob("*.py")):
        found.update(file.read_bytes())
    return found.hexdigest()


@functools.cache
def _find_folders(file: Path) -> list[Path]:
    """Return the trusted folders; none if the user has named one that is not trusted."""
    found = []
    for folder, is_given in _iter_candidates(file):
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
    """Return the reason why another user could change cached code; None if none can."""
    for entry in os.scandir(folder):
        if entry.name.endswith((".nbi", ".nbc")):
            mode = entry.stat(follow_symlinks=False).st_mode
            if stat.S_ISLNK(mode) or mode & stat.S_IWOTH:
                return f"other users may write to {entry.path}"
    return None


def _iter_candidates(file: Path) -> Iterator[tuple[Path, bool]]:
    """Yield folders, each with True if the user has named it."""
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


def _peek_unsigned(data: Any, at: int) -> Any:
    return data[np.uint64(at)] & 0xFF


def _peek(data: Any, at: int) -> Any:
    return data[at]


def _copy_unsigned(out: Any, at: int, source: Any, begin: int, size: int) -> None:
    to, where = np.uint64(at), np.uint64(begin)
    for i in range(np.uint64(size)):
        out[to + i] = source[where + i]


def _copy(out: Any, at: int, source: Any, begin: int, size: int) -> None:
    out[at : at + size] = source[begin : begin + size]


# An unsigned index cannot count from the end, so that no check is compiled: 12 times as fast.
peek = inner(_peek_unsigned if COMPILED else _peek)
copy = inner(_copy_unsigned if COMPILED else _copy)
