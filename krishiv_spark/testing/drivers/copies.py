"""Copies that an operator makes of a target or of an epoch log, and puts back later."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import TypeAlias

__all__ = ["PutBack", "back_up_folder"]

PutBack: TypeAlias = Callable[[], None]
"""Puts a copy back, in the place of what is there by then; any number of times."""


def back_up_folder(folder: Path) -> PutBack:
    """Copy a folder; return a function that puts the copy back.

    For `SinkUnderTest.backup`, of a target that is a folder: ``partial(back_up_folder, folder)``.
    """
    copy = Path(mkdtemp(prefix="copy-", dir=_beside(folder))) / "copy"
    if folder.exists():
        shutil.copytree(folder, copy, symlinks=True)
    return partial(_put_back, copy, folder)


def _beside(folder: Path) -> Path:
    """The folder above the target's, so that the copies go with all that the kit has made."""
    return next(above for above in folder.parents if above.exists())


def _put_back(copy: Path, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if copy.exists():
        shutil.copytree(copy, folder, symlinks=True)
