"""The seams between production code and the simulation: all names that are replaced.

Only the meaning of these names changes; the simulated code itself is unchanged.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, MutableMapping
from typing import Any
from unittest import mock

from krishiv_spark.kafka import client, requests, transaction_requests, transactions
from krishiv_spark.kafka.records import warm_up
from krishiv_spark.lifecycle import epoch_write, identities
from krishiv_spark.offsets import entries, journal
from krishiv_spark.runtime import retry
from krishiv_spark.sinks import base as sinks_base
from krishiv_spark.sinks import logged, logged_writer
from krishiv_spark.sinks.kafka import row_records
from krishiv_spark.sinks.kafka import task as tasks
from krishiv_spark.spark.checkpoint import SparkCheckpoint
from simulation.clock import FakeOs, FakeTime, FakeUuid
from simulation.cluster.network import SimulatedTransport
from simulation.present import get_present_play

__all__ = ["installed", "use_highest_epoch"]


class _Context:
    """In place of ``TaskContext``: of the task whose turn it is."""

    @staticmethod
    def get() -> Any:
        return get_present_play().world.current.context


class _Clients(MutableMapping[Any, Any]):
    """In place of the clients of a process: of the one whose turn it is."""

    @property
    def _mine(self) -> dict[Any, Any]:
        found: dict[Any, Any] = get_present_play().world.current.process.memory.setdefault(
            "clients", {}
        )
        return found

    def __getitem__(self, key: Any) -> Any:
        return self._mine[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._mine[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._mine[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._mine)

    def __len__(self) -> int:
        return len(self._mine)


def _sleep(seconds: float) -> None:
    get_present_play().world.sleep(seconds)


def _number() -> int:
    return get_present_play().world.new_number()


def _checkpoint_folder(checkpoint: SparkCheckpoint, name: str = "") -> _CheckpointFolder:
    return _CheckpointFolder(checkpoint, name)  # a class is no method of another


class _CheckpointFolder:
    """In place of a folder of the checkpoint's store."""

    def __init__(self, checkpoint: SparkCheckpoint, name: str) -> None:
        self._path = f"{checkpoint.location}/{name}"

    def read(self, name: str) -> bytes | None:
        return get_present_play().checkpoint.read(f"{self._path}/{name}")

    def names(self) -> dict[str, str]:
        # Without versions: what a process has seen before would outlive the history.
        return dict.fromkeys(get_present_play().checkpoint.names(self._path), "")


TIME = FakeTime(lambda: get_present_play().world.clock, _sleep)
UUID = FakeUuid(_number)
OS = FakeOs(lambda: get_present_play().world.current.process.number)

_SEAMS: list[tuple[Any, str, Any]] = [
    (entries, "time", TIME),
    (entries, "uuid", UUID),
    (entries, "os", OS),
    (journal, "uuid", UUID),
    (sinks_base, "uuid", UUID),
    (identities, "uuid", UUID),
    (epoch_write, "TaskContext", _Context),
    (epoch_write, "tune_worker", lambda: None),
    (logged, "application", lambda: get_present_play().world.current.process.application),
    (client, "_clients", _Clients()),
    (client, "Transport", SimulatedTransport),
    (client, "os", OS),
    (client, "time", TIME),
    (requests, "time", TIME),
    (
        transaction_requests,
        "_NAMES",
        24,
    ),  # enough for four coordinators, and much less work than 512
    (transactions, "_LAST_EPOCH", 2**15 - 2),
    (retry, "time", TIME),
    (retry, "_add_jitter", lambda pause_s: pause_s),  # a seed tells one story
    (row_records, "time", TIME),
    (tasks, "warm_ahead", lambda: None),
    (tasks, "await_warm", lambda: None),
    (
        logged_writer,
        "open_log",
        lambda _, query=None, *_storage: get_present_play().open_log(query),
    ),
    (SparkCheckpoint, "folder", _checkpoint_folder),
]


def use_highest_epoch(top: int) -> None:
    """Producer epochs end here; the last one but this is the last that is given away."""
    transactions._LAST_EPOCH = top - 1


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Production code is simulated as long as this lasts."""
    warm_up()
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # what it logs is a part of no history
    with contextlib.ExitStack() as stack:
        for module, name, value in _SEAMS:
            stack.enter_context(mock.patch.object(module, name, value))
        yield
    logging.disable(before)
