"""The part of one of Spark's Python processes, in a new interpreter.

What it is to do comes by standard input, pickled. Nothing is imported here but what each worker of
Spark's has imported: whatever else is there afterwards, the role has brought. The calls are those
of ``pyspark.sql.worker`` (planner, commit), of ``pyspark.worker`` (tasks), and of
``pyspark.sql.streaming.python_streaming_source_runner`` (the driver of a source).
"""

from __future__ import annotations

import importlib
import inspect
import json
import pickle
import sys
from typing import Any

__all__ = ["main"]

# ruff: noqa: SLF001, FBT003  what worker.py sets, and how Spark calls


def main() -> None:
    """Do what is asked for; print, as JSON, what was counted and the result pickled, in hex."""
    importlib.import_module("pyarrow")
    importlib.import_module("pyspark.worker")
    asked, before = sys.stdin.buffer.read(), set(sys.modules)
    compiled: list[str] = []
    sys.addaudithook(lambda event, given: event == "compile" and compiled.append(str(given[1])))
    calls = dict.fromkeys(("call", "return", "c_call", "c_return", "c_exception"), 0)

    def hear(_frame: Any, event: str, _argument: Any) -> None:
        calls[event] += 1

    sys.setprofile(hear)
    role, arguments = pickle.loads(asked)
    result = _ROLES[role](*arguments)
    sys.setprofile(None)
    told = {
        "calls": calls["call"] + calls["c_call"],
        "compiled": sum(name.endswith(".py") for name in compiled),
        "modules": sorted(set(sys.modules) - before),
        "result": pickle.dumps(result).hex(),
    }
    print(json.dumps(told))


def _source(name: str, options: dict[str, str]) -> Any:
    from krishiv_spark.formats import format_of

    return format_of(name)(options)


def _plan_write(name: str, options: dict[str, str], schema: str) -> bytes:
    return pickle.dumps(_source(name, options).streamWriter(_struct(schema), False))


def _write(planned: bytes, rows: bytes) -> Any:
    import pyarrow as pa
    from pyspark import TaskContext

    context: Any = TaskContext._getOrCreate()
    context._partitionId = context._attemptNumber = context._taskAttemptId = 0
    context._localProperties = {"streaming.sql.batchId": "0", "sql.streaming.queryId": "counts"}
    return pickle.loads(planned).write(iter(pa.ipc.open_stream(rows)))


def _commit(name: str, options: dict[str, str], schema: str, message: Any) -> None:
    _source(name, options).streamWriter(_struct(schema), False).commit([message], 0)


def _plan_read(name: str, options: dict[str, str]) -> list[bytes]:
    source = _source(name, options)
    reader = source.streamReader(source.schema())
    start = reader.initialOffset()
    end = _latest(reader, start)
    return [pickle.dumps((reader, part)) for part in reader.partitions(start, end)]


def _latest(reader: Any, start: dict[str, Any]) -> dict[str, Any]:
    """Call the form of `latest` that the running PySpark calls (4.2 and later: start and limit)."""
    if not inspect.signature(reader.latestOffset).parameters:
        return dict(reader.latestOffset())
    return dict(reader.latestOffset(start, reader.getDefaultReadLimit()))


def _read(part: bytes) -> int:
    reader, partition = pickle.loads(part)
    return sum(batch.num_rows for batch in reader.read(partition))


def _struct(schema: str) -> Any:
    from pyspark.sql.types import StructType

    return StructType.fromJson(json.loads(schema))


_ROLES = {
    "planner of writes": _plan_write,
    "task that writes": _write,
    "committer": _commit,
    "planner of reads": _plan_read,
    "task that reads": _read,
}

if __name__ == "__main__":
    main()
