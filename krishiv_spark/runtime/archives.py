"""Spark's archives on the path of its Python workers, and the memory of their directories.

Imported with the package, so this module imports little.
"""

from __future__ import annotations

import os
import sys
import zipimport
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TypeGuard

__all__ = ["is_in_archive", "is_tuned", "module_of_process", "share_directories"]

_ARCHIVES = ("pyspark.zip", "py4j-", "spark-core_")
"""Prefixes of Spark's archives on the path of its workers (``PythonUtils.sparkPythonPath``)."""

_SWITCH, _OFF = "KRISHIV_SPARK_TUNE_WORKERS", ("off", "false", "0", "no")


def module_of_process() -> str:
    """Return the module that this process runs by ``python -m``; empty if there is none."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return "" if spec is None else str(spec.name)


def is_tuned() -> bool:
    """Return True in Spark's workers that fork from a daemon, unless the user has turned it off."""
    return module_of_process() == "pyspark.daemon" and not _is_off()


def _is_off() -> bool:
    return os.environ.get(_SWITCH, "").strip().lower() in _OFF


def is_in_archive(finder: object) -> TypeGuard[zipimport.zipimporter]:
    """Return True for an importer of one of Spark's archives."""
    if not isinstance(finder, zipimport.zipimporter):
        return False
    return os.path.basename(finder.archive).startswith(_ARCHIVES)


def _set_directory(importer: object, files: object) -> None:
    vars(importer)["_files"] = files  # zipimport has no other way to share it


def share_directories() -> None:
    """Let all importers of an archive of Spark use one directory of it; only in Spark's processes.

    PySpark calls ``importlib.invalidate_caches()`` before the first task of a worker. Up to Python
    3.12, each importer then reads the directory of its archive again, with one importer for each
    package: 16 copies, 24 MB. All but one are released here, before this package is imported, so
    that its modules take the released memory.
    """
    known = getattr(zipimport, "_zip_directory_cache", None)
    if sys.version_info >= (3, 13) or not known or _is_off():
        return
    if not module_of_process().startswith("pyspark."):
        return
    loaders = [getattr(module, "__loader__", None) for module in list(sys.modules.values())]
    for each in [*loaders, *sys.path_importer_cache.values()]:
        if is_in_archive(each) and (files := known.get(each.archive)) is not None:
            _set_directory(each, files)
