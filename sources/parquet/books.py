"""What a position stands for: in the offset while it is small, in files of its stream otherwise."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from krishiv_spark.errors import OffsetError, OptionError
from krishiv_spark.offsets import canonical_json
from krishiv_spark.sources.parquet.places import FoundFile
from krishiv_spark.sources.parquet.position import ParquetOffset
from krishiv_spark.sources.parquet.seen import Seen
from krishiv_spark.sources.parquet.skips import FOLDER, Skip, noted_skips
from krishiv_spark.sources.parquet.state import StatePlace, StreamState

__all__ = ["Books", "Bounds", "Reached"]

_log = logging.getLogger(__name__)

_SEEN_WITHOUT_STATE = 32 * 2**10  # characters
_PER_FILE = 64  # characters that a file takes beside its path


@dataclass(frozen=True)
class Bounds:
    """What fits into an offset; all of it is less than 64 KiB of text.

    Spark keeps the start and the end of a hundred batches in the driver's memory, and as many on
    the disk.

    Attributes:
        files: Characters of a batch's files.
        ids: Ids of files; one that is alone in its hour takes 28 characters.
        epochs: Characters of epochs.
    """

    files: int = 20 * 2**10
    ids: int = 768
    epochs: int = 8 * 2**10


@dataclass(frozen=True)
class Reached:
    """What an end of a batch has to say.

    Attributes:
        files: Of the batch.
        seen: With those of the files that are not told by their epoch.
        epochs: See `ParquetOffset`.
        newest: See `ParquetOffset`.
        floor_ns: Files modified before this are too old; None if none is.
    """

    files: Sequence[FoundFile]
    seen: Seen
    epochs: Mapping[str, int]
    newest: int | None
    floor_ns: int | None = None


class Books:
    """Makes offsets, and reads what they name. Driver.

    Args:
        place: Where state is kept.
        bounded: Whether offsets have to be small. That of a batch read is never written down.
        always: Whether a stream has a folder of its own even if its offsets are small.
        bounds: What counts as small.
    """

    def __init__(
        self,
        place: StatePlace,
        *,
        bounded: bool,
        always: bool = False,
        bounds: Bounds | None = None,
    ) -> None:
        self._place = place
        self._bounds = bounds or Bounds()
        self._bounded = bounded
        self._always = always
        self._states: dict[str, StreamState] = {}
        self._noted: dict[str, Skip] = {}

    @cached_property
    def _is_writable(self) -> bool:
        found = self._place.is_writable()
        if not found and self._place.is_asked_for:
            raise OptionError(
                f"krishiv-parquet: 'stateLocation' {self._place.own} cannot be written: permission "
                "denied, or its file system is read-only"
            )
        if not found:
            _log.warning(
                "krishiv-parquet: %s cannot be written. While the list of read files is short, "
                "it is kept in the offsets, and batches are small; set the option "
                "'stateLocation' to a folder for it",
                self._place.own,
            )
        return found

    @property
    def room(self) -> int | None:
        """Characters that the files of a batch may take; None if it does not matter.

        See `cost`. One unit may always be taken.
        """
        return self._bounds.files if self._bounded and not self._is_writable else None

    @staticmethod
    def cost(files: Sequence[FoundFile]) -> int:
        """About how many characters some files take in an offset, and no less than that."""
        return sum(len(canonical_json(file.path)) + _PER_FILE for file in files)

    def state(self, offset: ParquetOffset) -> StreamState | None:
        """The state that an offset belongs to, if it has any."""
        return None if offset.stream is None else self._opened(offset.stream)

    def keep(self, offset: ParquetOffset) -> None:
        """See `StreamState.keep`."""
        state = self.state(offset)
        if state is not None:
            state.keep(offset.state_names)

    def skips(self, offset: ParquetOffset) -> list[Skip]:
        """What tasks have skipped, as far as they could note it."""
        state = self.state(offset)
        if state is None or not self._always:
            return []
        return noted_skips(state.inside(FOLDER), self._noted)

    def _opened(self, stream: str) -> StreamState:
        return self._states.setdefault(stream, StreamState(self._place, stream))

    # --- reading

    def files(self, offset: ParquetOffset) -> tuple[FoundFile, ...]:
        """The files of the batch that ended at an offset.

        Raises:
            OffsetError: If the state that names them is gone.
        """
        if offset.files_in is None:
            return offset.files
        columns = self._needed(offset).read(offset.files_in).to_pydict().values()
        return tuple(map(FoundFile, *columns))

    def seen(self, offset: ParquetOffset) -> Seen:
        """The files that were read; raises like `files`."""
        state = self._needed(offset) if offset.seen_in else None
        return Seen.load(offset.seen, offset.seen_in, state)

    def epochs(self, offset: ParquetOffset) -> Mapping[str, int]:
        """The epochs that were read; raises like `files`."""
        if offset.epochs_in is None:
            return offset.epochs
        keys, epochs = self._needed(offset).read(offset.epochs_in).to_pydict().values()
        return dict(zip(keys, epochs, strict=True))

    def _needed(self, offset: ParquetOffset) -> StreamState:
        state = self.state(offset)
        if state is None:
            raise OffsetError("damaged parquet offset: it names state files, but no 'stream'")
        return state

    # --- writing

    def offset(
        self, start: ParquetOffset, reached: Reached, present: Callable[[], Collection[str]]
    ) -> tuple[ParquetOffset, Seen]:
        """The end of a batch, without its watermark, and the files that were read there.

        What it names is on the disk.

        Args:
            start: Where the batch began.
            reached: What the end has to say.
            present: Paths of the files that are there; see `Seen.stored`.

        Raises:
            OptionError: If it is too much for an offset, and state cannot be kept.
        """
        end = ParquetOffset(
            files=tuple(reached.files),
            seen=reached.seen.recent,
            seen_in=reached.seen.blocks,
            newest=reached.newest,
            epochs=dict(reached.epochs),
            stream=start.stream,
        )
        if not self._bounded:
            return end, reached.seen
        if not self._is_writable:
            self._check_small(end)
            return end, reached.seen
        return self._shortened(end, reached, present)

    def _shortened(
        self,
        end: ParquetOffset,
        reached: Reached,
        present: Callable[[], Collection[str]],
    ) -> tuple[ParquetOffset, Seen]:
        stream, seen = end.stream or secrets.token_hex(8), reached.seen
        # A stream that has no id yet gets one only if something is put there: most never do, and
        # to hold what was made for each of their batches would be a leak.
        state = StreamState(self._place, stream) if end.stream is None else self._opened(stream)
        changes: dict[str, object] = {}
        if self.cost(end.files) > self._bounds.files:
            changes |= {"files": (), "files_in": state.write(_table(FoundFile._fields, end.files))}
        if seen.recent_count > self._bounds.ids:
            seen = seen.stored(state, reached.floor_ns, present)
            changes |= {"seen": seen.recent, "seen_in": seen.blocks}
        if len(canonical_json(end.epochs)) > self._bounds.epochs:
            # In one order, since a file of state is named by its content.
            rows = sorted(end.epochs.items())
            changes |= {"epochs": {}, "epochs_in": state.write(_table(("key", "epoch"), rows))}
        if not changes and not self._always:
            return end, seen
        self._states[stream] = state
        return end.model_copy(update={**changes, "stream": stream}), seen

    def _check_small(self, end: ParquetOffset) -> None:
        if (
            len(canonical_json(end.seen)) > _SEEN_WITHOUT_STATE
            or len(canonical_json(end.epochs)) > self._bounds.epochs
            or self.cost(end.files) > self._bounds.files
        ):
            raise OptionError(
                "krishiv-parquet: there are too many files to remember in an offset, and the "
                "folder of 'path' cannot be written: give the query its own folder with the "
                "option 'stateLocation', such as one next to its checkpoint, and restart it; "
                "nothing is lost"
            )


def _table(names: Sequence[str], rows: Sequence[tuple[object, ...]]) -> pa.Table:
    columns = map(list, zip(*rows, strict=True))
    return pa.table(dict(zip(names, columns, strict=True)))
