"""Living in Spark's Python workers, which are reused from task to task."""

from __future__ import annotations

import functools
import gc
import sys

__all__ = ["settle"]


def settle() -> None:
    """Keep what is imported out of the collection that PySpark makes after every task.

    ``pyspark.daemon`` calls ``gc.collect()`` behind each task, while the JVM already goes on. Over
    the modules of pyarrow, pydantic and pyspark that is 20 ms of a core each time, more than a
    small epoch costs. Frozen objects are passed over (``gc.freeze``); reference counting frees
    them as before. Done again only when there are modules that were not there the last time, as
    those that the first task has imported, and only in Spark's workers.
    """
    _settle(len(sys.modules))


@functools.lru_cache(maxsize=1)
def _settle(_modules: int) -> None:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name == "pyspark.daemon":
        gc.collect()
        gc.freeze()
