"""A checkpoint for another source that goes on where the old one stopped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from krishiv_spark.errors import OptionError
from krishiv_spark.operate.inspection.positions import in_words
from krishiv_spark.operate.moving.boundaries import Boundary, Newest, boundary_to_move
from krishiv_spark.operate.moving.copying import Copying
from krishiv_spark.operate.moving.translations import Translation
from krishiv_spark.operate.moving.writing import NewCheckpoint
from krishiv_spark.spark.checkpoint import SparkCheckpoint
from krishiv_spark.spark.offset_log import OffsetSeq

__all__ = ["Translating"]

_NOTHING_YET = "-"
"""In the offset log, of a source that has no offset yet (``SERIALIZED_VOID_OFFSET``)."""


@dataclass(frozen=True)
class Translating:
    """One query's position for another query, with its epochs' numbers, state and watermark.

    Attributes:
        old: The checkpoint of the query that was stopped.
        translation: Of its sources' offsets; what does not fit stays as it is.
        newest: See `boundary_to_move`.
    """

    old: SparkCheckpoint
    translation: Translation
    newest: Newest | None = None

    @cached_property
    def boundary(self) -> Boundary:
        """Where the old query was stopped.

        Raises:
            OptionError: As `boundary_to_move`.
        """
        return boundary_to_move(self.old, self.newest)

    @cached_property
    def sources(self) -> Mapping[str, str]:
        """The offsets that are translated, by name or place.

        Raises:
            OptionError: If there is none.
        """
        offsets = self.boundary.sources
        found = {name: text for name, text in offsets.items() if self.translation.fits(text)}
        if not found:
            has = "; ".join(f"source {name}: {in_words(text)}" for name, text in offsets.items())
            raise OptionError(
                f"no source in {self.old.location} is {self.translation.of}; there is {has}"
            )
        return found

    def lines(self) -> list[str]:
        """Where the query stands, source by source; changes nothing.

        Raises:
            KrishivError: If a position cannot be translated.
        """
        epoch = self.boundary.epoch
        found = [line for each in self.sources.items() for line in self.translation.lines(*each)]
        return [f"the old query stands at the end of epoch {epoch}", *found]

    def check(self, new: SparkCheckpoint) -> int:
        """Whether it can be done; changes nothing. See `Copying.check`."""
        return self._copying(new, self.boundary).check()

    def run(self, new: SparkCheckpoint) -> NewCheckpoint:
        """Make the checkpoint. The old one is not touched.

        Raises:
            KrishivError: As `lines` and `Copying.run`.
        """
        self.check(new)
        changes = {epoch: self._translated(text) for epoch, text in self.boundary.offsets.items()}
        return self._copying(new, self.boundary.with_sources(changes)).run()

    def _translated(self, entry: str) -> dict[str, str]:
        offsets = OffsetSeq.parse(entry).sources
        return {
            name: self.translation.offset(name, offsets[name])
            for name in self.sources
            if offsets.get(name, _NOTHING_YET) != _NOTHING_YET
        }

    def _copying(self, new: SparkCheckpoint, boundary: Boundary) -> Copying:
        # Neither earlier epochs nor what the old sources remember: both are of their form.
        return Copying(
            self.old, new, boundary, without=tuple(self.sources), keeps=False, verb="import"
        )
