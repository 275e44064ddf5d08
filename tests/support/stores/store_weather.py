"""A store in trouble: a proxy in front of it answers what the store itself would say then."""

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from krishiv_spark.storage import StoreUrl
from servers.forwarding import Message, forwarding
from servers.stores import Store


def make_refusal(status: int, code: str) -> Message:
    """An answer as those of S3, Azure and Google's XML interface are."""
    body = f"<Error><Code>{code}</Code><Message>as a test wants it</Message></Error>"
    headers = {"Content-Type": "application/xml", "x-ms-error-code": code}
    return Message(headers, body.encode(), status=status)


BUSY = {
    "s3": (
        make_refusal(503, "SlowDown"),
        make_refusal(500, "InternalError"),
        make_refusal(429, "SlowDown"),
    ),
    "gcs": (make_refusal(503, "ServiceUnavailable"), make_refusal(429, "SlowDown")),
    "azure": (make_refusal(503, "ServerBusy"), make_refusal(500, "InternalError")),
    "hdfs": (make_refusal(503, "ServiceUnavailable"), make_refusal(429, "TooManyRequests")),
}
EXPIRED = {
    "s3": make_refusal(400, "ExpiredToken"),
    "gcs": make_refusal(401, "AuthenticationRequired"),
    "azure": make_refusal(403, "AuthenticationFailed"),
    "hdfs": make_refusal(401, "Unauthorized"),
}


@dataclass
class Weather:
    """The faults of a store's answers. They can be changed at any time.

    Attributes:
        kind: The kind of the store.
        one_in: The store is busy at one in so many requests; 0 for never. It executes half of those
            nevertheless.
        expired_from: Number of the request, from 1, with which the credentials expire.
        refused: Number of refused requests, by the text of the refusal.
        asked: Number of requests.
    """

    kind: str
    one_in: int = 0
    expired_from: int | None = None

    def __post_init__(self) -> None:
        self.refused: Counter[str] = Counter()
        self.asked = 0
        self._busy_until_s = 0.0
        self._lock = threading.Lock()
        seed = random.randrange(2**32)
        print(f"seed {seed}")
        self._random = random.Random(seed)

    def be_busy(self, seconds: float) -> None:
        """Refuse everything for a while."""
        self._busy_until_s = time.monotonic() + seconds

    def renew(self) -> None:
        """The credentials are good again."""
        self.expired_from = None

    def request(self, asked: Message) -> Message:
        with self._lock:
            self.asked += 1
            if self.expired_from is not None and self.asked >= self.expired_from:
                return self._said("expired", EXPIRED[self.kind])
            if time.monotonic() < self._busy_until_s or self._is_turn(2 * self.one_in):
                return self._said("busy", self._random.choice(BUSY[self.kind]))
        return asked

    def answer(self, found: Message) -> Message:
        with self._lock:
            if found.status < 500 and self._is_turn(2 * self.one_in):
                return self._said("done, busy", BUSY[self.kind][0])
        return found

    def _is_turn(self, one_in: int) -> bool:
        return one_in > 0 and self._random.randrange(one_in) == 0

    def _said(self, what: str, answer: Message) -> Message:
        self.refused[what] += 1
        return answer


@contextlib.contextmanager
def in_weather(store: Store, **given: object) -> Iterator[tuple[Store, Weather]]:
    """The store behind a proxy, for our options; Spark's own client goes there as it did."""
    kind = StoreUrl.parse(store.url).kind
    weather, name = Weather(kind, **given), f"storage.{kind}.endpoint"
    before = urlsplit(store.options[name])
    with forwarding(f"http://{before.netloc}", weather.request, weather.answer) as proxy:
        yield replace(store, options={**store.options, name: proxy + before.path}), weather
