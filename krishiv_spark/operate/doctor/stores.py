"""Whether the places of a query can hold what they have to."""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from pathlib import Path

from krishiv_spark.errors import KrishivError, StorageError
from krishiv_spark.offsets.journal import check_exclusive, open_journal
from krishiv_spark.operate.doctor.findings import SYNCHRONISE, Findings
from krishiv_spark.operate.doctor.questions import Questions
from krishiv_spark.storage import StoreUrl

__all__ = ["check_checkpoint", "check_shared", "clean", "prepare_target"]

_REACH = (
    "give 'storage.…' options (--option), or set the environment on this machine; "
    "docs/storage.md has both"
)
_PROBE = "probe"
_CLOCK = "clock"
_TOLERATED_S = 60  # stores refuse signatures when a clock is 5 to 15 minutes off
_LEAST_FREE = 2**30


def check_checkpoint(asked: Questions, said: Findings) -> None:
    """The driver reaches the checkpoint's place, and creates files there exclusively. Planner."""
    if asked.checkpoint is None:
        return
    what = f"checkpoint {asked.checkpoint}, from the driver"
    with said.looking_at(what, _REACH) as well:
        journal = open_journal(str(asked.folder(asked.checkpoint)), asked.storage)
        check_exclusive(journal)
        well("can be written, and creates files exclusively")
        _check_clock(asked, asked.checkpoint, said)
    _check_path(asked.checkpoint, said)


def _check_clock(asked: Questions, location: str, said: Findings) -> None:
    """The time at which a store says that a file was written is the driver's, to a minute."""
    place = asked.folder(location)
    if place.kind == "disk":
        return
    begun_s = time.time()
    asked.storage.folder(place).replace(_CLOCK, b"")
    ended_s = time.time()
    found = asked.storage.files(place).identity(f"{place}/{_CLOCK}")
    if found is None:
        raise StorageError(f"{place}/{_CLOCK} was written, and is not there")
    written_s = found.modified_ns // 10**9  # what is finer may be no time (`Identity`)
    behind_s, ahead_s = written_s - ended_s, begun_s - written_s - 1
    if max(behind_s, ahead_s) > _TOLERATED_S:
        off = f"{behind_s:.0f} s behind" if behind_s > 0 else f"{ahead_s:.0f} s ahead of"
        said.wrong(f"{location}: the driver's clock is {off} the store's", SYNCHRONISE)


def _check_path(checkpoint: str, said: Findings) -> None:
    """Of a checkpoint on a path: it may be this machine's alone, and full."""
    with suppress(KrishivError, OSError):  # what is wrong with it has been said
        url = StoreUrl.parse(checkpoint)
        if url.kind != "disk":
            return
        said.note(
            f"checkpoint {checkpoint} is a path: a driver that is started again on another machine "
            "finds none there unless the folder is mounted on it",
            "where drivers move (YARN, Kubernetes, --supervise), use a store",
        )
        free = shutil.disk_usage(_existing(Path(url.path))).free
        if free < _LEAST_FREE:
            said.wrong(
                f"checkpoint {checkpoint}: {free >> 20} MiB are free", "make room, or use a store"
            )


def _existing(path: Path) -> Path:
    return next(each for each in (path, *path.parents) if each.exists())


def prepare_target(asked: Questions, said: Findings) -> None:
    """Write a file that each task looks for, and see whether uploads are allowed. Planner."""
    if asked.target is None:
        return
    with said.looking_at(f"target {asked.target}, from the driver", _REACH) as well:
        place = asked.folder(asked.target)
        asked.storage.folder(place).replace(_PROBE, asked.probe.encode())
        if place.kind != "disk":
            asked.storage.uploads(place).verify()
        well("can be written")
        _check_clock(asked, asked.target, said)


def check_shared(asked: Questions, said: Findings) -> None:
    """A task finds what the driver has written, and can write beside it. Executor."""
    if asked.target is None:
        return
    with said.looking_at(f"target {asked.target}", _REACH) as well:
        folder = asked.storage.folder(asked.folder(asked.target))
        if folder.read(_PROBE) != asked.probe.encode():
            raise StorageError("what the driver has written is not there")
        well("what the driver writes is there")


def clean(asked: Questions) -> None:
    """Remove what was made. Planner; a place that cannot be reached has been spoken of."""
    for place in (asked.checkpoint, asked.target):
        with suppress(KrishivError, OSError):
            if place is not None:
                asked.storage.folder(asked.folder(place)).destroy()
