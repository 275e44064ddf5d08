"""Errors as Spark receives them: the message first, no secrets, advice for full disk and memory.

Spark shows the text that ``pyspark.util.handle_worker_exception`` makes of an error: a traceback of
ten to fifty lines, and the message in its last line. With ``SPARK_HIDE_TRACEBACK`` (set by
``spark.sql.execution.pyspark.udf.hideTraceback.enabled``) it is the message alone and the notes of
the error (PEP 678). So this module sets the variable and adds the traceback as a note.

Spark shows every error in the driver's exception, its UI and the log, so secrets are removed from
each error and its chain.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pickle import PicklingError
from typing import Any, Final, TypeVar, cast

from krishiv_spark.errors import KrishivError, OptionError, OutOfMemory, StorageError
from krishiv_spark.messages.exception_chains import raise_alone, scrub
from krishiv_spark.options import Options
from krishiv_spark.runtime.memory_limits import describe_memory_limits, is_memory_error
from krishiv_spark.runtime.workers import is_of_spark, local_folder
from krishiv_spark.storage import StoreUrl

__all__ = ["explain_disk_full", "explain_memory_error", "message_before_traceback"]

MethodT = TypeVar("MethodT", bound="Callable[..., Any]")

_OWN_ERRORS = (KrishivError, PicklingError)
"""Planners raise a PicklingError (`PlanningFailed`). For other errors the traceback may be the only
explanation, so it stays in front."""

_FULL_OR_READ_ONLY: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)

_PATH_FIELDS: Final = (
    "path",
    "warehouse",
    "location",
    "epoch_log",
    "state_location",
    "checkpoint_location",
)
"""Fields of options that name folders in which files are written."""

_PATH_OPTIONS_OF_ROUTES: Final = ("path", "warehouse", "location")
"""Options of a fan-out's routes that name such folders."""


def message_before_traceback(method: MethodT) -> MethodT:
    """Decorate a method that Spark calls: a known error shows its message before its traceback.

    Secrets of the options, and text that looks like credentials, are removed from every error.
    Python 3.10 has no notes, so there the traceback stays in front.
    """

    @functools.wraps(method)
    def call(*given: Any, **named: Any) -> Any:
        try:
            found = method(*given, **named)
        except Exception as error:
            if (shown := _prepare(error, given[0])) is not error:
                raise_alone(shown)
            raise
        return _iterate(found, given[0]) if isinstance(found, Iterator) else found

    return cast("MethodT", call)


def _iterate(found: Iterator[Any], called: Any) -> Iterator[Any]:
    try:
        yield from found
    except Exception as error:
        if (shown := _prepare(error, called)) is not error:
            raise_alone(shown)
        raise


def _prepare(error: Exception, called: Any) -> Exception:
    """Return the error that Spark may show; usually it is the same object."""
    shown = scrub(explain_memory_error(error), _secrets_of(called))
    if isinstance(shown, _OWN_ERRORS):
        _move_traceback_to_note(shown)
    return shown


def explain_memory_error(error: Exception) -> Exception:
    """Return an error that names the limit and its setting if memory ran out, else the same one."""
    if isinstance(error, KrishivError) or not is_memory_error(error):
        return error
    shown = OutOfMemory(
        f"this Python process of Spark got no more memory: {str(error) or type(error).__name__}. "
        f"{describe_memory_limits()}"
    )
    shown.__cause__ = error
    return shown


def _secrets_of(called: Any) -> set[str]:
    """Return the secrets in the options of the format, reader or writer that Spark has called."""
    with contextlib.suppress(Exception):  # an error here must not replace the original one
        found: set[str] = called.known_secrets()
        return found
    return set()


def _move_traceback_to_note(error: Exception) -> None:
    # A worker ends after an error, so no other error loses its traceback.
    if sys.version_info >= (3, 11) and is_of_spark() and not hasattr(error, "__notes__"):
        error.add_note("".join(["\n", *traceback.format_exception(error)]))
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"


@contextlib.contextmanager
def explain_disk_full(options: Options) -> Iterator[None]:
    """Turn a full or read-only disk into an error that names the folders and the next step.

    Args:
        options: Options of the connector, which name folders.

    Raises:
        StorageError: Instead of an OSError that reports that no space or no quota is left, or that
            the file system is read-only.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL_OR_READ_ONLY:
            raise
        what = (
            f"{os.strerror(error.errno)}{_file_of(error)} on this machine ({os.uname().nodename})"
        )
        free = f"Free now: {', '.join(_describe_space(options))}"
        if error.errno == errno.EROFS:
            raise StorageError(
                f"{what}. {free}. Have it mounted for writing and restart the query: it "
                "continues from its position, and no row is lost or there twice"
            ) from error
        raise StorageError(
            f"{what}. {free}. Make room and restart the query: it continues from its position, "
            "and no row is lost or there twice"
        ) from error


def _file_of(error: OSError) -> str:
    return "" if error.filename is None else f": {os.fsdecode(error.filename)}"


def _describe_space(options: Options) -> Iterator[str]:
    folders = {str(local_folder()): "temporary files of tasks", **dict(_local_folders(options))}
    for named, what in folders.items():
        folder = named
        while not os.path.exists(folder):
            folder = os.path.dirname(folder)
        yield f"{_free_space(folder)} for {what} ({named})"


def _free_space(folder: str) -> str:
    found = os.statvfs(folder)
    if found.f_flag & os.ST_RDONLY:
        return "read-only"
    free = f"{found.f_bavail * found.f_frsize:,} bytes"
    # Some file systems have no such limit, and report 0 of 0.
    return f"{free}, but no inode (no new file)" if found.f_files and not found.f_favail else free


def _local_folders(options: Options) -> Iterator[tuple[str, str]]:
    """Yield each local folder that the options name, with the name of the option."""
    written = {field: name for name, field in options.user_options().items()}
    named = {field: getattr(options, field, None) for field in _PATH_FIELDS}
    texts = {repr(written.get(field, field)): text for field, text in named.items()}
    routes: Mapping[str, Mapping[str, str]] = getattr(options, "routes", {})
    for route, given in routes.items():
        for name in _PATH_OPTIONS_OF_ROUTES:
            texts[repr(cast("Any", options).option_of_route(route, name))] = given.get(name)
    for name, text in texts.items():
        if isinstance(text, str) and os.path.sep in text:
            with contextlib.suppress(OptionError):
                url = StoreUrl.parse(text)
                if url.kind == "disk":
                    yield url.path, name
