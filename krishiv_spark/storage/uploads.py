"""Files that a store holds whole, and that no reader sees before they are completed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from pydantic import BaseModel

from krishiv_spark.storage.paths import NameWithin

__all__ = ["Became", "OpenUpload", "PendingUpload", "Upload", "Uploads"]


class Upload(BaseModel, frozen=True):
    """What any process needs to complete a file, to look it up, or to abort it.

    Attributes:
        key: Where it will be visible, relative to the place of its `Uploads`.
        id: By what the store knows it: S3's upload id, the path of what is written aside; empty for
            Azure, where the key is enough. A store that takes it for a path checks it.
        parts: Of what it consists, in order: S3's ETags, ids of Azure's blocks; else nothing.
        size: Bytes.
        nonce: Random; what is visible bears it, where the store can say so.
        begun_ms: When it was begun, milliseconds since 1970, by the clock of who began it.
    """

    key: NameWithin
    id: str
    parts: tuple[str, ...] = ()
    size: int
    nonce: str
    begun_ms: int


class Became(Enum):
    """What became of an upload."""

    OPEN = "open"
    VISIBLE = "visible"
    GONE = "gone"
    """It was aborted, or it was visible and has been removed since."""


@dataclass(frozen=True)
class PendingUpload:
    """An upload that the store holds and that nobody has completed.

    Attributes:
        upload: Of which size, parts and nonce are not known.
        begun_ms: When, milliseconds since 1970, by the store's clock.
        shown: What it is, for people.
    """

    upload: Upload
    begun_ms: int
    shown: str


class OpenUpload(Protocol):
    """A file of bytes that is being written, as pyarrow takes it. One thread writes."""

    @property
    def closed(self) -> bool:
        """Whether no more bytes are taken."""
        ...

    def write(self, data: bytes) -> int:
        """Append bytes, all of them; holds a few parts in memory.

        Raises:
            StorageError: If the store fails.
            UploadGoneError: If somebody has aborted it meanwhile.
        """
        ...

    def tell(self) -> int:
        """How many bytes were written."""
        ...

    def flush(self) -> None:
        """Do nothing: what is written is sent in parts."""
        ...

    def close(self) -> Upload:
        """Send what is left. The file is durable, and not visible.

        Raises:
            StorageError, UploadGoneError: As `write`.
        """
        ...

    def drop(self) -> None:
        """Give it up, as `Uploads.discard` does; any number of times.

        Raises:
            StorageError: If the store fails.
        """
        ...


class Uploads(Protocol):
    """Uploads to places below one place in a store. Any process, any thread.

    Each verb raises a `StorageError` if the store fails, or refuses.
    """

    def open(self, key: str) -> OpenUpload:
        """Begin an upload. Nothing is asked yet.

        Args:
            key: Relative to the place; nobody else ever uses it.
        """
        ...

    def complete(self, upload: Upload) -> bool:
        """Make a file visible, in one step. By anybody, any number of times, even side by side.

        Returns:
            Whether it is visible; False if the upload is gone, and the file is not there either.
        """
        ...

    def look(self, upload: Upload) -> Became:
        """What became of an upload."""
        ...

    def abort(self, upload: Upload) -> None:
        """Nobody can complete it from now on; one that was completed is left as it is.

        For what an intent names: a driver that was taken over from may be about to complete it.
        """
        ...

    def discard(self, upload: Upload) -> None:
        """Remove what was sent, which nobody is going to complete.

        Where the store cannot do that unseen it is left, and goes some days later.
        """
        ...

    def pending(self) -> Iterator[PendingUpload]:
        """Uploads below the place that nobody has completed, and that can be discarded."""
        ...

    def verify(self) -> None:
        """Begin an upload, list it and abort it, to see whether that is allowed. Planner.

        Raises:
            StorageError: If it is not.
        """
        ...
