"""Checkpoints as Spark writes them, and where a query that is started on one would begin."""

import contextlib
import json
import os
import shutil
from pathlib import Path
from unittest import mock

from krishiv_spark.spark.offset_log import OffsetSeq

QUERY = "0f-1"


def make_checkpoint(folder: Path, epochs, *, over=None, first=0, text=None, state=()):
    """A checkpoint with the epochs up to a number, of which those up to another one are over.

    Args:
        folder: Where.
        epochs: The newest that is planned.
        over: The newest that is over; all are without it.
        first: The oldest that Spark has kept.
        text: The offset of its one source, by epoch.
        state: Paths of stores below `state`, for which there is a change for each version.
    """
    text = text or (lambda epoch: json.dumps({"kind": "memory", "next": epoch + 1, "v": 1}))
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text(json.dumps({"id": QUERY}))
    over = epochs if over is None else over
    for epoch in range(first, epochs + 1):
        conf = json.dumps({"batchWatermarkMs": epoch, "batchTimestampMs": 1357016400123})
        write(folder / "offsets" / str(epoch), "\n".join(["v1", conf, text(epoch)]))
        if epoch <= over:
            write(folder / "commits" / str(epoch), 'v1\n{"nextBatchWatermarkMs":0}')
    for store in state:
        for version in range(1, epochs + 2):
            write(folder / "state" / store / f"{version}.delta", f"{store} {version}")
    return folder


def write(path: Path, text: str) -> None:
    """A file, and Hadoop's checksum beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    (path.parent / f".{path.name}.crc").write_text("crc")


def start(folder: Path):
    """Return the start of Spark (``MicroBatchExecution.populateStartOffsets``).

    Returns:
        ("new",), or ("refused", why), or ("next", epoch, begin), or ("again", epoch, begin, end).
    """
    epochs, over = numbers(folder / "offsets"), numbers(folder / "commits")
    if not epochs:
        return ("new",)
    newest = epochs[-1]
    entry = (folder / "offsets" / str(newest)).read_text()
    if not entry.startswith("v"):
        return ("refused", entry)
    before = folder / "offsets" / str(newest - 1)
    if newest > 0 and not before.exists():
        return ("refused", f"batch {newest - 1} doesn't exist")
    begin = offsets_in(before) if newest > 0 else {}
    end = offsets_in(folder / "offsets" / str(newest))
    if over and over[-1] == newest:
        return ("next", newest + 1, end)
    return ("again", newest, begin, end)


def numbers(folder: Path):
    """The epochs in one of Spark's logs."""
    there = folder.iterdir() if folder.exists() else ()
    return sorted(int(path.name) for path in there if path.name.isdecimal())


def offsets_in(path: Path):
    return OffsetSeq.parse(path.read_text()).sources


def files(folder: Path):
    """Return the files in a folder, by path, without leftovers of Hadoop or a killed process."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }


def copy_afresh(source: Path, target: Path) -> Path:
    """A copy of a folder in the place of what is there."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    return target


class Died(BaseException):
    """The state that a killed process does not get to see."""


def dies_before(step: int, work) -> bool:
    """Do work up to its n-th change of the disk, from 0, and not that, nor any after it.

    What the process would do when it ends (``finally``) does not happen either, as if it was
    killed; to be killed after a change is to be killed before the next one.

    Returns:
        Whether it came so far.
    """
    left = [step]

    def counted(function):
        def call(*args, **named):
            left[0] -= 1
            if left[0] < 0:
                raise Died
            return None if function is SYNC else function(*args, **named)

        return call

    with contextlib.ExitStack() as patches:
        for name in CHANGES:
            patches.enter_context(mock.patch.object(os, name, counted(getattr(os, name))))
        with contextlib.suppress(Died):
            work()
    return left[0] < 0


SYNC = os.fsync  # which a process that dies does not need, and takes the time
CHANGES = ("link", "rename", "replace", "unlink", "mkdir", "rmdir", "fsync", "open", "write")
