"""A checkpoint under a new query id, so that two queries go on side by side."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from krishiv_spark.operate.moving.boundaries import Boundary
from krishiv_spark.operate.moving.state import STATE, check_version, is_later
from krishiv_spark.operate.moving.writing import NewCheckpoint, files_of
from krishiv_spark.spark.checkpoint import SparkCheckpoint

__all__ = ["SOURCES", "Copying"]

SOURCES = "sources"
"""The folder of a checkpoint in which sources of Spark's keep what they remember."""


@dataclass(frozen=True)
class Copying:
    """What goes into a new checkpoint. Any process that reaches both.

    Attributes:
        old: The checkpoint that is copied; its query may run.
        new: Where the copy will be.
        boundary: Where it begins.
        without: Sources whose folders are left out, by name or place.
        keeps: Whether epochs before the boundary are copied too.
        verb: As `NewCheckpoint`.
    """

    old: SparkCheckpoint
    new: SparkCheckpoint
    boundary: Boundary
    without: Collection[str] = ()
    keeps: bool = True
    verb: str = "copy"

    def check(self) -> int:
        """Whether it can be made; changes nothing.

        Returns:
            How many state stores are copied.

        Raises:
            OptionError: If something is at the new place, or state stores cannot be loaded.
        """
        NewCheckpoint(self.new, self.verb).verify_free()
        return check_version(files_of(self.old), self.boundary.state_version, self.old.location)

    def run(self) -> NewCheckpoint:
        """Make it.

        Raises:
            OptionError: As `check`; or if files of state stores were removed meanwhile.
        """
        self.check()
        made = NewCheckpoint(self.new, self.verb)
        made.write(self.boundary, self.old, self._files(), keeps=self.keeps)
        return made

    def _files(self) -> list[str]:
        left_out = tuple(f"{SOURCES}/{name}/" for name in self.without)
        version = self.boundary.state_version
        return [
            path
            for path in files_of(self.old)
            if path.startswith((f"{STATE}/", f"{SOURCES}/")) and not path.startswith(left_out)
            if not is_later(path, version)
        ]
