"""What the epoch logs of a table in a store tell of its epochs.

A store has no folder whose absence says that an epoch is wholly visible. Whoever makes it visible
leaves a mark when all is done; without one its files say it, and what they take the place of.
"""

from __future__ import annotations

from dataclasses import dataclass

from krishiv_spark.errors import LogError
from krishiv_spark.offsets import State
from krishiv_spark.offsets.entries import Entry
from krishiv_spark.parquet.identity import read_text
from krishiv_spark.parquet.layout import META
from krishiv_spark.parquet.progress import QueryLog
from krishiv_spark.storage import Folder, Storage, StoreUrl

__all__ = ["StoreTableLog"]

_FINISHED = "finished"
"""In the folder of a query: the generation whose intent was made wholly visible last."""

_MOST_DIGITS = 20
"""Of the number of an entry, and so of a generation."""

_whole: dict[tuple[StoreUrl, str], Entry] = {}
"""By table and query, the newest intent that this process has seen wholly visible."""


@dataclass(frozen=True)
class StoreTableLog(QueryLog):
    """The epoch log that one query keeps in a table's folder in a store.

    Attributes:
        table: Folder of the table.
        query: Whose log it is.
        storage: How the store is reached.
        epoch_logs: As for `QueryLog`.
    """

    table: StoreUrl
    query: str
    storage: Storage
    epoch_logs: tuple[str, ...] = ()

    @property
    def table_url(self) -> StoreUrl:
        """See `QueryLog`."""
        return self.table

    @property
    def own(self) -> Folder:
        """See `QueryLog`."""
        return self.storage.folder(self.table / META / self.query)

    def is_finished(self, generation: int) -> bool:
        """Whether there is a mark that all is visible that a generation's intent names."""
        finished = self.finished_generation()
        return finished is not None and finished >= generation

    def finished_generation(self) -> int | None:
        """Return the generation that was marked as finished last; None without a mark. A request.

        Raises:
            LogError: If the mark is damaged.
        """
        mark = read_text(self.own, _FINISHED)
        if mark is None:
            return None
        if not mark.isdecimal() or len(mark) > _MOST_DIGITS:
            raise LogError(
                f"{self.own}/{_FINISHED} is damaged, or was not written by krishiv-spark: "
                f"{mark[:_MOST_DIGITS]!r} is not the number of a generation. Nothing was "
                "changed. If all files of the newest epoch exist, remove it"
            )
        return int(mark)

    def mark_finished(self, generation: int) -> None:
        """Say that all is visible that a generation's intent names. Driver."""
        self.own.replace(_FINISHED, str(generation).encode())

    def forget_mark_from(self, generation: int) -> None:
        """Remove a mark that is of another log, since this generation is the newest. Planner."""
        if self.is_finished(generation):
            self.own.remove([_FINISHED])

    def near_state(self) -> State | None:
        """See `QueryLog`. A reader may look into its own bucket."""
        if not self.is_followed:
            return None
        state = self.log.state()
        return state if state.owner else None

    def unfinished(self, state: State) -> bool:
        """See `QueryLog`."""
        intent, key = state.intent, (self.table, self.query)
        is_told = (state.finished_intent or 0) >= state.intent_number
        if intent is None or is_told or _whole.get(key) == intent:
            return False
        is_whole = self.is_finished(state.intent_generation) or self._is_visible(intent)
        if is_whole:
            _whole[key] = intent
        return not is_whole

    def _is_visible(self, intent: Entry) -> bool:
        there = all(self._are_there(self.files_of(intent)))
        return there and not any(self._are_there(self.removed_by(intent)))

    def _are_there(self, names: set[str]) -> list[bool]:
        files = self.storage.files(self.table)
        paths = [f"{self.table}/{name}" for name in sorted(names)]
        return [found is not None for found in files.map(files.identity, paths)]

    def uploads_of(self, intent: Entry) -> set[str]:
        """The ids of the uploads that an intent names.

        Raises:
            LogError: As `files_of`.
        """
        with self._refusing_damage(intent):
            return {
                str(file["upload"]["id"])
                for item in self.staged_by(intent)  # see `StagedUploads`
                for file in item.get("files", ())
            }

    def is_staging(self) -> bool:
        """See `QueryLog`. What is staged in a store is not to be seen."""
        return False
