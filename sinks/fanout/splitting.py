"""The rows of a task, given to several sinks, each of which pulls its own. Executor."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from krishiv_spark.errors import SchemaError, SinkError
from krishiv_spark.sinks.fanout.options import FORMAT

__all__ = ["split"]

_Stage = Callable[[Iterator[pa.RecordBatch]], Any]


def split(
    batches: Iterator[pa.RecordBatch], stages: Mapping[str, _Stage], *, drops: bool
) -> dict[str, Any]:
    """Stage the rows of each route.

    One of them runs at a time, and no batch waits beside the one that is being written: so memory
    is that of the sinks themselves, and what happens is the same each time.

    Args:
        batches: With a struct column for each route; a row goes where its struct is not null.
        stages: What takes the rows of a route, by its name in lower case.
        drops: Whether rows that no route takes are left out.

    Returns:
        What each has returned, by route.

    Raises:
        SchemaError: If no route takes a row, and it is not to be left out.
    """
    pullers = {name: _Puller(name, stage) for name, stage in stages.items()}
    try:
        for batch in batches:
            _check_routed(batch, drops=drops)
            for column, name in zip(batch.columns, batch.schema.names, strict=True):
                if (rows := _rows(column)) is not None:
                    pullers[name.lower()].give(rows)
        return {name: puller.end() for name, puller in pullers.items()}
    except BaseException:
        for puller in pullers.values():
            puller.stop()
        raise


def _rows(column: pa.Array) -> pa.RecordBatch | None:
    taken = column.drop_null() if column.null_count else column
    return pa.RecordBatch.from_struct_array(taken) if len(taken) else None


def _check_routed(batch: pa.RecordBatch, *, drops: bool) -> None:
    if drops or not batch.num_rows or not all(column.null_count for column in batch.columns):
        return
    nulls = [column.is_null().to_numpy(zero_copy_only=False) for column in batch.columns]
    if missed := int(np.logical_and.reduce(nulls).sum()):
        raise SchemaError(
            f"{FORMAT}: {missed} of {batch.num_rows} rows have no route: their column of each "
            "route is null. Add a route that accepts the remaining rows, or set 'unrouted' = "
            "'drop'. The query repeats this batch until then; it may continue with its "
            "checkpoint"
        )


class _StoppedError(SinkError):
    """The task has failed elsewhere: what this route has written is to be undone."""


class _Puller:
    """A sink's `stage`, in a thread that runs while it has been given something, and only then."""

    def __init__(self, name: str, stage: _Stage) -> None:
        self._stage = stage
        self._turn, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._next: pa.RecordBatch | None = None
        self._is_stopped = self._is_over = False
        self._staged: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"route {name}", daemon=True)

    def give(self, batch: pa.RecordBatch) -> None:
        """Have it take a batch; return when it asks for the next one."""
        self._next = batch
        self._go_on()
        if self._error is not None:
            raise self._error

    def end(self) -> Any:
        """Have it come to its end; what it has staged."""
        self._go_on()
        if self._error is not None:
            raise self._error
        return self._staged

    def stop(self) -> None:
        """Have it fail, if it has begun and not ended."""
        self._is_stopped = True
        if self._thread.ident is not None:
            self._go_on()

    def _go_on(self) -> None:
        if self._is_over:
            return
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._turn.release()
        self._back.acquire()

    def _run(self) -> None:
        try:
            self._staged = self._stage(self._pulled())
        except BaseException as error:  # noqa: BLE001  raised where the rows come from
            self._error = error
        finally:
            self._is_over = True
            self._back.release()

    def _pulled(self) -> Iterator[pa.RecordBatch]:
        while self._next is not None:
            batch, self._next = self._next, None
            yield batch
            del batch
            self._back.release()
            self._turn.acquire()
            if self._is_stopped:
                raise _StoppedError("another route has failed")
