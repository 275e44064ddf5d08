"""Cutting a file into parts, which are sent beside the writer. Executor."""

from __future__ import annotations

import time
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from krishiv_spark.storage.uploads import Upload

__all__ = ["PartSender", "PartsUpload", "part_size"]

_FIRST_PART = 8 * 2**20
_GROWTH = 110_000
"""With it, 10 000 parts, which is S3's limit, hold 5.5 TB; a file of 1 GB has 90."""

_THREADS = 2


def part_size(number: int) -> int:
    """Bytes of a part by its number, from 0: no less than S3's 5 MiB, no more than its 5 GiB."""
    return _FIRST_PART + number * _GROWTH


class PartSender(Protocol):
    """One upload, in the language of a store."""

    def begin(self, nonce: str) -> str:
        """Begin it, and return its id; what becomes visible bears the nonce."""
        ...

    def send(self, number: int, data: bytes) -> str:
        """Send a part, by its number from 0, and return what `Upload.parts` says of it."""
        ...

    def discard(self) -> None:
        """See `krishiv_spark.storage.uploads.Uploads.discard`."""
        ...


class PartsUpload:
    """A file that is sent in parts. See `krishiv_spark.storage.uploads.OpenUpload`.

    In memory are the part that fills, and the two that are on their way.

    Args:
        key: See `Upload`.
        sender: Sends the parts.
    """

    def __init__(self, key: str, sender: PartSender) -> None:
        self.closed = False
        self._key = key
        self._sender = sender
        self._nonce = uuid.uuid4().hex
        self._id: str | None = None
        self._begun_ms = 0
        self._size = 0
        self._part = bytearray()
        self._sent: list[Future[str]] = []
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="krishiv-parts")

    def write(self, data: bytes) -> int:
        """See `OpenUpload`."""
        size = memoryview(data).nbytes
        self._part += data
        self._size += size
        while len(self._part) >= (full := part_size(len(self._sent))):
            self._send(bytes(self._part[:full]))
            del self._part[:full]
        return size

    def tell(self) -> int:
        """See `OpenUpload`."""
        return self._size

    def flush(self) -> None:
        """See `OpenUpload`."""

    def close(self) -> Upload:
        """See `OpenUpload`."""
        self.closed = True
        if self._part or not self._sent:  # an empty file has one part, too
            self._send(bytes(self._part))
            self._part.clear()
        parts = tuple(sent.result() for sent in self._sent)
        self._threads.shutdown()
        return Upload(
            key=self._key,
            id=self._id or "",
            parts=parts,
            size=self._size,
            nonce=self._nonce,
            begun_ms=self._begun_ms,
        )

    def drop(self) -> None:
        """See `OpenUpload`. Only then: a part that arrives after the abort would stay."""
        self.closed = True
        self._threads.shutdown(cancel_futures=True)
        if self._id is not None:
            self._sender.discard()

    def _send(self, data: bytes) -> None:
        if self._id is None:
            self._begun_ms = time.time_ns() // 1_000_000
            self._id = self._sender.begin(self._nonce)
        number = len(self._sent)
        if number >= _THREADS:
            self._sent[number - _THREADS].result()  # as many are on their way, and no more
        self._sent.append(self._threads.submit(self._sender.send, number, data))
