"""The requests that reach a bucket, counted by a proxy before it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from servers.forwarding import Message, forwarding

__all__ = ["BEGIN", "COMPLETE", "LIST", "PART", "Counted", "Request", "counting"]

LIST, PART = "LIST", "PUT of a part"
BEGIN, COMPLETE = "POST that begins an upload", "POST that completes an upload"
_OF_UPLOADS = {"GET": "LIST of uploads", "POST": BEGIN}
_OF_AN_UPLOAD = {
    "GET": "LIST of parts",
    "PUT": PART,
    "POST": COMPLETE,
    "DELETE": "DELETE of an upload",
}


@dataclass(frozen=True)
class Request:
    """One that reached the bucket.

    Attributes:
        method: Of HTTP.
        key: Of an object; empty for a listing.
        query: What the URL says besides.
        body: What was sent.
        received: Bytes of the answer's body.
    """

    method: str
    key: str
    query: dict[str, str]
    body: bytes
    received: int

    @property
    def kind(self) -> str:
        """Return the kind of request that S3 bills, and the verb of a multipart upload."""
        if "uploads" in self.query:
            return _OF_UPLOADS[self.method]
        if "uploadId" in self.query:
            return _OF_AN_UPLOAD[self.method]
        if "delete" in self.query:
            return "POST that deletes"
        return self.method if self.key else LIST


@dataclass
class Counted:
    """The requests that have reached a bucket since the last `take`.

    Attributes:
        endpoint: The proxy's URL.
    """

    endpoint: str = ""
    _seen: list[Request] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, asked: Message, answered: Message) -> None:
        """Take a request into account."""
        url = urlsplit(asked.path)
        _, _, key = unquote(url.path).lstrip("/").partition("/")
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        found = Request(asked.method, key, query, asked.body, len(answered.body))
        with self._lock:
            self._seen.append(found)

    def take(self) -> list[Request]:
        """Return the requests, in the order in which they were answered."""
        with self._lock:
            seen, self._seen = self._seen, []
        return seen


@contextmanager
def counting(server: str) -> Iterator[Counted]:
    """Start a proxy before a server of S3, by its URL."""
    counted = Counted()
    with forwarding(server, told=counted.note) as counted.endpoint:
        yield counted
